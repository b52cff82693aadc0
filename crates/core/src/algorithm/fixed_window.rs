//! Fixed window: at most `requests` hits in each of a sequence of adjacent windows.
//!
//! Windows are aligned to the Unix epoch as in envoyproxy/ratelimit (so a week starts on a Thursday), or by
//! a local clock, or are calendar months. With `borrow`, a window may admit this many more hits, which
//! later windows pay back (see [`Allowance`]). Around a boundary, a caller can pass up to twice the limit;
//! the sliding windows and the token bucket avoid this.
//!
//! State words: `start` (ns since the epoch at which the counted window opened), `count` (hits taken in it,
//! including overdrafts and inherited debt), `last` (ns of the last counted hit; zero if not recorded), and
//! zero. `last` is used only to decide whether a daily reset came since.
//!
//! Invariant: a charge counts in the window of `now` or of the stored start, whichever is later. If the
//! clock steps back, the counter stays in the newer window. If the clock was far ahead for a while,
//! counters that were charged meanwhile stay in the window of that time, with its remaining hits, until the
//! clock gets there. Peeks, denials, and refunds to a past window write nothing, so they move no counter
//! ahead.
//!
//! Hits that are charged ahead may be spent until the end of the window that counts them. So every hit
//! happens no later than the window that counts it, and no window has more hits than it counted: at most
//! `requests + borrow`.

use super::allowance::{Allowance, Overdraft};
use super::calendar::{Cut, LocalWindows, Window};
use super::daily_reset::{DailyReset, Resettable};
use super::zone::Zone;
use crate::decision::Decision;
use crate::rate::{Period, QuotaError, Rate, checked_period};
use crate::state::{narrow, narrow_mut};
use crate::units::{Charge, Nanos, Timestamp};

/// The numbers of a fixed window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FixedWindow {
    allowance: Allowance,
    period: Period,
    windows: Windows,
    pub(crate) reset: Option<DailyReset>,
}

/// The boundaries of windows.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Windows {
    /// Multiples of this many nanoseconds since the Unix epoch.
    Epoch(u64),
    /// By a local clock.
    Local(LocalWindows),
}

/// The windows of a period by a local clock. Shared by limits, because the table for a zone with daylight
/// saving takes some 16 KB.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alignment {
    period: Period,
    windows: LocalWindows,
}

impl Alignment {
    /// Windows of `period` by the clock of `zone`, which may be UTC. Whole weeks start on Monday.
    ///
    /// # Errors
    /// If `period` is out of range (1 ms to 3,660 days, 1 to 120 months).
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
    /// `requests` hits per `period`, in windows aligned to the Unix epoch. Zero requests deny everything.
    ///
    /// # Errors
    /// If `period` is out of range (1 ms to 3,660 days).
    pub fn new(requests: u32, period: Nanos) -> Result<Self, QuotaError> {
        let period = checked_period(period)?;
        Ok(FixedWindow {
            allowance: Allowance::new(requests, Overdraft::Count),
            period: Period::Span(period),
            windows: Windows::Epoch(period.as_nanos()),
            reset: None,
        })
    }

    /// `requests` hits per `months` of the calendar, counted from January 1970 (12 are a year), in UTC
    /// unless [`in_zone`](Self::in_zone) is used.
    ///
    /// # Errors
    /// If `months` is 0 or above 120.
    pub fn calendar(requests: u32, months: u32) -> Result<Self, QuotaError> {
        let alignment = Alignment::new(Period::Months(months), &Zone::utc())?;
        Ok(FixedWindow {
            allowance: Allowance::new(requests, Overdraft::Count),
            period: alignment.period,
            windows: Windows::Local(alignment.windows),
            reset: None,
        })
    }

    /// Aligns the windows to the clock of `zone`, which may be UTC. Whole weeks then start on Monday.
    #[must_use]
    pub fn in_zone(self, zone: &Zone) -> Self {
        match Alignment::new(self.period, zone) {
            Ok(alignment) => self.aligned(&alignment),
            // Unreachable: the period has been validated.
            Err(_) => self,
        }
    }

    /// Uses the windows of `alignment`, including its period.
    #[must_use]
    pub fn aligned(mut self, alignment: &Alignment) -> Self {
        self.period = alignment.period;
        self.windows = Windows::Local(alignment.windows.clone());
        self
    }

    /// Allows `borrow` more hits in a window, which later windows pay back.
    ///
    /// # Errors
    /// If there are no requests to pay them back, or both together exceed u32.
    pub fn with_borrow(mut self, borrow: u32) -> Result<Self, QuotaError> {
        self.allowance = self.allowance.with_borrow(borrow)?;
        Ok(self)
    }

    /// Forgets all hits at `reset` each day.
    #[must_use]
    pub fn with_reset(mut self, reset: DailyReset) -> Self {
        self.reset = Some(reset);
        self
    }

    pub(crate) fn rate(&self) -> Rate {
        self.allowance.rate(self.period)
    }

    pub(crate) fn decide(&self, state: &mut [u64; 4], charge: Charge, now: Timestamp) -> Decision {
        let [start, count, last, _] = *state;
        let window = self.windows.window(now.as_nanos().max(start));
        let held = if start >= window.start {
            count
        } else {
            self.allowance.inherited(count, || window.ordinal.abs_diff(self.windows.ordinal(start)))
        };
        let charged = self.allowance.charge(held, charge);
        if charged.count != held {
            // If two limits with different windows share a counter, the later start stays. Otherwise each
            // would see a new window of its own.
            let last = if charged.is_hit() { last.max(now.as_nanos()).max(1) } else { last };
            *state = [window.start.max(start), charged.count, last, 0];
        }
        self.allowance.decision(charged, now, |later| {
            let opening = if later == 1 { window.end } else { self.windows.later(window, later) };
            Timestamp::from_nanos(opening)
        })
    }
}

impl Resettable for FixedWindow {
    fn decide(&self, state: &mut [u64], charge: Charge, now: Timestamp) -> Decision {
        self.decide(narrow_mut(state), charge, now)
    }

    fn last_hit(&self, state: &[u64]) -> Option<u64> {
        let [start, _, last, _] = *narrow(state);
        Some(if last > 0 { last } else { start }).filter(|last| *last > 0)
    }

    fn spendable_until(&self, state: &[u64], now: Timestamp) -> Timestamp {
        Timestamp::from_nanos(self.windows.window(now.as_nanos().max(state[0])).end)
    }
}

impl Windows {
    /// The window that contains the instant `at`.
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

    /// When the window opens that is `later` windows after this one.
    fn later(&self, window: Window, later: u64) -> u64 {
        match self {
            Windows::Epoch(period) => window.start.saturating_add(later.saturating_mul(*period)),
            Windows::Local(local) => local.start(window.ordinal.saturating_add_unsigned(later)),
        }
    }
}
