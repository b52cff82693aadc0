//! The small words of the look: places by age, and a count of the work.

use std::cell::Cell;

/// When a pattern was inserted among those of its key; the earlier one wins.
pub(super) type Rank = u32;

/// Later than all patterns: no place.
pub(super) const NO_RANK: Rank = Rank::MAX;

/// Counts what a look compares, so that tests can tell that it does not grow with the rules.
#[derive(Debug, Default)]
pub(super) struct Work(Cell<usize>);

impl Work {
    /// Counts comparisons.
    pub(super) fn add(&self, comparisons: usize) {
        self.0.set(self.0.get().saturating_add(comparisons));
    }

    /// What was counted since the last call.
    pub(super) fn take(&self) -> usize {
        self.0.take()
    }
}
