//! A worker's own table: chunks of leases, and cached denials. Bounded, and searched by key without
//! a host call or an allocation.
//!
//! Set-associative: a key has [`WAYS`] possible indexes. A new key replaces the least recently used
//! one, first among those without tokens. The caller gets the evicted tokens.

use super::descriptor_state::DescriptorState;
use super::limit_info::{FurtherLimits, LimitInfo};
use super::token_pool::LeaseTokens;
use crate::request::descriptors::LeaseKey;
use tidegate_core::{TalliedHits, Timestamp, Verdict};

const WAYS: usize = 8;
const SETS: usize = 256;
/// A worker caches 2,048 descriptors, in at most 0.65 MB beside the entries of those that hold
/// tokens or were not reported, and 0.6 MB more if each meets several limits.
pub(crate) const CAPACITY: usize = WAYS * SETS;
const _: () =
    assert!(CAPACITY * (size_of::<LocalRecord>() + size_of::<Option<LeaseKey>>()) <= 650_000);
const _: () = assert!(CAPACITY * FurtherLimits::MAX * size_of::<LimitInfo>() <= 600_000);

/// The state of one descriptor in this worker.
#[derive(Debug, Clone, Default)]
pub(crate) struct LocalRecord {
    /// Its tokens, denial, limit and own demand. `limit.remaining` includes the slot's tokens.
    pub(crate) state: DescriptorState,
    /// Its other limits, whose `remaining` includes the slot's tokens too.
    pub(crate) further: FurtherLimits,
    /// The descriptor's entries, for returning tokens and for reports; empty unless it has, or had,
    /// tokens, or has a tally.
    pub(crate) entries: Box<[u8]>,
    /// When a request last needed it.
    pub(crate) used: Timestamp,
    /// Until then the sidecar is known to lease nothing of it.
    pub(crate) unleased_until: Timestamp,
    /// Tokens were spent since the last tick.
    pub(crate) spent: bool,
    /// Hits that were decided by this record since the last report.
    pub(crate) tally: TalliedHits,
}

impl LocalRecord {
    /// The names of the limits that deny, if the descriptor meets several.
    pub(crate) fn over(&self) -> Vec<String> {
        if self.further.is_empty() || self.tally.denied == 0 {
            return Vec::new();
        }
        let further = self.further.iter().filter(|limit| limit.verdict() == Verdict::Deny);
        let denying = std::iter::once(&self.state.limit).chain(further);
        denying.map(|limit| limit.name().to_owned()).collect()
    }
}

/// Tokens outside of any table, with the data that is needed to return them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReturnableTokens {
    /// Their descriptor.
    pub(crate) key: LeaseKey,
    pub(crate) entries: Box<[u8]>,
    pub(crate) lease: LeaseTokens,
}

/// What a new key has replaced.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Evicted {
    pub(crate) tokens: Vec<ReturnableTokens>,
    pub(crate) tally: Option<KeyTally>,
}

/// Hits that were decided and not reported yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyTally {
    pub(crate) key: LeaseKey,
    pub(crate) entries: Box<[u8]>,
    pub(crate) hits: TalliedHits,
    /// The names of the limits that denied, if there are several.
    pub(crate) over: Vec<String>,
}

/// Allocates at the first insertion: the virtual machine of Envoy's main thread never gets a request.
#[derive(Debug, Default)]
pub(crate) struct LocalTable {
    /// Apart from the records: a lookup reads two cache lines.
    keys: Vec<Option<LeaseKey>>,
    records: Vec<LocalRecord>,
    /// One bit per index that ticks visit.
    watched: Vec<u64>,
    /// One bit per index with a tally.
    tallied: Vec<u64>,
    /// Those of them that had one when the last round of reports began.
    due: Vec<u64>,
}

impl LocalTable {
    #[cold]
    fn allocate(&mut self) {
        self.keys.resize(CAPACITY, None);
        self.records.resize_with(CAPACITY, LocalRecord::default);
        for bits in [&mut self.watched, &mut self.tallied, &mut self.due] {
            bits.resize(CAPACITY.div_ceil(64), 0);
        }
    }

    #[inline(always)]
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

