//! A quota: the compiled form of a limit's rate. A quota that exists is valid, so deciding cannot fail.

use crate::algorithm::daily_reset::{self, Resettable};
use crate::algorithm::held::{Ends, GENERATION};
use crate::algorithm::{
    DailyReset, FirstHitWindow, FixedWindow, GivenBack, Held, SlidingBuckets, SlidingExact,
    SlidingWindow, TokenBucket,
};
use crate::rate::{Period, Rate};
use crate::state::{Parts, StateSize, WIDE_WORDS, narrow};
use crate::units::{Nanos, Timestamp};
use std::sync::Arc;

/// A refund arrives somewhat later than its time says: its hits may have been taken earlier by this, in the
/// window before or before a bucket has refilled.
const REFUND_DELAY: Nanos = Nanos::new(100_000_000);

/// The state of a counter that was never used.
const UNUSED: [u64; WIDE_WORDS] = [0; WIDE_WORDS];

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
    /// Tokens that were taken from a shared counter of the other quota.
    Held(Held, Arc<Quota>),
}

impl Quota {
    /// Of tokens that are taken from a counter of the quota `of`, which is not held itself.
    #[must_use]
    pub fn held(of: Arc<Quota>) -> Quota {
        let ends = match *of {
            Quota::TokenBucket(_) => Ends::Generation,
            _ => Ends::Window,
        };
        let (capacity, requests) = (of.capacity(), of.requests().max(1));
        let period = u128::from(of.period().nominal().as_nanos());
        let recovery = period * u128::from(capacity.max(1)) / u128::from(requests);
        let recovery = Nanos::new(u64::try_from(recovery).unwrap_or(u64::MAX));
        Quota::Held(Held::new(capacity, ends, recovery), of)
    }

    fn rate(&self) -> Rate {
        match self {
            Quota::FixedWindow(window) => window.rate(),
            Quota::FirstHitWindow(window) => window.rate(),
            Quota::TokenBucket(bucket) => bucket.rate(),
            Quota::SlidingWindow(window) => window.rate(),
            Quota::SlidingBuckets(buckets) => buckets.rate(),
            Quota::SlidingExact(exact) => exact.rate(),
            Quota::Held(_, of) => of.rate(),
        }
    }

