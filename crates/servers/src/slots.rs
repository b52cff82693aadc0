//! The slots of a door: how many connections it serves at a time, and which of them gives way to the next.
//!
//! A connection tells what it is at. Once all slots are taken, the one that has waited longest for its
//! client (to ask, to finish what it asks, to take an answer) gives its place to the newcomer; so clients
//! that hold connections and do nothing, or little, keep out nobody. What counts is when the last request
//! was done, not when the last byte came: a client that sends a byte now and then gains nothing by it. The
//! same goes for the memory of bodies and answers under way. Each kind of waiting has an end of its own,
//! whether or not somebody wants the slot.
//!
//! Invariant: a connection whose request is being decided never gives way.
//! Invariant: at most `max` connections and [`LEAVING_MAX`] that are on their way out.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidegate_authority::Observer;
use tokio::sync::Notify;

/// Connections that must leave do so as soon as their tasks run. While this many are leaving, the door
/// accepts no others.
const LEAVING_MAX: usize = 64;
/// A body or an answer gives way to another one only if it has been under way for this long; otherwise the
/// newcomer is refused with an answer. Honest clients need less time.
const HELD_MIN: Duration = Duration::from_secs(1);
/// What a client must take each second of an answer, beside the time that it has for any.
const ANSWER_BYTES_A_SECOND: u64 = 64 * 1024;

/// Bodies and answers of up to so many bytes ask for no room: the number of slots bounds them well enough, and
/// clients that send a lot slowly do not shut out all others.
pub(crate) const SMALL_BYTES_MAX: usize = 8 * 1024;

/// How long a connection may wait for its client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// For a request to come in, or an answer to be taken.
    pub(crate) request: Duration,
    /// Between requests.
    pub(crate) idle: Duration,
}

/// What bounds a door.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Connections at a time.
    pub(crate) slots: usize,
    /// Bytes of bodies and answers under way.
    pub(crate) bytes: usize,
    /// A connection gives way only after it has waited for so long.
    pub(crate) grace: Duration,
    pub(crate) patience: Patience,
}

/// What a connection is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing has come since the last answer.
    Idle,
    /// A request is coming in.
    Receiving,
    /// It is there.
    Deciding,
    /// Its answer is on its way.
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
    taken: Mutex<Taken>,
    /// A connection has left.
    left: Notify,
    /// Counts those that gave way to others.
    observer: Arc<dyn Observer>,
    endpoint: &'static str,
}

#[derive(Debug, Default)]
struct Taken {
    connections: Vec<Arc<Connection>>,
    /// How many of them were told to leave.
    leaving: usize,
    /// What all of them hold, but for those that were told to leave.
    bytes: usize,
}

/// What is known of one connection.
#[derive(Debug)]
struct Connection {
    /// Where it is in the list; written under its lock.
    index: AtomicUsize,
    /// Milliseconds since the door opened, times four, and the phase.
    state: AtomicU64,
    /// When the phase must be over, in milliseconds since the door opened.
    due: AtomicU64,
    /// Bytes of a body or an answer; written under the lock of the list.
    held: AtomicUsize,
    is_leaving: AtomicBool,
    leave: Notify,
}

/// The place of a connection, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    slots: Slots,
    own: Arc<Connection>,
}

/// There is no memory for a body, and nothing that should give way to it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoRoom;

impl Slots {
    /// `gave_way` counts connections that gave way to others.
    pub(crate) fn new(
        bounds: Bounds,
        observer: Arc<dyn Observer>,
        endpoint: &'static str,
    ) -> Slots {
        let (taken, left) = (Mutex::default(), Notify::new());
        Slots(Arc::new(Shared { bounds, opened: Instant::now(), taken, left, observer, endpoint }))
    }

    /// Waits until another connection may be accepted.
    pub(crate) async fn may_accept(&self) {
        loop {
            let left = self.0.left.notified();
            if self.taken().leaving < LEAVING_MAX {
                return;
            }
            left.await;
        }
    }

    /// A slot, if need be that of the connection which has waited longest; none if no other waits for its
    /// client, or not for long enough.
    pub(crate) fn enter(&self) -> Option<Slot> {
        let mut taken = self.taken();
        if taken.connections.len() - taken.leaving >= self.0.bounds.slots {
            let oldest = self.oldest(&taken, self.0.bounds.grace, |_| true)?;
            taken.let_go(&oldest);
            self.0.observer.connection_gave_way(self.0.endpoint);
        }
        let own = Arc::new(Connection {
            index: AtomicUsize::new(taken.connections.len()),
            state: AtomicU64::new(0),
            due: AtomicU64::new(0),
            held: AtomicUsize::new(0),
            is_leaving: AtomicBool::new(false),
            leave: Notify::new(),
        });
        taken.connections.push(own.clone());
        drop(taken);
        let slot = Slot { slots: self.clone(), own };
        slot.enter(Phase::Idle);
        Some(slot)
    }

