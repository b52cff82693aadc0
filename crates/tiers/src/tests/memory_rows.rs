//! Rows in memory, which fail, hang and come late as a database does.

use crate::rows::{Away, Rows, Working};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tidegate_cold::{Cursor, Page, Row, Size};
use tidegate_store::Hashed;
use tokio::sync::watch;

#[derive(Debug)]
pub(super) struct MemoryRows {
    shards: Vec<Mutex<Shard>>,
    faults: Mutex<Faults>,
    /// One for each shard.
    is_held: Vec<watch::Sender<bool>>,
    holds_writes: watch::Sender<bool>,
    held_writes: AtomicU64,
    fetches: AtomicU64,
    queries: AtomicU64,
    asked: AtomicU64,
    panics: AtomicBool,
}

type Shard = BTreeMap<Hashed, Row>;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Fault {
    #[default]
    None,
    /// Operations fail, and do nothing.
    Refused,
    /// Operations fail, and are done nevertheless.
    DoneUnheard,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Faults {
    pub(super) reads: Fault,
    pub(super) writes: Fault,
}

impl MemoryRows {
    pub(super) fn new(shards: usize) -> MemoryRows {
        MemoryRows {
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            faults: Mutex::default(),
            is_held: (0..shards).map(|_| watch::Sender::new(false)).collect(),
            holds_writes: watch::Sender::new(false),
            held_writes: AtomicU64::new(0),
            fetches: AtomicU64::new(0),
            queries: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            panics: AtomicBool::new(false),
        }
    }

    pub(super) fn set_faults(&self, faults: Faults) {
        *self.faults.lock().unwrap() = faults;
    }

    /// Fetches read, and do not answer. Nor does a shard that is asked whether it answers.
    pub(super) fn hold(&self) {
        (0..self.shards.len()).for_each(|shard| self.hold_shard(shard));
    }

    pub(super) fn hold_shard(&self, shard: usize) {
        self.is_held[shard].send_replace(true);
    }

    /// As if the counter had moved there.
    pub(super) fn insert(&self, shard: usize, row: Row) {
        self.shard(shard).insert(row.key, row);
    }

    /// Whether fetches panic.
    pub(super) fn set_panics(&self, panics: bool) {
        self.panics.store(panics, Ordering::Relaxed);
    }

    /// Rows are not written.
    pub(super) fn hold_writes(&self) {
        self.holds_writes.send_replace(true);
    }

    pub(super) fn held_writes(&self) -> u64 {
        self.held_writes.load(Ordering::Relaxed)
    }

    pub(super) fn release(&self) {
        self.is_held.iter().for_each(|is_held| _ = is_held.send_replace(false));
        self.holds_writes.send_replace(false);
    }

    pub(super) fn len(&self) -> usize {
        (0..self.shards.len()).map(|shard| self.shard(shard).len()).sum()
    }

    /// Keys that were looked up.
    pub(super) fn fetches(&self) -> u64 {
        self.fetches.load(Ordering::Relaxed)
    }

    pub(super) fn queries(&self) -> u64 {
        self.queries.load(Ordering::Relaxed)
    }

    /// How often a shard was asked whether it answers.
    pub(super) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    fn shard(&self, shard: usize) -> MutexGuard<'_, Shard> {
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, shard: usize, change: impl FnOnce(&mut Shard)) -> Result<(), Away> {
        let fault = self.faults.lock().unwrap().writes;
        if fault != Fault::Refused {
            change(&mut self.shard(shard));
        }
        match fault {
            Fault::None => Ok(()),
            Fault::Refused | Fault::DoneUnheard => Err(Away("broken for this test".to_owned())),
        }
    }
}

/// The rows of a page: few, so that a test lists several.
const PAGE: usize = 5;

impl Rows for MemoryRows {
    fn shards(&self) -> Vec<String> {
        (0..self.shards.len()).map(|shard| format!("shard {shard}")).collect()
    }

    fn shard_of(&self, key: &Hashed) -> usize {
        (key.hash >> 100) as usize % self.shards.len()
    }

    fn fetch<'w>(
        &'w self,
        shard: usize,
        keys: &'w [Hashed],
        now: u32,
    ) -> Working<'w, Vec<Option<Row>>> {
        Box::pin(async move {
            self.fetches.fetch_add(keys.len() as u64, Ordering::Relaxed);
            self.queries.fetch_add(1, Ordering::Relaxed);
            assert!(!self.panics.load(Ordering::Relaxed), "for this test");
            let read =
                |key| self.shard(shard).get(key).filter(|row: &&Row| row.expires_at > now).cloned();
            let rows = keys.iter().map(read).collect();
            let mut held = self.is_held[shard].subscribe();
            let _ = held.wait_for(|is_held| !is_held).await;
            match self.faults.lock().unwrap().reads {
                Fault::None => Ok(rows),
                Fault::Refused | Fault::DoneUnheard => Err(Away("broken for this test".to_owned())),
            }
        })
    }

    fn put<'w>(&'w self, shard: usize, rows: &'w [Row], _: u32) -> Working<'w, ()> {
        Box::pin(async move {
            let mut held = self.holds_writes.subscribe();
            if *held.borrow_and_update() {
                self.held_writes.fetch_add(1, Ordering::Relaxed);
                let _ = held.wait_for(|is_held| !is_held).await;
            }
            self.write(shard, |shard| {
                shard.extend(rows.iter().map(|row| (row.key, row.clone())));
            })
        })
    }

    fn remove<'w>(&'w self, shard: usize, rows: &'w [(Hashed, u32)], _: u32) -> Working<'w, u64> {
        Box::pin(async move {
            let mut removed = 0;
            self.write(shard, |shard| {
                for (key, moved_at) in rows {
                    if shard.get(key).is_some_and(|row| row.moved_at <= *moved_at) {
                        shard.remove(key);
                        removed += 1;
                    }
                }
            })?;
            Ok(removed)
        })
    }

    fn size(&self, shard: usize) -> Working<'_, Size> {
        Box::pin(async move { Ok(Size { counters: self.shard(shard).len() as u64, bytes: 0 }) })
    }

    fn page(&self, shard: usize, after: Option<Cursor>, now: u32) -> Working<'_, Page> {
        Box::pin(async move {
            if self.faults.lock().unwrap().reads != Fault::None {
                return Err(Away("broken for this test".to_owned()));
            }
            let mut shard = self.shard(shard);
            shard.retain(|_, row| row.expires_at > now);
            let bucket = |row: &Row| (row.key.hash >> 96) as u32;
            let is_next = |row: &&Row| after.is_none_or(|Cursor(after)| bucket(row) > after);
            let rows: Vec<Row> = shard.values().filter(is_next).take(PAGE).cloned().collect();
            let next = rows.last().filter(|_| rows.len() == PAGE).map(|row| Cursor(bucket(row)));
            Ok(Page { rows, next })
        })
    }

    fn ask(&self, shard: usize) -> Working<'_, ()> {
        Box::pin(async move {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let mut held = self.is_held[shard].subscribe();
            let _ = held.wait_for(|is_held| !is_held).await;
            match self.faults.lock().unwrap().reads {
                Fault::None => Ok(()),
                Fault::Refused | Fault::DoneUnheard => Err(Away("broken for this test".to_owned())),
            }
        })
    }
}
