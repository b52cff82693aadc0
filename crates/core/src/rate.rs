//! The numbers that all algorithms have, and the errors of those that are refused.

use crate::units::{Nanos, Unit};
use std::fmt;

/// The numbers of a quota that do not depend on its algorithm.
pub(crate) struct Rate {
    pub(crate) requests: u32,
    pub(crate) period: Period,
    pub(crate) capacity: u32,
}

/// The period that a limit counts over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Period {
    /// A span of time.
    Span(Nanos),
    /// Calendar months; 12 are a year.
    Months(u32),
}

impl Period {
    /// The named unit of this length. One calendar month counts as a month.
    #[must_use]
    pub fn unit(self) -> Option<Unit> {
        match self {
            Period::Span(span) => Unit::of_period(span),
            Period::Months(1) => Some(Unit::Month),
            Period::Months(12) => Some(Unit::Year),
            Period::Months(_) => None,
        }
    }

    /// The approximate length: a month is 30 days and a year 365.
    #[must_use]
    pub fn nominal(self) -> Nanos {
        match self {
            Period::Span(span) => span,
            Period::Months(months) if months % 12 == 0 => {
                Nanos::from_secs(u64::from(months / 12) * 365 * 86_400)
            }
            Period::Months(months) => Nanos::from_secs(u64::from(months) * 30 * 86_400),
        }
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Period::Span(span) => span.fmt(f),
            Period::Months(months) if months % 12 == 0 => write!(f, "{}y", months / 12),
            Period::Months(months) => write!(f, "{months}mo"),
        }
    }
}

/// Why a quota is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuotaError {
    /// A window or refill period of zero.
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
    /// A bucket that starts with more than it can hold.
    #[error("initial {initial} is more than burst {burst}")]
    InitialAboveBurst {
        /// Tokens a bucket starts with.
        initial: u32,
        /// Tokens a bucket can hold.
        burst: u32,
    },
    /// Debt that would never be paid.
    #[error("borrow {0} needs requests of at least 1 to pay it back")]
    BorrowWithoutRequests(u32),
    /// More than a counter can represent.
    #[error("requests {requests} and borrow {borrow} are together more than 4294967295")]
    BorrowTooLarge {
        /// Hits per window.
        requests: u32,
        /// Hits that may be borrowed.
        borrow: u32,
    },
    /// A time of day beyond the end of the day.
    #[error("a reset {0} after midnight is not allowed (must be below 24h)")]
    ResetAfterDay(Nanos),
    /// A calendar period of zero or too many months.
    #[error("{0} months are not allowed (1 to 120)")]
    Months(u32),
    /// A period that the exact sliding window does not support.
    #[error("period {0} is not allowed with exact (whole seconds, 1s to 1d)")]
    PeriodNotExact(Nanos),
}

/// The shortest period of any limit.
const PERIOD_MIN: Nanos = Nanos::new(1_000_000);
/// The longest period: slightly over ten years, so that `now + period` stays far from the end of u64
/// nanoseconds (in the year 2554).
const PERIOD_MAX: Nanos = Nanos::from_secs(3_660 * 86_400);

/// Validates the period of every algorithm.
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
