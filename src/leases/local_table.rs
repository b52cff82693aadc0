//! A worker's own table: what it took of the leases, and what it knows of denials. Bounded, and
//! found by key without a host call or an allocation.
//!
//! Set-associative: a key has [`WAYS`] places. The one that is given up for a new key is the one
//! longest unused, first among those without tokens; tokens that it held are handed to the caller.

use super::descriptor_state::DescriptorState;
use super::token_pool::LeaseTokens;
use crate::request::descriptors::LeaseKey;
use tidegate_core::Timestamp;

const WAYS: usize = 8;
const SETS: usize = 256;
/// How many descriptors a worker knows: 2,048, in at most 0.6 MB beside the entries of those that hold
/// tokens.
pub(crate) const CAPACITY: usize = WAYS * SETS;
const _: () =
    assert!(CAPACITY * (size_of::<LocalRecord>() + size_of::<Option<LeaseKey>>()) <= 600_000);

/// What a worker knows of one descriptor.
#[derive(Debug, Clone, Default)]
pub(crate) struct LocalRecord {
    /// Its tokens, denial, limit and own demand. `told.remaining` has the slot's tokens in it.
    pub(crate) state: DescriptorState,
    /// The descriptor's entries, by which tokens are given back; empty unless it has, or had, tokens.
    pub(crate) entries: Box<[u8]>,
    /// When a request last needed it.
    pub(crate) used: Timestamp,
    /// Until when it is known that the sidecar leases nothing of it.
    pub(crate) unleased_until: Timestamp,
    /// Tokens were spent since the last tick.
    pub(crate) spent: bool,
}

/// Tokens that lost their place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReturnableTokens {
    /// Whose they are.
    pub(crate) key: LeaseKey,
    /// The descriptor's entries.
    pub(crate) entries: Box<[u8]>,
    /// The tokens.
    pub(crate) lease: LeaseTokens,
}

/// The table.
#[derive(Debug)]
pub(crate) struct LocalTable {
    /// Apart from what they lead to: looking for a key reads two cache lines.
    keys: Vec<Option<LeaseKey>>,
    records: Vec<LocalRecord>,
    /// A bit for each place that is visited at ticks.
    watched: Vec<u64>,
}

impl LocalTable {
    /// A table without memory: it has none until its first key, since the machine of Envoy's main
    /// thread never gets a request.
    pub(crate) fn new() -> LocalTable {
        LocalTable { keys: Vec::new(), records: Vec::new(), watched: Vec::new() }
    }

    #[cold]
    fn furnish(&mut self) {
        self.keys.resize(CAPACITY, None);
        self.records.resize_with(CAPACITY, LocalRecord::default);
        self.watched.resize(CAPACITY.div_ceil(64), 0);
    }

    /// Where `key` is.
    pub(crate) fn find(&self, key: LeaseKey) -> Option<usize> {
        let first = first_place(key);
        let keys = self.keys.get(first..first.saturating_add(WAYS))?;
        let way = keys.iter().position(|other| *other == Some(key))?;
        Some(first.saturating_add(way))
    }

    /// What is at a place.
    pub(crate) fn get(&self, index: usize) -> Option<&LocalRecord> {
        self.records.get(index)
    }

    /// What is at a place.
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut LocalRecord> {
        self.records.get_mut(index)
    }

    /// What is known of `key`, if it is still at this place.
    pub(crate) fn at(&self, index: usize, key: LeaseKey) -> Option<&LocalRecord> {
        self.keys.get(index).filter(|there| **there == Some(key))?;
        self.records.get(index)
    }

    /// As [`LocalTable::at`], to be changed.
    pub(crate) fn at_mut(&mut self, index: usize, key: LeaseKey) -> Option<&mut LocalRecord> {
        self.keys.get(index).filter(|there| **there == Some(key))?;
        self.records.get_mut(index)
    }

    /// What is known of `key`.
    pub(crate) fn of(&self, key: LeaseKey) -> Option<&LocalRecord> {
        self.records.get(self.find(key)?)
    }

    /// What is known of `key`.
    pub(crate) fn of_mut(&mut self, key: LeaseKey) -> Option<&mut LocalRecord> {
        let index = self.find(key)?;
        self.records.get_mut(index)
    }

    /// The place of `key`, made if need be; and what the one before it there leaves.
    pub(crate) fn find_or_insert(
        &mut self,
        key: LeaseKey,
        now: Timestamp,
    ) -> (usize, Vec<ReturnableTokens>) {
        if let Some(index) = self.find(key) {
            return (index, Vec::new());
        }
        if self.keys.is_empty() {
            self.furnish();
        }
        let first = first_place(key);
        let ways = first..first.saturating_add(WAYS);
        let rank = |index: &usize| {
            let free = self.keys.get(*index).is_some_and(Option::is_none);
            let local = self.records.get(*index);
            let used = local.map(|local| local.used).unwrap_or_default();
            // Visited at ticks are those with tokens, here or in their slot: without a visit they would
            // stay charged until their window ends.
            let holds = local.is_some_and(|local| local.state.pool.left(now) > 0);
            (!free, holds || self.is_watched(*index), used)
        };
        let index = ways.min_by_key(rank).unwrap_or(first);
        let old = self.keys.get_mut(index).and_then(|slot| slot.replace(key));
        let left = self.records.get_mut(index).map(std::mem::take).unwrap_or_default();
        self.watch(index, Watch::No);
        let evicted = old.map(|key| live_leases(key, &left, now)).unwrap_or_default();
        (index, evicted)
    }

