//! Counts of events in runs.

use crate::ledger::Key;
use std::ops::AddAssign;

/// The counts of a run, or of many.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Events.
    pub steps: u64,
    /// Requests that arrived.
    pub requests: u64,
    /// Requests that passed.
    pub admitted: u64,
    /// Requests decided without waiting.
    pub local: u64,
    /// Requests that were denied.
    pub denied: u64,
    /// Requests without a decision.
    pub failed: u64,
    /// Calls sent.
    pub asks: u64,
    /// Returns sent.
    pub returns: u64,
    /// Debits counted.
    pub debits: u64,
    /// Leases granted.
    pub leases: u64,
    /// Decisions that the sidecar refused.
    pub refused: u64,
    /// Faults, apart from those of the network.
    pub faults: u64,
    /// Writes of shared data lost to another worker.
    pub conflicts: u64,
    /// Commands to the server of shared counters.
    pub commands: u64,
    /// Failovers of that server that have forgotten something.
    pub forgotten: u64,
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
        self.debits += other.debits;
        self.leases += other.leases;
        self.refused += other.refused;
        self.faults += other.faults;
        self.conflicts += other.conflicts;
        self.commands += other.commands;
        self.forgotten += other.forgotten;
    }
}

/// The usage of the first counter's limit in a span, by the sidecar's clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    pub(crate) from: u64,
    pub(crate) until: u64,
    /// Hits that the limit allows.
    pub(crate) room: u64,
    pub(crate) admitted: u64,
}

impl Usage {
    pub(crate) fn add(&mut self, key: Key, at: u64, hits: u64) {
        if key == 0 && at >= self.from && at < self.until {
            self.admitted += hits;
        }
    }

    /// The used part, in thousandths.
    #[must_use]
    pub(crate) fn per_mille(&self) -> u64 {
        (self.admitted * 1_000).checked_div(self.room).unwrap_or(1_000)
    }
}
