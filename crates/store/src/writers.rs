//! The threads of this process in a cluster: which seat each has, and whom it waits for.
//!
//! Owns the process's number, its seats, and the decisions that another process is dead, or does not move.
//! A thread takes a seat for one update, or one batch, and gives it back. It waits for a lock only while it
//! holds none.

pub(crate) mod backoff;
pub(crate) mod byte_lock;
pub(crate) mod liveness;
pub(crate) mod lock;
pub(crate) mod recovery;
pub(crate) mod restore;
pub(crate) mod slot;
pub(crate) mod stall;
pub(crate) mod stats;

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::error::UpdateError;
use crate::memory::Memory;
use crate::memory::control::{PROCESSES_MAX, SEATS_MAX, free, pid_word};
use crate::memory::sync::{AtomicU64 as Word, get, put};
use crate::writers::backoff::{Blocked, Left, PATIENCE, Patience, SPINNING_MAX};
use crate::writers::liveness::{Life, Lives};
use crate::writers::lock::with_right;
use crate::writers::recovery::clean_up_after;
use crate::writers::slot::{Seat, owner_word};
use crate::writers::stall::{Sightings, Stuck, is_stuck, locks_held, note};

/// This process in a cluster.
pub(crate) struct Crew {
    process: u32,
    lives: Lives,
    /// Shows that this process lives. Given up last.
    _life: Life,
    /// The seats of this process, of which the first `taken` are there.
    pool: Box<[Pooled]>,
    taken: AtomicUsize,
    growth: Mutex<()>,
    cleaning: Mutex<()>,
    sightings: Sightings,
    blocked: Blocked,
}

/// A seat of this process. Alone on its cache line, as threads take and give back theirs all the time.
#[derive(Default)]
#[repr(align(64))]
struct Pooled {
    is_busy: AtomicBool,
    number: AtomicU64,
}

/// A seat that this thread has for now.
pub(crate) struct Seated<'a> {
    pub(crate) seat: Seat<'a>,
    pooled: &'a Pooled,
}

impl Drop for Seated<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `try_sit`; the next thread sees the seat as we leave it.
        self.pooled.is_busy.store(false, Ordering::Release);
    }
}

impl Crew {
    /// Joins as process number `process`, which `life` gives the right to.
    pub(crate) fn join(memory: &Memory, lives: Lives, life: Life, process: u32) -> Self {
        put(pid_word(&memory.control, process), u64::from(std::process::id()));
        Self {
            process,
            lives,
            _life: life,
            pool: (0..SEATS_MAX).map(|_| Pooled::default()).collect(),
            taken: AtomicUsize::new(0),
            growth: Mutex::new(()),
            cleaning: Mutex::new(()),
            sightings: Sightings::new(),
            blocked: Blocked::default(),
        }
    }

    /// A seat for this thread.
    #[inline]
    pub(crate) fn sit<'a>(&'a self, memory: &'a Memory) -> Result<Seated<'a>, UpdateError> {
        match self.try_sit(memory) {
            Some(seated) => Ok(seated),
            None => self.sit_slowly(memory),
        }
    }

    #[inline]
    fn try_sit<'a>(&'a self, memory: &'a Memory) -> Option<Seated<'a>> {
        // Acquire: pairs with the Release in `grow`; the number of the last seat is there.
        let taken = self.taken.load(Ordering::Acquire);
        let mut index = thread_number();
        if index >= taken {
            index = index.checked_rem(taken)?;
        }
        for _ in 0..taken {
            let pooled = &self.pool[index];
            // Acquire: pairs with the Release of the former user of the seat.
            if !pooled.is_busy.swap(true, Ordering::Acquire) {
                let number = pooled.number.load(Ordering::Relaxed);
                return Some(Seated { seat: Seat::new(&memory.control, number), pooled });
            }
            index = if index + 1 == taken { 0 } else { index + 1 };
        }
        None
    }

