//! Counts of the current slot, in memory.
//!
//! Sharded by series, so threads that record rarely wait for each other, and the longest wait is one compaction of a
//! shard. Bounded for each statistic: a shard holds twice its share of the series, then the less used half goes
//! into one series of all others. Clients choose values, so maps are keyed by a random hash.

use crate::batch::Batch;
use crate::series::{Counts, Series, Tally, join};
use crate::sketch::Sketch;
use crate::{MINUTE, SLOT_SECONDS};
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use std::cell::RefCell;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Twice the processors of a large machine, so two threads that record meet in one of 32 cases or fewer.
const SHARDS: usize = 64;
/// Of less, a shard could not tell a series that is used from one that is new.
const SHARE_MIN: usize = 32;
/// What an entry of a map takes beside its texts and its tally.
const ENTRY_BYTES: usize = 48;

/// The most that is held of one statistic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    pub series_max: usize,
    /// Of series and sketches. While a slot fills, there may be twice as much.
    pub bytes_max: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds { series_max: 100_000, bytes_max: 64 * 1024 * 1024 }
    }
}

/// Collects counts from all threads of a process.
#[derive(Debug)]
pub struct Aggregator {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    bounds: Bounds,
}

/// The series of a shard, by statistic. There are few statistics, so they are in a list.
#[derive(Debug, Default)]
struct Shard(Vec<(Arc<str>, Part)>);

#[derive(Debug, Default)]
struct Part {
    /// By a hash of the values, which picks the shard, too.
    series: HashTable<(Box<str>, Tally)>,
    bytes: usize,
    other: Option<Tally>,
}

thread_local! {
    /// The joined values of a series, so that one that is known costs no allocation.
    static JOINED: RefCell<String> = const { RefCell::new(String::new()) };
}

impl Aggregator {
    #[must_use]
    pub fn new(bounds: Bounds) -> Aggregator {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Aggregator { shards, hasher: RandomState::new(), bounds }
    }

    /// Adds to the series that `values` name, of a statistic by its label. `distinct` is one more of its distinct values.
    pub fn record(&self, statistic: &str, values: &[&str], distinct: Option<&str>, counts: Counts) {
        JOINED.with_borrow_mut(|joined| {
            join(values, joined);
            let hash = self.hasher.hash_one(&**joined);
            // Other bits than those that the table uses.
            let Some(shard) = self.shards.get((hash >> 32) as usize % SHARDS) else { return };
            let mut shard = locked(shard);
            let part = shard.part(statistic);
            let tally = part.tally(hash, joined, &self.hasher);
            let added = update(tally, distinct, counts);
            part.bytes += added;
            part.bound(self.bounds);
        });
    }

    /// Takes what was recorded since the last call. `now` is the time in seconds since 1970; the counts belong to
    /// the minute in which half of the slot had passed.
    #[must_use]
    pub fn take(&self, now: u64) -> Batch {
        let middle = now.saturating_sub(SLOT_SECONDS / 2);
        let minute = middle - middle % MINUTE;
        let mut batch = Batch::default();
        for shard in &self.shards {
            let taken = mem::take(&mut *locked(shard));
            for (statistic, part) in taken.0 {
                for (joined, tally) in part.series {
                    batch.add(&statistic, minute, Series::Values(joined), tally);
                }
                if let Some(other) = part.other {
                    batch.add(&statistic, minute, Series::Other, other);
                }
            }
        }
        batch.bound(self.bounds);
        batch
    }
}

/// A shard is whole between any two statements, so a thread that panicked leaves nothing half done.
fn locked(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shard {
    fn part(&mut self, statistic: &str) -> &mut Part {
        let index = self.0.iter().position(|(name, _)| **name == *statistic);
        let index = index.unwrap_or_else(|| {
            self.0.push((statistic.into(), Part::default()));
            self.0.len() - 1
        });
        &mut self.0[index].1
    }
}

impl Part {
    fn tally(&mut self, hash: u64, joined: &str, hasher: &RandomState) -> &mut Tally {
        let is_joined = |(known, _): &(Box<str>, Tally)| **known == *joined;
        let again = |(known, _): &(Box<str>, Tally)| hasher.hash_one(&**known);
        match self.series.entry(hash, is_joined, again) {
            Entry::Occupied(known) => &mut known.into_mut().1,
            Entry::Vacant(vacant) => {
                self.bytes += ENTRY_BYTES + joined.len() + size_of::<Tally>();
                &mut vacant.insert((joined.into(), Tally::default())).into_mut().1
            }
        }
    }

    fn bound(&mut self, bounds: Bounds) {
        let share = bounds.series_max.div_ceil(SHARDS).max(SHARE_MIN);
        if self.series.len() > 2 * share || self.bytes > 2 * bounds.bytes_max.div_ceil(SHARDS) {
            self.compact();
        }
    }

    /// Moves the less used half of the series into the others. As many have to be new again before the next time, so
    /// a record costs a constant number of steps.
    fn compact(&mut self) {
        let mut used: Vec<u64> =
            self.series.iter().map(|(_, tally)| tally.counts.requests()).collect();
        let half = used.len() / 2;
        let (_, median, above) = used.select_nth_unstable(half);
        let median = *median;
        let above = above.iter().filter(|requests| **requests > median).count();
        // Of those that are used as much as the median, some stay.
        let mut room = half.saturating_sub(above);
        let other = self.other.get_or_insert_default();
        self.series.retain(|(_, tally)| {
            let requests = tally.counts.requests();
            if requests > median {
                return true;
            }
            if requests == median && room > 0 {
                room -= 1;
                return true;
            }
            other.add(mem::take(tally));
            false
        });
        let each = self.series.iter();
        self.bytes = each.map(|(joined, tally)| ENTRY_BYTES + joined.len() + tally.bytes()).sum();
    }
}

/// Counts, and returns by how many bytes the tally grew.
fn update(tally: &mut Tally, distinct: Option<&str>, counts: Counts) -> usize {
    tally.counts.add(counts);
    let Some(value) = distinct else { return 0 };
    let before = tally.sketch.as_ref().map_or(0, Sketch::bytes);
    let sketch = tally.sketch.get_or_insert_default();
    sketch.add(value);
    sketch.bytes().saturating_sub(before)
}

#[cfg(test)]
mod tests;
