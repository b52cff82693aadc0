//! The hash of the rule maps: xxh3 with a seed for each map.
//!
//! The keys come from the configuration, but lookups come from clients. A client that does not know the
//! seed cannot aim at crowded buckets.

use std::hash::{BuildHasher, Hasher, RandomState};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Builds hashers with one seed, drawn at random for each map.
#[derive(Debug, Clone)]
pub(super) struct Seeded(u64);

impl Default for Seeded {
    fn default() -> Self {
        Seeded(RandomState::new().hash_one(0_u64))
    }
}

impl BuildHasher for Seeded {
    type Hasher = SeededHasher;

    fn build_hasher(&self) -> SeededHasher {
        SeededHasher(self.0)
    }
}

/// Hashes each piece with the hash of the previous pieces as its seed.
#[derive(Debug)]
pub(super) struct SeededHasher(u64);

impl Hasher for SeededHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }

    /// Strings end with a single byte that separates them; a cheap mix is enough for it.
    fn write_u8(&mut self, byte: u8) {
        self.0 = self.0.rotate_left(8) ^ u64::from(byte);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A map with its own seed.
pub(super) type Map<K, V> = std::collections::HashMap<K, V, Seeded>;
/// A set with its own seed.
pub(super) type Set<K> = std::collections::HashSet<K, Seeded>;
