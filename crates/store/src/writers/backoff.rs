//! How long a transaction waits: 5 ms in total, however many locks it meets, and up to 100 ms for a thread of its own
//! process.
//!
//! Owns the pace of waiting, and the time that threads spent blocked. Knows no locks and no slots.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A lock is held for less than a microsecond, unless its holder is preempted. These spins take some
/// microseconds, and are all that a transaction waits while it holds other locks.
pub(crate) const SPINS_WITH_LOCKS: u32 = 100;
/// Spins without holding locks: some tens of microseconds, in which a contended lock becomes free many times.
/// Not worth it for a holder known to have stalled.
pub(crate) const SPINS_WITHOUT_LOCKS: u32 = 2_000;
/// A holder without progress for this long is not running.
pub(crate) const SPIN_STALL_MAX: Duration = Duration::from_micros(200);
/// A yield may cost a time slice, and with it the whole wait. A sleeping thread gets its processor back soon,
/// and leaves it to a preempted holder meanwhile.
const YIELDS: u32 = 1;
const PAUSE: Duration = Duration::from_micros(50);
/// A minimum of polls, so that a thread which got no processor itself does not blame others. On a free
/// processor they take 4 ms.
const POLLS_MIN: u32 = 40;
/// How long a transaction waits at most, so that a serving thread is never late for all its clients. The scheduler
/// runs a ready process within this time unless several compete. Miri is a thousand times slower than a processor.
pub(crate) const WAIT_MAX: Duration = Duration::from_millis(if cfg!(miri) { 1_000_000 } else { 5 });
/// How long a transaction waits for a thread of its own process that makes no progress. What stops a process stops the
/// waiting thread too, so the holder lacks a processor, or at worst the disk; to give up would fail a request for
/// nothing. A container that has used up its quota of processor time runs again within this time.
pub(crate) const OWN_WAIT_MAX: Duration =
    if cfg!(miri) { WAIT_MAX } else { Duration::from_millis(100) };
/// How long maintenance waits for one lock. No client waits for it.
pub(crate) const MAINTENANCE_WAIT_MAX: Duration = Duration::from_secs(1);

thread_local! {
    /// Nanoseconds for which this thread was blocked.
    static BLOCKED: Cell<u64> = const { Cell::new(0) };
}

/// How long this thread has waited for writer slots, and for locks of other processes, in total, in any cluster.
///
/// A waiting thread uses no processor time, so estimates of its load must add this. A lock of a thread of the same
/// process becomes free as soon as the machine has a processor for it, and the wait delays nothing else.
#[must_use]
pub fn blocked_in_this_thread() -> Duration {
    Duration::from_nanos(BLOCKED.get())
}

/// Whose progress a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// A thread of this process.
    Own,
    Other,
}

impl Holder {
    /// How long a holder without progress is waited for. Beyond that it is stuck.
    pub(crate) fn patience(self) -> Duration {
        match self {
            Holder::Own => OWN_WAIT_MAX,
            Holder::Other => WAIT_MAX,
        }
    }
}

/// How long all threads of this process were blocked.
#[derive(Default)]
pub(crate) struct BlockedTime(AtomicU64);

impl BlockedTime {
    /// Adds the time of a wait to the blocked time of the process, and to that of this thread if it waits for another
    /// process.
    pub(crate) fn count<T>(&self, holder: Holder, wait: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let waited = wait();
        self.add(holder, began.elapsed());
        waited
    }

    fn add(&self, holder: Holder, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // Relaxed: an independent counter.
        self.0.fetch_add(nanos, Ordering::Relaxed);
        if holder == Holder::Other {
            BLOCKED.set(BLOCKED.get().saturating_add(nanos));
        }
    }

    pub(crate) fn total(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// How long a transaction has been waiting.
#[derive(Default)]
pub(crate) struct Backoff {
    rounds: u32,
    since: Option<Instant>,
}

/// Whether a wait may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deadline {
    Ahead,
    /// The wait has taken long enough.
    Passed,
}

impl Backoff {
    /// Waits for a moment, unless the transaction has waited for `longest` in total.
    pub(crate) fn pause(&mut self, longest: Duration) -> Deadline {
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() >= longest && self.rounds >= POLLS_MIN {
            return Deadline::Passed;
        }
        self.rounds = self.rounds.saturating_add(1);
        if self.rounds <= YIELDS {
            thread::yield_now();
        } else {
            thread::sleep(PAUSE);
        }
        Deadline::Ahead
    }

    /// Whether the first moments, in which nearly all waits end, are over.
    pub(crate) fn has_yielded(&self) -> bool {
        self.rounds > YIELDS
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends() {
        let (mut backoff, began) = (Backoff::default(), Instant::now());
        assert_eq!((backoff.pause(WAIT_MAX), backoff.has_yielded()), (Deadline::Ahead, false));
        assert_eq!((backoff.pause(WAIT_MAX), backoff.has_yielded()), (Deadline::Ahead, true));
        while backoff.pause(WAIT_MAX) == Deadline::Ahead {}
        assert!(began.elapsed() >= WAIT_MAX && backoff.has_yielded());
        // It yields once, then sleeps, so that a holder gets the processor.
        let sleeps_max = WAIT_MAX.as_micros() / PAUSE.as_micros();
        let rounds = YIELDS + POLLS_MIN.max(u32::try_from(sleeps_max).unwrap());
        assert!((POLLS_MIN..=rounds).contains(&backoff.rounds), "{} rounds", backoff.rounds);
        assert_eq!(backoff.pause(WAIT_MAX), Deadline::Passed, "it stays over");
        let paused = backoff.pause(OWN_WAIT_MAX);
        // A busy machine may have used up that time too.
        let is_over = began.elapsed() >= OWN_WAIT_MAX;
        assert!(paused == Deadline::Ahead || is_over, "there is more time for others");
    }

    #[test]
    fn blocked_time_is_counted_for_the_process_and_for_other_processes_in_the_thread() {
        let blocked = BlockedTime::default();
        let before = blocked_in_this_thread();
        blocked.add(Holder::Other, Duration::from_millis(3));
        blocked.add(Holder::Own, Duration::from_millis(40));
        thread::scope(|scope| {
            scope.spawn(|| {
                blocked.add(Holder::Other, Duration::from_millis(4));
                assert_eq!(blocked_in_this_thread(), Duration::from_millis(4));
            });
        });
        assert_eq!(blocked_in_this_thread() - before, Duration::from_millis(3));
        assert_eq!(blocked.total(), Duration::from_millis(47));
    }
}
