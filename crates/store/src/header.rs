//! The header of the counter file: what the file is, and the geometry of everything behind it.
//!
//! Owns the encoding (docs/store-format.md, "Header") and the judgement of a header that somebody
//! else wrote. Pure: bytes in, bytes or an error out. Never repairs a header.

use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use crate::error::OpenError;
use crate::node::NODE_WORDS;
use crate::region::WORD_BYTES;

/// A page, so that chains (2 KiB) start on a page and none crosses from one page into another.
pub(crate) const HEADER_BYTES: usize = 4096;
/// Nodes of a chain. The keys of a chain are a Poisson count N with a mean of 16 x use, and a new key
/// finds no place if N >= 16 already: 1 in 5 at 80 % use, 1 in 120 at 50 %, 1 in 200,000 at 25 %.
pub(crate) const CHAIN_NODES: u64 = 16;
/// The largest capacity: 2^32 nodes are a file of 512 GiB.
pub(crate) const CAPACITY_MAX: u64 = 1 << 32;

const MAGIC: [u8; 8] = *b"TIDEGATE";
const FORMAT_VERSION: u64 = 1;
const NODE_BYTES: u64 = NODE_WORDS as u64 * WORD_BYTES;
const CHAIN_BYTES: u64 = CHAIN_NODES * NODE_BYTES;
const CHAIN_COUNT_MAX: u64 = CAPACITY_MAX / CHAIN_NODES;

/// Word indexes of the header's fields; the words between `SEED` and `CHECKSUM` are zero.
const VERSION: usize = 1;
const NODE_SIZE: usize = 2;
const CHAIN_LENGTH: usize = 3;
const CHAIN_COUNT: usize = 4;
const SEED: usize = 5;
const CHECKSUM: usize = HEADER_BYTES / WORD_BYTES as usize - 1;

const _: () = assert!(NODE_BYTES == 128);
const _: () = assert!((HEADER_BYTES as u64).is_multiple_of(CHAIN_BYTES));
const _: () = assert!(SEED < CHECKSUM);

/// What a header says that is not the same in every file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// From 1 to [`CHAIN_COUNT_MAX`].
    pub(crate) chain_count: u64,
    pub(crate) seed: u64,
}

impl Header {
    /// The header of a file with at least `capacity` nodes, which is at most [`CAPACITY_MAX`].
    pub(crate) const fn new(capacity: u64, seed: u64) -> Self {
        Self { chain_count: capacity.div_ceil(CHAIN_NODES), seed }
    }

    /// The number of nodes.
    pub(crate) const fn capacity(&self) -> u64 {
        self.chain_count * CHAIN_NODES
    }

    /// The length of the whole file.
    pub(crate) const fn file_bytes(&self) -> u64 {
        HEADER_BYTES as u64 + self.chain_count * CHAIN_BYTES
    }

