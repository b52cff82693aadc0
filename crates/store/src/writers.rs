//! The writers of a cluster: which threads may write, how they exclude each other, and recovery after a death.
//!
//! Owns the writer slots of this process, and the decisions that another process is dead or stuck. A thread holds a
//! slot for one update or one batch. It waits for a lock only while it holds none. Does not know the content of nodes.

pub(crate) mod backoff;
pub(crate) mod byte_lock;
pub(crate) mod liveness;
pub(crate) mod lock;
pub(crate) mod recovery;
pub(crate) mod restore;
pub(crate) mod slot;
pub(crate) mod stall;
pub(crate) mod stats;

pub use backoff::blocked_in_this_thread;
pub(crate) use slot::{Count, WriterSlot};
pub use stall::StuckProcess;
pub use stats::Stats;

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::error::UpdateError;
use crate::memory::Memory;
use crate::memory::control::{PROCESSES_MAX, WRITERS_MAX, pid_word, unlocked};
use crate::memory::sync::{AtomicU64 as Word, get, put};
use backoff::{Backoff, BlockedTime, Deadline, Holder, SPIN_STALL_MAX, WAIT_MAX};
use liveness::{LivenessLock, LivenessLocks};
use lock::recover_then_release;
use recovery::recover;
use slot::owner_word;
use stall::{StallDetector, is_stuck, locks_held, note_stall};

/// This process as a writer of a cluster.
pub(crate) struct Writers {
    process: u32,
    liveness: LivenessLocks,
    /// Proves that this process is alive. Released last.
    _own_lock: LivenessLock,
    /// The slots of this process; the first `claimed` are in use.
    pool: Box<[PooledSlot]>,
    claimed: AtomicUsize,
    growing: Mutex<()>,
    recovering: Mutex<()>,
    stalls: StallDetector,
    blocked: BlockedTime,
}

/// A writer slot of this process. On its own cache line, as threads acquire and release slots all the time.
#[derive(Default)]
#[repr(align(64))]
struct PooledSlot {
    is_taken: AtomicBool,
    number: AtomicU64,
}

pub(crate) struct HeldSlot<'a> {
    pub(crate) writer: WriterSlot<'a>,
    slot: &'a PooledSlot,
}

impl Drop for HeldSlot<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `try_acquire`; the next thread sees the slot as this one left it.
        self.slot.is_taken.store(false, Ordering::Release);
    }
}

impl Writers {
    /// Joins as process number `process`, whose liveness lock is `own_lock`.
    pub(crate) fn join(
        memory: &Memory,
        liveness: LivenessLocks,
        own_lock: LivenessLock,
        process: u32,
    ) -> Self {
        put(pid_word(&memory.control, process), u64::from(std::process::id()));
        Self {
            process,
            liveness,
            _own_lock: own_lock,
            pool: (0..WRITERS_MAX).map(|_| PooledSlot::default()).collect(),
            claimed: AtomicUsize::new(0),
            growing: Mutex::new(()),
            recovering: Mutex::new(()),
            stalls: StallDetector::new(),
            blocked: BlockedTime::default(),
        }
    }

    #[inline]
    pub(crate) fn acquire<'a>(&'a self, memory: &'a Memory) -> Result<HeldSlot<'a>, UpdateError> {
        match self.try_acquire(memory) {
            Some(held) => Ok(held),
            None => self.acquire_slow(memory),
        }
    }

    #[inline]
    fn try_acquire<'a>(&'a self, memory: &'a Memory) -> Option<HeldSlot<'a>> {
        // Acquire: pairs with the Release in `claim_another`; the number of the last slot is visible.
        let claimed = self.claimed.load(Ordering::Acquire);
        let mut index = thread_number();
        if index >= claimed {
            index = index.checked_rem(claimed)?;
        }
        for _ in 0..claimed {
            let slot = &self.pool[index];
            // Acquire: pairs with the Release of the slot's previous user.
            if !slot.is_taken.swap(true, Ordering::Acquire) {
                let number = slot.number.load(Ordering::Relaxed);
                return Some(HeldSlot { writer: WriterSlot::new(&memory.control, number), slot });
            }
            index = if index + 1 == claimed { 0 } else { index + 1 };
        }
        None
    }

