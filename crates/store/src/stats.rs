//! What the store has done since it was opened. Counted in memory only, lost with the process.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since the store was opened, and its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Entries written.
    pub updates: u64,
    /// Entries written for a key that was absent: new, or expired.
    pub created: u64,
    /// Nodes taken from an expired key for another key.
    pub evicted_expired: u64,
    /// Calls refused because a chain was full of live entries.
    pub refused: u64,
    /// Nodes freed because neither copy was valid.
    pub dropped_invalid: u64,
    /// How many keys the store has nodes for.
    pub capacity: u64,
}

/// One count.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, count: u64) {
        if count != 0 {
            // Relaxed: a count orders nothing else.
            self.0.fetch_add(count, Ordering::Relaxed);
        }
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counts behind [`Stats`].
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) updates: Count,
    pub(crate) created: Count,
    pub(crate) evicted_expired: Count,
    pub(crate) refused: Count,
    pub(crate) dropped_invalid: Count,
}

impl Counts {
    pub(crate) fn stats(&self, capacity: u64) -> Stats {
        Stats {
            updates: self.updates.value(),
            created: self.created.value(),
            evicted_expired: self.evicted_expired.value(),
            refused: self.refused.value(),
            dropped_invalid: self.dropped_invalid.value(),
            capacity,
        }
    }
}
