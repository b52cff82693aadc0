//! The identity of a counter, and its hash.
//!
//! Parts are length-prefixed before hashing, so that `(a, b_c)` and `(a_b, c)` are different
//! counters. The hash is xxh3-128 under the store's random seed: stable across versions and
//! machines, so it may be persisted, and out of reach for a client that wants to collide.
//!
//! How many requests a limit allows is not part of the identity: raised or lowered, it keeps its
//! live counts. Its algorithm and period are, since a state means nothing under others.
//!
//! A counter in several parts has a hash for each, of which that of the part labelled 0 is the
//! counter's own.

use crate::descriptor::Entry;
use crate::quota::{Period, Quota};
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// The hash that finds a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(pub u128);

impl KeyHash {
    /// The hash of the part of this counter with this label.
    #[must_use]
    pub fn part(self, seed: u64, label: u64) -> KeyHash {
        if label == 0 {
            return self;
        }
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(&self.0.to_le_bytes());
        bytes[16..].copy_from_slice(&label.to_le_bytes());
        KeyHash(xxh3_128_with_seed(&bytes, seed))
    }
}

/// What makes a counter the one it is.
#[derive(Debug, Clone, Copy)]
pub struct Identity<'a> {
    /// The domain.
    pub domain: &'a str,
    /// The descriptor's entries.
    pub entries: &'a [Entry],
    /// Entries whose values share a counter, with the text that stands for the value; in order.
    pub shared: &'a [(usize, &'a str)],
    /// The rate.
    pub quota: &'a Quota,
    /// The limit's label among those of its rule.
    pub label: &'a str,
}

/// Builds identities; keeps its buffer so that a request of many descriptors allocates once.
#[derive(Debug, Default)]
pub struct CounterKey {
    bytes: Vec<u8>,
}

impl CounterKey {
    /// An empty builder.
    #[must_use]
    pub const fn new() -> Self {
        CounterKey { bytes: Vec::new() }
    }

    /// The hash of the counter of this identity.
    pub fn hash(&mut self, seed: u64, of: &Identity<'_>) -> KeyHash {
        self.bytes.clear();
        self.bytes.push(of.quota.algorithm_tag());
        let (unit, length) = match of.quota.period() {
            Period::Span(span) => (0, span.as_nanos()),
            Period::Months(months) => (1, u64::from(months)),
        };
        self.bytes.push(unit);
        self.bytes.extend_from_slice(&length.to_le_bytes());
        self.part(of.domain);
        self.part(of.label);
        let mut shared = of.shared.iter().peekable();
        for (index, entry) in of.entries.iter().enumerate() {
            self.part(&entry.key);
            match shared.next_if(|(at, _)| *at == index) {
                None => self.part(&entry.value),
                Some((_, pattern)) => {
                    // No length is that long, so this is no client's value.
                    self.bytes.extend_from_slice(&u64::MAX.to_le_bytes());
                    self.part(pattern);
                }
            }
        }
        KeyHash(xxh3_128_with_seed(&self.bytes, seed))
    }

    #[inline]
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
