//! Which holders of locks do not move, as far as this process has seen.
//!
//! Owns a table with a word for each seat: how many steps the seat had made when it was first seen to hold a
//! lock that somebody needs, and when that was. While the seat has made no step since, it stands still. A
//! step forward ends that at once, with no write of the holder but its own. Never waits, takes no lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::format::layout::KeyNodeId;
use crate::memory::Memory;
use crate::memory::control::{PROCESSES_MAX, SEATS_MAX};
use crate::memory::sync::get;
use crate::writers::backoff::PATIENCE;
use crate::writers::slot::Seat;

/// How often it is looked whether a holder is alive, by one of all threads: it costs two system calls.
const LOOK_EVERY_TICKS: u64 = 16;
/// A tick, in microseconds. 40 bits of them are two years; 24 bits of steps repeat after 16 million, some
/// seconds of a thread that does nothing else, and would have to be met in the very same one.
const TICK_MICROS: u64 = 64;
const STEPS_BITS: u32 = 24;
const STEPS_MASK: u64 = (1 << STEPS_BITS) - 1;

/// A process that holds locks and does not move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stuck {
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
pub(crate) struct Sightings {
    epoch: Instant,
    /// Of each seat: the tick in the high bits, its steps in the low ones; 0 if it was never seen.
    seats: Box<[AtomicU64]>,
    /// Of each process: the tick at which it was last looked whether it lives.
    looks: Box<[AtomicU64]>,
}

impl Sightings {
    pub(crate) fn new() -> Self {
        let zeros = |count: u64| (0..count).map(|_| AtomicU64::new(0)).collect();
        Self {
            epoch: Instant::now(),
            seats: zeros(SEATS_MAX),
            looks: zeros(u64::from(PROCESSES_MAX)),
        }
    }

    /// Ticks since the start. Never 0.
    fn tick(&self) -> u64 {
        let micros = u64::try_from(self.epoch.elapsed().as_micros()).unwrap_or(u64::MAX);
        (micros / TICK_MICROS + 1) & (u64::MAX >> STEPS_BITS)
    }

    /// For how long a seat, which holds a lock, is known not to have moved. This look counts.
    pub(crate) fn still_for(&self, seat: &Seat<'_>) -> Duration {
        let (steps, now) = (seat.steps() & STEPS_MASK, self.tick());
        let Some(word) = self.seats.get(seat.number() as usize) else { return Duration::ZERO };
        // Relaxed: one word, which stands for itself.
        let known = word.load(Ordering::Relaxed);
        if known != 0 && known & STEPS_MASK == steps {
            return Duration::from_micros(now.saturating_sub(known >> STEPS_BITS) * TICK_MICROS);
        }
        // If another thread was faster, it saw the same.
        let seen = now << STEPS_BITS | steps;
        let _ = word.compare_exchange(known, seen, Ordering::Relaxed, Ordering::Relaxed);
        Duration::ZERO
    }

    /// Whether somebody has waited for a seat where it still is. Reads no clock.
    pub(crate) fn knows(&self, seat: &Seat<'_>) -> bool {
        let word = self.seats.get(seat.number() as usize);
        let known = word.map_or(0, |word| word.load(Ordering::Relaxed));
        known != 0 && known & STEPS_MASK == seat.steps() & STEPS_MASK
    }

    /// Whether the caller is the one to look now whether a process lives.
    pub(crate) fn may_look(&self, process: u32) -> bool {
        let Some(word) = self.looks.get(process as usize) else { return false };
        let (now, last) = (self.tick(), word.load(Ordering::Relaxed));
        (last == 0 || now.saturating_sub(last) >= LOOK_EVERY_TICKS)
            && word.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// Whether so long without a step is more than waiters put up with.
pub(crate) fn is_stuck(still_for: Duration) -> bool {
    still_for >= PATIENCE
}

/// Notes for people, in the cluster, that a seat stands still. Returns since when.
pub(crate) fn note(seat: &Seat<'_>, still_for: Duration) -> SystemTime {
    let now = SystemTime::now();
    let since = now.checked_sub(still_for).unwrap_or(now);
    let millis = since.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    seat.note_still(seat.steps(), u64::try_from(millis).unwrap_or(u64::MAX));
    noted(seat).unwrap_or(since)
}

/// Since when a seat stands still, if a waiter noted it.
pub(crate) fn noted(seat: &Seat<'_>) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_millis(seat.still_since()?))
}

/// How many of the locks that a seat lists it really holds.
pub(crate) fn locks_held(memory: &Memory, seat: &Seat<'_>) -> u32 {
    let holds = |id: &KeyNodeId| {
        memory.key_node(*id).is_some_and(|node| get(node.lock()) == seat.lock_word())
    };
    seat.locks().filter(holds).count() as u32
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
        let sightings = Sightings::new();
        let (seat, other) = (Seat::new(&control, 3), Seat::new(&control, SEATS_MAX - 1));
        assert!(!sightings.knows(&seat));
        assert_eq!(sightings.still_for(&seat), Duration::ZERO);
        assert!(sightings.knows(&seat) && !sightings.knows(&other));
        wait(PATIENCE * 2);
        assert!(is_stuck(sightings.still_for(&seat)));
        assert_eq!(sightings.still_for(&other), Duration::ZERO);
        seat.clear_locks();
        assert!(!sightings.knows(&seat));
        assert_eq!(sightings.still_for(&seat), Duration::ZERO);
        assert!(!is_stuck(sightings.still_for(&seat)));
    }

    #[test]
    fn one_of_many_threads_looks_whether_a_process_lives() {
        let sightings = Sightings::new();
        let looks = AtomicU64::new(0);
        let began = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50_000 {
                        looks.fetch_add(u64::from(sightings.may_look(1)), Ordering::Relaxed);
                    }
                });
            }
        });
        let most = 1 + began.elapsed().as_micros() as u64 / (LOOK_EVERY_TICKS * TICK_MICROS) + 1;
        let looks = looks.into_inner();
        assert!((1..=most).contains(&looks), "{looks} looks, at most {most}");
        assert!(sightings.may_look(2), "each process is looked after by itself");
        assert!(!sightings.may_look(PROCESSES_MAX), "there is no such process");
    }

    #[test]
    fn the_first_note_of_a_step_counts_and_ends_with_the_step() {
        let control = Region::heap(&vec![0; CONTROL_WORDS]);
        let seat = Seat::new(&control, 0);
        assert_eq!(noted(&seat), None);
        let first = note(&seat, Duration::from_secs(100));
        assert_eq!(note(&seat, Duration::from_secs(50)), first);
        assert_eq!(noted(&seat), Some(first));
        seat.clear_locks();
        assert_eq!(noted(&seat), None);
        assert!(note(&seat, Duration::from_secs(50)) > first);
    }
}
