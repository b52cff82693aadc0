//! The threads of this process in a cluster: which seat each has, and how long it waits for others.
//!
//! Owns the process's number, its seats, and the decision that another process is dead. A thread takes
//! a seat for one update, or one batch, and gives it back.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::UpdateError;
use crate::lock::Wait;
use crate::memory::Memory;
use crate::process::{Life, Lives};
use crate::seat::{PROCESSES_MAX, SEATS_MAX, Seat, owner_word, pid_word};
use crate::sync::{get, put};

/// A lock is held for less than a microsecond, unless its holder is preempted.
const SPINS: u32 = 100;
const YIELDS: u32 = 50;
const PAUSE: Duration = Duration::from_micros(50);
/// How often a waiter asks whether the holder is alive, which costs two system calls.
const ASK_EVERY: Duration = Duration::from_millis(1);
/// Longer than a scheduler lets a ready process wait; a holder that takes longer is stopped. Miri is a
/// thousand times slower than a processor.
const PATIENCE: Duration = Duration::from_secs(if cfg!(miri) { 1000 } else { 1 });

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
        loop {
            if patience.is_time_to_ask() {
                // The dead need no seats.
                (0..PROCESSES_MAX).for_each(|process| self.clean_up_if_dead(memory, process, None));
            }
            if !self.grow(memory) && patience.pause() == Wait::GiveUp {
                return Err(UpdateError::Busy {
                    pid: u64::from(std::process::id()),
                    millis: PATIENCE.as_millis() as u64,
                });
            }
            if let Some(seated) = self.try_sit(memory) {
                return Ok(seated);
            }
        }
    }

    /// Takes one more seat for this process, if there is one.
    fn grow(&self, memory: &Memory) -> bool {
        let _growth = self.growth.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// What a thread on `seat` that waits for a lock does about its `holder`.
    pub(crate) fn wait(
        &self,
        memory: &Memory,
        seat: &Seat<'_>,
        patience: &mut Patience,
        holder: u64,
    ) -> Wait {
        if patience.pause() == Wait::GiveUp {
            return Wait::GiveUp;
        }
        if patience.is_time_to_ask()
            && let Some(process) = process_of(memory, holder)
            && process != self.process
        {
            self.clean_up_if_dead(memory, process, Some(seat));
        }
        Wait::Again
    }

    /// Cleans up after a process if it is dead.
    fn clean_up_if_dead(&self, memory: &Memory, process: u32, seat: Option<&Seat<'_>>) {
        if process == self.process {
            return;
        }
        // The lock of a process does not exclude the threads of this one from each other.
        let Ok(_cleaning) = self.cleaning.try_lock() else { return };
        // If the lock cannot be asked for, the process counts as alive.
        let Ok(Some(_life)) = self.lives.try_take(process) else { return };
        let cleaned = memory.clean_up_after(process);
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
fn process_of(memory: &Memory, holder: u64) -> Option<u32> {
    let owner = Seat::of_lock(&memory.control, holder)?.owner();
    let process = u32::try_from(owner.checked_sub(1)?).ok()?;
    (process < PROCESSES_MAX).then_some(process)
}

/// What is known of the holder of a lock that did not come free.
pub(crate) fn busy(memory: &Memory, holder: u64) -> UpdateError {
    let pid =
        process_of(memory, holder).map_or(0, |process| get(pid_word(&memory.control, process)));
    UpdateError::Busy { pid, millis: PATIENCE.as_millis() as u64 }
}

/// How long somebody has been waiting.
#[derive(Default)]
pub(crate) struct Patience {
    rounds: u32,
    since: Option<Instant>,
    asked: Option<Instant>,
}

impl Patience {
    /// Waits a little: first for nanoseconds, then for others to run, then for good.
    fn pause(&mut self) -> Wait {
        self.rounds = self.rounds.saturating_add(1);
        if self.rounds <= SPINS {
            std::hint::spin_loop();
            return Wait::Again;
        }
        if self.rounds <= SPINS + YIELDS {
            thread::yield_now();
            return Wait::Again;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() >= PATIENCE {
            return Wait::GiveUp;
        }
        thread::sleep(PAUSE);
        Wait::Again
    }

    fn is_time_to_ask(&mut self) -> bool {
        let is_time =
            self.since.is_some() && self.asked.is_none_or(|asked| asked.elapsed() >= ASK_EVERY);
        if is_time {
            self.asked = Some(Instant::now());
        }
        is_time
    }
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
