//! First-hit window: at most `requests` hits in a window that opens at its first hit and ends after
//! `period`. The next hit opens another window.
//!
//! State words: `start` (ns since the epoch of the hit that opened the window; at least 1, because zero is
//! a counter that was never used), `count` (hits taken in it plus inherited debt), `last` (ns of the last
//! hit that was taken or forced; zero if not recorded), and zero. `last` decides nothing; it is kept for
//! reports.
//!
//! With `borrow`, a window may admit this many more hits (see [`Allowance`]). A window that ends in debt is
//! followed by another at once, and so on until the debt is paid. Each pays `requests`, whether or not it
//! has hits. With a daily reset, a window that began before the last reset is over, together with its debt.
//!
//! Invariant: if the clock steps back, the counter stays in the open window. A window that was opened while
//! the clock was far ahead stays until the clock gets there. Peeks, denials and refunds open no window.
//!
//! Hits that are charged ahead may be spent until the end of the window that is open after the charge. It
//! has counted them, and no other window opens before its end, so no window has more hits than it counted.
//!
//! Source: the limit algorithm of the Frequency Restrict Service (first use; start = end = now; self-update
//! at an agreed point in time).

use super::allowance::{Allowance, Overdraft};
use super::daily_reset::DailyReset;
use crate::decision::Decision;
use crate::rate::{Period, QuotaError, Rate, checked_period};
use crate::units::{Charge, Nanos, Timestamp};

/// The numbers of a first-hit window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstHitWindow {
    allowance: Allowance,
    period: Nanos,
    pub(crate) reset: Option<DailyReset>,
}

/// An open window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenWindow {
    /// When it opened.
    pub start: Timestamp,
    /// When the last hit came, taken or not; the start if not recorded.
    pub last: Timestamp,
    /// The hits in it, including inherited debt.
    pub count: u64,
    /// When it ends.
    pub end: Timestamp,
}

/// The current window, in nanoseconds since the Unix epoch.
#[derive(Debug, Clone, Copy)]
struct Current {
    start: u64,
    count: u64,
    last: u64,
    /// The first reset after it opened; the end of time if there is none.
    reset: u64,
    phase: Phase,
}

/// Whether a hit has opened the window, or the next hit would.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    New,
}

impl FirstHitWindow {
    /// `requests` hits per window, which opens at its first hit and lasts for `period`.
    ///
    /// # Errors
    /// If `period` is out of range (1 ms to 3,660 days).
    pub fn new(requests: u32, period: Nanos) -> Result<Self, QuotaError> {
        let period = checked_period(period)?;
        Ok(FirstHitWindow {
            allowance: Allowance::new(requests, Overdraft::Refuse),
            period,
            reset: None,
        })
    }

    /// Allows `borrow` more hits in a window, which later windows pay back.
    ///
    /// # Errors
    /// If there are no requests to pay them back, or both together exceed u32.
    pub fn with_borrow(mut self, borrow: u32) -> Result<Self, QuotaError> {
        self.allowance = self.allowance.with_borrow(borrow)?;
        Ok(self)
    }

    /// Ends every window at `reset` each day.
    #[must_use]
    pub fn with_reset(mut self, reset: DailyReset) -> Self {
        self.reset = Some(reset);
        self
    }

    /// The window that is open at `now`; none if the counter was never used or its window is over.
    #[must_use]
    pub fn open_window(&self, state: &[u64; 4], now: Timestamp) -> Option<OpenWindow> {
        let current = self.current(state, now.as_nanos().max(1));
        (current.phase == Phase::Open).then(|| OpenWindow {
            start: Timestamp::from_nanos(current.start),
            last: Timestamp::from_nanos(current.last.max(current.start)),
            count: current.count,
            end: self.opening(current, 1),
        })
    }

    /// The state of a counter whose window opened at `start` and has `count` hits, the last of them at
    /// `last`.
    #[must_use]
    pub fn state(start: Timestamp, count: u64, last: Timestamp) -> [u64; 4] {
        let start = start.as_nanos().max(1);
        [start, count, last.as_nanos().max(start), 0]
    }

    pub(crate) fn rate(&self) -> Rate {
        self.allowance.rate(Period::Span(self.period))
    }

    pub(crate) fn decide(&self, state: &mut [u64; 4], charge: Charge, now: Timestamp) -> Decision {
        let hit_at = now.as_nanos().max(1);
        let current = self.current(state, hit_at);
        let charged = self.allowance.charge(current.count, charge);
        let last = if charged.is_hit() { current.last.max(hit_at) } else { current.last };
        if charged.count != current.count {
            *state = [current.start, charged.count, last.max(current.start), 0];
        } else if current.phase == Phase::Open && last != state[2] {
            // A forced hit that could not be counted is recorded if a window is open.
            state[2] = last;
        }
        self.allowance.decision(charged, now, |later| self.opening(current, later))
    }

    /// The end of the window that is open after a charge at `now`.
    pub(crate) fn spendable_until(&self, state: &[u64; 4], now: Timestamp) -> Timestamp {
        self.opening(self.current(state, now.as_nanos().max(1)), 1)
    }

    /// When the n-th window after this one opens, or the next reset if that is earlier.
    fn opening(&self, current: Current, later: u64) -> Timestamp {
        let passed = self.period.as_nanos().saturating_mul(later);
        Timestamp::from_nanos(current.start.saturating_add(passed).min(current.reset))
    }

    /// The window that is open at `now`, or the window that a hit would open.
    fn current(&self, state: &[u64; 4], now: u64) -> Current {
        let [start, count, last, _] = *state;
        let reset = |at| self.reset.as_ref().map_or(u64::MAX, |daily| daily.next(at));
        let next =
            || Current { start: now, count: 0, last: 0, reset: reset(now), phase: Phase::New };
        if start == 0 {
            return next();
        }
        let open = Current { start, count, last, reset: reset(start), phase: Phase::Open };
        if now >= open.reset && open.reset != u64::MAX {
            return next();
        }
        let (elapsed, period) = (now.saturating_sub(start), self.period.as_nanos());
        if elapsed < period {
            return open;
        }
        match self.allowance.inherited(count, || elapsed / period) {
            0 => next(),
            debt => Current { start: now - elapsed % period, count: debt, ..open },
        }
    }
}
