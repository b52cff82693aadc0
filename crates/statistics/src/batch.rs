//! Counts by statistic, minute and series: what a process has for the database.
//!
//! Batches add up, whatever slots they are of.

use crate::aggregator::Bounds;
use crate::series::{Counts, Series, Tally};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// What an entry takes beside its series and tally.
const ENTRY_BYTES: usize = 48;

const HOUR: u64 = 3_600;

/// The series of one statistic in one minute.
type Group = HashMap<Series, Tally>;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// By label of the statistic and start of the minute, in seconds since 1970.
    groups: BTreeMap<(Arc<str>, u64), Group>,
}

/// A point of a batch.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Point {
    pub(crate) statistic: Arc<str>,
    pub(crate) minute: u64,
    pub(crate) series: Series,
    pub(crate) tally: Tally,
}

impl Point {
    /// About its size in memory.
    pub(crate) fn bytes(&self) -> usize {
        entry_bytes(&self.series, &self.tally) + size_of::<Point>()
    }
}

impl Batch {
    pub(crate) fn add(&mut self, statistic: &Arc<str>, minute: u64, series: Series, tally: Tally) {
        let group = self.groups.entry((statistic.clone(), minute)).or_default();
        group.entry(series).or_default().add(tally);
    }

    /// Adds all counts of another batch.
    pub fn merge(&mut self, other: Batch) {
        for (key, group) in other.groups {
            let ours = self.groups.entry(key).or_default();
            if ours.is_empty() {
                *ours = group;
                continue;
            }
            for (series, tally) in group {
                ours.entry(series).or_default().add(tally);
            }
        }
    }

    /// Moves the least used series of each statistic and minute into the others, until the bounds hold.
    pub fn bound(&mut self, bounds: Bounds) {
        self.groups.values_mut().for_each(|group| bound(group, bounds));
    }

    /// The number of series, counted in each minute.
    #[must_use]
    pub fn len(&self) -> usize {
        self.groups.values().map(HashMap::len).sum()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.values().all(HashMap::is_empty)
    }

    /// About its size in memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.groups.values().flatten().map(|(series, tally)| entry_bytes(series, tally)).sum()
    }

    /// The counts of a series in a minute.
    #[must_use]
    pub fn counts(&self, statistic: &str, minute: u64, series: &Series) -> Option<Counts> {
        let group = self.groups.get(&(Arc::from(statistic), minute))?;
        Some(group.get(series)?.counts)
    }

    /// The sum of all its counts.
    #[must_use]
    pub fn total(&self) -> Counts {
        let mut total = Counts::default();
        let tallies = self.groups.values().flat_map(HashMap::values);
        tallies.for_each(|tally| total.add(tally.counts));
        total
    }

    /// Moves all counts to the beginning of their hour, so that hours of an outage take as much as an hour.
    pub(crate) fn coarsen(&mut self) {
        for ((statistic, minute), group) in std::mem::take(&mut self.groups) {
            let hour = minute - minute % HOUR;
            let ours = self.groups.entry((statistic, hour)).or_default();
            for (series, tally) in group {
                ours.entry(series).or_default().add(tally);
            }
        }
    }

    /// Removes the counts of the oldest time, and returns their sum.
    pub(crate) fn drop_oldest(&mut self) -> Counts {
        let oldest = self.groups.keys().map(|(_, minute)| *minute).min();
        let mut dropped = Counts::default();
        self.groups.retain(|(_, minute), group| {
            let stays = Some(*minute) != oldest;
            if !stays {
                group.values().for_each(|tally| dropped.add(tally.counts));
            }
            stays
        });
        dropped
    }

    /// Its points, in parts of at most `most`.
    pub(crate) fn into_parts(self, most: usize) -> Vec<Vec<Point>> {
        let mut parts = Vec::new();
        let mut part = Vec::new();
        for ((statistic, minute), group) in self.groups {
            for (series, tally) in group {
                part.push(Point { statistic: statistic.clone(), minute, series, tally });
                if part.len() == most {
                    parts.push(std::mem::take(&mut part));
                }
            }
        }
        if !part.is_empty() {
            parts.push(part);
        }
        parts
    }
}

fn entry_bytes(series: &Series, tally: &Tally) -> usize {
    ENTRY_BYTES + size_of::<Series>() + series.bytes() + tally.bytes()
}

/// Keeps the most used series whose number and bytes have room.
fn bound(group: &mut Group, bounds: Bounds) {
    let bytes: usize = group.iter().map(|(series, tally)| entry_bytes(series, tally)).sum();
    let named = group.len() - usize::from(group.contains_key(&Series::Other));
    if named <= bounds.series_max && bytes <= bounds.bytes_max {
        return;
    }
    let mut other = group.remove(&Series::Other).unwrap_or_default();
    let mut all: Vec<(Series, Tally)> = group.drain().collect();
    all.sort_unstable_by(|(a, one), (b, two)| {
        two.counts.requests().cmp(&one.counts.requests()).then_with(|| a.cmp(b))
    });
    let mut room = bounds.bytes_max;
    for (index, (series, tally)) in all.into_iter().enumerate() {
        let bytes = entry_bytes(&series, &tally);
        if index < bounds.series_max && bytes <= room {
            room -= bytes;
            group.insert(series, tally);
        } else {
            room = 0;
            other.add(tally);
        }
    }
    group.insert(Series::Other, other);
}

#[cfg(test)]
mod tests;
