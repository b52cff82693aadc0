//! The connection slots of an HTTP/1.1 endpoint: how many connections it serves at a time, and which one is
//! evicted for the next.
//!
//! Each connection records its phase. Once all slots are taken, the connection that has waited longest for
//! its client (to send a request, to complete it, to read an answer) is evicted for the newcomer, so clients
//! that hold connections idle keep nobody out. The wait counts from the last completed request, not from the
//! last byte: sending a byte now and then gains nothing. The same rule bounds the memory of bodies and
//! answers under way. Each phase also has a time limit of its own, whether or not a slot is needed.
//!
//! gRPC connections have slots of their own, in `rls::slots`: there only idle time counts, and HTTP/2 has its
//! own limits for slow calls and memory.
//!
//! Invariant: a connection whose request is being decided is never evicted.
//!
//! Invariant: at most `slots` connections, and [`EVICTING_MAX`] more that are being evicted.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidegate_authority::Observer;
use tokio::sync::Notify;

/// Evicted connections close as soon as their tasks run. While this many are closing, the endpoint accepts no
/// others.
const EVICTING_MAX: usize = 64;
/// A body or an answer is evicted for another only if it has been under way for this long; otherwise the
/// newcomer is refused with an answer. Honest clients need less time.
const RESERVED_MIN: Duration = Duration::from_secs(1);
/// The rate at which a client must read an answer, in addition to the time it has for any answer.
const ANSWER_BYTES_PER_SECOND: u64 = 64 * 1024;

/// Bodies and answers up to this size reserve no memory: the number of slots bounds them well enough, and
/// clients that send a lot slowly do not keep out all others.
pub(crate) const SMALL_BYTES_MAX: usize = 8 * 1024;

/// How long a connection may wait for its client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeouts {
    /// For a request to arrive, or an answer to be read.
    pub(crate) request: Duration,
    /// Between requests.
    pub(crate) idle: Duration,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Connections at a time.
    pub(crate) slots: usize,
    /// Bytes of bodies and answers under way.
    pub(crate) bytes: usize,
    /// A connection can be evicted only after it has waited for this long.
    pub(crate) grace: Duration,
    pub(crate) timeouts: Timeouts,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing has arrived since the last answer.
    Idle,
    /// A request is arriving.
    Receiving,
    /// The request is complete and is being decided.
    Deciding,
    /// The answer is being sent.
    Answering,
}

impl Phase {
    const ALL: [Phase; 4] = [Phase::Idle, Phase::Receiving, Phase::Deciding, Phase::Answering];
}

/// The slots; clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Slots(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    bounds: Bounds,
    opened: Instant,
    occupied: Mutex<Occupied>,
    /// Notified of each connection that has closed.
    closed: Notify,
    /// Counts evictions.
    observer: Arc<dyn Observer>,
    endpoint: &'static str,
}

#[derive(Debug, Default)]
struct Occupied {
    connections: Vec<Arc<Connection>>,
    /// The number of them that were evicted and are closing.
    evicting: usize,
    /// The bytes reserved by all of them, except evicted ones.
    bytes: usize,
}

#[derive(Debug)]
struct Connection {
    /// Its index in the list; written under the list's lock.
    index: AtomicUsize,
    /// Milliseconds since the endpoint opened, times four, plus the phase.
    state: AtomicU64,
    /// When the phase must end, in milliseconds since the endpoint opened.
    due: AtomicU64,
    /// Bytes reserved for a body or an answer; written under the list's lock.
    reserved: AtomicUsize,
    is_evicted: AtomicBool,
    eviction: Notify,
}

/// The slot of one connection; dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct Slot {
    slots: Slots,
    own: Arc<Connection>,
}

/// The memory of bodies and answers is used up, and none of them may be evicted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoRoom;

