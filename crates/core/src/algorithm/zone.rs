//! Local clocks as data: a zone's offset from UTC, and its changes.
//!
//! Invariant: the changes of a [`Zone`] are sorted, at distinct times, each to a different offset than
//! before, and within the range of [`Timestamp`](crate::Timestamp); offsets are at most a day. Other inputs
//! are brought into that form. Zone names are unknown here: the caller has the time zone database.

use std::sync::Arc;

/// The offset of a local clock from UTC over time, including daylight saving.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zone {
    /// The offset before the first change, in seconds east of UTC.
    offset: i32,
    /// The times of changes in seconds since the Unix epoch, each with its new offset.
    changes: Arc<[(i64, i32)]>,
}

const DAY: i32 = 86_400;
/// Offsets are at most a day, so no reading of two days before the epoch recurs after the epoch.
const FIRST: i64 = -2 * DAY as i64;
/// Timestamps end at 2^64 ns, which is before 2^35 s.
const LAST: i64 = 1 << 35;

impl Zone {
    /// UTC.
    #[must_use]
    pub fn utc() -> Zone {
        Zone::fixed(0)
    }

    /// A constant offset of `offset` seconds east of UTC, clamped to a day either way.
    #[must_use]
    pub fn fixed(offset: i32) -> Zone {
        Zone { offset: clamped(offset), changes: [].into() }
    }

    /// An initial offset of `offset` seconds east of UTC, and `changes`: times in seconds since the Unix
    /// epoch, each with the offset from then on, clamped to a day either way. They are sorted here; of
    /// several changes at one time the last wins.
    #[must_use]
    pub fn changing(offset: i32, mut changes: Vec<(i64, i32)>) -> Zone {
        changes.sort_by_key(|(time, _)| *time);
        // The last change at each time.
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

    /// The spans of constant offset: the start in seconds since the Unix epoch, and the offset.
    pub(super) fn spans(&self) -> impl Iterator<Item = (i64, i32)> {
        std::iter::once((FIRST, self.offset)).chain(self.changes.iter().copied())
    }
}

fn clamped(offset: i32) -> i32 {
    offset.clamp(-DAY, DAY)
}
