//! How much memory all connections hold together for calls that are not whole, for answers that are not
//! taken, and ready for more; and which of them makes room when it is too much.
//!
//! One connection is bounded by its limits, at some 10 MiB; ten thousand of them that did so at once would
//! take 100 GiB. So beyond [`HELD_BYTES_MAX`] room is made by the connection whose oldest message or answer
//! has waited longest to become whole, among those that hold more than [`FAIR_BYTES`]. A client that sends
//! its messages to their end is never that one while there are others that have fallen silent; which of them
//! holds most does not matter, since a large message is large for a moment.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;

/// Room for sixty messages of the largest size at a time.
const HELD_BYTES_MAX: usize = 256 << 20;

/// What a connection may hold whatever others do: what it has ready while it is idle, or a message of usual
/// size on each of its calls. Ten thousand connections of so much are 625 MiB.
pub(super) const FAIR_BYTES: usize = 64 * 1024;

/// What all connections hold.
#[derive(Debug, Default)]
pub(super) struct Held(Mutex<Holders>);

#[derive(Debug, Default)]
struct Holders {
    /// Of all that hold more than is fair, those that are to make room apart.
    bytes: usize,
    shares: u64,
    /// By how long they have waited.
    waiting: BTreeMap<Slot, Holder>,
}

/// Since when something has waited to become whole, and a number of the share.
type Slot = (Instant, u64);

#[derive(Debug)]
struct Holder {
    bytes: usize,
    waker: Waker,
    makes_room: Arc<AtomicBool>,
}

impl Held {
    /// That of one more connection.
    pub(super) fn share(&self) -> Share<'_> {
        let mut holders = self.holders();
        holders.shares += 1;
        let number = holders.shares;
        drop(holders);
        Share { all: self, number, place: None, bytes: 0, makes_room: Arc::default() }
    }

    fn holders(&self) -> MutexGuard<'_, Holders> {
        // Nothing that is done under the lock panics half way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Holders {
    fn remove(&mut self, place: Slot) {
        if let Some(holder) = self.waiting.remove(&place) {
            self.bytes -= holder.bytes;
        }
    }

    fn insert(&mut self, place: Slot, holder: Holder) {
        self.bytes += holder.bytes;
        self.waiting.insert(place, holder);
        while self.bytes > HELD_BYTES_MAX
            && let Some((_, oldest)) = self.waiting.pop_first()
        {
            self.bytes -= oldest.bytes;
            oldest.makes_room.store(true, Ordering::Release);
            oldest.waker.wake();
        }
    }
}

/// What one of them holds.
#[derive(Debug)]
pub(super) struct Share<'a> {
    all: &'a Held,
    number: u64,
    /// Where it is among the holders, if it holds more than is fair.
    place: Option<Slot>,
    bytes: usize,
    makes_room: Arc<AtomicBool>,
}

impl Share<'_> {
    /// It holds so much now; the oldest of it that waits to become whole has waited `since` then. The task is
    /// woken when it is to make room.
    #[inline]
    pub(super) fn hold(&mut self, bytes: usize, since: impl FnOnce() -> Instant, waker: &Waker) {
        // As all others, it mostly holds little.
        if bytes > FAIR_BYTES || self.place.is_some() {
            self.hold_much(bytes, since, waker);
        }
    }

    fn hold_much(&mut self, bytes: usize, since: impl FnOnce() -> Instant, waker: &Waker) {
        let place = (bytes > FAIR_BYTES).then(|| (since(), self.number));
        if (place, bytes) == (self.place, self.bytes) {
            return;
        }
        let mut holders = self.all.holders();
        if let Some(place) = self.place.take() {
            holders.remove(place);
        }
        // One that is to make room already is asked once.
        if let Some(place) = place
            && !self.makes_room.load(Ordering::Acquire)
        {
            let makes_room = self.makes_room.clone();
            holders.insert(place, Holder { bytes, waker: waker.clone(), makes_room });
            (self.place, self.bytes) = (Some(place), bytes);
        }
    }

    /// Whether it is to make room.
    #[inline]
    pub(super) fn makes_room(&self) -> bool {
        // Acquire: pairs with the Release of who asked for it, so that all before it is seen.
        self.makes_room.load(Ordering::Acquire)
    }

    /// It has made room.
    pub(super) fn has_made_room(&mut self) {
        self.makes_room.store(false, Ordering::Release);
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.all.holders().remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const MIB: usize = 1 << 20;

    fn hold(share: &mut Share<'_>, bytes: usize, since: Instant) {
        share.hold(bytes, || since, Waker::noop());
    }

    /// Symptom: 38 connections that had sent parts of messages and fell silent had every client that sent
    /// large messages lose its connection. Cause: who came last made room.
    #[test]
    fn who_has_waited_longest_makes_room() {
        let held = Held::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut silent: Vec<_> = (0..32).map(|_| held.share()).collect();
        for (second, share) in (0..).zip(&mut silent) {
            hold(share, 8 * MIB, at(second));
        }
        let mut client = held.share();
        for second in 100..120 {
            for bytes in [MIB, 4 * MIB, 0] {
                hold(&mut client, bytes, at(second));
            }
        }
        assert!(!client.makes_room());
        let making_room: Vec<_> = silent.iter().map(Share::makes_room).collect();
        assert_eq!(making_room, [vec![true], vec![false; 31]].concat());
        // It is asked once, and counts again when it has made room.
        hold(&mut silent[0], 8 * MIB, at(0));
        assert_eq!(held.holders().waiting.len(), 31);
        silent[0].has_made_room();
        hold(&mut silent[0], 4 * MIB, at(200));
        hold(&mut client, 4 * MIB, at(201));
        assert!(!silent.iter().any(Share::makes_room));
        drop(silent);
        drop(client);
        let holders = held.0.into_inner().unwrap();
        assert_eq!((holders.bytes, holders.waiting.len()), (0, 0));
    }

    #[test]
    fn what_is_fair_is_not_counted() {
        let held = Held::default();
        let mut shares: Vec<_> = (0..10_000).map(|_| held.share()).collect();
        let now = Instant::now();
        shares.iter_mut().for_each(|share| hold(share, FAIR_BYTES, now));
        assert!(!shares.iter().any(Share::makes_room));
        assert_eq!(held.holders().bytes, 0);
        // Many that hold a little more than is fair do not outlast one that holds much for a moment.
        shares.iter_mut().for_each(|share| hold(share, FAIR_BYTES + 1, now));
        let mut client = held.share();
        hold(&mut client, 4 * MIB, now + Duration::from_millis(1));
        assert!(!client.makes_room());
        assert!(held.holders().bytes <= HELD_BYTES_MAX);
    }
}
