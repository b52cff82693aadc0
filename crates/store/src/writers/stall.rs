//! Which holders of locks do not move, as far as this process has seen.
//!
//! Owns a table with a word for each seat: how many steps the seat had made when it was first seen to hold a
//! lock that somebody needs, and when that was. While the seat has made no step since, it stands still. A
//! step forward ends that at once, with no write of the holder but its own. Never waits, takes no lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::format::layout::KeyNodeId;
use crate::memory::Memory;
use crate::memory::control::{PROCESSES_MAX, WRITERS_MAX};
use crate::memory::sync::get;
use crate::writers::backoff::WAIT_MAX;
use crate::writers::slot::WriterSlot;

/// How often it is looked whether a holder is alive, by one of all threads: it costs two system calls.
const PROBE_INTERVAL_TICKS: u64 = 16;
/// A tick, in microseconds. 40 bits of them are two years; 24 bits of steps repeat after 16 million, some
/// seconds of a thread that does nothing else, and would have to be met in the very same one.
const TICK_MICROS: u64 = 64;
const PROGRESS_BITS: u32 = 24;
const PROGRESS_MASK: u64 = (1 << PROGRESS_BITS) - 1;

/// A process that holds locks and does not move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StuckProcess {
    /// Its number among the processes of the cluster.
    pub process: u32,
    /// The process id that it noted, as it is called in its own container.
    pub pid: u64,
    /// How many locks it holds.
    pub locks: u32,
    /// Since when it is known not to have moved.
    pub since: SystemTime,
}

/// When seats were first seen where they still are.
pub(crate) struct StallDetector {
    epoch: Instant,
    /// Of each seat: the tick in the high bits, its steps in the low ones; 0 if it was never seen.
    writers: Box<[AtomicU64]>,
    /// Of each process: the tick at which it was last looked whether it lives.
    probes: Box<[AtomicU64]>,
}

impl StallDetector {
    pub(crate) fn new() -> Self {
        let zeros = |count: u64| (0..count).map(|_| AtomicU64::new(0)).collect();
        Self {
            epoch: Instant::now(),
            writers: zeros(WRITERS_MAX),
            probes: zeros(u64::from(PROCESSES_MAX)),
        }
    }

    /// Ticks since the start. Never 0.
    fn tick(&self) -> u64 {
        let micros = u64::try_from(self.epoch.elapsed().as_micros()).unwrap_or(u64::MAX);
        (micros / TICK_MICROS + 1) & (u64::MAX >> PROGRESS_BITS)
    }

    /// For how long a seat, which holds a lock, is known not to have moved. This look counts.
    pub(crate) fn stalled_for(&self, writer: &WriterSlot<'_>) -> Duration {
        let (progress, now) = (writer.progress() & PROGRESS_MASK, self.tick());
        let Some(word) = self.writers.get(writer.number() as usize) else { return Duration::ZERO };
        // Relaxed: one word, which stands for itself.
        let known = word.load(Ordering::Relaxed);
        if known != 0 && known & PROGRESS_MASK == progress {
            return Duration::from_micros(now.saturating_sub(known >> PROGRESS_BITS) * TICK_MICROS);
        }
        // If another thread was faster, it saw the same.
        let seen = now << PROGRESS_BITS | progress;
        let _ = word.compare_exchange(known, seen, Ordering::Relaxed, Ordering::Relaxed);
        Duration::ZERO
    }

    /// Whether somebody has waited for a seat where it still is. Reads no clock.
    pub(crate) fn has_seen(&self, writer: &WriterSlot<'_>) -> bool {
        let word = self.writers.get(writer.number() as usize);
        let known = word.map_or(0, |word| word.load(Ordering::Relaxed));
        known != 0 && known & PROGRESS_MASK == writer.progress() & PROGRESS_MASK
    }

