//! Counts about the writing of statistics.

use crate::snapshot::{Family, Kind, Number};

/// What became of the statistics of a process on their way to the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatisticsCounts {
    /// Whether the last try succeeded.
    pub is_up: bool,
    /// Tries that failed.
    pub failed: u64,
    /// Hits that are in no statistic, as there was no room to keep them.
    pub dropped: u64,
    /// What waits for the database.
    pub backlog_bytes: u64,
}

pub(crate) fn families(counts: &StatisticsCounts) -> [Family; 4] {
    let StatisticsCounts { is_up, failed, dropped, backlog_bytes } = *counts;
    let single = |name, help, kind, value| Family::single(name, help, kind, Number::Whole(value));
    [
        single(
            "statistics_up",
            "Whether the database of statistics takes what is written: 1, or 0",
            Kind::LowestGauge,
            is_up.into(),
        ),
        single(
            "statistics_failed",
            "Tries to write statistics that failed and were made again",
            Kind::Counter,
            failed,
        ),
        single(
            "statistics_dropped",
            "Hits that are in no statistic, as the database was away for too long",
            Kind::Counter,
            dropped,
        ),
        single(
            "statistics_backlog_bytes",
            "Statistics that wait for the database, in bytes",
            Kind::Gauge,
            backlog_bytes,
        ),
    ]
}