    #[cold]
    fn acquire_slow<'a>(&'a self, memory: &'a Memory) -> Result<HeldSlot<'a>, UpdateError> {
        let mut backoff = Backoff::default();
        let mut is_last = false;
        self.blocked.count(Holder::Other, || {
            loop {
                if backoff.has_yielded() {
                    // Recovery frees the slots of dead processes.
                    (0..PROCESSES_MAX)
                        .for_each(|process| self.recover_if_dead(memory, process, None));
                }
                if !self.claim_another(memory) {
                    is_last = backoff.pause(WAIT_MAX) == Deadline::Passed;
                }
                if let Some(held) = self.try_acquire(memory) {
                    return Ok(held);
                }
                if is_last {
                    return Err(crowded());
                }
            }
        })
    }

    /// Claims one more slot for this process, if there is one and no other thread is doing so.
    fn claim_another(&self, memory: &Memory) -> bool {
        let Ok(_growing) = self.growing.try_lock() else { return false };
        let claimed = self.claimed.load(Ordering::Relaxed);
        let owner = owner_word(self.process);
        if claimed == self.pool.len() {
            return false;
        }
        // The first slots are reserved, one per process, so that each process has at least one.
        let own = WriterSlot::new(&memory.control, u64::from(self.process));
        let shared = WriterSlot::all(&memory.control).skip(PROCESSES_MAX as usize);
        let free = std::iter::once(own).chain(shared).find(|writer| writer.try_claim(owner));
        let Some(writer) = free else { return false };
        self.pool[claimed].number.store(writer.number(), Ordering::Relaxed);
        // Release: pairs with the Acquire in `try_acquire`.
        self.claimed.store(claimed + 1, Ordering::Release);
        true
    }

    /// Waits until a lock is free or its holder makes progress. The thread holds the slot `writer`, and no lock.
    #[cold]
    pub(crate) fn wait(
        &self,
        memory: &Memory,
        writer: &WriterSlot<'_>,
        lock: &Word,
        backoff: &mut Backoff,
    ) -> Result<(), UpdateError> {
        self.blocked.count(self.kind_of(memory, get(lock)), || {
            loop {
                let holder = get(lock);
                if unlocked(holder) != unlocked(writer.lock_word()) {
                    // The page is not the one of this memory.
                    memory.poison();
                    return Err(UpdateError::DataLoss);
                }
                let held_by = WriterSlot::of_lock(&memory.control, holder);
                let progress = held_by.map_or(0, |slot| slot.progress());
                let stalled_for = held_by.map(|slot| self.stalls.stalled_for(&slot));
                let kind = self.kind_of(memory, holder);
                let is_stuck = stalled_for.is_some_and(|stalled| stalled >= kind.patience());
                if (is_stuck || backoff.has_yielded())
                    && let Some(process) = holder_process(memory, holder)
                {
                    self.recover_if_dead(memory, process, Some(writer));
                    if get(lock) != holder {
                        return Ok(());
                    }
                }
                if let (true, Some(slot), Some(stalled_for)) = (is_stuck, held_by, stalled_for) {
                    note_stall(&slot, stalled_for);
                    return Err(busy(memory, holder, stalled_for));
                }
                // If holders make progress at the usual speed, the cause is contention, not a stuck holder.
                let slow = stalled_for.filter(|stalled| *stalled >= WAIT_MAX / 2);
                let longest = if slow.is_some() { kind.patience() } else { WAIT_MAX };
                // Pause even if the lock is free by now: repeated attempts count as waiting.
                if backoff.pause(longest) == Deadline::Passed {
                    return Err(match slow {
                        Some(stalled) => busy(memory, holder, stalled),
                        None if held_by.is_some() => crowded(),
                        None if holder == unlocked(holder) => crowded(),
                        // The word names no slot: the file is damaged.
                        None => busy(memory, holder, WAIT_MAX),
                    });
                }
                let has_moved = held_by.is_some_and(|slot| slot.progress() != progress);
                if holder == unlocked(holder) || get(lock) != holder || has_moved {
                    return Ok(());
                }
            }
        })
    }

