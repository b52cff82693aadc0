//! The stall detector: which lock holders make no progress, as observed by this process.
//!
//! Owns a table with a word per writer slot: its progress when it was first seen holding a needed lock, and
//! when that was. The slot is stalled while its progress does not change, so a holder ends a stall without
//! any extra write. Never waits, takes no lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::format::KeyNodeId;
use crate::memory::Memory;
use crate::memory::control::{PROCESSES_MAX, WRITERS_MAX};
use crate::memory::sync::get;
use crate::writers::WriterSlot;
use crate::writers::backoff::WAIT_MAX;

/// How often the threads of this process together probe whether a holder is alive. A probe is two system calls.
const PROBE_INTERVAL_TICKS: u64 = 16;
/// A tick in microseconds. 40 bits of ticks are two years. 24 bits of progress wrap after 16 million updates,
/// some seconds of a busy thread; a false match would need the exact same value.
const TICK_MICROS: u64 = 64;
const PROGRESS_BITS: u32 = 24;
const PROGRESS_MASK: u64 = (1 << PROGRESS_BITS) - 1;

/// A live process that holds locks and makes no progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StuckProcess {
    /// Its number in the cluster.
    pub process: u32,
    /// The process id that it recorded, as seen in its own container.
    pub pid: u64,
    /// The number of locks that it holds.
    pub locks: u32,
    /// Since when it is known to make no progress.
    pub since: SystemTime,
}

/// When slots were first seen at their current progress.
pub(crate) struct StallDetector {
    epoch: Instant,
    /// Per slot: the tick in the high bits, the progress in the low bits; 0 if never seen.
    writers: Box<[AtomicU64]>,
    /// Per process: the tick of the last liveness probe.
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

    /// Ticks since the start; never 0.
    fn tick(&self) -> u64 {
        let micros = u64::try_from(self.epoch.elapsed().as_micros()).unwrap_or(u64::MAX);
        (micros / TICK_MICROS + 1) & (u64::MAX >> PROGRESS_BITS)
    }

    /// For how long a slot that holds a lock is known to have stalled. Counts as an observation.
    pub(crate) fn stalled_for(&self, writer: &WriterSlot<'_>) -> Duration {
        let (progress, now) = (writer.progress() & PROGRESS_MASK, self.tick());
        let Some(word) = self.writers.get(writer.number() as usize) else { return Duration::ZERO };
        // Relaxed: one independent word.
        let known = word.load(Ordering::Relaxed);
        if known != 0 && known & PROGRESS_MASK == progress {
            return Duration::from_micros(now.saturating_sub(known >> PROGRESS_BITS) * TICK_MICROS);
        }
        // If another thread was faster, it saw the same.
        let seen = now << PROGRESS_BITS | progress;
        let _ = word.compare_exchange(known, seen, Ordering::Relaxed, Ordering::Relaxed);
        Duration::ZERO
    }

    /// Whether a slot has been seen at its current progress. Reads no clock.
    pub(crate) fn has_seen(&self, writer: &WriterSlot<'_>) -> bool {
        let word = self.writers.get(writer.number() as usize);
        let known = word.map_or(0, |word| word.load(Ordering::Relaxed));
        known != 0 && known & PROGRESS_MASK == writer.progress() & PROGRESS_MASK
    }

    /// Whether the caller is the one to probe now whether a process is alive.
    pub(crate) fn may_probe(&self, process: u32) -> bool {
        let Some(word) = self.probes.get(process as usize) else { return false };
        let (now, last) = (self.tick(), word.load(Ordering::Relaxed));
        (last == 0 || now.saturating_sub(last) >= PROBE_INTERVAL_TICKS)
            && word.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// Whether a stall is longer than waiters of other processes tolerate.
pub(crate) fn is_stuck(stalled_for: Duration) -> bool {
    stalled_for >= WAIT_MAX
}

/// Records a stall in the cluster, for operators. Returns since when.
pub(crate) fn note_stall(writer: &WriterSlot<'_>, stalled_for: Duration) -> SystemTime {
    let now = SystemTime::now();
    let since = now.checked_sub(stalled_for).unwrap_or(now);
    let millis = since.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    writer.note_stall(writer.progress(), u64::try_from(millis).unwrap_or(u64::MAX));
    stalled_since(writer).unwrap_or(since)
}

/// Since when a slot has stalled, if a waiter recorded it.
pub(crate) fn stalled_since(writer: &WriterSlot<'_>) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_millis(writer.stalled_since()?))
}

/// How many of its listed locks a slot really holds.
pub(crate) fn locks_held(memory: &Memory, writer: &WriterSlot<'_>) -> u32 {
    let holds = |id: &KeyNodeId| {
        memory.key_node(*id).is_some_and(|node| get(node.lock()) == writer.lock_word())
    };
    writer.locks().filter(holds).count() as u32
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use crate::memory::Region;
    use crate::memory::control::CONTROL_WORDS;

    fn wait(time: Duration) {
        let since = Instant::now();
        while since.elapsed() < time {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_slot_is_stalled_until_it_makes_progress() {
        let control = Region::heap(&vec![0; CONTROL_WORDS]);
        let stalls = StallDetector::new();
        let (writer, other) =
            (WriterSlot::new(&control, 3), WriterSlot::new(&control, WRITERS_MAX - 1));
        assert!(!stalls.has_seen(&writer));
        let began = Instant::now();
        assert_eq!(stalls.stalled_for(&writer), Duration::ZERO);
        assert!(stalls.has_seen(&writer) && !stalls.has_seen(&other));
        wait(WAIT_MAX * 2);
        let stalled_for = stalls.stalled_for(&writer);
        assert!(is_stuck(stalled_for));
        // Ticks are cut off.
        let most = began.elapsed() + Duration::from_micros(TICK_MICROS);
        assert!(stalled_for <= most, "{stalled_for:?}, at most {most:?}");
        assert_eq!(stalls.stalled_for(&other), Duration::ZERO);
        writer.clear_locks();
        assert!(!stalls.has_seen(&writer));
        let began = Instant::now();
        assert_eq!(stalls.stalled_for(&writer), Duration::ZERO);
        let stalled_for = stalls.stalled_for(&writer);
        let most = began.elapsed() + Duration::from_micros(TICK_MICROS);
        assert!(stalled_for <= most, "{stalled_for:?}, at most {most:?}");
    }

    #[test]
    fn one_of_many_threads_probes_whether_a_process_is_alive() {
        let stalls = StallDetector::new();
        assert!(stalls.may_probe(0), "the first one is allowed at once");
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
        assert!((1..=most).contains(&probes), "{probes} probes, at most {most}");
        wait(Duration::from_micros(PROBE_INTERVAL_TICKS * TICK_MICROS));
        assert!(stalls.may_probe(1), "the next one after a while");
        assert!(stalls.may_probe(2), "each process is probed by itself");
        assert!(!stalls.may_probe(PROCESSES_MAX), "there is no such process");
    }

    #[test]
    fn the_first_record_of_a_stall_counts_and_ends_with_it() {
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