    /// The index of `key`, inserted if absent, and what this evicted.
    pub(crate) fn find_or_insert(&mut self, key: LeaseKey, now: Timestamp) -> (usize, Evicted) {
        if let Some(index) = self.find(key) {
            return (index, Evicted::default());
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
        self.end_tally(index);
        let evicted = old.map(|key| Evicted {
            tokens: live_leases(key, &left, now),
            tally: tally_of(key, left),
        });
        (index, evicted.unwrap_or_default())
    }

    fn is_watched(&self, index: usize) -> bool {
        has(&self.watched, index)
    }

    /// Starts the visits at ticks.
    pub(crate) fn watch(&mut self, index: usize) {
        set(&mut self.watched, index);
    }

    /// Ends the visits at ticks.
    pub(crate) fn unwatch(&mut self, index: usize) {
        clear(&mut self.watched, index);
    }

    /// Has reports visit a record that has a tally.
    pub(crate) fn begin_tally(&mut self, index: usize) {
        set(&mut self.tallied, index);
    }

    fn end_tally(&mut self, index: usize) {
        clear(&mut self.tallied, index);
        clear(&mut self.due, index);
    }

    pub(crate) fn has_tallies(&self) -> bool {
        self.tallied.iter().any(|word| *word != 0)
    }

    /// Begins a round: all tallies there are now are due.
    pub(crate) fn make_tallies_due(&mut self) {
        self.due.clone_from(&self.tallied);
    }

    pub(crate) fn has_due_tallies(&self) -> bool {
        self.due.iter().any(|word| *word != 0)
    }

    /// The first record with a tally from `index` on, and its key; first those that are due.
    pub(crate) fn next_tallied(&self, index: usize) -> Option<(usize, LeaseKey)> {
        let bits = if self.has_due_tallies() { &self.due } else { &self.tallied };
        let index = next(bits, index).or_else(|| next(bits, 0))?;
        Some((index, self.keys.get(index).copied().flatten()?))
    }

    /// Takes the tally out of the record at `index`. Its entries stay if it is watched.
    pub(crate) fn take_tally(&mut self, index: usize) -> Option<KeyTally> {
        self.end_tally(index);
        let is_watched = self.is_watched(index);
        let key = self.keys.get(index).copied().flatten()?;
        let record = self.records.get_mut(index)?;
        let over = record.over();
        let hits = std::mem::take(&mut record.tally);
        let entries = match is_watched {
            true => record.entries.clone(),
            false => std::mem::take(&mut record.entries),
        };
        (!hits.is_empty()).then_some(KeyTally { key, entries, hits, over })
    }

    pub(crate) fn watched(&self) -> usize {
        let ones = self.watched.iter().map(|word| word.count_ones());
        usize::try_from(ones.fold(0, u32::saturating_add)).unwrap_or(usize::MAX)
    }

    /// The first watched record from `index` on, and its key.
    pub(crate) fn next_watched(&self, index: usize) -> Option<(usize, LeaseKey)> {
        let index = next(&self.watched, index)?;
        Some((index, self.keys.get(index).copied().flatten()?))
    }
}

fn has(bits: &[u64], index: usize) -> bool {
    bits.get(index >> 6).is_some_and(|word| (word >> (index & 63)) & 1 == 1)
}

fn set(bits: &mut [u64], index: usize) {
    if let Some(word) = bits.get_mut(index >> 6) {
        *word |= 1 << (index & 63);
    }
}

fn clear(bits: &mut [u64], index: usize) {
    if let Some(word) = bits.get_mut(index >> 6) {
        *word &= !(1 << (index & 63));
    }
}

/// The first bit from `index` on.
fn next(bits: &[u64], index: usize) -> Option<usize> {
    let mut word_at = index >> 6;
    let mut word = bits.get(word_at)? & (u64::MAX << (index & 63));
    while word == 0 {
        word_at = word_at.saturating_add(1);
        word = *bits.get(word_at)?;
    }
    Some((word_at << 6) | usize::try_from(word.trailing_zeros()).ok()?)
}

fn first_place(key: LeaseKey) -> usize {
    let set = usize::try_from(key.0 & 0xffff).unwrap_or(0) & (SETS - 1);
    set.saturating_mul(WAYS)
}

fn live_leases(key: LeaseKey, record: &LocalRecord, now: Timestamp) -> Vec<ReturnableTokens> {
    let live = record.state.pool.each().filter(|lease| now < lease.expires_at);
    live.map(|lease| ReturnableTokens { key, entries: record.entries.clone(), lease }).collect()
}

fn tally_of(key: LeaseKey, record: LocalRecord) -> Option<KeyTally> {
    let over = record.over();
    let LocalRecord { entries, tally: hits, .. } = record;
    (!hits.is_empty()).then_some(KeyTally { key, entries, hits, over })
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
            assert_eq!(evicted, Evicted::default());
            let record = local_table.get_mut(index).unwrap();
            record.used = at(u64::from(number));
            record.entries = Box::from(&[number as u8][..]);
            if number != 5 {
                record.state.grant(lease, at(0)).unwrap();
            }
        }
        let (index, evicted) = local_table.find_or_insert(key(8), at(10));
        assert_eq!(
            (evicted.tokens, local_table.find(key(5)), local_table.find(key(8))),
            (vec![], None, Some(index))
        );
        let record = local_table.get_mut(index).unwrap();
        record.state.grant(lease, at(0)).unwrap();
        record.used = at(10);
        let (_, evicted) = local_table.find_or_insert(key(9), at(10));
        assert_eq!(
            evicted.tokens,
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
            assert_eq!(
                local_table.find_or_insert(key(8), at(now)).1.tokens.len(),
                evicted,
                "at {now}"
            );
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

    fn allowed(allowed: u64) -> TalliedHits {
        TalliedHits { allowed, ..TalliedHits::default() }
    }

    #[test]
    fn a_tally_leaves_the_table_once_when_it_is_taken_or_evicted() {
        let mut local_table = LocalTable::default();
        for number in 0..8 {
            let (index, _) = local_table.find_or_insert(key(number), at(0));
            let record = local_table.get_mut(index).unwrap();
            record.used = at(number as u64);
            record.tally = allowed(number as u64 + 1);
            record.entries = Box::from(&[number as u8][..]);
            local_table.begin_tally(index);
        }
        let tally = |number: u128| KeyTally {
            key: key(number),
            entries: Box::from(&[number as u8][..]),
            hits: allowed(number as u64 + 1),
            over: Vec::new(),
        };
        let (index, evicted) = local_table.find_or_insert(key(8), at(10));
        assert_eq!(evicted.tally, Some(tally(0)));
        assert!(!has(&local_table.tallied, index), "the place is that of another key");
        let watched = local_table.find(key(3)).unwrap();
        local_table.watch(watched);
        let mut taken = Vec::new();
        while let Some((index, _)) = local_table.next_tallied(0) {
            taken.extend(local_table.take_tally(index));
        }
        taken.sort_by_key(|tally| tally.key);
        assert_eq!(taken, (1..8).map(tally).collect::<Vec<_>>());
        assert!(!local_table.has_tallies());
        let kept = |number| {
            let record = local_table.of(key(number)).unwrap();
            (record.tally, record.entries.len())
        };
        // Tokens that are watched need the entries to go back.
        assert_eq!((kept(3), kept(4)), ((allowed(0), 1), (allowed(0), 0)));
    }

    #[test]
    fn a_round_visits_what_was_there_when_it_began_before_newer_tallies() {
        let mut local_table = LocalTable::default();
        let mut begin = |number: u128| {
            let (index, _) = local_table.find_or_insert(LeaseKey(number), at(0));
            local_table.get_mut(index).unwrap().tally = allowed(1);
            local_table.begin_tally(index);
            index
        };
        let old = [begin(9), begin(200)];
        local_table.make_tallies_due();
        let mut begin = |number: u128| {
            let (index, _) = local_table.find_or_insert(LeaseKey(number), at(0));
            local_table.get_mut(index).unwrap().tally = allowed(1);
            local_table.begin_tally(index);
            index
        };
        let new = begin(100);
        let mut visited = Vec::new();
        while let Some((index, _)) = local_table.next_tallied(old[1]) {
            local_table.take_tally(index).unwrap();
            visited.push((index, local_table.has_due_tallies()));
        }
        assert_eq!(visited, [(old[1], true), (old[0], false), (new, false)]);
    }
}
