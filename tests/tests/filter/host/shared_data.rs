//! The key-value store that all workers of one Envoy process share, with its exact semantics.
//!
//! Envoy's rules, which surprise: a set with cas 0 always wins; a set with another cas on a
//! *missing* key succeeds and ignores the cas; every set of any key takes the next number of one
//! process-wide cas counter; nothing is ever deleted, only emptied.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::types::Status;

/// A handle; clones and the hosts loaded with it see the same data.
#[derive(Clone, Debug)]
pub(crate) struct SharedData(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    values: BTreeMap<Vec<u8>, (Vec<u8>, u32)>,
    cas_next: u32,
    races: u32,
    workers: u64,
}

impl SharedData {
    /// An empty store, as in an Envoy that has just started.
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Inner {
            values: BTreeMap::new(),
            cas_next: 1,
            races: 0,
            workers: 0,
        })))
    }

    /// The value and cas of a key; `None` when it was never set.
    pub(crate) fn get(&self, key: impl AsRef<[u8]>) -> Option<(Vec<u8>, u32)> {
        self.lock().values.get(key.as_ref()).cloned()
    }

    /// Sets a key as another worker would.
    pub(crate) fn set(&self, key: impl AsRef<[u8]>, value: &[u8], cas: u32) -> Status {
        let mut inner = self.lock();
        if inner.races > 0 && cas != 0 && inner.values.contains_key(key.as_ref()) {
            inner.races -= 1;
            let cas = inner.take_cas();
            inner.values.entry(key.as_ref().to_vec()).and_modify(|held| held.1 = cas);
        }
        match inner.values.get(key.as_ref()) {
            Some((_, current)) if cas != 0 && cas != *current => return Status::CasMismatch,
            _ => {}
        }
        let cas = inner.take_cas();
        inner.values.insert(key.as_ref().to_vec(), (value.to_vec(), cas));
        Status::Ok
    }

    /// Every key that was ever set, in byte order.
    pub(crate) fn keys(&self) -> Vec<Vec<u8>> {
        self.lock().values.keys().cloned().collect()
    }

    /// Makes the next `count` sets of an existing key with a cas lose: another worker stores the
    /// same value again just before each of them.
    pub(crate) fn race_next_sets(&self, count: u32) {
        self.lock().races = count;
    }

    /// Counts a host in and returns its number, from 0: it makes the workers' randomness differ.
    pub(super) fn join(&self) -> u64 {
        let mut inner = self.lock();
        inner.workers += 1;
        inner.workers - 1
    }

    /// A test that failed while it held the lock left whole values behind, so go on.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// The next cas; 0 is skipped when the counter wraps, since it means "no cas" in a set.
    fn take_cas(&mut self) -> u32 {
        let cas = self.cas_next;
        self.cas_next = cas.checked_add(1).unwrap_or(1);
        cas
    }
}
