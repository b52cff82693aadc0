//! A worker's own table: chunks of leases, and cached denials. Bounded, and searched by key without
//! a host call or an allocation.
//!
//! Set-associative: a key has [`WAYS`] possible indexes. A new key replaces the least recently used
//! one, first among those without tokens. The caller gets the evicted tokens.

use super::descriptor_state::DescriptorState;
use super::limit_info::{FurtherLimits, LimitInfo};
use super::token_pool::LeaseTokens;
use crate::request::descriptors::LeaseKey;
use tidegate_core::Timestamp;

const WAYS: usize = 8;
const SETS: usize = 256;
/// A worker caches 2,048 descriptors, in at most 0.6 MB beside the entries of those that hold
/// tokens, and 0.6 MB more if each meets several limits.
pub(crate) const CAPACITY: usize = WAYS * SETS;
const _: () =
    assert!(CAPACITY * (size_of::<LocalRecord>() + size_of::<Option<LeaseKey>>()) <= 600_000);
const _: () = assert!(CAPACITY * FurtherLimits::MAX * size_of::<LimitInfo>() <= 600_000);

/// The state of one descriptor in this worker.
#[derive(Debug, Clone, Default)]
pub(crate) struct LocalRecord {
    /// Its tokens, denial, limit and own demand. `limit.remaining` includes the slot's tokens.
    pub(crate) state: DescriptorState,
    /// Its other limits, whose `remaining` includes the slot's tokens too.
    pub(crate) further: FurtherLimits,
    /// The descriptor's entries, for returning tokens; empty unless it has, or had, tokens.
    pub(crate) entries: Box<[u8]>,
    /// When a request last needed it.
    pub(crate) used: Timestamp,
    /// Until then the sidecar is known to lease nothing of it.
    pub(crate) unleased_until: Timestamp,
    /// Tokens were spent since the last tick.
    pub(crate) spent: bool,
}

/// Tokens outside of any table, with the data that is needed to return them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReturnableTokens {
    /// Their descriptor.
    pub(crate) key: LeaseKey,
    pub(crate) entries: Box<[u8]>,
    pub(crate) lease: LeaseTokens,
}

/// Allocates at the first insertion: the virtual machine of Envoy's main thread never gets a request.
#[derive(Debug, Default)]
pub(crate) struct LocalTable {
    /// Apart from the records: a lookup reads two cache lines.
    keys: Vec<Option<LeaseKey>>,
    records: Vec<LocalRecord>,
    /// One bit per index that ticks visit.
    watched: Vec<u64>,
}

impl LocalTable {
    #[cold]
    fn allocate(&mut self) {
        self.keys.resize(CAPACITY, None);
        self.records.resize_with(CAPACITY, LocalRecord::default);
        self.watched.resize(CAPACITY.div_ceil(64), 0);
    }

    pub(crate) fn find(&self, key: LeaseKey) -> Option<usize> {
        let first = first_place(key);
        let keys = self.keys.get(first..first.saturating_add(WAYS))?;
        let way = keys.iter().position(|other| *other == Some(key))?;
        Some(first.saturating_add(way))
    }