impl Slots {
    /// `observer` counts evictions.
    pub(crate) fn new(
        bounds: Bounds,
        observer: Arc<dyn Observer>,
        endpoint: &'static str,
    ) -> Slots {
        let (occupied, closed) = (Mutex::default(), Notify::new());
        Slots(Arc::new(Shared {
            bounds,
            opened: Instant::now(),
            occupied,
            closed,
            observer,
            endpoint,
        }))
    }

    /// Waits until another connection may be accepted.
    pub(crate) async fn ready_to_accept(&self) {
        loop {
            let closed = self.0.closed.notified();
            if self.occupied().evicting < EVICTING_MAX {
                return;
            }
            closed.await;
        }
    }

    /// A slot, if necessary that of the connection that has waited longest; none if no connection waits for
    /// its client, or none for long enough.
    pub(crate) fn acquire(&self) -> Option<Slot> {
        let mut occupied = self.occupied();
        if occupied.connections.len() - occupied.evicting >= self.0.bounds.slots {
            let oldest = self.oldest(&occupied, self.0.bounds.grace, |_| true)?;
            occupied.evict(&oldest);
            self.0.observer.connection_gave_way(self.0.endpoint);
        }
        let own = Arc::new(Connection {
            index: AtomicUsize::new(occupied.connections.len()),
            state: AtomicU64::new(0),
            due: AtomicU64::new(0),
            reserved: AtomicUsize::new(0),
            is_evicted: AtomicBool::new(false),
            eviction: Notify::new(),
        });
        occupied.connections.push(own.clone());
        drop(occupied);
        let slot = Slot { slots: self.clone(), own };
        slot.set_phase(Phase::Idle);
        Some(slot)
    }

    /// Closes connections whose clients exceed a time limit; never returns.
    pub(crate) async fn enforce_deadlines(&self) {
        let Timeouts { request, idle } = self.0.bounds.timeouts;
        let tick = (request.min(idle) / 4).clamp(Duration::from_millis(10), Duration::from_secs(1));
        let mut ticks = tokio::time::interval(tick);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.end_overdue();
        }
    }

    fn end_overdue(&self) {
        let (now, mut occupied) = (self.now(), self.occupied());
        let is_overdue =
            |one: &&Arc<Connection>| one.may_evict() && one.due.load(Ordering::Relaxed) <= now;
        let overdue: Vec<_> = occupied.connections.iter().filter(is_overdue).cloned().collect();
        for one in overdue {
            tracing::debug!(phase = ?one.phase(), "a client exceeded a time limit; its connection is closed");
            occupied.evict(&one);
        }
    }

    /// The evictable connection that has waited longest, if it has waited for at least `waited`.
    fn oldest(
        &self,
        occupied: &Occupied,
        waited: Duration,
        of: impl Fn(&Connection) -> bool,
    ) -> Option<Arc<Connection>> {
        let since = self.now().checked_sub(millis(waited))?;
        let may_evict = |one: &&Arc<Connection>| one.may_evict() && of(one);
        let oldest = occupied.connections.iter().filter(may_evict).min_by_key(|one| one.since())?;
        (oldest.since() <= since).then(|| oldest.clone())
    }

    fn now(&self) -> u64 {
        millis(self.0.opened.elapsed())
    }

    fn occupied(&self) -> MutexGuard<'_, Occupied> {
        self.0.occupied.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Occupied {
    fn evict(&mut self, one: &Connection) {
        one.is_evicted.store(true, Ordering::Relaxed);
        self.evicting += 1;
        self.bytes -= one.reserved.load(Ordering::Relaxed);
        one.eviction.notify_one();
    }
}

impl Connection {
    fn phase(&self) -> Phase {
        Phase::ALL[(self.state.load(Ordering::Relaxed) & 3) as usize]
    }

    fn since(&self) -> u64 {
        self.state.load(Ordering::Relaxed) >> 2
    }

    fn may_evict(&self) -> bool {
        self.phase() != Phase::Deciding && !self.is_evicted.load(Ordering::Relaxed)
    }
}

