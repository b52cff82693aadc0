//! Fixed window: at most `requests` hits in each window of length `period`, windows aligned to
//! the Unix epoch as envoyproxy/ratelimit aligns them.
//!
//! State words: `start` (ns since the epoch at which the counted window opened), `count` (hits
//! taken in it). A caller can pass up to twice the limit around a boundary; that is the nature
//! of the algorithm, and why the others exist.

use crate::quota::{Decision, Outcome, QuotaError, State, checked_period};
use crate::units::{Hits, Nanos, Timestamp};

/// The numbers of a fixed window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FixedWindow {
    requests: u32,
    period: Nanos,
}

impl FixedWindow {
    /// `requests` hits per `period`. Zero requests is a limit that denies everything.
    ///
    /// # Errors
    /// When `period` is out of range (1 ms to 3,660 days).
    pub fn new(requests: u32, period: Nanos) -> Result<Self, QuotaError> {
        Ok(FixedWindow { requests, period: checked_period(period)? })
    }

    /// Hits per window.
    #[must_use]
    pub fn requests(&self) -> u32 {
        self.requests
    }

    /// Length of a window.
    #[must_use]
    pub fn period(&self) -> Nanos {
        self.period
    }

    pub(super) fn decide(&self, state: &mut State, hits: Hits, now: Timestamp) -> Decision {
        let [start_stored, count_stored, ..] = state.0;
        let start_now = now.as_nanos() - now.as_nanos() % self.period.as_nanos();
        // A stored window that opened later than now means that the clock stepped back: stay in
        // it, so that the step does not hand out a second quota.
        let (start, count) =
            if start_stored >= start_now { (start_stored, count_stored) } else { (start_now, 0) };
        let left = u64::from(self.requests).saturating_sub(count);
        let end = Timestamp::from_nanos(start).saturating_add(self.period);
        let allowed = hits.needed() <= left;
        let taken = if allowed { hits.get() } else { 0 };
        if taken > 0 {
            state.0 = [start, count + taken, 0, 0];
        }
        Decision {
            outcome: if allowed {
                Outcome::Allow
            } else {
                Outcome::Deny { retry_after: end.saturating_since(now) }
            },
            remaining: left - taken,
            reset_at: end,
            keep_until: end,
        }
    }
}
