//! A quota (the compiled form of a limit's rate), the parts of its counters' states, and decisions. A quota
//! that exists is valid, so deciding cannot fail.

use crate::algorithm::{
    DailyReset, FirstHitWindow, FixedWindow, SlidingBuckets, SlidingExact, SlidingWindow,
    TokenBucket, daily_reset,
};
use crate::units::{Nanos, Timestamp, Unit};
use std::fmt;

/// A compiled rate: the algorithm and its numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Quota {
    /// Hits in each aligned window.
    FixedWindow(FixedWindow),
    /// Hits in a window that opens at its first hit.
    FirstHitWindow(FirstHitWindow),
    /// Tokens that refill over time, up to a burst.
    TokenBucket(TokenBucket),
    /// Hits in a sliding window, estimated from two counters.
    SlidingWindow(SlidingWindow),
    /// Hits in a sliding window, counted in a ring of buckets.
    SlidingBuckets(SlidingBuckets),
    /// Hits in a sliding window, counted to the second.
    SlidingExact(SlidingExact),
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

macro_rules! each {
    ($quota:expr, $algorithm:ident => $value:expr) => {
        match $quota {
            Quota::FixedWindow($algorithm) => $value,
            Quota::FirstHitWindow($algorithm) => $value,
            Quota::TokenBucket($algorithm) => $value,
            Quota::SlidingWindow($algorithm) => $value,
            Quota::SlidingBuckets($algorithm) => $value,
            Quota::SlidingExact($algorithm) => $value,
        }
    };
}

impl Quota {
    /// The most hits that can be left: the requests of a window plus what it may borrow, or the burst of a
    /// bucket.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        each!(self, algorithm => algorithm.capacity())
    }

    /// Hits per period, as configured.
    #[must_use]
    pub fn requests(&self) -> u32 {
        each!(self, algorithm => algorithm.requests())
    }

    /// The period that `requests` counts over.
    #[must_use]
    pub fn period(&self) -> Period {
        each!(self, algorithm => algorithm.period())
    }

    /// When all hits are forgotten each day, if at all.
    #[must_use]
    pub fn reset(&self) -> Option<&DailyReset> {
        match self {
            Quota::FixedWindow(window) => window.reset(),
            Quota::FirstHitWindow(window) => window.reset(),
            Quota::TokenBucket(_) => None,
            Quota::SlidingWindow(window) => window.reset(),
            Quota::SlidingBuckets(buckets) => buckets.reset(),
            Quota::SlidingExact(exact) => exact.reset(),
        }
    }

    /// The algorithm's name in configuration.
    #[must_use]
    pub fn algorithm(&self) -> &'static str {
        match self {
            Quota::FixedWindow(_) => "fixed_window",
            Quota::FirstHitWindow(_) => "first_hit_window",
            Quota::TokenBucket(_) => "token_bucket",
            Quota::SlidingWindow(_) => "sliding_window",
            Quota::SlidingBuckets(_) | Quota::SlidingExact(_) => "sliding_buckets",
        }
    }

    /// The algorithm's number in a counter's identity: no other algorithm may read a state. Numbers are
    /// never reused.
    pub(crate) fn algorithm_tag(&self) -> u8 {
        match self {
            Quota::FixedWindow(_) => 1,
            Quota::TokenBucket(_) => 2,
            Quota::FirstHitWindow(_) => 3,
            Quota::SlidingWindow(_) => 4,
            Quota::SlidingBuckets(_) => 5,
            Quota::SlidingExact(_) => 6,
        }
    }

    /// The size of each part of a counter's state.
    #[must_use]
    pub fn state_size(&self) -> StateSize {
        match self {
            Quota::SlidingBuckets(_) | Quota::SlidingExact(_) => StateSize::Wide,
            _ => StateSize::Narrow,
        }
    }

    /// The parts of a counter's state that a decision at `now` needs, each stored under its own key. Only
    /// the exact sliding window has more than one.
    #[must_use]
    pub fn parts(&self, now: Timestamp) -> Parts {
        match self {
            Quota::SlidingExact(exact) => exact.parts(now),
            _ => Parts::ONE,
        }
    }
}

/// Hits that are charged ahead: how long they may be spent, and how many may be returned. `state` is that
/// of a decision at the same `now`.
///
/// # Panics
/// If `state` is shorter than that.
impl Quota {
    /// Until when hits charged at `now` may be spent without the limit admitting more than if they were
    /// spent at once. `state` is the state after the charge. The end of time for a token bucket, whose
    /// bound grows by what refills in the meantime.
    #[must_use]
    pub fn spendable_until(&self, state: &[u64], now: Timestamp) -> Timestamp {
        match self {
            Quota::FirstHitWindow(window) => window.spendable_until(narrow(state), now),
            Quota::TokenBucket(_) => Timestamp::from_nanos(u64::MAX),
            Quota::SlidingExact(exact) => exact.spendable_until(now),
            Quota::FixedWindow(_) | Quota::SlidingWindow(_) | Quota::SlidingBuckets(_) => {
                let until = |state: &[u64]| self.window_end(state, now);
                match self.reset() {
                    Some(reset) => daily_reset::spendable_until(reset, self, state, now, until),
                    None => until(state),
                }
            }
        }
    }

    /// The end of the window or bucket that counts a charge at `now`, ignoring resets.
    fn window_end(&self, state: &[u64], now: Timestamp) -> Timestamp {
        match self {
            Quota::FixedWindow(window) => window.spendable_until(narrow(state), now),
            Quota::SlidingWindow(window) => window.spendable_until(narrow(state), now),
            Quota::SlidingBuckets(buckets) => buckets.spendable_until(state, now),
            _ => Timestamp::from_nanos(u64::MAX),
        }
    }

