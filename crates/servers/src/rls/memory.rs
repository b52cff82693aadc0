//! The memory that all connections hold together (incomplete calls, unread answers, spare capacity), and
//! which of them must free some when it is too much.
//!
//! The limits of one connection allow some 10 MiB; ten thousand such connections would take 100 GiB. So above
//! [`MEMORY_BYTES_MAX`] the connection whose oldest incomplete message or answer has waited longest must free
//! memory, among those that hold more than [`FAIR_BYTES`]. A client that completes its messages is never
//! chosen while others are silent. The amount does not decide, since a large message is large for a moment.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;

/// Sixty messages of the largest size at a time.
const MEMORY_BYTES_MAX: usize = 256 << 20;

/// What a connection may hold whatever others do: its spare capacity while idle, or a message of usual size
/// on each of its calls. Ten thousand connections of this size are 625 MiB.
pub(super) const FAIR_BYTES: usize = 64 * 1024;

#[derive(Debug, Default)]
pub(super) struct MemoryBudget(Mutex<Holders>);

#[derive(Debug, Default)]
struct Holders {
    /// The sum over `holders_by_wait`: connections above [`FAIR_BYTES`], except those that were asked to free memory.
    bytes: usize,
    last_number: u64,
    /// By the time of their oldest incomplete message or answer.
    holders_by_wait: BTreeMap<HolderKey, Holder>,
}

/// The start of the wait, and the number of the share.
type HolderKey = (Instant, u64);

#[derive(Debug)]
struct Holder {
    bytes: usize,
    waker: Waker,
    must_free: Arc<AtomicBool>,
}

impl MemoryBudget {
    /// The share of a new connection.
    pub(super) fn share(&self) -> MemoryShare<'_> {
        let mut holders = self.holders();
        holders.last_number += 1;
        let number = holders.last_number;
        drop(holders);
        MemoryShare { all: self, number, key: None, bytes: 0, must_free: Arc::default() }
    }

    fn holders(&self) -> MutexGuard<'_, Holders> {
        // No operation under the lock panics half way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Holders {
    fn remove(&mut self, key: HolderKey) {
        if let Some(holder) = self.holders_by_wait.remove(&key) {
            self.bytes -= holder.bytes;
        }
    }

    fn insert(&mut self, key: HolderKey, holder: Holder) {
        self.bytes += holder.bytes;
        self.holders_by_wait.insert(key, holder);
        while self.bytes > MEMORY_BYTES_MAX
            && let Some((_, oldest)) = self.holders_by_wait.pop_first()
        {
            self.bytes -= oldest.bytes;
            oldest.must_free.store(true, Ordering::Release);
            oldest.waker.wake();
        }
    }
}

#[derive(Debug)]
pub(super) struct MemoryShare<'a> {
    all: &'a MemoryBudget,
    number: u64,
    /// Its key among the holders, if it holds more than [`FAIR_BYTES`].
    key: Option<HolderKey>,
    bytes: usize,
    must_free: Arc<AtomicBool>,
}

impl MemoryShare<'_> {
    /// Sets the bytes held now; `since` is when the oldest incomplete part of it began to wait. The task is
    /// woken if it must free memory.
    #[inline]
    pub(super) fn update(&mut self, bytes: usize, since: impl FnOnce() -> Instant, waker: &Waker) {
        // Most connections hold little most of the time.
        if bytes > FAIR_BYTES || self.key.is_some() {
            self.update_large(bytes, since, waker);
        }
    }

    fn update_large(&mut self, bytes: usize, since: impl FnOnce() -> Instant, waker: &Waker) {
        let key = (bytes > FAIR_BYTES).then(|| (since(), self.number));
        if (key, bytes) == (self.key, self.bytes) {
            return;
        }
        let mut holders = self.all.holders();
        if let Some(key) = self.key.take() {
            holders.remove(key);
        }
        // A connection already asked to free memory is not counted again.
        if let Some(key) = key
            && !self.must_free.load(Ordering::Acquire)
        {
            let must_free = self.must_free.clone();
            holders.insert(key, Holder { bytes, waker: waker.clone(), must_free });
            (self.key, self.bytes) = (Some(key), bytes);
        }
    }

    /// True if the connection must free memory.
    #[inline]
    pub(super) fn must_free(&self) -> bool {
        // Acquire: pairs with the Release of the thread that chose this connection.
        self.must_free.load(Ordering::Acquire)
    }

    /// The connection has freed memory.
    pub(super) fn freed(&mut self) {
        self.must_free.store(false, Ordering::Release);
    }
}

impl Drop for MemoryShare<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.all.holders().remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const MIB: usize = 1 << 20;

    fn update(share: &mut MemoryShare<'_>, bytes: usize, since: Instant) {
        share.update(bytes, || since, Waker::noop());
    }

    /// Symptom: 38 connections that had sent parts of messages and fell silent made every client of large
    /// messages lose its connection. Cause: the last to arrive had to free memory.
    #[test]
    fn the_longest_waiting_connection_frees_memory() {
        let budget = MemoryBudget::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut silent: Vec<_> = (0..32).map(|_| budget.share()).collect();
        for (second, share) in (0..).zip(&mut silent) {
            update(share, 8 * MIB, at(second));
        }
        let mut client = budget.share();
        for second in 100..120 {
            for bytes in [MIB, 4 * MIB, 0] {
                update(&mut client, bytes, at(second));
            }
        }
        assert!(!client.must_free());
        let freeing: Vec<_> = silent.iter().map(MemoryShare::must_free).collect();
        assert_eq!(freeing, [vec![true], vec![false; 31]].concat());
        // It is asked once, and counts again after it has freed memory.
        update(&mut silent[0], 8 * MIB, at(0));
        assert_eq!(budget.holders().holders_by_wait.len(), 31);
        silent[0].freed();
        update(&mut silent[0], 4 * MIB, at(200));
        update(&mut client, 4 * MIB, at(201));
        assert!(!silent.iter().any(MemoryShare::must_free));
        drop(silent);
        drop(client);
        let holders = budget.0.into_inner().unwrap();
        assert_eq!((holders.bytes, holders.holders_by_wait.len()), (0, 0));
    }

    #[test]
    fn a_fair_share_is_not_counted() {
        let budget = MemoryBudget::default();
        let mut shares: Vec<_> = (0..10_000).map(|_| budget.share()).collect();
        let now = Instant::now();
        shares.iter_mut().for_each(|share| update(share, FAIR_BYTES, now));
        assert!(!shares.iter().any(MemoryShare::must_free));
        assert_eq!(budget.holders().bytes, 0);
        // Many connections slightly above the fair share are chosen before one that holds much for a moment.
        shares.iter_mut().for_each(|share| update(share, FAIR_BYTES + 1, now));
        let mut client = budget.share();
        update(&mut client, 4 * MIB, now + Duration::from_millis(1));
        assert!(!client.must_free());
        assert!(budget.holders().bytes <= MEMORY_BYTES_MAX);
    }
}
