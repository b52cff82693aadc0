//! Counts about cold counters.

use crate::snapshot::{Family, Kind, Number};

/// What became of counters that are kept in databases while they are idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColdCounts {
    /// Whether all databases answered at the last try.
    pub is_up: bool,
    /// Counters that moved to a database.
    pub moved: u64,
    /// Of these, those that went on from a warm database to a cold one.
    pub moved_on: u64,
    /// Counters that came back.
    pub fetched: u64,
    /// Look-ups that found nothing.
    pub fetched_in_vain: u64,
    /// New counters that needed no look-up.
    pub spared: u64,
    /// Operations of databases that failed.
    pub failed: u64,
    /// Counters that were decided without their state.
    pub without_state: u64,
    /// Rows that were removed, as their counters came back.
    pub removed: u64,
    /// Times that a counter stayed in memory, as the databases were full.
    pub kept: u64,
}

pub(crate) fn families(counts: &ColdCounts) -> [Family; 10] {
    let ColdCounts {
        is_up,
        moved,
        moved_on,
        fetched,
        fetched_in_vain,
        spared,
        failed,
        without_state,
        removed,
        kept,
    } = *counts;
    let single =
        |name, kind, value| Family::single(name, cold_help(name), kind, Number::Whole(value));
    let counter = |name, value| single(name, Kind::Counter, value);
    [
        single("cold_up", Kind::LowestGauge, is_up.into()),
        counter("cold_moved", moved),
        counter("cold_moved_on", moved_on),
        counter("cold_fetched", fetched),
        counter("cold_fetched_in_vain", fetched_in_vain),
        counter("cold_spared", spared),
        counter("cold_failed", failed),
        counter("cold_without_state", without_state),
        counter("cold_removed", removed),
        counter("cold_kept", kept),
    ]
}

/// The meaning of a metric of cold counters.
#[must_use]
pub fn cold_help(name: &str) -> &'static str {
    match name {
        "cold_up" => "Whether all databases of cold counters answered at the last try: 1, or 0",
        "cold_moved" => "Idle counters that moved to a database",
        "cold_moved_on" => "Cold counters that went on from a warm database to a colder one",
        "cold_fetched" => "Cold counters that came back from a database",
        "cold_fetched_in_vain" => "Look-ups of new counters that found no row",
        "cold_spared" => "New counters that needed no look-up",
        "cold_failed" => "Operations of databases of cold counters that failed",
        "cold_without_state" => {
            "Counters that were decided by --cold-failure, as their database did not answer"
        }
        "cold_removed" => "Stale rows of counters that came back, removed",
        "cold_kept" => {
            "Times that an idle counter stayed in memory, as databases have --cold-capacity counters"
        }
        _ => "A count of cold counters",
    }
}
