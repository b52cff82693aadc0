//! The hash of the rule maps: xxh3 under a seed of each map's own.
//!
//! The keys of these maps come from configuration, and what is looked up in them from clients. A
//! client that does not know the seed cannot aim at a map's crowded places.

use std::hash::{BuildHasher, Hasher, RandomState};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Makes hashers of one seed, drawn at random for each map.
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

/// Hashes each piece under the hash of those before it.
#[derive(Debug)]
pub(super) struct SeededHasher(u64);

impl Hasher for SeededHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }

    /// Single bytes are what tells two strings apart that follow each other: cheap is enough.
    fn write_u8(&mut self, byte: u8) {
        self.0 = self.0.rotate_left(8) ^ u64::from(byte);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A map under a seed of its own.
pub(super) type Map<K, V> = std::collections::HashMap<K, V, Seeded>;
/// A set under a seed of its own.
pub(super) type Set<K> = std::collections::HashSet<K, Seeded>;
