//! A quota (the compiled form of a limit's rate), the state of one counter under it, and what a
//! decision says. A quota that exists is valid, so deciding cannot fail.

use crate::algorithm::{FixedWindow, TokenBucket};
use crate::units::{Nanos, Timestamp};

/// A compiled rate: the algorithm and its numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Quota {
    /// So many hits in each aligned window.
    FixedWindow(FixedWindow),
    /// Tokens that refill over time, up to a burst.
    TokenBucket(TokenBucket),
}

impl Quota {
    /// The most hits that can be left: the requests of a window, the burst of a bucket.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        match self {
            Quota::FixedWindow(window) => window.requests(),
            Quota::TokenBucket(bucket) => bucket.burst(),
        }
    }

    /// Hits per period, as configured.
    #[must_use]
    pub fn requests(&self) -> u32 {
        match self {
            Quota::FixedWindow(window) => window.requests(),
            Quota::TokenBucket(bucket) => bucket.requests(),
        }
    }

    /// The period that `requests` counts over.
    #[must_use]
    pub fn period(&self) -> Nanos {
        match self {
            Quota::FixedWindow(window) => window.period(),
            Quota::TokenBucket(bucket) => bucket.period(),
        }
    }

    /// The name that configuration gives the algorithm.
    #[must_use]
    pub fn algorithm(&self) -> &'static str {
        match self {
            Quota::FixedWindow(_) => "fixed_window",
            Quota::TokenBucket(_) => "token_bucket",
        }
    }

    /// A number for the algorithm that is part of a counter's identity: a state must never be
    /// read by another algorithm than the one that wrote it. Numbers are never reused.
    pub(crate) fn algorithm_tag(&self) -> u8 {
        match self {
            Quota::FixedWindow(_) => 1,
            Quota::TokenBucket(_) => 2,
        }
    }
}

/// Why a quota is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuotaError {
    /// A window or refill period of no length.
    #[error("period 0 is not allowed (minimum 1ms)")]
    PeriodZero,
    /// A period below what clocks and networks can honour.
    #[error("period {0} is too short (minimum 1ms)")]
    PeriodTooShort(Nanos),
    /// A period above ten years.
    #[error("period {0} is too long (maximum 3660d)")]
    PeriodTooLong(Nanos),
    /// A bucket that never refills.
    #[error("requests 0 is not allowed for token_bucket (minimum 1); it would never refill")]
    RefillZero,
    /// A bucket that holds nothing.
    #[error("burst 0 is not allowed (minimum 1)")]
    BurstZero,
    /// A bucket that starts over-full.
    #[error("initial {initial} is more than burst {burst}")]
    InitialAboveBurst {
        /// Tokens a bucket starts with.
        initial: u32,
        /// Tokens a bucket can hold.
        burst: u32,
    },
}

/// The shortest period of any limit.
const PERIOD_MIN: Nanos = Nanos::new(1_000_000);
/// The longest: ten years and a bit, so that `now + period` stays far from the end of u64
/// nanoseconds (the year 2554).
const PERIOD_MAX: Nanos = Nanos::from_secs(3_660 * 86_400);

/// The one check of a period, for every algorithm.
pub(crate) fn checked_period(period: Nanos) -> Result<Nanos, QuotaError> {
    if period == Nanos::ZERO {
        Err(QuotaError::PeriodZero)
    } else if period < PERIOD_MIN {
        Err(QuotaError::PeriodTooShort(period))
    } else if period > PERIOD_MAX {
        Err(QuotaError::PeriodTooLong(period))
    } else {
        Ok(period)
    }
}

/// The live state of one counter: 32 bytes whose meaning is the algorithm's. All zero is a
/// counter that was never used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct State(pub [u64; 4]);

impl State {
    /// Whether the counter was never used (or was forgotten).
    #[must_use]
    pub fn is_new(&self) -> bool {
        *self == State::default()
    }
}

/// What one limit says to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// Allow or deny.
    pub outcome: Outcome,
    /// Hits that are left after this decision.
    pub remaining: u64,
    /// When more hits become available: the end of the window, or the bucket's next token.
    pub reset_at: Timestamp,
    /// Until when the state matters; after it a new state decides the same.
    pub keep_until: Timestamp,
}

impl Decision {
    /// Whether the request fits under this limit.
    #[must_use]
    pub fn is_allow(&self) -> bool {
        self.outcome == Outcome::Allow
    }

    /// How long until more is to be had: until the same ask can fit when denied, until
    /// `reset_at` when allowed.
    #[must_use]
    pub fn wait(&self, now: Timestamp) -> Nanos {
        match self.outcome {
            Outcome::Allow => self.reset_at.saturating_since(now),
            Outcome::Deny { retry_after } => retry_after,
        }
    }
}

/// The answer itself. Over limit is an answer, not an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The hits fit and were taken.
    Allow,
    /// The hits do not fit; nothing was taken.
    Deny {
        /// The earliest time from now at which the same ask can fit, if nobody else takes hits.
        /// For an ask that can never fit (more than the limit or burst) the time until the
        /// quota is whole.
        retry_after: Nanos,
    },
}
