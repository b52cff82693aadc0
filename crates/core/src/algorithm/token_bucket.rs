//! Token bucket: holds up to `burst` tokens and refills `requests` of them evenly over each `period`. Each
//! hit takes one. In any span T it admits at most `burst + requests × T / period`. It refills lazily since
//! the last take, so idle buckets cost nothing.
//!
//! Exact in integers: levels are kept in *credits*. A token is worth `period` credits (in ns), and each
//! nanosecond refills `requests` credits. No rate is ever rounded. Credits are at most burst × period <
//! 2^32 × 2^59 = 2^91. If they fit into one word, as nearly always, one word is used.
//!
//! State words: `last` (ns since the epoch of the last take or refund, or of the first use of a bucket that
//! does not start full; at least 1), and the credits at that time as two words, low first. A refund fills
//! up to the burst, whatever hits emptied the bucket.
//!
//! A forced charge of more than there is leaves a debt of at most a burst less one token: the bucket is
//! empty, and `last` is ahead by the time that the debt takes to refill, rounded up to a nanosecond. A
//! refund is available at once, whatever the debt.
//!
//! If the clock steps back, nothing refills until it has passed `last` again. The same holds after a clock
//! was far ahead for a while: the whole span refills once, and never twice.
//!
//! Hits that are charged ahead may be spent at any later time. If they must be spent within `ttl`, the
//! bound is `burst + requests × (T + ttl) / period` for any span T. Returns must not break it: tokens that
//! come back after the bucket has refilled in their place, and are charged and kept again, would accumulate
//! without end. So of held tokens, only the *returnable* ones may be returned: their number less all that
//! was refilled since they were charged, even if other hits took it.
//! - Returnable tokens and the bucket's tokens are together at most the burst. Charges and returns turn one
//!   into the other, and while any tokens are returnable, their number falls by at least as much as
//!   refills.
//! - Let x be the time `ttl` before the span. All tokens spent in the span were charged after x. Add up the
//!   tokens charged after x, the bucket's tokens, and the returnable tokens of earlier charges: at x the sum
//!   is at most the burst, and until the end of the span it grows at most by the refill of T + ttl.
//!
//! Source: the leaky bucket as a meter, in its lazily refilled form.

use super::taken;
use crate::decision::{Decision, Outcome};
use crate::rate::{Period, QuotaError, Rate, checked_period};
use crate::units::{Charge, Nanos, Timestamp};
use std::num::{NonZeroU32, NonZeroU64};

/// The numbers of a token bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenBucket {
    requests: NonZeroU32,
    period: Nanos,
    burst: u32,
    initial: u32,
    /// The credits of a full bucket; 0 if they take more than half of a word's range (half, so that
    /// additions to credits within bounds cannot overflow).
    capacity: u64,
    /// How long a full bucket is remembered. A forgotten bucket starts again at `initial`, which changes
    /// nothing if that is the burst. Otherwise a bucket is considered unused long after a period.
    grace: Nanos,
}

impl TokenBucket {
    /// A bucket of `burst` tokens that refills `requests` per `period` and starts with `initial`.
    ///
    /// # Errors
    /// If `period` is out of range, `requests` or `burst` is zero, or `initial` is above `burst`.
    pub fn new(requests: u32, period: Nanos, burst: u32, initial: u32) -> Result<Self, QuotaError> {
        let period = checked_period(period)?;
        let requests = NonZeroU32::new(requests).ok_or(QuotaError::RefillZero)?;
        if burst == 0 {
            return Err(QuotaError::BurstZero);
        }
        if initial > burst {
            return Err(QuotaError::InitialAboveBurst { initial, burst });
        }
        let capacity = u64::from(burst).checked_mul(period.as_nanos());
        let capacity = capacity.filter(|capacity| capacity >> 63 == 0).unwrap_or(0);
        let grace = if initial == burst { Nanos::ZERO } else { period };
        Ok(TokenBucket { requests, period, burst, initial, capacity, grace })
    }

    pub(crate) fn rate(&self) -> Rate {
        let (requests, period) = (self.requests.get(), Period::Span(self.period));
        Rate { requests, period, capacity: self.burst }
    }