    pub(crate) fn get(&self, index: usize) -> Option<&LocalRecord> {
        self.records.get(index)
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut LocalRecord> {
        self.records.get_mut(index)
    }

    /// The record at `index` if it is still that of `key`.
    pub(crate) fn at(&self, index: usize, key: LeaseKey) -> Option<&LocalRecord> {
        self.keys.get(index).filter(|there| **there == Some(key))?;
        self.records.get(index)
    }

    pub(crate) fn at_mut(&mut self, index: usize, key: LeaseKey) -> Option<&mut LocalRecord> {
        self.keys.get(index).filter(|there| **there == Some(key))?;
        self.records.get_mut(index)
    }

    /// The record of `key`.
    pub(crate) fn of(&self, key: LeaseKey) -> Option<&LocalRecord> {
        self.records.get(self.find(key)?)
    }

    /// The record of `key`.
    pub(crate) fn of_mut(&mut self, key: LeaseKey) -> Option<&mut LocalRecord> {
        let index = self.find(key)?;
        self.records.get_mut(index)
    }

    /// The index of `key`, inserted if absent, and the tokens that this evicted.
    pub(crate) fn find_or_insert(
        &mut self,
        key: LeaseKey,
        now: Timestamp,
    ) -> (usize, Vec<ReturnableTokens>) {
        if let Some(index) = self.find(key) {
            return (index, Vec::new());
        }
        if self.keys.is_empty() {
            self.allocate();
        }
        let first = first_place(key);
        let ways = first..first.saturating_add(WAYS);
        let rank = |index: &usize| {
            let free = self.keys.get(*index).is_some_and(Option::is_none);
            let record = self.records.get(*index);
            let used = record.map(|record| record.used).unwrap_or_default();
            // Watched records have tokens, here or in their slot. Without visits these would stay
            // charged until their window ends.
            let holds = record.is_some_and(|record| record.state.pool.left(now) > 0);
            (!free, holds || self.is_watched(*index), used)
        };
        let index = ways.min_by_key(rank).unwrap_or(first);
        let old = self.keys.get_mut(index).and_then(|slot| slot.replace(key));
        let left = self.records.get_mut(index).map(std::mem::take).unwrap_or_default();
        self.unwatch(index);
        let evicted = old.map(|key| live_leases(key, &left, now)).unwrap_or_default();
        (index, evicted)
    }

    fn is_watched(&self, index: usize) -> bool {
        self.watched.get(index >> 6).is_some_and(|word| (word >> (index & 63)) & 1 == 1)
    }

    /// Starts the visits at ticks.
    pub(crate) fn watch(&mut self, index: usize) {
        if let Some(word) = self.watched.get_mut(index >> 6) {
            *word |= 1 << (index & 63);
        }
    }

    /// Ends the visits at ticks.
    pub(crate) fn unwatch(&mut self, index: usize) {
        if let Some(word) = self.watched.get_mut(index >> 6) {
            *word &= !(1 << (index & 63));
        }
    }

    pub(crate) fn watched(&self) -> usize {
        let ones = self.watched.iter().map(|word| word.count_ones());
        usize::try_from(ones.fold(0, u32::saturating_add)).unwrap_or(usize::MAX)
    }

    /// The first watched record from `index` on, and its key.
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

fn first_place(key: LeaseKey) -> usize {
    let set = usize::try_from(key.0 & 0xffff).unwrap_or(0) & (SETS - 1);
    set.saturating_mul(WAYS)
}

fn live_leases(key: LeaseKey, record: &LocalRecord, now: Timestamp) -> Vec<ReturnableTokens> {
    let live = record.state.pool.each().filter(|lease| now < lease.expires_at);
    live.map(|lease| ReturnableTokens { key, entries: record.entries.clone(), lease }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Timestamp {
        Timestamp::from_nanos(nanos)
    }

    /// Keys of one set.
    fn key(number: u128) -> LeaseKey {
        LeaseKey(number << 32 | 5)
    }

    #[test]
    fn the_least_recently_used_record_is_evicted_first_without_tokens() {
        let mut local_table = LocalTable::default();
        let lease = LeaseTokens { id: 9, left: 3, granted: 3, expires_at: at(1_000) };
        for number in 0..8_u32 {
            let (index, evicted) = local_table.find_or_insert(key(number.into()), at(0));
            assert_eq!(evicted, []);
            let record = local_table.get_mut(index).unwrap();
            record.used = at(u64::from(number));
            record.entries = Box::from(&[number as u8][..]);
            if number != 5 {
                record.state.grant(lease, at(0)).unwrap();
            }
        }
        let (index, evicted) = local_table.find_or_insert(key(8), at(10));
        assert_eq!(
            (evicted, local_table.find(key(5)), local_table.find(key(8))),
            (vec![], None, Some(index))
        );
        let record = local_table.get_mut(index).unwrap();
        record.state.grant(lease, at(0)).unwrap();
        record.used = at(10);
        let (_, evicted) = local_table.find_or_insert(key(9), at(10));
        assert_eq!(
            evicted,
            [ReturnableTokens { key: key(0), entries: Box::from(&[0][..]), lease }]
        );
    }

    #[test]
    fn watched_records_are_evicted_last_and_their_places_are_not_watched_for_others() {
        let mut local_table = LocalTable::default();
        let places = |local_table: &LocalTable| -> Vec<bool> {
            (0..9).map(|number| local_table.find(key(number)).is_some()).collect()
        };
        for number in 0..8 {
            let (index, _) = local_table.find_or_insert(key(number), at(0));
            local_table.get_mut(index).unwrap().used = at(number as u64);
            if number != 6 {
                local_table.watch(index);
            }
        }
        local_table.find_or_insert(key(8), at(10));
        assert_eq!(places(&local_table), [true, true, true, true, true, true, false, true, true]);
        local_table.watch(local_table.find(key(8)).unwrap());
        assert_eq!(local_table.watched(), 8);
        // All are watched: the least recently used one goes, which is the newest, not used yet.
        let (index, _) = local_table.find_or_insert(key(6), at(10));
        assert_eq!((local_table.watched(), local_table.is_watched(index)), (7, false));
    }

    #[test]
    fn expired_tokens_are_not_evicted_with_their_record() {
        let lease = LeaseTokens { id: 9, left: 3, granted: 3, expires_at: at(1_000) };
        for (now, evicted) in [(999, 1), (1_000, 0)] {
            let mut local_table = LocalTable::default();
            for number in 0..8 {
                let (index, _) = local_table.find_or_insert(key(number), at(0));
                local_table.get_mut(index).unwrap().state.grant(lease, at(0)).unwrap();
            }
            assert_eq!(local_table.find_or_insert(key(8), at(now)).1.len(), evicted, "at {now}");
        }
    }

    #[test]
    fn as_many_keys_fit_as_the_table_has_places_if_they_are_spread() {
        let mut local_table = LocalTable::default();
        // The lower eight bits are the set; the bits above them are not.
        for number in 0..CAPACITY as u128 {
            local_table.find_or_insert(LeaseKey(number), at(0));
        }
        let found: std::collections::BTreeSet<usize> = (0..CAPACITY as u128)
            .map(|number| local_table.find(LeaseKey(number)).expect("still there"))
            .collect();
        assert_eq!(found.len(), CAPACITY);
    }

    #[test]
    fn watched_records_are_found_in_order() {
        let mut local_table = LocalTable::default();
        let mut indexes: Vec<usize> = [3, 64, 700]
            .into_iter()
            .map(|number| {
                let (index, _) = local_table.find_or_insert(LeaseKey(number), at(0));
                local_table.watch(index);
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
        local_table.unwatch(indexes[1]);
        assert_eq!(local_table.watched(), 2);
        assert_eq!(local_table.next_watched(CAPACITY), None);
    }
}
