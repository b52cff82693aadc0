//! Whether more work is waiting than may be: then requests are answered with 503, which costs a fraction
//! of a large body, until what waited is done.
//!
//! A connection has one request in hand, so what waits is bounded by their number: 256 of one item, at
//! some 20 µs each with HTTP and all, are a round of 5 ms for one thread. Bodies of 256 items take twenty
//! times as long. So the time that items take is counted from when a task goes to sleep until it has had
//! its turn, in the same queue as the connections. In its sleep of 2 to 3 ms each thread can do that much;
//! what is beyond [`AHEAD_MAX`] for each was done ahead of it, and of everybody who waits like it.
//!
//! Work is counted rather than time: a process that got no processor for a while is late, but has little
//! to catch up with. An idle process is not woken.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How long the task sleeps.
const SAMPLE_EVERY: Duration = Duration::from_millis(2);
/// The work of a thread from then on beyond which requests are refused: 3 ms of sleep and 4 ms ahead.
const AHEAD_MAX: Duration = Duration::from_millis(7);
/// No body counts for more: one that seems to take longer was itself kept waiting for a processor.
const BODY_MAX: Duration = Duration::from_millis(2);

/// Shared by all connections of a process.
#[derive(Debug)]
pub(super) struct Backlog {
    /// Nanoseconds of work since the task went to sleep.
    ahead: AtomicU64,
    ahead_max: u64,
    /// Whether the task is on its way.
    is_sampled: AtomicBool,
}

// Relaxed everywhere: the numbers stand for themselves, and a body that is counted for the wrong sample
// makes a difference of one body.
impl Backlog {
    /// For a process of so many threads.
    pub(super) fn new(threads: usize) -> Backlog {
        let threads = u64::try_from(threads).unwrap_or(u64::MAX).max(1);
        Backlog {
            ahead: AtomicU64::new(0),
            ahead_max: nanos(AHEAD_MAX).saturating_mul(threads),
            is_sampled: AtomicBool::new(false),
        }
    }

    /// Whether requests should be refused.
    pub(super) fn is_late(&self) -> bool {
        self.ahead.load(Ordering::Relaxed) > self.ahead_max
    }

    /// A body took so long. Wants to be called in the runtime that serves.
    pub(super) fn worked(self: &Arc<Self>, took: Duration) {
        self.add(took);
        if !self.is_sampled.load(Ordering::Relaxed)
            && !self.is_sampled.swap(true, Ordering::Relaxed)
        {
            let backlog = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep(SAMPLE_EVERY).await;
                backlog.sampled();
            });
        }
    }

    fn add(&self, took: Duration) {
        self.ahead.fetch_add(nanos(took.min(BODY_MAX)), Ordering::Relaxed);
    }

    /// The task had its turn.
    fn sampled(&self) {
        self.ahead.store(0, Ordering::Relaxed);
        self.is_sampled.store(false, Ordering::Relaxed);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many bodies of a millisecond it takes to be late.
    fn late_after(backlog: &Backlog) -> Option<u64> {
        (1..=100).find(|_| {
            backlog.add(Duration::from_millis(1));
            backlog.is_late()
        })
    }

    #[test]
    fn work_ahead_of_a_sample_makes_late_until_it_had_its_turn() {
        let backlog = Backlog::new(1);
        assert_eq!(late_after(&backlog), Some(8));
        backlog.sampled();
        assert!(!backlog.is_late());
        assert_eq!(late_after(&backlog), Some(8));
        assert_eq!(late_after(&Backlog::new(4)), Some(29));
    }

    #[test]
    fn a_process_that_stood_still_is_not_late_for_that() {
        let backlog = Backlog::new(1);
        backlog.add(Duration::from_secs(5));
        assert!(!backlog.is_late(), "one body, whatever time it seemed to take");
    }

    #[tokio::test]
    async fn the_sample_comes_by_itself() {
        let backlog = Arc::new(Backlog::new(1));
        (0..8).for_each(|_| backlog.worked(BODY_MAX));
        assert!(backlog.is_late());
        while backlog.is_late() {
            tokio::task::yield_now().await;
        }
        backlog.worked(BODY_MAX);
        assert!(!backlog.is_late());
    }
}
