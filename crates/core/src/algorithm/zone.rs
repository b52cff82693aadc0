//! Local clocks, as data: how far a zone is from UTC, and when that changes.
//!
//! Invariant: a [`Zone`]'s changes are sorted, at different times, each to another offset than the
//! one before, and inside the time that a [`Timestamp`](crate::Timestamp) can tell; offsets are at
//! most a day. Whatever else is handed in is brought into that form. Zone names are not known
//! here: who has a time zone database hands its changes in.

use std::sync::Arc;

/// How local clocks differ from UTC over time: rules of daylight saving included, as data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zone {
    /// The offset before the first change, in seconds east of UTC.
    offset: i32,
    /// When the offset changes, in seconds since the Unix epoch, and to what.
    changes: Arc<[(i64, i32)]>,
}

const DAY: i32 = 86_400;
/// What a clock read two days before the epoch, no clock reads from the epoch on.
const FIRST: i64 = -2 * DAY as i64;
/// 2^64 ns, the end of all timestamps, is before 2^35 s.
const LAST: i64 = 1 << 35;

impl Zone {
    /// UTC.
    #[must_use]
    pub fn utc() -> Zone {
        Zone::fixed(0)
    }

    /// A clock that is always `offset` seconds east of UTC; clamped to a day either way.
    #[must_use]
    pub fn fixed(offset: i32) -> Zone {
        Zone { offset: clamped(offset), changes: [].into() }
    }

    /// A clock that starts `offset` seconds east of UTC, and changes: each of `changes` is a time
    /// in seconds since the Unix epoch and the offset from then on, clamped to a day either way.
    /// They are sorted here; of several at one time the last counts.
    #[must_use]
    pub fn changing(offset: i32, mut changes: Vec<(i64, i32)>) -> Zone {
        changes.sort_by_key(|(time, _)| *time);
        // The last one of each time.
        let last_ones = changes.chunk_by(|a, b| a.0 == b.0).filter_map(|same| same.last());
        let (mut first, mut kept) = (clamped(offset), Vec::new());
        for (time, offset) in last_ones.map(|(time, offset)| (*time, clamped(*offset))) {
            if time <= FIRST {
                first = offset;
            } else if time < LAST && kept.last().map_or(first, |(_, before)| *before) != offset {
                kept.push((time, offset));
            }
        }
        Zone { offset: first, changes: kept.into() }
    }

    /// The spans of constant offset: from when, in seconds since the Unix epoch, and the offset.
    pub(super) fn spans(&self) -> impl Iterator<Item = (i64, i32)> {
        std::iter::once((FIRST, self.offset)).chain(self.changes.iter().copied())
    }
}

fn clamped(offset: i32) -> i32 {
    offset.clamp(-DAY, DAY)
}
