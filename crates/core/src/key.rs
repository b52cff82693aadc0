//! The identity of a counter, and its hash.
//!
//! Parts are length-prefixed before hashing, so that `(a, b_c)` and `(a_b, c)` are different counters. The
//! hash is xxh3-128 with the store's random seed: stable across versions and machines, so it can be
//! persisted, and not predictable for clients that try to cause collisions.
//!
//! The number of requests is not part of the identity, so a limit keeps its counts when it is raised or
//! lowered. Algorithm and period are part of it, because a state has no meaning for others.
//!
//! A counter with several parts has a hash for each; the hash of the part with label 0 is the counter's
//! own.

use crate::descriptor::Entry;
use crate::quota::Quota;
use crate::rate::Period;
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

/// The bits of a place: so many that hardly two descriptors share one.
const PLACE: u64 = (1 << 48) - 1;
/// The bit of places that have limits per second. It is not set in those of other limits.
const PER_SECOND: u64 = 1 << 47;

/// The hash that finds a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(pub u128);

impl KeyHash {
    /// Hashes with the same place are kept together: all counters of one descriptor, with their parts. The lowest bits:
    /// stores spread keys by the upper ones.
    #[must_use]
    pub const fn place(self) -> u64 {
        self.0 as u64 & PLACE
    }

    /// This hash at another place.
    #[must_use]
    pub const fn placed(self, place: u64) -> KeyHash {
        KeyHash(self.0 & !(PLACE as u128) | (place & PLACE) as u128)
    }

    /// This hash at the place of limits per second, for counters that have these elsewhere.
    #[must_use]
    pub const fn per_second(self) -> KeyHash {
        KeyHash(self.0 | PER_SECOND as u128)
    }

    /// Whether the place is of limits per second.
    #[must_use]
    pub const fn is_per_second(self) -> bool {
        self.0 as u64 & PER_SECOND != 0
    }

    /// The hash of the part of this counter with this label. It has the place of the counter.
    #[must_use]
    pub fn part(self, seed: u64, label: u64) -> KeyHash {
        if label == 0 {
            return self;
        }
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(&self.0.to_le_bytes());
        bytes[16..].copy_from_slice(&label.to_le_bytes());
        KeyHash(xxh3_128_with_seed(&bytes, seed)).placed(self.place())
    }
}

/// What distinguishes a counter from all others.
#[derive(Debug, Clone, Copy)]
pub struct Identity<'a> {
    /// The domain.
    pub domain: &'a str,
    /// The descriptor's entries.
    pub entries: &'a [Entry],
    /// Entries whose values share counters, in order, each with the text that replaces the value.
    pub shared: &'a [(usize, &'a str)],
    /// The rate.
    pub quota: &'a Quota,
    /// Distinguishes the limit from the others of its rule.
    pub label: &'a str,
}

/// Hashes identities. Reuses its buffer, so that a request with many descriptors allocates once.
#[derive(Debug, Default)]
pub struct CounterKey {
    bytes: Vec<u8>,
}

impl CounterKey {
    /// A hasher with an empty buffer.
    #[must_use]
    pub const fn new() -> Self {
        CounterKey { bytes: Vec::new() }
    }

    /// The hash of the counter of this identity, at the place of its descriptor: all limits of a descriptor have the
    /// same.
    pub fn hash(&mut self, seed: u64, of: &Identity<'_>) -> KeyHash {
        self.bytes.clear();
        self.bytes.push(of.quota.algorithm_tag());
        let (unit, length) = match of.quota.period() {
            Period::Span(span) => (0, span.as_nanos()),
            Period::Months(months) => (1, u64::from(months)),
        };
        self.bytes.push(unit);
        self.bytes.extend_from_slice(&length.to_le_bytes());
        self.part(of.label);
        // What follows is the same for all limits of the descriptor.
        let start = self.bytes.len();
        self.part(of.domain);
        let mut shared = of.shared.iter().peekable();
        for (index, entry) in of.entries.iter().enumerate() {
            self.part(&entry.key);
            match shared.next_if(|(at, _)| *at == index) {
                None => self.part(&entry.value),
                Some((_, pattern)) => {
                    // No value has this length, so no client can send this.
                    self.bytes.extend_from_slice(&u64::MAX.to_le_bytes());
                    self.part(pattern);
                }
            }
        }
        let descriptor = self.bytes.get(start..).unwrap_or_default();
        let place = xxh3_64_with_seed(descriptor, seed) & !PER_SECOND;
        KeyHash(xxh3_128_with_seed(&self.bytes, seed)).placed(place)
    }

    #[inline]
    fn part(&mut self, part: &str) {
        self.bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
        self.bytes.extend_from_slice(part.as_bytes());
    }
}

/// A hash to shorten long texts. Not for keys, because it has no secret seed.
#[must_use]
pub fn fingerprint(bytes: &[u8]) -> u128 {
    xxh3_128_with_seed(bytes, 0)
}
