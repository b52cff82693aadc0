//! Fixed window: at most `requests` hits in each window, windows one after the other without a gap.
//!
//! Windows are aligned to the Unix epoch as envoyproxy/ratelimit aligns them (so a week starts on a
//! Thursday), or by a local clock, or are months of the calendar. With `borrow`, a window may admit
//! so many hits more, which those after it pay back (see [`Allowance`]).
//!
//! State words: `start` (ns since the epoch at which the counted window opened), `count` (hits
//! taken in it, overdrawn ones too, and what it inherited of those before), `last` (ns of the last hit that
//! was counted; zero where nobody noted it), and one that is zero. `last` decides nothing but whether a
//! daily reset came since (see `self_update`). A caller can pass up
//! to twice the limit around a boundary; that is the nature of the algorithm, and why the others
//! exist.
//!
//! Invariant: the window that is charged is that of the later of `now` and the stored start. A
//! clock that steps back stays in the newer window; one that once ran far ahead and was corrected
//! leaves the counters that were taken from meanwhile in the window of that time, with what is left
//! of its hits, until the clock gets there. Looking, being denied and giving back to a window that
//! is over write nothing, so they move no counter ahead.
//!
//! Hits that are charged ahead may be spent until the window that they are counted in ends. Then every
//! hit happens no later than that window and is counted in it, so no window has more hits than it
//! counted, and that is at most `requests + borrow`.

use super::allowance::{Allowance, Overdraft};
use super::calendar::{Cut, LocalWindows, Window};
use super::daily_reset::DailyReset;
use super::zone::Zone;
use crate::quota::{Decision, Period, QuotaError, checked_period};
use crate::units::{Charge, Nanos, Timestamp};

/// The numbers of a fixed window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FixedWindow {
    allowance: Allowance,
    period: Period,
    windows: Windows,
    reset: Option<DailyReset>,
}

/// Where windows begin and end.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Windows {
    /// At multiples of so many nanoseconds since the Unix epoch.
    Epoch(u64),
    /// Where a local clock says.
    Local(LocalWindows),
}

/// The windows of a period by a local clock. Made once and shared: that of a zone with daylight
/// saving is a table of some 16 KB.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alignment {
    period: Period,
    windows: LocalWindows,
}

impl Alignment {
    /// Windows of `period` by the clock of `zone`, UTC included. Whole weeks start on Monday.
    ///
    /// # Errors
    /// When `period` is out of range (1 ms to 3,660 days, 1 to 120 months).
    pub fn new(period: Period, zone: &Zone) -> Result<Self, QuotaError> {
        let cut = match period {
            Period::Span(span) => Cut::fixed(checked_period(span)?.as_nanos()),
            Period::Months(months) => Cut::Months(checked_months(months)?),
        };
        Ok(Alignment { period, windows: LocalWindows::new(cut, zone) })
    }
}

fn checked_months(months: u32) -> Result<u32, QuotaError> {
    if (1..=120).contains(&months) { Ok(months) } else { Err(QuotaError::Months(months)) }
}

impl FixedWindow {
    /// `requests` hits per `period`, in windows aligned to the Unix epoch. Zero requests is a limit
    /// that denies everything.
    ///
    /// # Errors
    /// When `period` is out of range (1 ms to 3,660 days).
    pub fn new(requests: u32, period: Nanos) -> Result<Self, QuotaError> {
        let period = checked_period(period)?;
        Ok(FixedWindow {
            allowance: Allowance::new(requests, Overdraft::Count),
            period: Period::Span(period),
            windows: Windows::Epoch(period.as_nanos()),
            reset: None,
        })
    }

    /// `requests` hits per `months` of the calendar, counted from January 1970 (12 are a year), by
    /// the UTC calendar unless [`in_zone`](Self::in_zone) says otherwise.
    ///
    /// # Errors
    /// When `months` is 0 or above 120.
    pub fn calendar(requests: u32, months: u32) -> Result<Self, QuotaError> {
        let alignment = Alignment::new(Period::Months(months), &Zone::utc())?;
        Ok(FixedWindow {
            allowance: Allowance::new(requests, Overdraft::Count),
            period: alignment.period,
            windows: Windows::Local(alignment.windows),
            reset: None,
        })
    }

