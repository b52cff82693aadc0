//! How long a step waits for others: 5 ms in all, however many locks it meets.
//!
//! Owns the pace of waiting, and the time that threads have been blocked. Knows nothing of locks and seats.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A lock is held for less than a microsecond, unless its holder is preempted. So many tries take some
/// microseconds, and are all that a step makes while it holds other locks.
pub(crate) const SPINS_WITH_LOCKS: u32 = 100;
/// The same of a step that holds none: some tens of microseconds, in which a lock that is passed on and on comes
/// free many times. A holder that somebody waits for already is not worth that.
pub(crate) const SPINS_WITHOUT_LOCKS: u32 = 2_000;
/// A holder that has not moved for so long has no processor.
pub(crate) const SPIN_STALL_MAX: Duration = Duration::from_micros(200);
/// A yield may cost a time slice, and then all of the patience; a thread that sleeps gets its processor back
/// soon, and meanwhile a holder that was preempted has one.
const YIELDS: u32 = 1;
const PAUSE: Duration = Duration::from_micros(50);
/// So many looks are made in any case at locks whose holders move: a thread that got no processor itself has not
/// waited for others. With a processor they take 4 ms.
const POLLS_MIN: u32 = 40;
/// What a step waits at most, so that a serving thread is never late for all its clients. A ready process is
/// given a processor within this time unless several others want the same one. Miri is a thousand times slower
/// than a processor.
pub(crate) const WAIT_MAX: Duration = Duration::from_millis(if cfg!(miri) { 1_000_000 } else { 5 });
/// What work on the whole cluster waits for one lock: no client waits for it.
pub(crate) const MAINTENANCE_WAIT_MAX: Duration = Duration::from_secs(1);

thread_local! {
    /// Nanoseconds that this thread was blocked.
    static BLOCKED: Cell<u64> = const { Cell::new(0) };
}

/// How long this thread has waited for locks and seats in all, of any cluster.
///
/// A thread that waits uses no processor time, so whoever estimates its load by that adds this.
#[must_use]
pub fn blocked_in_this_thread() -> Duration {
    Duration::from_nanos(BLOCKED.get())
}

/// How long all threads of this process have been blocked.
#[derive(Default)]
pub(crate) struct BlockedTime(AtomicU64);

impl BlockedTime {
    /// Counts the time that `wait` takes.
    pub(crate) fn count<T>(&self, wait: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let waited = wait();
        self.add(began.elapsed());
        waited
    }

    /// This thread was blocked for so long.
    fn add(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // Relaxed: a count that stands for itself.
        self.0.fetch_add(nanos, Ordering::Relaxed);
        BLOCKED.set(BLOCKED.get().saturating_add(nanos));
    }

    pub(crate) fn total(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// How long a step has been waiting.
#[derive(Default)]
pub(crate) struct Backoff {
    rounds: u32,
    since: Option<Instant>,
}

/// What is left of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deadline {
    Some,
    /// Waited long enough.
    None,
}

impl Backoff {
    /// Waits a little.
    pub(crate) fn pause(&mut self) -> Deadline {
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() >= WAIT_MAX && self.rounds >= POLLS_MIN {
            return Deadline::None;
        }
        self.rounds = self.rounds.saturating_add(1);
        if self.rounds <= YIELDS {
            thread::yield_now();
        } else {
            thread::sleep(PAUSE);
        }
        Deadline::Some
    }

    /// Whether it is past the first moments, in which nearly all waits end.
    pub(crate) fn has_yielded(&self) -> bool {
        self.rounds > YIELDS
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn patience_ends() {
        let (mut backoff, began) = (Backoff::default(), Instant::now());
        while backoff.pause() == Deadline::Some {}
        assert!(began.elapsed() >= WAIT_MAX && backoff.has_yielded());
        assert_eq!(backoff.pause(), Deadline::None, "it does not come back");
    }

    #[test]
    fn blocked_time_is_counted_for_the_process_and_for_the_thread() {
        let blocked = BlockedTime::default();
        let before = blocked_in_this_thread();
        blocked.add(Duration::from_millis(3));
        thread::scope(|scope| {
            scope.spawn(|| {
                blocked.add(Duration::from_millis(4));
                assert_eq!(blocked_in_this_thread(), Duration::from_millis(4));
            });
        });
        assert_eq!(blocked_in_this_thread() - before, Duration::from_millis(3));
        assert_eq!(blocked.total(), Duration::from_millis(7));
    }
}
