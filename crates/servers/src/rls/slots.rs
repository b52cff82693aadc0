//! The connection slots of the gRPC endpoint: how many there are, and which connection is evicted for the
//! next when all are taken.
//!
//! A slot costs a client nothing, so any client could take all of them and stay silent. When none is free,
//! the connection without a call for longest is evicted for the next one, if it has been idle for at least
//! [`IDLE_MIN`]. Connections with calls are never evicted; then the next one is refused.
//!
//! HTTP/1.1 connections have slots of their own, in `http1::slots`: there each phase of a request has a time
//! limit, and slots also bound the memory of bodies.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

/// A client that makes a call now and then keeps its connection; after a longer pause it can open another.
pub(super) const IDLE_MIN: Duration = Duration::from_secs(10);

/// For each eight slots, one more connection may be accepted before the evicted one has closed.
const EVICTING_SHARE: usize = 8;

/// All slots; clones share them.
#[derive(Debug, Clone)]
pub(super) struct Slots(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    max: usize,
    taken: usize,
    /// The number of evicted connections that have not closed yet.
    evicting: usize,
    last_number: u64,
    /// Idle connections by the start of their idle time, the oldest first.
    idle: BTreeMap<(Instant, u64), Idle>,
}

#[derive(Debug)]
struct Idle {
    waker: Waker,
    is_evicted: Arc<AtomicBool>,
}

impl Slots {
    pub(super) fn new(max: usize) -> Slots {
        let idle = BTreeMap::new();
        Slots(Arc::new(Mutex::new(State { max, taken: 0, evicting: 0, last_number: 0, idle })))
    }

    /// A slot, if necessary that of an idle connection; none if all are in use.
    pub(super) fn acquire(&self) -> Option<Slot> {
        let mut taken = self.lock();
        if taken.taken - taken.evicting >= taken.max {
            taken.evict_idle()?;
        }
        taken.taken += 1;
        taken.last_number += 1;
        let number = taken.last_number;
        drop(taken);
        Some(Slot { all: self.clone(), number, idle_since: None, is_evicted: Arc::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No operation under the lock panics half way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn evict_idle(&mut self) -> Option<()> {
        if self.evicting > self.max / EVICTING_SHARE {
            return None;
        }
        let (_, idle) = self.idle.pop_first()?;
        self.evicting += 1;
        idle.is_evicted.store(true, Ordering::Release);
        idle.waker.wake();
        Some(())
    }
}

/// The slot of one connection; dropping it frees the slot.
#[derive(Debug)]
pub(super) struct Slot {
    all: Slots,
    number: u64,
    idle_since: Option<Instant>,
    is_evicted: Arc<AtomicBool>,
}

impl Slot {
    /// Marks the connection as idle since `since`. Its task is woken if it is evicted.
    pub(super) fn set_idle(&mut self, since: Instant, waker: &Waker) {
        if self.idle_since.is_none() {
            let idle = Idle { waker: waker.clone(), is_evicted: self.is_evicted.clone() };
            self.all.lock().idle.insert((since, self.number), idle);
            self.idle_since = Some(since);
        }
    }

    /// Marks the connection as active: it has received a call.
    #[inline]
    pub(super) fn set_active(&mut self) {
        if let Some(since) = self.idle_since.take() {
            self.all.lock().idle.remove(&(since, self.number));
        }
    }

    /// True if the connection must close.
    #[inline]
    pub(super) fn is_evicted(&self) -> bool {
        // Acquire: pairs with the Release of the thread that evicts.
        self.is_evicted.load(Ordering::Acquire)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut taken = self.all.lock();
        if let Some(since) = self.idle_since {
            taken.idle.remove(&(since, self.number));
        }
        taken.taken -= 1;
        taken.evicting -= usize::from(self.is_evicted.load(Ordering::Acquire));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Symptom: a client that opened the maximum of connections and stayed silent kept all others out.
    #[test]
    fn the_longest_idle_connection_is_evicted() {
        let slots = Slots::new(16);
        let now = Instant::now();
        let mut taken: Vec<_> = (0..16).map(|_| slots.acquire().unwrap()).collect();
        assert!(slots.acquire().is_none(), "all are in use");
        for (second, slot) in (0..).zip(&mut taken) {
            slot.set_idle(now - Duration::from_secs(second), Waker::noop());
        }
        taken[15].set_active();
        let mut more = vec![slots.acquire().unwrap()];
        let evicted = |taken: &[Slot]| {
            let last_number = taken.iter().enumerate().filter(|(_, slot)| slot.is_evicted());
            last_number.map(|(number, _)| number).collect::<Vec<_>>()
        };
        assert_eq!(evicted(&taken), [14]);
        // Few are accepted before the evicted ones have closed.
        more.extend((0..2).map(|_| slots.acquire().unwrap()));
        assert!(slots.acquire().is_none());
        assert_eq!(evicted(&taken), [12, 13, 14]);
        taken.retain(|slot| !slot.is_evicted());
        assert_eq!(slots.lock().taken, 16);
        more.push(slots.acquire().unwrap());
        drop((taken, more));
        let taken = slots.lock();
        assert_eq!((taken.taken, taken.evicting, taken.idle.len()), (0, 0, 0));
    }
}