    /// Whether the caller is the one to look now whether a process lives.
    pub(crate) fn may_probe(&self, process: u32) -> bool {
        let Some(word) = self.probes.get(process as usize) else { return false };
        let (now, last) = (self.tick(), word.load(Ordering::Relaxed));
        (last == 0 || now.saturating_sub(last) >= PROBE_INTERVAL_TICKS)
            && word.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// Whether so long without a step is more than waiters put up with.
pub(crate) fn is_stuck(stalled_for: Duration) -> bool {
    stalled_for >= WAIT_MAX
}

/// Notes for people, in the cluster, that a seat stands still. Returns since when.
pub(crate) fn note_stall(writer: &WriterSlot<'_>, stalled_for: Duration) -> SystemTime {
    let now = SystemTime::now();
    let since = now.checked_sub(stalled_for).unwrap_or(now);
    let millis = since.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    writer.note_stall(writer.progress(), u64::try_from(millis).unwrap_or(u64::MAX));
    stalled_since(writer).unwrap_or(since)
}

/// Since when a seat stands still, if a waiter noted it.
pub(crate) fn stalled_since(writer: &WriterSlot<'_>) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_millis(writer.stalled_since()?))
}

/// How many of the locks that a seat lists it really holds.
pub(crate) fn locks_held(memory: &Memory, writer: &WriterSlot<'_>) -> u32 {
    let holds = |id: &KeyNodeId| {
        memory.key_node(*id).is_some_and(|node| get(node.lock()) == writer.lock_word())
    };
    writer.locks().filter(holds).count() as u32
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use crate::memory::control::CONTROL_WORDS;
    use crate::memory::region::Region;

    fn wait(time: Duration) {
        let since = Instant::now();
        while since.elapsed() < time {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_seat_stands_still_until_it_makes_a_step() {
        let control = Region::heap(&vec![0; CONTROL_WORDS]);
        let stalls = StallDetector::new();
        let (writer, other) =
            (WriterSlot::new(&control, 3), WriterSlot::new(&control, WRITERS_MAX - 1));
        assert!(!stalls.has_seen(&writer));
        assert_eq!(stalls.stalled_for(&writer), Duration::ZERO);
        assert!(stalls.has_seen(&writer) && !stalls.has_seen(&other));
        wait(WAIT_MAX * 2);
        assert!(is_stuck(stalls.stalled_for(&writer)));
        assert_eq!(stalls.stalled_for(&other), Duration::ZERO);
        writer.clear_locks();
        assert!(!stalls.has_seen(&writer));
        assert_eq!(stalls.stalled_for(&writer), Duration::ZERO);
        assert!(!is_stuck(stalls.stalled_for(&writer)));
    }

    #[test]
    fn one_of_many_threads_looks_whether_a_process_lives() {
        let stalls = StallDetector::new();
        let probes = AtomicU64::new(0);
        let began = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50_000 {
                        probes.fetch_add(u64::from(stalls.may_probe(1)), Ordering::Relaxed);
                    }
                });
            }
        });
        let most =
            1 + began.elapsed().as_micros() as u64 / (PROBE_INTERVAL_TICKS * TICK_MICROS) + 1;
        let probes = probes.into_inner();
        assert!((1..=most).contains(&probes), "{probes} looks, at most {most}");
        assert!(stalls.may_probe(2), "each process is looked after by itself");
        assert!(!stalls.may_probe(PROCESSES_MAX), "there is no such process");
    }

    #[test]
    fn the_first_note_of_a_step_counts_and_ends_with_the_step() {
        let control = Region::heap(&vec![0; CONTROL_WORDS]);
        let writer = WriterSlot::new(&control, 0);
        assert_eq!(stalled_since(&writer), None);
        let first = note_stall(&writer, Duration::from_secs(100));
        assert_eq!(note_stall(&writer, Duration::from_secs(50)), first);
        assert_eq!(stalled_since(&writer), Some(first));
        writer.clear_locks();
        assert_eq!(stalled_since(&writer), None);
        assert!(note_stall(&writer, Duration::from_secs(50)) > first);
    }
}
