//! Windows by a local clock: periods aligned to its midnight, and months of its calendar.
//!
//! A *reading* is the time that the local clock shows, as nanoseconds since its own 1970-01-01 00:00. Each
//! window has an *index* on the clock; it opens at the first instant at which the clock reads its start or
//! later. So an hour that the clock repeats makes a window longer, and a window that the clock skips does
//! not exist. The windows that exist are numbered without gaps by their *ordinal*.
//!
//! Invariant: every instant lies in exactly one window, and ordinals increase with time. Both hold because
//! windows follow the furthest reading so far, which never falls. The first window opens at time 0, and the
//! last one ends at the end of u64 nanoseconds (in 2554), whole or not.
//!
//! Numbers stay far from the bounds of their types: an ordinal is that of an instant (below 2^45, because
//! periods are 1 ms or more) or at most 2^32 windows later.
//!
//! Source of the month arithmetic: Howard Hinnant, "chrono-compatible low-level date algorithms". Years
//! start in March, so that the leap day comes last.

use super::zone::Zone;
use std::sync::Arc;

const SECOND: i128 = 1_000_000_000;
const DAY: i128 = 86_400 * SECOND;
/// 1970-01-01 was a Thursday, three days after a Monday.
const MONDAY: i128 = -3 * DAY;

/// One window.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    /// Consecutive windows have consecutive ordinals.
    pub(super) ordinal: i64,
    /// When it opens, in nanoseconds since the Unix epoch.
    pub(super) start: u64,
    /// When the next window opens.
    pub(super) end: u64,
}

/// How the clock is divided into windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// Periods of equal length in nanoseconds, counted from the reading `origin`.
    Fixed { period: u64, origin: i128 },
    /// Numbers of months, counted from January 1970.
    Months(u32),
}

impl Cut {
    /// Whole weeks start on a Monday, all other periods at the local 1970-01-01 00:00.
    pub(super) fn fixed(period: u64) -> Cut {
        let is_weeks = i128::from(period) % (7 * DAY) == 0;
        Cut::Fixed { period, origin: if is_weeks { MONDAY } else { 0 } }
    }

    /// The index of the window that contains `reading`.
    fn index(self, reading: i128) -> i64 {
        match self {
            Cut::Fixed { period, origin } => floor_div(reading - origin, period),
            Cut::Months(months) => {
                let day = floor_div(reading, DAY as u64);
                month_of_day(day).div_euclid(months.into())
            }
        }
    }

    /// The reading at the start of window `index`.
    fn reading(self, index: i64) -> i128 {
        match self {
            Cut::Fixed { period, origin } => i128::from(index) * i128::from(period) + origin,
            Cut::Months(months) => i128::from(first_day_of_month(index * i64::from(months))) * DAY,
        }
    }
}

/// A span of constant offset, with the state of the windows at its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OffsetSpan {
    /// Its start, in nanoseconds since the Unix epoch.
    from: i128,
    /// The offset from UTC in nanoseconds, positive to the east.
    offset: i128,
    /// The clock has passed all readings below this before the span.
    passed: i128,
    /// The ordinal of the first window that can open in this span.
    opening: i64,
    /// The number of windows skipped up to the start of the span: index = ordinal + skipped.
    skipped: i64,
}

/// The windows by one clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LocalWindows {
    cut: Cut,
    /// By time. Never empty, and the first span starts before all timestamps.
    spans: Arc<[OffsetSpan]>,
}

impl LocalWindows {
    pub(super) fn new(cut: Cut, zone: &Zone) -> Self {
        let mut spans: Vec<OffsetSpan> = Vec::new();
        for (from, offset) in zone.spans() {
            let (from, offset) = (i128::from(from) * SECOND, i128::from(offset) * SECOND);
            let reading = from + offset;
            let Some(before) = spans.last() else {
                spans.push(OffsetSpan {
                    from,
                    offset,
                    passed: reading,
                    opening: i64::MIN,
                    skipped: 0,
                });
                continue;
            };
            let passed = before.passed.max(from + before.offset);
            // The first window that has not opened yet; a jump of the clock may skip further ahead.
            let next = cut.index(passed - 1) + 1;
            let skipped = (cut.index(reading) - next).max(0);
            spans.push(OffsetSpan {
                from,
                offset,
                passed,
                opening: next - before.skipped,
                skipped: before.skipped + skipped,
            });
        }
        LocalWindows { cut, spans: spans.into() }
    }