    /// Aligns the windows to the clock of `zone`, UTC included; whole weeks then start on Monday.
    #[must_use]
    pub fn in_zone(self, zone: &Zone) -> Self {
        match Alignment::new(self.period, zone) {
            Ok(alignment) => self.aligned(&alignment),
            // The period of a limit that exists is in range.
            Err(_) => self,
        }
    }

    /// Counts in the windows of `alignment`, whose period becomes that of the limit.
    #[must_use]
    pub fn aligned(mut self, alignment: &Alignment) -> Self {
        self.period = alignment.period;
        self.windows = Windows::Local(alignment.windows.clone());
        self
    }

    /// Allows `borrow` hits more in a window, charged to the windows that follow.
    ///
    /// # Errors
    /// When there are no requests to pay it back with, or both together exceed u32.
    pub fn with_borrow(mut self, borrow: u32) -> Result<Self, QuotaError> {
        self.allowance = self.allowance.with_borrow(borrow)?;
        Ok(self)
    }

    /// Forgets all hits at `reset`, each day.
    #[must_use]
    pub fn with_reset(mut self, reset: DailyReset) -> Self {
        self.reset = Some(reset);
        self
    }

    /// When all hits are forgotten each day.
    #[must_use]
    pub fn reset(&self) -> Option<&DailyReset> {
        self.reset.as_ref()
    }

    /// Hits per window.
    #[must_use]
    pub fn requests(&self) -> u32 {
        self.allowance.requests()
    }

    /// The length of a window.
    #[must_use]
    pub fn period(&self) -> Period {
        self.period
    }

    /// The most that can be left: the requests of a window and what it may borrow.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.allowance.capacity()
    }

    pub(super) fn decide(&self, state: &mut [u64; 4], charge: Charge, now: Timestamp) -> Decision {
        let [start, count, last, _] = *state;
        let window = self.windows.window(now.as_nanos().max(start));
        let held = if start >= window.start {
            count
        } else {
            self.allowance.inherited(count, || window.ordinal.abs_diff(self.windows.ordinal(start)))
        };
        let charged = self.allowance.charge(held, charge);
        if charged.count != held {
            // Of two limits that cut time differently and share a counter, the later start stays: else
            // each would find a window of its own that is new.
            let last = if charged.is_hit() { last.max(now.as_nanos()).max(1) } else { last };
            *state = [window.start.max(start), charged.count, last, 0];
        }
        self.allowance.decision(charged, now, |later| {
            let opening = if later == 1 { window.end } else { self.windows.later(window, later) };
            Timestamp::from_nanos(opening)
        })
    }
}

impl FixedWindow {
    /// When the last hit was counted; the start of its window where nobody noted it.
    pub(crate) fn last_hit(state: &[u64; 4]) -> Option<u64> {
        let [start, _, last, _] = *state;
        Some(if last > 0 { last } else { start }).filter(|last| *last > 0)
    }

    /// The end of the window that a charge at `now` is counted in; the same before and after it.
    pub(crate) fn spendable_until(&self, state: &[u64; 4], now: Timestamp) -> Timestamp {
        Timestamp::from_nanos(self.windows.window(now.as_nanos().max(state[0])).end)
    }
}

impl Windows {
    /// The window that the instant `at` lies in.
    fn window(&self, at: u64) -> Window {
        match self {
            Windows::Epoch(period) => {
                // Periods are 1 ms or more, so ordinals are below 2^45.
                let ordinal = at / period;
                let start = ordinal * period;
                Window { ordinal: ordinal as i64, start, end: start.saturating_add(*period) }
            }
            Windows::Local(local) => local.window(at),
        }
    }

    /// The ordinal of that window.
    fn ordinal(&self, at: u64) -> i64 {
        match self {
            Windows::Epoch(period) => (at / period) as i64,
            Windows::Local(local) => local.ordinal(at),
        }
    }

    /// When the window opens that comes `later` windows after this one.
    fn later(&self, window: Window, later: u64) -> u64 {
        match self {
            Windows::Epoch(period) => window.start.saturating_add(later.saturating_mul(*period)),
            Windows::Local(local) => local.start(window.ordinal.saturating_add_unsigned(later)),
        }
    }
}
