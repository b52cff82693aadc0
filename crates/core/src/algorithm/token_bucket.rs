//! Token bucket: holds up to `burst` tokens, refills `requests` of them evenly over each
//! `period`, each hit takes one. In any span T it admits at most `burst + requests × T / period`.
//! Refilled lazily from the time of the last take, so that idle buckets cost nothing.
//!
//! Exact in integers: levels are kept in *credits*, of which a token is worth `period` (in ns)
//! and each nanosecond refills `requests`. No rate is ever rounded.
//!
//! State words: `last` (ns since the epoch of the last take, or of the first look at a bucket that
//! does not start full; at least 1), and the credits at that time as two words, low first. Credits are at most burst × period < 2^32 × 2^59 = 2^91.
//!
//! Source: the leaky bucket as a meter, in the lazily refilled form.

use crate::quota::{Decision, Outcome, QuotaError, State, checked_period};
use crate::units::{Hits, Nanos, Timestamp};

/// The numbers of a token bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenBucket {
    requests: u32,
    period: Nanos,
    burst: u32,
    initial: u32,
}

impl TokenBucket {
    /// A bucket of `burst` tokens that refills `requests` per `period` and starts with `initial`.
    ///
    /// # Errors
    /// When `period` is out of range, `requests` or `burst` is zero, or `initial` is above `burst`.
    pub fn new(requests: u32, period: Nanos, burst: u32, initial: u32) -> Result<Self, QuotaError> {
        let period = checked_period(period)?;
        if requests == 0 {
            return Err(QuotaError::RefillZero);
        }
        if burst == 0 {
            return Err(QuotaError::BurstZero);
        }
        if initial > burst {
            return Err(QuotaError::InitialAboveBurst { initial, burst });
        }
        Ok(TokenBucket { requests, period, burst, initial })
    }

    /// Tokens refilled per period.
    #[must_use]
    pub fn requests(&self) -> u32 {
        self.requests
    }

    /// The period over which `requests` tokens come back.
    #[must_use]
    pub fn period(&self) -> Nanos {
        self.period
    }

    /// Tokens that the bucket can hold.
    #[must_use]
    pub fn burst(&self) -> u32 {
        self.burst
    }

    pub(super) fn decide(&self, state: &mut State, hits: Hits, now: Timestamp) -> Decision {
        let token = u128::from(self.period.as_nanos());
        let capacity = u128::from(self.burst) * token;
        if state.is_new() && self.initial < self.burst {
            // The refill counts from here, whatever becomes of this ask. A bucket that is born
            // full has nothing to refill, and needs no memory of its birth.
            *state = with_credit(now, u128::from(self.initial) * token);
        }
        let (last, credit) = self.refilled(state, capacity, now);
        // Up to 2^64 hits × 2^59 ns fits u128 with room to spare.
        let needed = u128::from(hits.needed()) * token;
        let allowed = needed <= credit;
        let credit = if allowed && hits.get() > 0 { credit - needed } else { credit };
        if allowed && hits.get() > 0 {
            *state = with_credit(last, credit);
        }
        // Reckoned from `last`: after a clock step back it lies ahead of now, and nothing refills
        // until the clock has caught up with it.
        let holds_at = |level: u128| {
            last.saturating_add(self.time_to_refill(level.min(capacity).saturating_sub(credit)))
        };
        let whole = divided(credit, self.period.as_nanos());
        Decision {
            outcome: if allowed {
                Outcome::Allow
            } else {
                // An ask above the burst can never fit: send it away until the bucket is full.
                Outcome::Deny { retry_after: holds_at(needed).saturating_since(now) }
            },
            remaining: whole as u64,
            reset_at: holds_at((whole + 1) * token),
            keep_until: holds_at(capacity).saturating_add(self.grace()),
        }
    }

    /// The credits at `now` and the time they are reckoned at. A clock that stepped back refills
    /// nothing, and keeps the later time so that the same span is not refilled twice.
    fn refilled(&self, state: &State, capacity: u128, now: Timestamp) -> (Timestamp, u128) {
        if state.is_new() {
            return (now, capacity);
        }
        let [last, low, high, _] = state.0;
        let last = Timestamp::from_nanos(last);
        let credit = u128::from(low) | u128::from(high) << 64;
        let since = u128::from(now.saturating_since(last).as_nanos());
        let refill = since * u128::from(self.requests);
        (now.max(last), credit.saturating_add(refill).min(capacity))
    }

    fn time_to_refill(&self, credits: u128) -> Nanos {
        let rounded_up = credits + u128::from(self.requests - 1);
        let nanos = divided(rounded_up, u64::from(self.requests));
        Nanos::new(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// How long a full bucket is remembered. Forgetting it starts over at `initial`, which is
    /// no change when that is the burst; else a bucket counts as unused for long after a period.
    fn grace(&self) -> Nanos {
        if self.initial == self.burst { Nanos::ZERO } else { self.period }
    }
}

/// A quotient. Credits nearly always fit into a word, and dividing two of them takes several times as
/// long.
fn divided(credits: u128, by: u64) -> u128 {
    match u64::try_from(credits) {
        Ok(credits) => u128::from(credits / by),
        Err(_) => credits / u128::from(by),
    }
}

/// The state of a bucket that has `credit` at `last`.
fn with_credit(last: Timestamp, credit: u128) -> State {
    // Time 0 would make a drained bucket look like a new one.
    State([last.as_nanos().max(1), credit as u64, (credit >> 64) as u64, 0])
}
