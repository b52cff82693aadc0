//! The identity of a counter, and its hash.
//!
//! Parts are length-prefixed before hashing, so that `(a, b_c)` and `(a_b, c)` are different
//! counters. The hash is xxh3-128 under the store's random seed: stable across versions and
//! machines, so it may be persisted, and out of reach for a client that wants to collide.
//!
//! How many requests a limit allows is not part of the identity: raised or lowered, it keeps its
//! live counts. Its algorithm and period are, since a state means nothing under others.

use crate::descriptor::Entry;
use crate::rules::Limit;
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// The hash that finds a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(pub u128);

/// Builds identities; keeps its buffer so that a request of many descriptors allocates once.
#[derive(Debug, Default)]
pub struct CounterKey {
    bytes: Vec<u8>,
}

impl CounterKey {
    /// An empty builder.
    #[must_use]
    pub fn new() -> Self {
        CounterKey::default()
    }

    /// The hash of the counter of `limit` for these entries in `domain`.
    pub fn hash(&mut self, seed: u64, domain: &str, entries: &[Entry], limit: &Limit) -> KeyHash {
        self.bytes.clear();
        self.bytes.push(limit.quota.algorithm_tag());
        self.bytes.extend_from_slice(&limit.quota.period().as_nanos().to_le_bytes());
        self.part(domain);
        self.part(limit.name.as_deref().unwrap_or_default());
        for entry in entries {
            self.part(&entry.key);
            self.part(&entry.value);
        }
        KeyHash(xxh3_128_with_seed(&self.bytes, seed))
    }

    fn part(&mut self, part: &str) {
        self.bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
        self.bytes.extend_from_slice(part.as_bytes());
    }
}

/// A hash for shortening what is too long to carry; not for keys, since it has no secret seed.
#[must_use]
pub fn fingerprint(bytes: &[u8]) -> u128 {
    xxh3_128_with_seed(bytes, 0)
}