    /// Whether a lock is held by a thread of this process.
    fn kind_of(&self, memory: &Memory, holder: u64) -> Holder {
        match holder_process(memory, holder) {
            Some(process) if process == self.process => Holder::Own,
            _ => Holder::Other,
        }
    }

    /// Whether the holder of a lock has stalled for so long that spinning is useless.
    pub(crate) fn is_stalled(&self, memory: &Memory, holder: u64) -> bool {
        WriterSlot::of_lock(&memory.control, holder).is_some_and(|writer| {
            self.stalls.has_seen(&writer) && self.stalls.stalled_for(&writer) >= SPIN_STALL_MAX
        })
    }

    pub(crate) fn blocked_time(&self) -> Duration {
        self.blocked.total()
    }

    /// The processes that hold locks and have made no progress for longer than waiters of others tolerate. Recovers the dead.
    ///
    /// A slot without waiters is first seen by one call, and found stalled by the next.
    pub(crate) fn stuck(&self, memory: &Memory) -> Vec<StuckProcess> {
        let mut found: Vec<StuckProcess> = Vec::new();
        for writer in WriterSlot::all(&memory.control).filter(WriterSlot::has_listed_locks) {
            let stalled_for = self.stalls.stalled_for(&writer);
            let Some(process) = writer.process() else { continue };
            if !is_stuck(stalled_for) {
                continue;
            }
            self.recover_if_dead(memory, process, None);
            let locks = locks_held(memory, &writer);
            if locks == 0 {
                continue;
            }
            let since = note_stall(&writer, stalled_for);
            match found.iter_mut().find(|stuck| stuck.process == process) {
                Some(stuck) => {
                    stuck.locks += locks;
                    stuck.since = stuck.since.min(since);
                }
                None => {
                    let pid = get(pid_word(&memory.control, process));
                    found.push(StuckProcess { process, pid, locks, since });
                }
            }
        }
        found
    }

    /// Recovers a process if it is dead, unless that was checked a moment ago. Counts that in `writer`, or in any slot.
    fn recover_if_dead(&self, memory: &Memory, process: u32, writer: Option<&WriterSlot<'_>>) {
        if process == self.process || !self.stalls.may_probe(process) {
            return;
        }
        let held = if writer.is_none() { self.try_acquire(memory) } else { None };
        // The lock of a process does not exclude threads of this one from each other.
        let Ok(_recovering) = self.recovering.try_lock() else { return };
        // If the lock cannot be queried, the process counts as alive.
        let Ok(Some(claim)) = self.liveness.try_acquire(process) else { return };
        let recovered = recover_then_release(claim, || recover(memory, [process]));
        if let Some(writer) = writer.or(held.as_ref().map(|held| &held.writer)) {
            recovered.count(writer);
        }
    }

    pub(crate) fn liveness(&self) -> &LivenessLocks {
        &self.liveness
    }

    /// Leaves the cluster and releases its slots, which no thread uses any more.
    pub(crate) fn leave(&mut self, memory: &Memory) {
        for slot in &self.pool[..self.claimed.load(Ordering::Acquire)] {
            WriterSlot::new(&memory.control, slot.number.load(Ordering::Relaxed)).release();
        }
        self.claimed.store(0, Ordering::Release);
        put(pid_word(&memory.control, self.process), 0);
    }
}

/// The process whose slot the word of a lock names.
fn holder_process(memory: &Memory, holder: u64) -> Option<u32> {
    WriterSlot::of_lock(&memory.control, holder)?.process()
}

fn busy(memory: &Memory, holder: u64, stalled_for: Duration) -> UpdateError {
    let pid =
        holder_process(memory, holder).map_or(0, |process| get(pid_word(&memory.control, process)));
    UpdateError::Busy { pid, millis: u64::try_from(stalled_for.as_millis()).unwrap_or(u64::MAX) }
}

fn crowded() -> UpdateError {
    UpdateError::Crowded { millis: u64::try_from(WAIT_MAX.as_millis()).unwrap_or(u64::MAX) }
}

/// A small number per thread, so that threads start their search for a slot at different places.
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
