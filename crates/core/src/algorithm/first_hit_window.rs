//! First-hit window: at most `requests` hits in a window that opens at its first hit and is over
//! once `period` has passed; the next hit opens another.
//!
//! State words: `start` (ns since the epoch of the hit that opened the window; at least 1, for zero
//! is a counter that was never used), `count` (hits taken in it, and what it inherited), and two
//! that are zero.
//!
//! With `borrow`, a window may admit so many hits more (see [`Allowance`]). A window that ends in
//! debt is followed by another at once, and so on until the debt is paid; each pays `requests`,
//! whether or not anybody asks in it.
//!
//! Invariant: a clock that steps back stays in the window that is open. A window that was opened
//! while the clock was far ahead stands until the clock gets there. Looking, being denied and
//! giving back open no window.
//!
//! Hits that are charged ahead may be spent until the window that stands after the charge is over: it
//! has counted them, and no other opens before, so no window has more hits than it counted.
//!
//! Source: the limit algorithm of the Frequency Restrict Service (first use; start = end = now).

use super::fixed_window::Allowance;
use crate::quota::{Decision, Period, QuotaError, checked_period};
use crate::units::{Charge, Nanos, Timestamp};

/// The numbers of a first-hit window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstHitWindow {
    allowance: Allowance,
    period: Nanos,
}

impl FirstHitWindow {
    /// `requests` hits per window, which opens at its first hit and lasts for `period`.
    ///
    /// # Errors
    /// When `period` is out of range (1 ms to 3,660 days).
    pub fn new(requests: u32, period: Nanos) -> Result<Self, QuotaError> {
        let period = checked_period(period)?;
        Ok(FirstHitWindow { allowance: Allowance::new(requests), period })
    }

    /// Allows `borrow` hits more in a window, charged to the windows that follow.
    ///
    /// # Errors
    /// When there are no requests to pay it back with, or both together exceed u32.
    pub fn with_borrow(mut self, borrow: u32) -> Result<Self, QuotaError> {
        self.allowance = self.allowance.with_borrow(borrow)?;
        Ok(self)
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

    pub(super) fn decide(&self, state: &mut [u64; 4], charge: Charge, now: Timestamp) -> Decision {
        let (start, held) = self.standing(state, now.as_nanos().max(1));
        let charged = self.allowance.charge(held, charge);
        if charged.count != held {
            *state = [start, charged.count, 0, 0];
        }
        self.allowance.decision(charged, now, |later| {
            let passed = Nanos::new(self.period.as_nanos().saturating_mul(later));
            Timestamp::from_nanos(start).saturating_add(passed)
        })
    }

    /// The end of the window that stands after a charge at `now`.
    pub(crate) fn charged_until(&self, state: &[u64; 4], now: Timestamp) -> Timestamp {
        let (start, _) = self.standing(state, now.as_nanos().max(1));
        Timestamp::from_nanos(start).saturating_add(self.period)
    }

    /// The start and the count of the window that stands at `now`; where none does, of the one
    /// that a hit would open.
    fn standing(&self, state: &[u64; 4], now: u64) -> (u64, u64) {
        let [start, count, ..] = *state;
        if start == 0 {
            return (now, 0);
        }
        let (elapsed, period) = (now.saturating_sub(start), self.period.as_nanos());
        if elapsed < period {
            return (start, count);
        }
        match self.allowance.inherited(count, || elapsed / period) {
            0 => (now, 0),
            debt => (now - elapsed % period, debt),
        }
    }
}