    /// Ends connections whose clients take too long, for ever.
    pub(crate) async fn keep_pace(&self) {
        let Patience { request, idle } = self.0.bounds.patience;
        let tick = (request.min(idle) / 4).clamp(Duration::from_millis(10), Duration::from_secs(1));
        let mut ticks = tokio::time::interval(tick);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.end_overdue();
        }
    }

    fn end_overdue(&self) {
        let (now, mut taken) = (self.now(), self.taken());
        let is_overdue =
            |one: &&Arc<Connection>| one.may_leave() && one.due.load(Ordering::Relaxed) <= now;
        let overdue: Vec<_> = taken.connections.iter().filter(is_overdue).cloned().collect();
        for one in overdue {
            tracing::debug!(phase = ?one.phase(), "a client fell behind; cut off");
            taken.let_go(&one);
        }
    }

    /// The connection that has waited longest, and at least so long, of those that may leave.
    fn oldest(
        &self,
        taken: &Taken,
        waited: Duration,
        of: impl Fn(&Connection) -> bool,
    ) -> Option<Arc<Connection>> {
        let since = self.now().checked_sub(millis(waited))?;
        let may_leave = |one: &&Arc<Connection>| one.may_leave() && of(one);
        let oldest = taken.connections.iter().filter(may_leave).min_by_key(|one| one.since())?;
        (oldest.since() <= since).then(|| oldest.clone())
    }

    fn now(&self) -> u64 {
        millis(self.0.opened.elapsed())
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    fn let_go(&mut self, one: &Connection) {
        one.is_leaving.store(true, Ordering::Relaxed);
        self.leaving += 1;
        self.bytes -= one.held.load(Ordering::Relaxed);
        one.leave.notify_one();
    }
}

impl Connection {
    fn phase(&self) -> Phase {
        Phase::ALL[(self.state.load(Ordering::Relaxed) & 3) as usize]
    }

    fn since(&self) -> u64 {
        self.state.load(Ordering::Relaxed) >> 2
    }

    fn may_leave(&self) -> bool {
        self.phase() != Phase::Deciding && !self.is_leaving.load(Ordering::Relaxed)
    }
}

impl Slot {
    pub(crate) fn phase(&self) -> Phase {
        self.own.phase()
    }

    /// The connection is at this from now on.
    pub(crate) fn enter(&self, phase: Phase) {
        let (now, patience) = (self.slots.now(), self.slots.0.bounds.patience);
        let most = match phase {
            Phase::Idle => patience.idle,
            _ => patience.request,
        };
        // One task reads, writes and decides, so stores are in its order.
        self.own.due.store(now.saturating_add(millis(most)), Ordering::Relaxed);
        self.own.state.store(now << 2 | phase as u64, Ordering::Relaxed);
        if phase != Phase::Deciding && self.own.is_leaving.load(Ordering::Relaxed) {
            // It was told so while it decided.
            self.own.leave.notify_one();
        }
    }

    /// An answer of so many bytes is on its way. It is sent in any case, since what it says has been done.
    pub(crate) fn answer(&self, bytes: usize) {
        self.enter(Phase::Answering);
        let longer = (bytes as u64).saturating_mul(1_000) / ANSWER_BYTES_A_SECOND;
        self.own.due.fetch_add(longer, Ordering::Relaxed);
        if bytes > SMALL_BYTES_MAX || self.own.held.load(Ordering::Relaxed) > 0 {
            let _ = self.hold(if bytes > SMALL_BYTES_MAX { bytes } else { 0 });
        }
    }

    /// The answer is gone.
    pub(crate) fn answered(&self) {
        self.enter(Phase::Idle);
        if self.own.held.load(Ordering::Relaxed) > 0 {
            let _ = self.hold(0);
        }
    }

    /// The connection holds so many bytes of a body or an answer from now on. If that is too much with all
    /// others, those give way that have held theirs for longest; if there are none, it is refused.
    pub(crate) fn hold(&self, bytes: usize) -> Result<(), NoRoom> {
        let slots = &self.slots;
        let mut taken = slots.taken();
        if self.own.is_leaving.load(Ordering::Relaxed) {
            return Ok(());
        }
        let before = self.own.held.swap(bytes, Ordering::Relaxed);
        taken.bytes = taken.bytes - before + bytes;
        while bytes > before && taken.bytes > slots.0.bounds.bytes {
            let holds = |one: &Connection| {
                one.held.load(Ordering::Relaxed) > 0 && !std::ptr::eq(one, &*self.own)
            };
            let Some(oldest) = slots.oldest(&taken, HELD_MIN, holds) else { return Err(NoRoom) };
            taken.let_go(&oldest);
            slots.0.observer.connection_gave_way(slots.0.endpoint);
        }
        Ok(())
    }

    /// Waits until the connection is to leave. What is being decided is decided first.
    pub(crate) async fn is_wanted(&self) {
        loop {
            self.own.leave.notified().await;
            if self.phase() != Phase::Deciding {
                return;
            }
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut taken = self.slots.taken();
        let index = self.own.index.load(Ordering::Relaxed);
        taken.connections.swap_remove(index);
        if let Some(moved) = taken.connections.get(index) {
            moved.index.store(index, Ordering::Relaxed);
        }
        if self.own.is_leaving.load(Ordering::Relaxed) {
            taken.leaving -= 1;
        } else {
            taken.bytes -= self.own.held.load(Ordering::Relaxed);
        }
        drop(taken);
        self.slots.0.left.notify_waiters();
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
