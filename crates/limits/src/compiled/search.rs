//! What all searches for a pattern share: ranks, and a count of the work.

use std::cell::Cell;

/// The number of a pattern among those of its key, in insertion order. The lowest rank wins.
pub(super) type Rank = u32;

/// No pattern; higher than all ranks.
pub(super) const NO_RANK: Rank = Rank::MAX;

/// Counts comparisons, so that tests can show that lookups do not grow with the rules.
#[derive(Debug, Default)]
pub(super) struct Work(Cell<usize>);

impl Work {
    pub(super) fn add(&self, comparisons: usize) {
        self.0.set(self.0.get().saturating_add(comparisons));
    }

    pub(super) fn get(&self) -> usize {
        self.0.get()
    }
}
