//! The state of a request between its events. Most requests need none.

use crate::host::StreamId;
use crate::request::descriptors::{Descriptors, LeaseKey};
use crate::worker::replies::LimitStatus;
use crate::worker::reports::Notes;
use crate::worker::settling::Owing;
use std::hash::{BuildHasherDefault, Hasher};

#[derive(Debug)]
pub(crate) enum StreamState {
    /// It is paused: it calls or waits.
    Paused,
    /// It passed by local state about these keys; its response headers use their state at that
    /// time.
    DecidedLocally(LeaseKeys),
    /// The same, where headers depend on the entries of `rate_limits` that the keys come from.
    DecidedByEntry(Vec<(LeaseKey, Option<u8>)>),
    /// It passed by a response with these limits.
    DecidedBySidecar(Vec<LimitStatus>),
    /// One of these, or none, with notes. Few requests have any.
    Noted(Box<Notes>),
    /// Its costs are settled when it ends. It may have another state meanwhile, except this one.
    Owing(Box<Owing>),
}

impl StreamState {
    pub(crate) fn is_paused(&self) -> bool {
        match self {
            StreamState::Paused => true,
            StreamState::Noted(notes) => notes.state.as_ref().is_some_and(StreamState::is_paused),
            StreamState::Owing(owing) => owing.state.as_ref().is_some_and(StreamState::is_paused),
            StreamState::DecidedLocally(_)
            | StreamState::DecidedByEntry(_)
            | StreamState::DecidedBySidecar(_) => false,
        }
    }

    #[cold]
    pub(crate) fn by_entry(descriptors: &Descriptors) -> StreamState {
        let keys = descriptors.iter().enumerate();
        let keys = keys.map(|(index, descriptor)| (descriptor.key, descriptors.origin(index)));
        StreamState::DecidedByEntry(keys.collect())
    }
}

/// The requests of a worker. Envoy chooses the ids, so the hash needs no secret, and runs are
/// repeatable.
pub(crate) type Streams = hashbrown::HashMap<StreamId, StreamState, BuildHasherDefault<IdHasher>>;

/// The keys of a request; a few need no allocation.
#[derive(Debug, Default)]
pub(crate) struct LeaseKeys {
    few: [Option<LeaseKey>; LeaseKeys::FEW],
    more: Vec<LeaseKey>,
}

impl LeaseKeys {
    pub(crate) const FEW: usize = 4;

    pub(crate) fn of(descriptors: &Descriptors) -> LeaseKeys {
        let mut keys = LeaseKeys::default();
        let mut all = descriptors.iter().map(|descriptor| descriptor.key);
        for few in &mut keys.few {
            *few = all.next();
        }
        keys.more.extend(all);
        keys
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = LeaseKey> {
        self.few.iter().flatten().chain(&self.more).copied()
    }
}

/// Spreads small numbers over all bits.
#[derive(Debug, Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        // 2^64 over the golden ratio; the table uses the upper bits and the lower ones.
        let spread = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        spread ^ (spread >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 << 8) ^ (self.0 >> 56) ^ u64::from(*byte);
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = u64::from(number);
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::encoded::encoded;
    use std::collections::BTreeSet;
    use std::hash::Hash;

    fn hash_of(id: u32) -> u64 {
        let mut hasher = IdHasher::default();
        StreamId(id).hash(&mut hasher);
        hasher.finish()
    }

    /// The table takes the group of an id from the lower bits and its tag from the upper seven.
    #[test]
    fn ids_in_sequence_are_spread_over_all_bits() {
        for first in [0, 1 << 20] {
            let hashes: Vec<u64> = (first..first + 1_024).map(hash_of).collect();
            let distinct = |part: fn(u64) -> u64| {
                hashes.iter().copied().map(part).collect::<BTreeSet<u64>>().len()
            };
            assert_eq!((distinct(|hash| hash), distinct(|hash| hash >> 57)), (1_024, 128));
            assert!(distinct(|hash| hash & 0x3ff) > 512);
        }
    }

    #[test]
    fn the_hash_of_bytes_depends_on_each() {
        let state = |bytes: &[u8]| {
            let mut hasher = IdHasher::default();
            hasher.write(bytes);
            hasher.0
        };
        assert_eq!(state(&[1, 2, 3, 4, 5, 6, 7, 8]), 0x0102_0304_0506_0708);
        assert_eq!(state(&[3, 2, 3, 4, 5, 6, 7, 8, 9]), 0x0203_0405_0607_080a);
    }

    #[test]
    fn keys_keep_their_number_and_order() {
        for count in 0..7_u64 {
            let mut descriptors = Descriptors::default();
            for number in 0..count {
                descriptors.append(&encoded(&["k", &number.to_string()]));
                descriptors.finish(7, 1);
            }
            let expected: Vec<LeaseKey> =
                descriptors.iter().map(|descriptor| descriptor.key).collect();
            assert_eq!(LeaseKeys::of(&descriptors).iter().collect::<Vec<_>>(), expected);
        }
    }
}