    /// The number of words of the whole file.
    pub(crate) const fn file_words(&self) -> usize {
        (self.file_bytes() / WORD_BYTES) as usize
    }

    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
        let (words, _) = bytes.as_chunks_mut::<8>();
        words[VERSION] = FORMAT_VERSION.to_le_bytes();
        words[NODE_SIZE] = NODE_BYTES.to_le_bytes();
        words[CHAIN_LENGTH] = CHAIN_NODES.to_le_bytes();
        words[CHAIN_COUNT] = self.chain_count.to_le_bytes();
        words[SEED] = self.seed.to_le_bytes();
        let checksum = checksum(&bytes);
        let (words, _) = bytes.as_chunks_mut::<8>();
        words[CHECKSUM] = checksum.to_le_bytes();
        bytes
    }

    /// Reads the header of the file at `path`, which only the errors need.
    ///
    /// The version is judged before the checksum: a later format may keep its checksum elsewhere, and
    /// its owner should read that the file is newer, not that it is damaged.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES], path: &Path) -> Result<Self, OpenError> {
        let (words, _) = bytes.as_chunks::<8>();
        let word = |index: usize| u64::from_le_bytes(words[index]);
        let path = || path.to_owned();
        if words[0] != MAGIC {
            return Err(OpenError::Foreign { path: path(), found: words[0], expected: MAGIC });
        }
        if word(VERSION) != FORMAT_VERSION {
            let (found, expected) = (word(VERSION), FORMAT_VERSION);
            return Err(OpenError::FormatVersion { path: path(), found, expected });
        }
        let (found, expected) = (word(CHECKSUM), checksum(bytes));
        if found != expected {
            return Err(OpenError::Checksum { path: path(), found, expected });
        }
        for (what, index, min, max) in [
            ("node size", NODE_SIZE, NODE_BYTES, NODE_BYTES),
            ("chain length", CHAIN_LENGTH, CHAIN_NODES, CHAIN_NODES),
            ("chain count", CHAIN_COUNT, 1, CHAIN_COUNT_MAX),
        ] {
            let found = word(index);
            if !(min..=max).contains(&found) {
                return Err(OpenError::Geometry { path: path(), what, found, min, max });
            }
        }
        Ok(Self { chain_count: word(CHAIN_COUNT), seed: word(SEED) })
    }

    /// The index of the first word of a node.
    ///
    /// Chain and node are in range: otherwise the region refuses the word.
    pub(crate) const fn node_base(chain: u64, node: u64) -> usize {
        HEADER_BYTES / WORD_BYTES as usize + (chain * CHAIN_NODES + node) as usize * NODE_WORDS
    }
}

/// xxh3-64 of everything before the checksum.
fn checksum(bytes: &[u8; HEADER_BYTES]) -> u64 {
    xxh3_64(&bytes[..CHECKSUM * WORD_BYTES as usize])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, OpenError> {
        Header::decode(bytes, Path::new("file"))
    }

    /// A header with other words at some places, and a checksum which fits.
    fn with_words(changes: &[(usize, u64)]) -> [u8; HEADER_BYTES] {
        let mut bytes = Header::new(32, 7).encode();
        for &(index, value) in changes {
            bytes[index * 8..][..8].copy_from_slice(&value.to_le_bytes());
        }
        let checksum = checksum(&bytes);
        bytes[CHECKSUM * 8..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    #[test]
    fn the_layout_is_the_specified_one() {
        let bytes = Header { chain_count: 0x0a0b, seed: 0x1122_3344_5566_7788 }.encode();
        let mut expected = b"TIDEGATE".to_vec();
        for word in [1, 128, 16, 0x0a0b, 0x1122_3344_5566_7788] {
            expected.extend_from_slice(&u64::to_le_bytes(word));
        }
        expected.resize(4088, 0);
        expected.extend_from_slice(&xxh3_64(&expected).to_le_bytes());
        assert_eq!(bytes.to_vec(), expected);
    }

    #[test]
    fn capacity_is_rounded_up_to_whole_chains() {
        for (capacity, chains) in [(1, 1), (16, 1), (17, 2), (CAPACITY_MAX, 1 << 28)] {
            let header = Header::new(capacity, 0);
            assert_eq!(header.chain_count, chains);
            assert_eq!(header.capacity(), chains * 16);
            assert_eq!(header.file_bytes(), 4096 + chains * 2048);
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(capacity in 1..=CAPACITY_MAX, seed: u64) {
            let header = Header::new(capacity, seed);
            prop_assert_eq!(decode(&header.encode()).unwrap(), header);
        }

        #[test]
        fn one_changed_byte_is_refused(at in 0..HEADER_BYTES, change in 1_u8..) {
            let mut bytes = Header::new(1000, 7).encode();
            bytes[at] ^= change;
            prop_assert!(decode(&bytes).is_err());
        }

        #[test]
        fn any_words_are_judged_without_a_panic(
            changes in prop::collection::vec((0..CHECKSUM, any::<u64>()), 0..8),
        ) {
            if let Ok(header) = decode(&with_words(&changes)) {
                prop_assert!((1..=CHAIN_COUNT_MAX).contains(&header.chain_count));
            }
        }
    }
}