    #[cold]
    fn sit_slowly<'a>(&'a self, memory: &'a Memory) -> Result<Seated<'a>, UpdateError> {
        let mut patience = Patience::default();
        let mut is_last = false;
        self.blocked.count(|| {
            loop {
                if patience.is_long() {
                    // The dead need no seats.
                    (0..PROCESSES_MAX).for_each(|process| self.look_after(memory, process, None));
                }
                if !self.grow(memory) {
                    is_last = patience.pause() == Left::None;
                }
                if let Some(seated) = self.try_sit(memory) {
                    return Ok(seated);
                }
                if is_last {
                    return Err(crowded());
                }
            }
        })
    }

    /// Takes one more seat for this process, if there is one and no other thread is at it.
    fn grow(&self, memory: &Memory) -> bool {
        let Ok(_growth) = self.growth.try_lock() else { return false };
        let taken = self.taken.load(Ordering::Relaxed);
        let owner = owner_word(self.process);
        if taken == self.pool.len() {
            return false;
        }
        // The first seats are kept for one process each, so that each has one at least.
        let own = Seat::new(&memory.control, u64::from(self.process));
        let shared = Seat::all(&memory.control).skip(PROCESSES_MAX as usize);
        let free = std::iter::once(own).chain(shared).find(|seat| seat.take(owner));
        let Some(seat) = free else { return false };
        self.pool[taken].number.store(seat.number(), Ordering::Relaxed);
        // Release: pairs with the Acquire in `try_sit`.
        self.taken.store(taken + 1, Ordering::Release);
        true
    }

    /// Waits until a lock is free or its holder has moved. The thread is on `seat`, and holds no lock.
    #[cold]
    pub(crate) fn wait_for(
        &self,
        memory: &Memory,
        seat: &Seat<'_>,
        lock: &Word,
        patience: &mut Patience,
    ) -> Result<(), UpdateError> {
        self.blocked.count(|| self.wait_until_free(memory, seat, lock, patience))
    }

    fn wait_until_free(
        &self,
        memory: &Memory,
        seat: &Seat<'_>,
        lock: &Word,
        patience: &mut Patience,
    ) -> Result<(), UpdateError> {
        loop {
            let holder = get(lock);
            if free(holder) != free(seat.lock_word()) {
                // Not a page of this memory, as it was made.
                memory.spoil();
                return Err(UpdateError::Lost);
            }
            let held_from = Seat::of_lock(&memory.control, holder);
            let steps = held_from.map_or(0, |held_from| held_from.steps());
            let still_for = held_from.map(|held_from| self.sightings.still_for(&held_from));
            let is_stuck = still_for.is_some_and(is_stuck);
            if (is_stuck || patience.is_long())
                && let Some(process) = holder_process(memory, holder)
            {
                self.look_after(memory, process, Some(seat));
                if get(lock) != holder {
                    return Ok(());
                }
            }
            if let (true, Some(held_from), Some(still_for)) = (is_stuck, held_from, still_for) {
                note(&held_from, still_for);
                return Err(busy(memory, holder, still_for));
            }
            // Also where the lock has come free: who starts again and again has waited as well.
            if patience.pause() == Left::None {
                // Holders that move, and are as fast as ever, are no reason to look for one that does not.
                return Err(match still_for {
                    Some(still_for) if still_for >= PATIENCE / 2 => busy(memory, holder, still_for),
                    Some(_) => crowded(),
                    None if holder == free(holder) => crowded(),
                    // A word that names no seat: the file is damaged.
                    None => busy(memory, holder, PATIENCE),
                });
            }
            let has_moved = held_from.is_some_and(|held_from| held_from.steps() != steps);
            if holder == free(holder) || get(lock) != holder || has_moved {
                return Ok(());
            }
        }
    }

    /// Whether somebody has waited for this holder of a lock for so long that there is no use in spinning.
    pub(crate) fn is_waited_for(&self, memory: &Memory, holder: u64) -> bool {
        Seat::of_lock(&memory.control, holder).is_some_and(|seat| {
            self.sightings.knows(&seat) && self.sightings.still_for(&seat) >= SPINNING_MAX
        })
    }

