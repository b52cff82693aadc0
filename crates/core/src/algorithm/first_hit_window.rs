//! First-hit window: at most `requests` hits in a window that opens at its first hit and is over
//! once `period` has passed; the next hit opens another.
//!
//! State words: `start` (ns since the epoch of the hit that opened the window; at least 1, for zero
//! is a counter that was never used), `count` (hits taken in it, and what it inherited), `last` (ns
//! of the last hit that was taken, or drained in vain; zero where nobody noted it), and one that is
//! zero. `last` decides nothing: it is kept for those who ask.
//!
//! With `borrow`, a window may admit so many hits more (see [`Allowance`]). A window that ends in
//! debt is followed by another at once, and so on until the debt is paid; each pays `requests`,
//! whether or not anybody asks in it.
//!
//! With a daily reset, a window that began before the last reset is over, its debt with it: the
//! counter is as if it had never been used.
//!
//! Invariant: a clock that steps back stays in the window that is open. A window that was opened
//! while the clock was far ahead stands until the clock gets there. Looking, being denied and
//! giving back open no window.
//!
//! Hits that are charged ahead may be spent until the window that stands after the charge is over: it
//! has counted them, and no other opens before, so no window has more hits than it counted.
//!
//! Source: the limit algorithm of the Frequency Restrict Service (first use; start = end = now;
//! self-update at an agreed point in time).

use super::allowance::{Allowance, Overdraft};
use super::daily_reset::DailyReset;
use crate::quota::{Decision, Period, QuotaError, checked_period};
use crate::units::{Charge, Nanos, Timestamp};

/// The numbers of a first-hit window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstHitWindow {
    allowance: Allowance,
    period: Nanos,
    reset: Option<DailyReset>,
}

/// A window that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenWindow {
    /// When it opened.
    pub start: Timestamp,
    /// When the last hit came, taken or refused; the start where nobody noted it.
    pub last: Timestamp,
    /// The hits in it, with those that it inherited as debt.
    pub count: u64,
    /// When it is over.
    pub end: Timestamp,
}

/// The window that stands at some moment, in nanoseconds since the Unix epoch.
#[derive(Debug, Clone, Copy)]
struct Current {
    start: u64,
    count: u64,
    last: u64,
    /// The first reset after it opened; the end of time where there is none.
    reset: u64,
    phase: Phase,
}

/// Whether the window was opened by a hit, or is the one that a hit would open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    New,
}

impl FirstHitWindow {
    /// `requests` hits per window, which opens at its first hit and lasts for `period`.
    ///
    /// # Errors
    /// When `period` is out of range (1 ms to 3,660 days).
    pub fn new(requests: u32, period: Nanos) -> Result<Self, QuotaError> {
        let period = checked_period(period)?;
        Ok(FirstHitWindow {
            allowance: Allowance::new(requests, Overdraft::Refuse),
            period,
            reset: None,
        })
    }

    /// Allows `borrow` hits more in a window, charged to the windows that follow.
    ///
    /// # Errors
    /// When there are no requests to pay it back with, or both together exceed u32.
    pub fn with_borrow(mut self, borrow: u32) -> Result<Self, QuotaError> {
        self.allowance = self.allowance.with_borrow(borrow)?;
        Ok(self)
    }

    /// Ends every window at `reset`, each day.
    #[must_use]
    pub fn with_reset(mut self, reset: DailyReset) -> Self {
        self.reset = Some(reset);
        self
    }

    /// When windows end each day, whatever is left of them.
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
        Period::Span(self.period)
    }

    /// The most that can be left: the requests of a window and what it may borrow.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.allowance.capacity()
    }

    /// The window that is open at `now` in a counter of this state; none in one that was never
    /// used, and once it is over.
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

    /// The state of a counter whose window opened at `start` and has `count` hits, the last at
    /// `last`.
    #[must_use]
    pub fn state(start: Timestamp, count: u64, last: Timestamp) -> [u64; 4] {
        let start = start.as_nanos().max(1);
        [start, count, last.as_nanos().max(start), 0]
    }

    pub(super) fn decide(&self, state: &mut [u64; 4], charge: Charge, now: Timestamp) -> Decision {
        let hit_at = now.as_nanos().max(1);
        let current = self.current(state, hit_at);
        let charged = self.allowance.charge(current.count, charge);
        let last = if charged.is_hit() { current.last.max(hit_at) } else { current.last };
        if charged.count != current.count {
            *state = [current.start, charged.count, last.max(current.start), 0];
        } else if current.phase == Phase::Open && last != state[2] {
            // Drained in vain: the hit is noted where there is a window to note it in.
            state[2] = last;
        }
        self.allowance.decision(charged, now, |later| self.opening(current, later))
    }

    /// The end of the window that stands after a charge at `now`.
    pub(crate) fn spendable_until(&self, state: &[u64; 4], now: Timestamp) -> Timestamp {
        self.opening(self.current(state, now.as_nanos().max(1)), 1)
    }

    /// When the n-th window after this one opens, at the latest: a reset leaves nothing to wait for.
    fn opening(&self, current: Current, later: u64) -> Timestamp {
        let passed = self.period.as_nanos().saturating_mul(later);
        Timestamp::from_nanos(current.start.saturating_add(passed).min(current.reset))
    }

    /// The window that stands at `now`; where none does, the one that a hit would open.
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