    fn is_watched(&self, index: usize) -> bool {
        self.watched.get(index >> 6).is_some_and(|word| (word >> (index & 63)) & 1 == 1)
    }

    /// Has a place visited at ticks, or no longer.
    pub(crate) fn watch(&mut self, index: usize, watch: Watch) {
        let bit = 1_u64 << (index & 63);
        if let Some(word) = self.watched.get_mut(index >> 6) {
            match watch {
                Watch::Yes => *word |= bit,
                Watch::No => *word &= !bit,
            }
        }
    }

    /// How many places are visited at ticks.
    pub(crate) fn watched(&self) -> usize {
        let ones = self.watched.iter().map(|word| word.count_ones());
        usize::try_from(ones.fold(0, u32::saturating_add)).unwrap_or(usize::MAX)
    }

    /// The first place from `place` on that is visited at ticks, and its key.
    pub(crate) fn next_watched(&self, index: usize) -> Option<(usize, LeaseKey)> {
        let mut word_at = index >> 6;
        let mut word = self.watched.get(word_at)? & (u64::MAX << (index & 63));
        while word == 0 {
            word_at = word_at.saturating_add(1);
            word = *self.watched.get(word_at)?;
        }
        let index = (word_at << 6) | usize::try_from(word.trailing_zeros()).ok()?;
        Some((index, self.keys.get(index).copied().flatten()?))
    }
}

/// Whether a place is visited at ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Watch {
    /// It is.
    Yes,
    /// It is not.
    No,
}

fn first_place(key: LeaseKey) -> usize {
    let set = usize::try_from(key.0 & 0xffff).unwrap_or(0) & (SETS - 1);
    set.saturating_mul(WAYS)
}

fn live_leases(key: LeaseKey, local: &LocalRecord, now: Timestamp) -> Vec<ReturnableTokens> {
    let live = local.state.pool.each().filter(|lease| now < lease.ends);
    live.map(|lease| ReturnableTokens { key, entries: local.entries.clone(), lease }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Timestamp {
        Timestamp::from_nanos(nanos)
    }

    /// LeaseKeys of one set.
    fn key(number: u128) -> LeaseKey {
        LeaseKey(number << 32 | 5)
    }

    #[test]
    fn the_place_longest_unused_is_given_up_first_among_those_without_tokens() {
        let mut local_table = LocalTable::new();
        let lease = LeaseTokens { id: 9, left: 3, granted: 3, ends: at(1_000) };
        for number in 0..8_u32 {
            let (index, evicted) = local_table.find_or_insert(key(number.into()), at(0));
            assert_eq!(evicted, []);
            let local = local_table.get_mut(index).unwrap();
            local.used = at(u64::from(number));
            local.entries = Box::from(&[number as u8][..]);
            if number != 5 {
                local.state.grant(lease, at(0)).unwrap();
            }
        }
        let (index, evicted) = local_table.find_or_insert(key(8), at(10));
        assert_eq!(
            (evicted, local_table.find(key(5)), local_table.find(key(8))),
            (vec![], None, Some(index))
        );
        let local = local_table.get_mut(index).unwrap();
        local.state.grant(lease, at(0)).unwrap();
        local.used = at(10);
        let (_, evicted) = local_table.find_or_insert(key(9), at(10));
        assert_eq!(
            evicted,
            [ReturnableTokens { key: key(0), entries: Box::from(&[0][..]), lease }]
        );
    }

    #[test]
    fn watched_places_are_found_in_order() {
        let mut local_table = LocalTable::new();
        let mut indexes: Vec<usize> = [3, 64, 700]
            .into_iter()
            .map(|number| {
                let (index, _) = local_table.find_or_insert(LeaseKey(number), at(0));
                local_table.watch(index, Watch::Yes);
                index
            })
            .collect();
        indexes.sort_unstable();
        let mut found = Vec::new();
        let mut from = 0;
        while let Some((index, _)) = local_table.next_watched(from) {
            found.push(index);
            from = index + 1;
        }
        assert_eq!((found, local_table.watched()), (indexes.clone(), 3));
        local_table.watch(indexes[1], Watch::No);
        assert_eq!(local_table.watched(), 2);
        assert_eq!(local_table.next_watched(CAPACITY), None);
    }
}