    /// The most hits that can be left: the requests of a window plus what it may borrow, or the burst of a
    /// bucket.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.rate().capacity
    }

    /// Hits per period, as configured.
    #[must_use]
    pub fn requests(&self) -> u32 {
        self.rate().requests
    }

    /// The period that `requests` counts over.
    #[must_use]
    pub fn period(&self) -> Period {
        self.rate().period
    }

    /// When all hits are forgotten each day, if at all.
    #[must_use]
    pub fn reset(&self) -> Option<&DailyReset> {
        match self {
            Quota::FixedWindow(window) => window.reset.as_ref(),
            Quota::FirstHitWindow(window) => window.reset.as_ref(),
            Quota::TokenBucket(_) => None,
            Quota::SlidingWindow(window) => window.reset.as_ref(),
            Quota::SlidingBuckets(buckets) => buckets.reset.as_ref(),
            Quota::SlidingExact(exact) => exact.reset.as_ref(),
            Quota::Held(_, of) => of.reset(),
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
            Quota::Held(_, of) => of.algorithm(),
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
            Quota::Held(_, of) => 128 | of.algorithm_tag(),
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

/// Times of hits, and hits that are charged ahead: how long they may be spent, and how many may be returned.
/// `state` is that of a decision at the same `now`.
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
            Quota::Held(..) => Held::last_end(narrow(state)),
            Quota::FixedWindow(window) => {
                daily_reset::spendable_until(window, self.reset(), state, now)
            }
            Quota::SlidingWindow(window) => {
                daily_reset::spendable_until(window, self.reset(), state, now)
            }
            Quota::SlidingBuckets(buckets) => {
                daily_reset::spendable_until(buckets, self.reset(), state, now)
            }
        }
    }

    /// The time until which hits may be spent if they are charged at `now`. It differs only for held tokens, since
    /// tokens that end first are charged first. `state` is the state before the charge.
    #[must_use]
    pub fn next_spendable_until(&self, state: &[u64], now: Timestamp) -> Timestamp {
        match self {
            Quota::Held(held, _) => held.first_end(narrow(state), now),
            _ => self.spendable_until(state, now),
        }
    }

    /// How many of `remaining` hits may be charged ahead: all, except for held tokens, where the others are left
    /// on the shared counter.
    #[must_use]
    pub fn chargeable(&self, state: &[u64], remaining: u64, now: Timestamp) -> u64 {
        match self {
            Quota::Held(held, _) => held.tokens(narrow(state), now).min(remaining),
            _ => remaining,
        }
    }

    /// How many tokens a refund to the shared counter may return that were taken out of the state of held tokens:
    /// all if they go to the window that counted them, otherwise none. A token bucket has refilled since. `shared`
    /// is the state of the shared counter.
    #[must_use]
    pub fn worth_back(&self, shared: &[u64], back: &GivenBack, now: Timestamp) -> u64 {
        let Quota::Held(held, of) = self else { return 0 };
        let worth = |tokens, end| of.returnable(shared, tokens, held.charged_since(end), now);
        match held.ends() {
            Ends::Window if of.refund_spendable_until(shared, now) != back.end => 0,
            Ends::Window => back.tokens,
            Ends::Generation => {
                let older = back.end.as_nanos().saturating_sub(GENERATION.as_nanos());
                worth(back.tokens, back.end) + worth(back.older, Timestamp::from_nanos(older))
            }
        }
    }

    /// How long a denial of `hits` at `now` is certain, if nothing comes back.
    #[must_use]
    pub fn denied_for(
        &self,
        state: &[u64],
        hits: u64,
        retry_after: Nanos,
        now: Timestamp,
    ) -> Nanos {
        match self {
            Quota::Held(held, _) => {
                let until = held.denied_until(narrow(state), hits, now);
                retry_after.min(until.saturating_since(now))
            }
            _ => retry_after,
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

    /// How many of `hits` a refund at `now` may return that were taken at about `since`: all if it returns
    /// them to the window that counted them, otherwise none. A token bucket has refilled since, and gets
    /// the rest. A ring can return only the hits of its newest bucket.
    #[must_use]
    pub fn refundable(&self, state: &[u64], hits: u64, since: Timestamp, now: Timestamp) -> u64 {
        let earliest =
            Timestamp::from_nanos(since.as_nanos().saturating_sub(REFUND_DELAY.as_nanos()));
        let is_of_this_window = match self {
            Quota::TokenBucket(bucket) => {
                return bucket.returnable(narrow(state), hits, earliest, now);
            }
            // What was taken earlier is known to the shared counter alone.
            Quota::Held(..) => return 0,
            // The window may have been opened by these hits.
            Quota::FirstHitWindow(window) => {
                window.open_window(narrow(state), now).is_some_and(|open| open.start <= since)
            }
            _ => {
                let counted = self.spendable_until(&UNUSED, earliest);
                counted == self.refund_spendable_until(state, now)
            }
        };
        if is_of_this_window { hits } else { 0 }
    }

    /// When the last hit came, whether taken or forced; to the millisecond for a ring of less than a day.
    /// The start of its window if no time was recorded. None for a counter that is new at `now`, and for a
    /// token bucket, which keeps no hits.
    #[must_use]
    pub fn last_hit(&self, state: &[u64], now: Timestamp) -> Option<Timestamp> {
        let last = match self {
            Quota::FirstHitWindow(window) => {
                return window.open_window(narrow(state), now).map(|open| open.last);
            }
            Quota::TokenBucket(_) => None,
            Quota::FixedWindow(window) => window.last_hit(state),
            Quota::SlidingWindow(window) => window.last_hit(state),
            Quota::SlidingBuckets(buckets) => buckets.last_hit(state),
            Quota::SlidingExact(_) => SlidingExact::last_hit(state),
            Quota::Held(..) => return None,
        };
        let is_forgotten = self.reset().is_some_and(|reset| daily_reset::is_over(reset, last, now));
        last.filter(|_| !is_forgotten).map(Timestamp::from_nanos)
    }
}