    /// The time that the bucket uses at `now`.
    pub(crate) fn effective_time(state: &[u64; 4], now: Timestamp) -> Timestamp {
        now.max(Timestamp::from_nanos(state[0]))
    }

    /// How many of `held` tokens may be returned at `now` that were charged at the effective time `since`.
    pub(crate) fn returnable(
        &self,
        state: &[u64; 4],
        held: u64,
        since: Timestamp,
        now: Timestamp,
    ) -> u64 {
        let passed = Self::effective_time(state, now).saturating_since(since).as_nanos();
        let credits = u128::from(passed) * u128::from(self.requests.get());
        let refilled = credits.div_ceil(u128::from(self.period.as_nanos()));
        held.saturating_sub(u64::try_from(refilled).unwrap_or(u64::MAX))
    }

    #[inline]
    pub(crate) fn decide(&self, state: &mut [u64; 4], charge: Charge, now: Timestamp) -> Decision {
        if let Some(hits) = charge.taken()
            && let Some(decision) = self.take(state, hits, now.as_nanos())
        {
            return decision;
        }
        self.decide_any(state, charge, now)
    }

    #[inline(never)]
    fn decide_any(&self, state: &mut [u64; 4], charge: Charge, now: Timestamp) -> Decision {
        if self.capacity > 0 && state[2] == 0 {
            self.decide_in::<u64>(state, charge, now)
        } else {
            self.decide_in::<u128>(state, charge, now)
        }
    }

    /// The common case, in one word and few instructions: the hits fit into a bucket in use, and the clock
    /// goes forward. Decides like [`decide_in`](Self::decide_in); none in all other cases.
    #[inline]
    fn take(&self, state: &mut [u64; 4], hits: u64, now: u64) -> Option<Decision> {
        let [last, low, high, _] = *state;
        if last == 0 || high != 0 || hits == 0 {
            return None;
        }
        let requests = NonZeroU64::from(self.requests);
        let period = self.period.as_nanos();
        let refill = now.checked_sub(last)?.checked_mul(requests.get())?;
        // A capacity of 0 makes the credits 0, so buckets that need two words are not handled here.
        let credit = low.checked_add(refill)?.min(self.capacity);
        let after = credit.checked_sub(hits.checked_mul(period)?)?;
        (state[0], state[1]) = (now, after);
        // Credits are at most the capacity, so rounding up cannot overflow.
        let refilled = |credits: u64| {
            Timestamp::from_nanos(now.saturating_add((credits + (requests.get() - 1)) / requests))
        };
        let whole = after / NonZeroU64::new(period)?;
        Some(Decision {
            outcome: Outcome::Allow,
            remaining: whole,
            reset_at: refilled((whole + 1) * period - after),
            keep_until: refilled(self.capacity - after).saturating_add(self.grace),
        })
    }

    fn decide_in<C: Credits>(
        &self,
        state: &mut [u64; 4],
        charge: Charge,
        now: Timestamp,
    ) -> Decision {
        let period = self.period.as_nanos();
        let capacity = C::of_tokens(self.burst.into(), period);
        let is_new = state[0] == 0;
        let (mut last, credit) = if is_new {
            (now, C::of_tokens(self.initial.into(), period))
        } else {
            self.refilled(state, capacity, now)
        };
        let needed = C::of_tokens(charge.hits().needed(), period);
        let hits = charge.hits().get();
        let (allowed, after) = match charge {
            Charge::Refund(_) if is_new => (true, credit),
            Charge::Refund(_) => {
                (true, credit.saturating_plus(C::of_tokens(hits, period)).min(capacity))
            }
            _ if hits == 0 => (needed <= credit, credit),
            _ if needed <= credit => (true, credit.minus(needed)),
            Charge::Take(_) | Charge::Force(_) => {
                let left = credit.divided(period).low();
                let taken = C::of_tokens(taken(charge, left, self.burst.into()), period);
                // The bucket owes what it does not hold, and refills nothing until the debt is paid.
                let owed = taken.minus(taken.min(credit));
                last = last.saturating_add(owed.time_to_refill(self.requests.get()));
                (false, credit.minus(credit.min(taken)))
            }
        };
        // A bucket that starts full has nothing to refill, so it need not remember its start. Any other
        // bucket refills from its first use, whatever the decision.
        let is_first_use =
            is_new && self.initial < self.burst && !matches!(charge, Charge::Refund(_));
        if after != credit || is_first_use {
            // Time 0 would make an empty bucket look new.
            *state = [last.as_nanos().max(1), after.low(), after.high(), 0];
        }
        // Based on `last`: after the clock steps back, `last` is ahead of `now`, and nothing refills until
        // the clock has caught up.
        let holds_at = |level: C| {
            let missing = level.min(capacity).minus(after.min(level));
            last.saturating_add(missing.time_to_refill(self.requests.get()))
        };
        let whole = after.divided(period).low();
        Decision {
            // A charge above the burst can never fit: the client waits until the bucket is full.
            outcome: Outcome::new(allowed, now, || holds_at(needed)),
            remaining: whole,
            reset_at: holds_at(C::of_tokens(whole + 1, period)),
            keep_until: holds_at(capacity).saturating_add(self.grace),
        }
    }

