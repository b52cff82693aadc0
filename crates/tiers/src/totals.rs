//! Totals: what all processes of a data directory have done with cold counters since its memory was made, for commands.
//!
//! Each process adds what it has done, once a second, to words that they share. Once a minute one of them leaves a mark, which
//! has the totals of that moment, so that commands see how much is done in a second. Owns these words. Nothing depends on
//! them; a process that is killed has not added its last second.

use crate::mover::now_secs;
use crate::tally::Counts;
use crate::tiered::Inner;
use std::sync::{Mutex, PoisonError, Weak};
use std::time::Duration;
use tidegate_store::{Cluster, OpenError, SharedWords, View};

const NAME: &str = "tiers-totals";
const ADDED_EVERY: Duration = Duration::from_secs(1);
/// The seconds between marks.
const MARKED_EVERY: u64 = 60;

/// When the last mark was begun, in Unix seconds.
const MARKED_AT: usize = 0;
/// How many marks were made.
const MARKS: usize = 1;
const TOTALS: usize = 2;
/// The last two marks: each has its time, the updates of the store, and totals.
const MARK_WORDS: usize = 2 + Counts::WORDS;
const FIRST_MARK: usize = TOTALS + Counts::WORDS;
const WORDS: usize = FIRST_MARK + 2 * MARK_WORDS;

pub(crate) struct Totals {
    words: SharedWords,
    /// What this process has added.
    added: Mutex<Counts>,
}

/// What was done with cold counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Activity {
    /// Since the memory was made.
    pub counts: Counts,
    /// One or two minutes.
    pub lately: Option<Lately>,
}

/// A part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lately {
    pub seconds: u64,
    pub counts: Counts,
    /// Nodes that the store has written.
    pub updates: u64,
}

impl Totals {
    /// In a cluster's memory.
    pub(crate) fn of(cluster: &Cluster) -> Result<Totals, OpenError> {
        Ok(Totals { words: cluster.shared_words(NAME, WORDS)?, added: Mutex::default() })
    }

    /// Adds what this process has counted since the last time.
    fn add(&self, counts: Counts) {
        let mut added = self.added.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, more) in counts.since(&added).words().into_iter().enumerate() {
            if more > 0 {
                self.words.add(TOTALS + index, more);
            }
        }
        *added = counts;
    }

    /// Leaves a mark with the updates of the store, unless a process has just done so.
    fn mark(&self, now: u64, updates: impl FnOnce() -> u64) {
        let before = self.words.get(MARKED_AT);
        // A clock may have been set back.
        let is_due = now.abs_diff(before) >= MARKED_EVERY;
        if !is_due || !self.words.swap_if(MARKED_AT, before, now) {
            return;
        }
        let marks = self.words.get(MARKS);
        let first = FIRST_MARK + marks as usize % 2 * MARK_WORDS;
        self.words.put(first, now);
        self.words.put(first + 1, updates());
        for index in 0..Counts::WORDS {
            self.words.put(first + 2 + index, self.words.get(TOTALS + index));
        }
        self.words.put(MARKS, marks + 1);
    }
}

/// What the processes of a data directory have done with cold counters. None if none of them has it in memory.
///
/// # Errors
/// If the system refuses the file.
pub fn activity(view: &View) -> Result<Option<Activity>, OpenError> {
    let words = view.shared_words(NAME)?.filter(|words| words.len() == WORDS);
    Ok(words.map(|words| Activity::of(&words, now_secs().into(), view.stats().updates)))
}

impl Activity {
    fn of(words: &[u64], now: u64, updates: u64) -> Activity {
        let counts_from =
            |first: usize| Counts::of(std::array::from_fn(|index| words[first + index]));
        let counts = counts_from(TOTALS);
        // The older mark, which is at the place of the next one. After the first one there is none, and the first counts.
        let marks = words[MARKS];
        let number = if marks == 1 { 0 } else { marks % 2 };
        let first = FIRST_MARK + number as usize * MARK_WORDS;
        let seconds = now.saturating_sub(words[first]);
        let lately = (marks > 0 && seconds > 0).then(|| Lately {
            seconds,
            counts: counts.since(&counts_from(first + 2)),
            updates: updates.saturating_sub(words[first + 1]),
        });
        Activity { counts, lately }
    }
}

/// Adds what this process does. Does not keep the store open while it waits.
pub(crate) async fn serve(inner: Weak<Inner>) {
    loop {
        let Some(of) = inner.upgrade() else { return };
        of.add_to_totals();
        drop(of);
        tokio::time::sleep(ADDED_EVERY).await;
    }
}

impl Inner {
    /// Adds what this process has done since the last time.
    pub(crate) fn add_to_totals(&self) {
        self.totals.add(self.tally.counts());
        self.totals.mark(now_secs().into(), || self.hot.stats().updates);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_store::{Geometry, Options};

    const NOW: u64 = 1_795_600_800;

    fn of(fetched: u64) -> Counts {
        Counts { fetched, spared: 2 * fetched, ..Counts::default() }
    }

    #[test]
    fn counts_add_up_and_the_last_minute_or_two_are_told_apart() {
        let options = Options::narrow(Geometry::by_capacity(100, 0.8).unwrap());
        let cluster = Cluster::in_memory(&options).unwrap();
        let totals = Totals::of(&cluster).unwrap();
        let seen = |now, updates| {
            let words: Vec<u64> = (0..WORDS).map(|index| totals.words.get(index)).collect();
            Activity::of(&words, now, updates)
        };
        assert_eq!(seen(NOW, 0), Activity { counts: of(0), lately: None });
        totals.add(of(3));
        totals.mark(NOW, || 100);
        totals.add(of(7));
        // One that comes too early changes nothing.
        totals.mark(NOW + 59, || 150);
        let lately = |seconds, counts, updates| Some(Lately { seconds, counts, updates });
        assert_eq!(seen(NOW + 59, 150), Activity { counts: of(7), lately: lately(59, of(4), 50) });
        totals.mark(NOW + 60, || 160);
        totals.add(of(12));
        // Since the first mark, as the second one is too young.
        let expected = Activity { counts: of(12), lately: lately(61, of(9), 70) };
        assert_eq!(seen(NOW + 61, 170), expected);
        totals.mark(NOW + 120, || 200);
        let expected = Activity { counts: of(12), lately: lately(61, of(5), 41) };
        assert_eq!(seen(NOW + 121, 201), expected);
        // A clock that was set back by a day.
        totals.mark(NOW - 86_400, || 300);
        assert_eq!(seen(NOW - 86_400, 300).counts, of(12));
        totals.mark(NOW - 86_340, || 300);
        totals.add(of(13));
        let expected = Activity { counts: of(13), lately: lately(61, of(1), 1) };
        assert_eq!(seen(NOW - 86_339, 301), expected);
    }
}