    /// How long the threads of this process have waited for others.
    pub(crate) fn blocked(&self) -> Duration {
        self.blocked.total()
    }

    /// The processes that hold locks and have not moved for longer than waiters put up with. Those that
    /// are dead are cleaned up after.
    ///
    /// A seat that nobody waits for is first seen by one call, and found to stand still by the next.
    pub(crate) fn stuck(&self, memory: &Memory) -> Vec<Stuck> {
        let mut found: Vec<Stuck> = Vec::new();
        for seat in Seat::all(&memory.control).filter(Seat::lists_locks) {
            let still_for = self.sightings.still_for(&seat);
            let Some(process) = seat.process() else { continue };
            if !is_stuck(still_for) {
                continue;
            }
            self.look_after(memory, process, None);
            let locks = locks_held(memory, &seat);
            if locks == 0 {
                continue;
            }
            let since = note(&seat, still_for);
            match found.iter_mut().find(|stuck| stuck.process == process) {
                Some(stuck) => {
                    stuck.locks += locks;
                    stuck.since = stuck.since.min(since);
                }
                None => {
                    let pid = get(pid_word(&memory.control, process));
                    found.push(Stuck { process, pid, locks, since });
                }
            }
        }
        found
    }

    /// Cleans up after a process if it is dead, unless that was looked at a moment ago.
    fn look_after(&self, memory: &Memory, process: u32, seat: Option<&Seat<'_>>) {
        if process == self.process || !self.sightings.may_look(process) {
            return;
        }
        match seat {
            Some(seat) => self.clean_up_if_dead(memory, process, Some(seat)),
            None => {
                let seated = self.try_sit(memory);
                let seat = seated.as_ref().map(|seated| &seated.seat);
                self.clean_up_if_dead(memory, process, seat);
            }
        }
    }

    /// Cleans up after a process if it is dead.
    fn clean_up_if_dead(&self, memory: &Memory, process: u32, seat: Option<&Seat<'_>>) {
        if process == self.process {
            return;
        }
        // The lock of a process does not exclude the threads of this one from each other.
        let Ok(_cleaning) = self.cleaning.try_lock() else { return };
        // If the lock cannot be asked for, the process counts as alive.
        let Ok(Some(life)) = self.lives.try_take(process) else { return };
        let cleaned = with_right(life, || clean_up_after(memory, process));
        if let Some(seat) = seat {
            cleaned.count(seat);
        }
    }

    /// Where processes show that they live.
    pub(crate) fn lives(&self) -> &Lives {
        &self.lives
    }

    /// Leaves: gives the seats back, which no thread uses any more.
    pub(crate) fn leave(&mut self, memory: &Memory) {
        for pooled in &self.pool[..self.taken.load(Ordering::Acquire)] {
            Seat::new(&memory.control, pooled.number.load(Ordering::Relaxed)).give_back();
        }
        self.taken.store(0, Ordering::Release);
        put(pid_word(&memory.control, self.process), 0);
    }
}

/// The process whose seat is named by the word of a lock.
fn holder_process(memory: &Memory, holder: u64) -> Option<u32> {
    Seat::of_lock(&memory.control, holder)?.process()
}

/// What is known of the holder of a lock that did not come free.
fn busy(memory: &Memory, holder: u64, still_for: Duration) -> UpdateError {
    let pid =
        holder_process(memory, holder).map_or(0, |process| get(pid_word(&memory.control, process)));
    UpdateError::Busy { pid, millis: u64::try_from(still_for.as_millis()).unwrap_or(u64::MAX) }
}

fn crowded() -> UpdateError {
    UpdateError::Crowded { millis: u64::try_from(PATIENCE.as_millis()).unwrap_or(u64::MAX) }
}

/// A small number for each thread, so that threads look for their seats at different places.
#[inline]
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    let number = NUMBER.get();
    if number != usize::MAX {
        return number;
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    NUMBER.set(number);
    number
}