    /// The credits at `now`, and the effective time. If the clock stepped back, nothing refills and the
    /// later time stays, so that no span is refilled twice.
    #[inline]
    fn refilled<C: Credits>(
        &self,
        state: &[u64; 4],
        capacity: C,
        now: Timestamp,
    ) -> (Timestamp, C) {
        let [last, low, high, _] = *state;
        let last = Timestamp::from_nanos(last);
        let refill =
            C::of_tokens(now.saturating_since(last).as_nanos(), self.requests.get().into());
        (now.max(last), C::from_words(low, high).saturating_plus(refill).min(capacity))
    }
}

/// A number of credits in one word or two. Both give the same results as long as the capacity is below half
/// of what one word holds: saturated values exceed the capacity either way.
trait Credits: Copy + Ord {
    fn from_words(low: u64, high: u64) -> Self;
    /// `tokens × worth`, saturating.
    fn of_tokens(tokens: u64, worth: u64) -> Self;
    fn saturating_plus(self, other: Self) -> Self;
    /// Subtracts `other`, which is no larger.
    fn minus(self, other: Self) -> Self;
    fn divided(self, by: u64) -> Self;
    fn low(self) -> u64;
    fn high(self) -> u64;

    /// How long this many credits take to refill, at `requests` each nanosecond. At most the capacity.
    #[inline]
    fn time_to_refill(self, requests: u32) -> Nanos {
        let rounded_up = self.saturating_plus(Self::from_words(u64::from(requests - 1), 0));
        let nanos = rounded_up.divided(requests.into());
        Nanos::new(if nanos.high() == 0 { nanos.low() } else { u64::MAX })
    }
}

impl Credits for u64 {
    #[inline]
    fn from_words(low: u64, _high: u64) -> Self {
        low
    }
    #[inline]
    fn of_tokens(tokens: u64, worth: u64) -> Self {
        tokens.saturating_mul(worth)
    }
    #[inline]
    fn saturating_plus(self, other: Self) -> Self {
        self.saturating_add(other)
    }
    #[inline]
    fn minus(self, other: Self) -> Self {
        self - other
    }
    #[inline]
    fn divided(self, by: u64) -> Self {
        self / by
    }
    #[inline]
    fn low(self) -> u64 {
        self
    }
    #[inline]
    fn high(self) -> u64 {
        0
    }
}

impl Credits for u128 {
    fn from_words(low: u64, high: u64) -> Self {
        u128::from(low) | u128::from(high) << 64
    }
    fn of_tokens(tokens: u64, worth: u64) -> Self {
        u128::from(tokens) * u128::from(worth)
    }
    fn saturating_plus(self, other: Self) -> Self {
        self.saturating_add(other)
    }
    fn minus(self, other: Self) -> Self {
        self - other
    }
    /// Dividing two words takes several times as long as dividing one.
    fn divided(self, by: u64) -> Self {
        match u64::try_from(self) {
            Ok(credits) => u128::from(credits / by),
            Err(_) => self / u128::from(by),
        }
    }
    fn low(self) -> u64 {
        self as u64
    }
    fn high(self) -> u64 {
        (self >> 64) as u64
    }
}
