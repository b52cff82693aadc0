//! What happened in runs, counted.

use crate::ledger::Key;
use std::ops::AddAssign;

/// Counts of a run, or of many.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Events.
    pub steps: u64,
    /// Requests that came.
    pub requests: u64,
    /// Requests that passed.
    pub admitted: u64,
    /// Requests that were decided, either way, without waiting.
    pub local: u64,
    /// Requests that were denied.
    pub denied: u64,
    /// Requests that nobody could decide.
    pub failed: u64,
    /// Asks that were sent.
    pub asks: u64,
    /// Returns that were sent.
    pub returns: u64,
    /// Leases that were granted.
    pub leases: u64,
    /// Decisions that the sidecar refused to make.
    pub refused: u64,
    /// Faults that happened, apart from what the network did.
    pub faults: u64,
    /// Writes of shared data that another worker was faster with.
    pub conflicts: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.steps += other.steps;
        self.requests += other.requests;
        self.admitted += other.admitted;
        self.local += other.local;
        self.denied += other.denied;
        self.failed += other.failed;
        self.asks += other.asks;
        self.returns += other.returns;
        self.leases += other.leases;
        self.refused += other.refused;
        self.faults += other.faults;
        self.conflicts += other.conflicts;
    }
}

/// How much of the first counter's limit is used in some span, by the sidecar's clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    /// From here,
    pub(crate) from: u64,
    /// to here.
    pub(crate) until: u64,
    /// Hits that the limit has room for.
    pub(crate) room: u64,
    /// Hits that were admitted.
    pub(crate) admitted: u64,
}

impl Usage {
    /// Counts hits.
    pub(crate) fn add(&mut self, key: Key, at: u64, hits: u64) {
        if key == 0 && at >= self.from && at < self.until {
            self.admitted += hits;
        }
    }

    /// The part that was used, in thousandths.
    #[must_use]
    pub(crate) fn per_mille(&self) -> u64 {
        (self.admitted * 1_000).checked_div(self.room).unwrap_or(1_000)
    }
}