impl Slot {
    pub(crate) fn phase(&self) -> Phase {
        self.own.phase()
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        self.set_phase_since(phase, self.now());
    }

    /// When its phase began, in milliseconds since the endpoint opened.
    #[cfg(test)]
    pub(crate) fn since(&self) -> u64 {
        self.own.since()
    }

    /// Milliseconds since the endpoint opened.
    pub(crate) fn now(&self) -> u64 {
        self.slots.now()
    }

    fn set_phase_since(&self, phase: Phase, since: u64) {
        let timeouts = self.slots.0.bounds.timeouts;
        let limit = match phase {
            Phase::Idle => timeouts.idle,
            _ => timeouts.request,
        };
        // One task reads, writes and decides, so these stores follow its order.
        self.own.due.store(since.saturating_add(millis(limit)), Ordering::Relaxed);
        self.own.state.store(since << 2 | phase as u64, Ordering::Relaxed);
        if phase != Phase::Deciding && self.own.is_evicted.load(Ordering::Relaxed) {
            // It was evicted while its request was being decided.
            self.own.eviction.notify_one();
        }
    }

    /// Begins an answer of `bytes` bytes. It is sent in any case, since the decision was made.
    pub(crate) fn begin_answer(&self, bytes: usize) {
        self.set_phase(Phase::Answering);
        let longer = (bytes as u64).saturating_mul(1_000) / ANSWER_BYTES_PER_SECOND;
        self.own.due.fetch_add(longer, Ordering::Relaxed);
        if bytes > SMALL_BYTES_MAX || self.own.reserved.load(Ordering::Relaxed) > 0 {
            let _ = self.reserve(if bytes > SMALL_BYTES_MAX { bytes } else { 0 });
        }
    }

    /// The answer was sent. `written` is the time before its last bytes were written: the client may have read them
    /// long before this thread goes on.
    pub(crate) fn end_answer(&self, written: u64) {
        self.set_phase_since(Phase::Idle, written);
        if self.own.reserved.load(Ordering::Relaxed) > 0 {
            let _ = self.reserve(0);
        }
    }

    /// Sets the bytes reserved for a body or an answer. If all reservations are too much, those that have
    /// lasted longest are evicted; if none may be, this one is refused.
    pub(crate) fn reserve(&self, bytes: usize) -> Result<(), NoRoom> {
        let slots = &self.slots;
        let mut occupied = slots.occupied();
        if self.own.is_evicted.load(Ordering::Relaxed) {
            return Ok(());
        }
        let before = self.own.reserved.swap(bytes, Ordering::Relaxed);
        occupied.bytes = occupied.bytes - before + bytes;
        while bytes > before && occupied.bytes > slots.0.bounds.bytes {
            let holds = |one: &Connection| {
                one.reserved.load(Ordering::Relaxed) > 0 && !std::ptr::eq(one, &*self.own)
            };
            let Some(oldest) = slots.oldest(&occupied, RESERVED_MIN, holds) else {
                return Err(NoRoom);
            };
            occupied.evict(&oldest);
            slots.0.observer.connection_gave_way(slots.0.endpoint);
        }
        Ok(())
    }

    /// Waits until the connection is evicted and its request, if it has one, is decided.
    pub(crate) async fn evicted(&self) {
        loop {
            self.own.eviction.notified().await;
            if self.phase() != Phase::Deciding {
                return;
            }
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut occupied = self.slots.occupied();
        let index = self.own.index.load(Ordering::Relaxed);
        occupied.connections.swap_remove(index);
        if let Some(moved) = occupied.connections.get(index) {
            moved.index.store(index, Ordering::Relaxed);
        }
        if self.own.is_evicted.load(Ordering::Relaxed) {
            occupied.evicting -= 1;
        } else {
            occupied.bytes -= self.own.reserved.load(Ordering::Relaxed);
        }
        drop(occupied);
        self.slots.0.closed.notify_waiters();
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
