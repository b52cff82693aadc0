//! The limit algorithms, one file each: pure functions over a small state, in integers.
//!
//! All share one contract. An allow takes the hits; a deny takes nothing. A peek (no hits) answers
//! for one hit and takes nothing. (Taking nothing may still write: a bucket that does not start
//! full must remember since when it refills.) A refund gives back at most what the counter holds; it is
//! not told by whom or when that was taken. A clock that steps back never gives hits back. Each has a
//! slow obvious twin in `tests/slow_*` that it must agree with.
//!
//! A drain answers as a take does, and takes hits that do not fit too:
//! - a fixed window counts them all. It is over once the count has passed the capacity, so a drain of
//!   nothing fits while it has not;
//! - a first-hit window counts as far as it has room, since others read its count;
//! - the others count them once, where a whole hit is left, up to as many as their capacity; where
//!   nothing is left they count nothing. So a debit larger than what is left keeps the counter closed for
//!   as long as a full one would take to come back, and no longer: repeated denials add nothing.
//!
//! Every window notes when its last hit came, taken or drained in vain; and every window may have a time of
//! day at which all is forgotten.

mod allowance;
mod calendar;
pub(crate) mod daily_reset;
mod first_hit_window;
mod fixed_window;
mod sliding_buckets;
mod sliding_exact;
mod sliding_window;
mod token_bucket;
mod zone;

pub use daily_reset::DailyReset;
pub use first_hit_window::{FirstHitWindow, OpenWindow};
pub use fixed_window::{Alignment, FixedWindow};
pub use sliding_buckets::SlidingBuckets;
pub use sliding_exact::SlidingExact;
pub use sliding_window::SlidingWindow;
pub use token_bucket::TokenBucket;
pub use zone::Zone;

use crate::quota::{Decision, Outcome, Quota};
use crate::units::{Charge, Hits, Nanos, Timestamp};

/// Decides one charge against one counter. `state` has the words of [`Quota::parts`] at `now`, one
/// after the other, each of [`Quota::state_size`]; all zero is a counter that was never used.
///
/// # Panics
/// When `state` is shorter than that.
pub fn decide(state: &mut [u64], quota: &Quota, charge: Charge, now: Timestamp) -> Decision {
    let mut decision = match quota {
        Quota::FixedWindow(window) => match window.reset() {
            None => window.decide(narrow(state), charge, now),
            Some(reset) => daily_reset::decide(reset, quota, state, now, |state| {
                window.decide(narrow(state), charge, now)
            }),
        },
        Quota::FirstHitWindow(window) => window.decide(narrow(state), charge, now),
        Quota::TokenBucket(bucket) => bucket.decide(narrow(state), charge, now),
        Quota::SlidingWindow(window) => match window.reset() {
            None => window.decide(narrow(state), charge, now),
            Some(reset) => daily_reset::decide(reset, quota, state, now, |state| {
                window.decide_any(narrow(state), charge, now)
            }),
        },
        Quota::SlidingBuckets(buckets) => match buckets.reset() {
            None => buckets.decide(state, charge, now),
            Some(reset) => daily_reset::decide(reset, quota, state, now, |state| {
                buckets.decide_without_shortcut(state, charge, now)
            }),
        },
        Quota::SlidingExact(exact) => exact.decide(state, charge, now),
    };
    if let Outcome::Deny { retry_after } = &mut decision.outcome
        && *retry_after == Nanos::ZERO
    {
        // It never fits, though the quota is whole. Told to retry now, a client would do so for ever.
        *retry_after = quota.period().nominal();
    }
    decision
}

/// The hits that a take or a drain takes of a counter whose debt time pays back: those that fit; and of
/// a drain that does not, up to `capacity`, unless nothing is left.
fn taken(charge: Charge, left: u64, capacity: u64) -> u64 {
    let hits = charge.hits().get();
    match charge {
        Charge::Take(_) | Charge::Force(_) if hits <= left => hits,
        Charge::Force(_) if left > 0 => hits.min(capacity),
        _ => 0,
    }
}

/// Whether hits came that were not taken, though they happened.
fn is_forced_hit(charge: Charge) -> bool {
    matches!(charge, Charge::Force(hits) if hits != Hits::PEEK)
}

fn narrow(state: &mut [u64]) -> &mut [u64; 4] {
    state.first_chunk_mut().expect("a narrow state has four words")
}
