//! The slots of connections: as many as there may be, and which of them makes room when all are taken.
//!
//! A connection costs a place and nothing else, so that anybody could take all of them and say nothing. When
//! none is left, the one that has made no call for longest makes room for the next, if that is [`IDLE_MIN`]
//! at least. Connections that make calls are never ended for others; then the next is refused.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

/// A client that asks now and then keeps its connection; one that comes back after longer makes another.
pub(super) const IDLE_MIN: Duration = Duration::from_secs(10);

/// Of so many slots one may be taken before who makes room for it has left.
const LEAVING_SHARE: usize = 8;

/// All slots; clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Slots(Arc<Mutex<Taken>>);

#[derive(Debug)]
struct Taken {
    max: usize,
    taken: usize,
    /// How many of them were told to make room.
    leaving: usize,
    numbers: u64,
    /// Those that have made no call since then, the longest first.
    idle: BTreeMap<(Instant, u64), Idle>,
}

#[derive(Debug)]
struct Idle {
    waker: Waker,
    makes_room: Arc<AtomicBool>,
}

impl Slots {
    pub(super) fn new(max: usize) -> Slots {
        let idle = BTreeMap::new();
        Slots(Arc::new(Mutex::new(Taken { max, taken: 0, leaving: 0, numbers: 0, idle })))
    }

    /// A slot, for which another connection may have to go. None when all are in use.
    pub(super) fn take(&self) -> Option<Slot> {
        let mut taken = self.lock();
        if taken.taken - taken.leaving >= taken.max {
            taken.have_room_made()?;
        }
        taken.taken += 1;
        taken.numbers += 1;
        let number = taken.numbers;
        drop(taken);
        Some(Slot { all: self.clone(), number, idle_since: None, makes_room: Arc::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        // Nothing that is done under the lock panics half way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    fn have_room_made(&mut self) -> Option<()> {
        if self.leaving > self.max / LEAVING_SHARE {
            return None;
        }
        let (_, idle) = self.idle.pop_first()?;
        self.leaving += 1;
        idle.makes_room.store(true, Ordering::Release);
        idle.waker.wake();
        Some(())
    }
}

/// That of one connection.
#[derive(Debug)]
pub(super) struct Slot {
    all: Slots,
    number: u64,
    idle_since: Option<Instant>,
    makes_room: Arc<AtomicBool>,
}

impl Slot {
    /// The connection has made no call since then. Its task is woken when it is to make room.
    pub(super) fn rest(&mut self, since: Instant, waker: &Waker) {
        if self.idle_since.is_none() {
            let idle = Idle { waker: waker.clone(), makes_room: self.makes_room.clone() };
            self.all.lock().idle.insert((since, self.number), idle);
            self.idle_since = Some(since);
        }
    }

    /// The connection has made a call.
    #[inline]
    pub(super) fn work(&mut self) {
        if let Some(since) = self.idle_since.take() {
            self.all.lock().idle.remove(&(since, self.number));
        }
    }

    /// Whether it is to make room.
    #[inline]
    pub(super) fn makes_room(&self) -> bool {
        // Acquire: pairs with the Release of who asked for it.
        self.makes_room.load(Ordering::Acquire)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut taken = self.all.lock();
        if let Some(since) = self.idle_since {
            taken.idle.remove(&(since, self.number));
        }
        taken.taken -= 1;
        taken.leaving -= usize::from(self.makes_room.load(Ordering::Acquire));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Symptom: who opened as many connections as there may be and said nothing kept all others out.
    #[test]
    fn the_longest_idle_makes_room() {
        let slots = Slots::new(16);
        let now = Instant::now();
        let mut taken: Vec<_> = (0..16).map(|_| slots.take().unwrap()).collect();
        assert!(slots.take().is_none(), "all are in use");
        for (second, slot) in (0..).zip(&mut taken) {
            slot.rest(now - Duration::from_secs(second), Waker::noop());
        }
        taken[15].work();
        let mut more = vec![slots.take().unwrap()];
        let making_room = |taken: &[Slot]| {
            let numbers = taken.iter().enumerate().filter(|(_, slot)| slot.makes_room());
            numbers.map(|(number, _)| number).collect::<Vec<_>>()
        };
        assert_eq!(making_room(&taken), [14]);
        // Few are let in before those have left.
        more.extend((0..2).map(|_| slots.take().unwrap()));
        assert!(slots.take().is_none());
        assert_eq!(making_room(&taken), [12, 13, 14]);
        taken.retain(|slot| !slot.makes_room());
        assert_eq!(slots.lock().taken, 16);
        more.push(slots.take().unwrap());
        drop((taken, more));
        let taken = slots.lock();
        assert_eq!((taken.taken, taken.leaving, taken.idle.len()), (0, 0, 0));
    }
}
