//! The words of one node, and the check that distinguishes a whole node from a torn one.
//!
//! Owns the encoding (docs/internals/store-format.md, "Key-node"). Works on copies of nodes.

use bytemuck::cast_slice;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::format::StoredKey;

/// Words of a node: the key, the state, and the tail, with the expiry in its high half and the check in its low half.
pub(crate) const ESTIMATE: usize = 0;
pub(crate) const IDENTITY: usize = 1;
pub(crate) const STATE: usize = 2;
pub(crate) const NARROW_WORDS: usize = 7;

#[inline]
pub(crate) const fn key_of(image: &[u64]) -> StoredKey {
    StoredKey { estimate: image[ESTIMATE], identity: image[IDENTITY] }
}

#[inline]
pub(crate) const fn expires_secs(tail: u64) -> u32 {
    (tail >> 32) as u32
}

/// Completes an image that has its key and state: sets expiry and check.
#[inline]
pub(crate) fn seal(image: &mut [u64], expires_secs: u32, seed: u64) {
    let last = image.len() - 1;
    image[last] = u64::from(expires_secs) << 32;
    image[last] |= u64::from(check(image, seed));
}

/// Whether [`seal`] made this image. Accepts any bytes.
#[inline]
pub(crate) fn is_sealed(image: &mut [u64], seed: u64) -> bool {
    let last = image.len() - 1;
    let tail = image[last];
    image[last] = tail & !u64::from(u32::MAX);
    let expected = check(image, seed);
    image[last] = tail;
    tail as u32 == expected
}

/// xxh3-64 with the seed of the cluster, folded to 32 bits. Every bit of the image affects every bit of the
/// check, so a torn node passes once in 2^32.
#[inline]
fn check(image: &[u64], seed: u64) -> u32 {
    let hash = xxh3_64_with_seed(cast_slice(image), seed);
    (hash ^ hash >> 32) as u32
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const SEED: u64 = 9;

    fn sealed() -> [u64; NARROW_WORDS] {
        let mut image = [5 << 60, 5, 1, 2, 3, 4, 0];
        seal(&mut image, 77, SEED);
        assert!(is_sealed(&mut image, SEED));
        image
    }

    #[test]
    fn every_bit_of_a_node_counts_in_its_check() {
        for bit in 0..7 * 64 {
            let mut image = sealed();
            image[bit / 64] ^= 1 << (bit % 64);
            assert!(!is_sealed(&mut image, SEED), "bit {bit}");
        }
        assert!(!is_sealed(&mut sealed(), SEED + 1));
    }
}
