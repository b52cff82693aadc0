//! What callers put in and get out: the key of a counter, and its entry.
//!
//! Keys are hashes which the caller made with the seed of the store; the store never sees what was
//! hashed. Entries are plain words. Nothing here touches the file.

use std::fmt;

/// The 128-bit hash that names a counter.
///
/// Make it with a keyed hash and [`Store::seed`](crate::Store::seed), so that nobody who does not
/// know the seed can aim many keys at one chain. Two things with the same hash share a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(u128);

impl Key {
    /// The key for a hash. Zero marks a free node in the file, so the hash 0 becomes 1.
    #[must_use]
    pub const fn from_hash(hash: u128) -> Self {
        Self(if hash == 0 { 1 } else { hash })
    }

    pub(crate) const fn bits(self) -> u128 {
        self.0
    }

    /// The chain, of `chain_count`, in which this key lives (docs/store-format.md, "Chains").
    ///
    /// Both halves are folded and multiplied (2^64 divided by the golden ratio, made odd), so that
    /// keys which differ only in their low bits still spread; the high half of the second product
    /// scales the result to the chain count without a division.
    pub(crate) fn chain(self, chain_count: u64) -> u64 {
        let [low, high] = halves(self.0);
        let spread = (low ^ high).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let [_, chain] = halves(u128::from(spread) * u128::from(chain_count));
        chain
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The low and the high word of a 128-bit number.
pub(crate) const fn halves(bits: u128) -> [u64; 2] {
    [bits as u64, (bits >> 64) as u64]
}

/// What the store keeps for one key.
///
/// A key that is new or expired has the default entry: every word zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Four words which belong to the caller. All zero means that there is nothing to remember.
    pub state: [u64; 4],
    /// When the entry stops to count, in nanoseconds since the Unix epoch.
    pub expires_at: u64,
}

impl Entry {
    /// Whether the entry no longer counts at `now`; the moment of expiry itself is past.
    pub(crate) const fn is_expired(&self, now: u64) -> bool {
        self.expires_at <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_zero_is_not_a_free_node() {
        assert_eq!(Key::from_hash(0), Key::from_hash(1));
        assert_eq!(Key::from_hash(u128::MAX).bits(), u128::MAX);
    }

    #[test]
    fn a_key_prints_as_its_hash() {
        assert_eq!(Key::from_hash(0xab).to_string(), format!("{:0>32}", "ab"));
    }

    #[test]
    fn chains_are_in_range_and_even() {
        // 64,000 keys over 64 chains: 1,000 each; uniform hashing would stay within +-5 sigma (160).
        let mut counts = [0_u32; 64];
        for hash in 1..=64_000_u128 {
            counts[Key::from_hash(hash).chain(64) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (840..=1160).contains(count)), "{counts:?}");
        assert_eq!(Key::from_hash(u128::MAX).chain(1), 0);
    }
}
