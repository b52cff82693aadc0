//! The limit algorithms, one file each: pure functions over a small state, in integers.
//!
//! All share one contract. An allow takes the hits; a deny takes nothing. A peek (zero hits) answers for
//! one hit and takes nothing, although it may write: a bucket that does not start full must remember the
//! start of its refill. A refund returns at most the hits that the counter holds, whatever their origin. A
//! clock that steps back never returns hits. Each algorithm must agree with a slow, obvious twin in
//! `tests/slow_*`.
//!
//! A forced charge answers as a take does, but counts hits that do not fit too:
//! - a fixed window counts all of them. It is over once the count exceeds the capacity, so until then a
//!   forced charge of zero fits;
//! - a first-hit window counts them up to its capacity, because its count is visible to clients;
//! - the others count them only if at least one whole hit is left, and at most their capacity. So a debit
//!   larger than what is left closes the counter for as long as a full counter takes to recover and no
//!   longer: repeated denials add nothing.
//!
//! Every window records the time of its last hit, whether taken or forced, and may have a daily reset.

mod allowance;
mod calendar;
pub(crate) mod daily_reset;
mod first_hit_window;
mod fixed_window;
pub(crate) mod held;
mod sliding_buckets;
mod sliding_exact;
mod sliding_window;
mod token_bucket;
mod zone;

pub use daily_reset::DailyReset;
pub use first_hit_window::{FirstHitWindow, OpenWindow};
pub use fixed_window::{Alignment, FixedWindow};
pub use held::{GivenBack, Held, Lack, Refill};
pub use sliding_buckets::SlidingBuckets;
pub use sliding_exact::SlidingExact;
pub use sliding_window::SlidingWindow;
pub use token_bucket::TokenBucket;
pub use zone::Zone;

use crate::units::{Charge, Hits};

/// The hits to count for a counter that recovers over time: all if they fit. A forced charge that does not
/// fit counts at most `capacity`, and nothing if nothing is left.
fn taken(charge: Charge, left: u64, capacity: u64) -> u64 {
    let hits = charge.hits().get();
    match charge {
        Charge::Take(_) | Charge::Force(_) if hits <= left => hits,
        Charge::Force(_) if left > 0 => hits.min(capacity),
        _ => 0,
    }
}

/// Whether these hits have happened even if the counter does not count them.
fn is_forced_hit(charge: Charge) -> bool {
    matches!(charge, Charge::Force(hits) if hits != Hits::PEEK)
}
