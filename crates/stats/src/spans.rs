//! Counts about the export of traces.

use crate::snapshot::{Family, Kind, Number};

/// What became of the spans of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanCounts {
    /// A collector has taken them.
    pub exported: u64,
    /// They are in no trace.
    pub dropped: u64,
}

pub(crate) fn families(counts: &SpanCounts) -> [Family; 2] {
    let SpanCounts { exported, dropped } = *counts;
    let single =
        |name, help, value| Family::single(name, help, Kind::Counter, Number::Whole(value));
    [
        single("spans_exported", "Spans of calls that the collector has taken", exported),
        single(
            "spans_dropped",
            "Spans of calls that were not exported, as there was no room or the collector did not take them",
            dropped,
        ),
    ]
}
