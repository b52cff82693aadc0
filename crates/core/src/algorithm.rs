//! The limit algorithms, one file each: pure functions over a 32-byte state, in integers.
//!
//! All share one contract. An allow takes the hits; a deny takes nothing. A peek (no hits) answers
//! for one hit and takes nothing. (Taking nothing may still write: a bucket that does not start
//! full must remember since when it refills.) A clock that steps back never gives hits
//! back. Each has a slow obvious twin in `tests/twins.rs` that it must agree with.

mod fixed_window;
mod token_bucket;

pub use fixed_window::FixedWindow;
pub use token_bucket::TokenBucket;

use crate::quota::{Decision, Quota, State};
use crate::units::{Hits, Timestamp};

/// Decides one ask against one counter and, on allow, takes the hits from `state`.
pub fn decide(state: &mut State, quota: &Quota, hits: Hits, now: Timestamp) -> Decision {
    match quota {
        Quota::FixedWindow(window) => window.decide(state, hits, now),
        Quota::TokenBucket(bucket) => bucket.decide(state, hits, now),
    }
}