    /// The [`spendable_until`](Self::spendable_until) of the hits that a refund at `now` would return
    /// first. If it differs from that of the held hits, the refund would return other hits.
    #[must_use]
    pub fn refund_spendable_until(&self, state: &[u64], now: Timestamp) -> Timestamp {
        match self {
            Quota::SlidingExact(exact) => exact.refund_spendable_until(state, now),
            _ => self.spendable_until(state, now),
        }
    }

    /// The time that the counter uses at `now`: later than `now` if the clock stepped back and the
    /// algorithm remembers it.
    #[must_use]
    pub fn effective_time(&self, state: &[u64], now: Timestamp) -> Timestamp {
        match self {
            Quota::TokenBucket(_) => TokenBucket::effective_time(narrow(state), now),
            _ => now,
        }
    }

    /// How many of `held` hits may be returned that were charged when the counter's [effective
    /// time](Self::effective_time) was `since`: all, except for a token bucket, which has refilled since.
    #[must_use]
    pub fn returnable(&self, state: &[u64], held: u64, since: Timestamp, now: Timestamp) -> u64 {
        match self {
            Quota::TokenBucket(bucket) => bucket.returnable(narrow(state), held, since, now),
            _ => held,
        }
    }
}

/// Times of hits.
impl Quota {
    /// When the last hit came, whether taken or forced; to the millisecond for a ring of less than a day.
    /// The start of its window if no time was recorded. None for a counter that is new at `now`, and for a
    /// token bucket, which keeps no hits.
    ///
    /// # Panics
    /// If `state` is shorter than that of a decision at `now`.
    #[must_use]
    pub fn last_hit(&self, state: &[u64], now: Timestamp) -> Option<Timestamp> {
        if let Quota::FirstHitWindow(window) = self {
            return window.open_window(narrow(state), now).map(|open| open.last);
        }
        let last = self.recorded_hit(state).filter(|last| match self.reset() {
            Some(reset) => !daily_reset::is_over(reset, Some(*last), now),
            None => true,
        });
        last.map(Timestamp::from_nanos)
    }

    /// The recorded last hit in nanoseconds since the Unix epoch, even if a reset came since.
    pub(crate) fn recorded_hit(&self, state: &[u64]) -> Option<u64> {
        match self {
            Quota::FixedWindow(_) => FixedWindow::last_hit(narrow(state)),
            Quota::FirstHitWindow(_) | Quota::TokenBucket(_) => None,
            Quota::SlidingWindow(_) => SlidingWindow::last_hit(narrow(state)),
            Quota::SlidingBuckets(buckets) => buckets.last_hit(state),
            Quota::SlidingExact(_) => SlidingExact::last_hit(state),
        }
    }
}

fn narrow(state: &[u64]) -> &[u64; 4] {
    state.first_chunk().expect("a narrow state has four words")
}

impl Quota {
    /// The labels of all parts of a counter that a later decision may need, in order to erase the counter.
    /// The first is 0.
    #[must_use]
    pub fn part_labels(&self, now: Timestamp) -> Vec<u64> {
        match self {
            Quota::SlidingExact(exact) => exact.part_labels(now).collect(),
            _ => vec![0],
        }
    }
}

/// The size of each part of a counter's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateSize {
    /// 32 bytes.
    Narrow,
    /// A ring of buckets.
    Wide,
}

impl StateSize {
    /// The size in words of 8 bytes.
    #[must_use]
    pub const fn words(self) -> usize {
        match self {
            StateSize::Narrow => 4,
            StateSize::Wide => WIDE_WORDS,
        }
    }
}

/// 61 buckets of 4 bytes, and two more words.
pub(crate) const WIDE_WORDS: usize = 2 + 61_usize.div_ceil(2);

/// The parts of a counter that one decision needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts {
    labels: [u64; Parts::MAX],
    len: usize,
}

impl Parts {
    /// The most parts of one decision.
    pub const MAX: usize = 5;
    /// The single part of most counters.
    pub const ONE: Parts = Parts { labels: [0; Parts::MAX], len: 1 };

    /// Adds a part unless it is present.
    pub(crate) fn insert(&mut self, label: u64) {
        if !self.labels().contains(&label) {
            self.labels[self.len] = label;
            self.len += 1;
        }
    }

    /// The labels that distinguish the parts of one counter. The first is 0.
    #[must_use]
    pub fn labels(&self) -> &[u64] {
        &self.labels[..self.len]
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

/// The decision of one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// Allow or deny.
    pub outcome: Outcome,
    /// Hits that are left after this decision.
    pub remaining: u64,
    /// When more hits become available: the end of the window, or the next token of the bucket.
    pub reset_at: Timestamp,
    /// How long the state must be kept; afterwards a new state decides the same.
    pub keep_until: Timestamp,
}

impl Decision {
    /// Whether the request fits under this limit.
    #[must_use]
    pub fn is_allow(&self) -> bool {
        self.outcome == Outcome::Allow
    }

    /// The time until more hits are available: until the same charge can fit if denied, until `reset_at` if
    /// allowed.
    #[must_use]
    pub fn wait(&self, now: Timestamp) -> Nanos {
        match self.outcome {
            Outcome::Allow => self.reset_at.saturating_since(now),
            Outcome::Deny { retry_after } => retry_after,
        }
    }
}

/// Whether the hits fit. Being over a limit is an outcome and not an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The hits fit and were taken.
    Allow,
    /// The hits do not fit, and nothing was taken unless the charge was forced.
    Deny {
        /// The earliest time from now at which the same charge can fit if nobody else takes hits. If it can
        /// never fit because it exceeds the capacity: the time until the counter is full, or a period if it
        /// is full already. Never zero.
        retry_after: Nanos,
    },
}