    /// The window that contains the instant `at`.
    pub(super) fn window(&self, at: u64) -> Window {
        let (here, ordinal) = self.place(at);
        Window {
            ordinal,
            start: self.start_near(here, ordinal),
            end: self.start_near(here, ordinal + 1),
        }
    }

    /// The ordinal of that window.
    pub(super) fn ordinal(&self, at: u64) -> i64 {
        self.place(at).1
    }

    /// When a window opens.
    pub(super) fn start(&self, ordinal: i64) -> u64 {
        let here = last_of(&self.spans, |span| span.opening <= ordinal);
        self.start_near(here, ordinal)
    }

    /// The index of the span that contains an instant, and the ordinal of its window.
    fn place(&self, at: u64) -> (usize, i64) {
        let at = i128::from(at);
        let here = last_of(&self.spans, |span| span.from <= at);
        let span = &self.spans[here];
        let furthest = (at + span.offset).max(span.passed - 1);
        (here, self.cut.index(furthest) - span.skipped)
    }

    /// When a window opens. Fast if it opens in the span `here`.
    fn start_near(&self, here: usize, ordinal: i64) -> u64 {
        let is_before_next = |next: &OffsetSpan| ordinal < next.opening;
        let span = &self.spans[here];
        if span.opening > ordinal || !self.spans.get(here + 1).is_none_or(is_before_next) {
            return self.start(ordinal);
        }
        let reading = self.cut.reading(ordinal + span.skipped);
        let at = (reading - span.offset).max(span.from);
        u64::try_from(at.max(0)).unwrap_or(u64::MAX)
    }
}

/// The last span for which `holds` is true. It must be true for a prefix of the spans; the first one is
/// assumed.
fn last_of(spans: &[OffsetSpan], holds: impl Fn(&OffsetSpan) -> bool) -> usize {
    spans.partition_point(holds).saturating_sub(1)
}

/// Rounds down. Numbers nearly always fit into a word, and dividing two words takes several times as long.
/// Divisors are 1 ms or more and dividends below 2^66, so quotients fit.
fn floor_div(number: i128, by: u64) -> i64 {
    match u64::try_from(number) {
        Ok(number) => (number / by) as i64,
        Err(_) => number.div_euclid(i128::from(by)) as i64,
    }
}

const YEARS_PER_ERA: u64 = 400;
/// Days of 400 years, after which the calendar repeats.
const DAYS_PER_ERA: u64 = 146_097;
/// From 0000-03-01 to 1970-01-01: 1969 years and 10 months. No date is earlier, so numbers counted from
/// there are unsigned, which makes division faster.
const EPOCH_DAYS: i64 = 719_468;
const EPOCH_MONTHS: i64 = 1_969 * 12 + 10;

/// The month of a day; both are counted from 1970-01.
fn month_of_day(day: i64) -> i64 {
    let day = (day + EPOCH_DAYS) as u64;
    let (era, day) = (day / DAYS_PER_ERA, day % DAYS_PER_ERA);
    // Subtracts the leap days before it, so that all years have 365 days: one in each 4 years (1460 days),
    // except in each 100 (36,524), except at the end of the era (its last day, 146,096).
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - days_before_year(year);
    // From March, the lengths of months repeat: 31, 30, 31, 30, 31 days, together 153.
    let month = (5 * day + 2) / 153;
    ((era * YEARS_PER_ERA + year) * 12 + month) as i64 - EPOCH_MONTHS
}

/// The first day of a month; both are counted from 1970-01.
fn first_day_of_month(month: i64) -> i64 {
    let month = (month + EPOCH_MONTHS) as u64;
    let (year, month) = (month / 12, month % 12);
    let (era, year) = (year / YEARS_PER_ERA, year % YEARS_PER_ERA);
    let day = days_before_year(year) + (153 * month + 2) / 5;
    (era * DAYS_PER_ERA + day) as i64 - EPOCH_DAYS
}

/// The days of an era before one of its years.
fn days_before_year(year: u64) -> u64 {
    365 * year + year / 4 - year / 100
}
