//! Records: what is known of a counter that may have a row, in a node of its own in the store.
//!
//! A record is read and written in the transactions that change its counter, so it is true whatever process is killed when.
//!
//! | record | says |
//! | --- | --- |
//! | none | a row, if there is one, is the truth while the counter is not hot |
//! | `Fetching` | a process has begun to look for a row, with the counter not hot. A later one takes its place |
//! | `Absent` | the counter is not hot, and has no row |
//! | `Fetched` | rows that moved down up to then are stale |
//!
//! Owns their place and encoding.

use tidegate_core::KeyHash;
use tidegate_store::{Class, Hashed};

/// Labels that no part of a counter has, next to those of leases and holdings.
const NARROW: u64 = 3 << 62 | 5;
const WIDE: u64 = 3 << 62 | 6;
/// The upper half of the first word.
const MAGIC: u64 = 0x7469_6572 << 32;
const WORDS: usize = 4;
/// In place of a version: every row of the counter is stale. None of them could be read.
pub(crate) const ALL_ROWS: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Record {
    Fetching {
        /// A random number of the fetch.
        token: u64,
    },
    Absent,
    Fetched {
        /// The second at which the latest stale row moved down.
        moved_at: u32,
        /// The snapshot pass before it, modulo 2^32.
        pass: u32,
    },
}

/// The key of the record of a counter.
#[inline]
pub(crate) fn record_key(seed: u64, counter: &Hashed) -> Hashed {
    let label = match counter.class {
        Class::Narrow => NARROW,
        Class::Wide => WIDE,
    };
    Hashed::narrow(KeyHash(counter.hash).part(seed, label).0)
}

impl Record {
    /// The record in a state, and its counter.
    pub(crate) fn read(state: &[u64]) -> Option<(Hashed, Record)> {
        let [first, high, low, value]: &[u64; WORDS] = state.first_chunk()?;
        let hash = u128::from(*high) << 64 | u128::from(*low);
        let counter = match first >> 8 & 0xff {
            0 => Hashed::narrow(hash),
            1 => Hashed::wide(hash),
            _ => return None,
        };
        let record = match first & !0xff00 ^ MAGIC {
            1 => Record::Fetching { token: *value },
            2 => Record::Absent,
            3 => Record::Fetched { moved_at: (value >> 32) as u32, pass: *value as u32 },
            _ => return None,
        };
        Some((counter, record))
    }

    /// The counter and the record of a node with this key and state. None if the node is no record.
    pub(crate) fn of_node(seed: u64, key: &Hashed, state: &[u64]) -> Option<(Hashed, Record)> {
        Record::read(state).filter(|(counter, _)| record_key(seed, counter) == *key)
    }

    pub(crate) fn write(self, counter: &Hashed, state: &mut [u64]) {
        let Some(words) = state.first_chunk_mut::<WORDS>() else { return };
        let class = match counter.class {
            Class::Narrow => 0,
            Class::Wide => 1 << 8,
        };
        let (kind, value) = match self {
            Record::Fetching { token } => (1, token),
            Record::Absent => (2, 0),
            Record::Fetched { moved_at, pass } => (3, u64::from(moved_at) << 32 | u64::from(pass)),
        };
        *words = [MAGIC | class | kind, (counter.hash >> 64) as u64, counter.hash as u64, value];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn records() -> impl Strategy<Value = Record> {
        prop_oneof![
            any::<u64>().prop_map(|token| Record::Fetching { token }),
            Just(Record::Absent),
            any::<(u32, u32)>().prop_map(|(moved_at, pass)| Record::Fetched { moved_at, pass }),
        ]
    }

    proptest! {
        #[test]
        fn a_record_is_read_as_it_was_written(record in records(), hash: u128, is_wide: bool) {
            let counter = if is_wide { Hashed::wide(hash) } else { Hashed::narrow(hash) };
            let mut state = [9; 4];
            record.write(&counter, &mut state);
            prop_assert_eq!(Record::read(&state), Some((counter, record)));
            prop_assert_eq!(Record::of_node(5, &record_key(5, &counter), &state), Some((counter, record)));
            prop_assert_eq!(Record::of_node(5, &counter, &state), None);
        }

        #[test]
        fn no_other_state_is_a_record(state: [u64; 4], key: u128) {
            prop_assert_eq!(Record::of_node(5, &Hashed::narrow(key), &state), None);
        }
    }

    #[test]
    fn counters_of_both_classes_have_records_of_their_own() {
        assert_ne!(record_key(1, &Hashed::narrow(7)), record_key(1, &Hashed::wide(7)));
        assert_ne!(record_key(1, &Hashed::narrow(7)), record_key(2, &Hashed::narrow(7)));
    }
}
