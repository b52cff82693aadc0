//! Two levels of databases: warm ones, which answer faster, and cold ones below them.
//!
//! Idle counters move to the warm level. Rows that nobody has asked for go on to the cold one after a while, as they are: a
//! row that is on both levels is the same on both.

use crate::rows::{Rows, Working};
use std::sync::Arc;
use tidegate_cold::{Cursor, Page, Row, Size};
use tidegate_store::Hashed;

/// The shards of the warm level, and then those of the cold one.
#[derive(Debug)]
pub struct Levels {
    warm: Arc<dyn Rows>,
    cold: Arc<dyn Rows>,
    /// The shards of the warm level.
    first_cold: usize,
}

impl Levels {
    pub fn new(warm: Arc<dyn Rows>, cold: Arc<dyn Rows>) -> Levels {
        let first_cold = warm.shards().len();
        Levels { warm, cold, first_cold }
    }

    /// The level of a shard, and its number there.
    fn at(&self, shard: usize) -> (&dyn Rows, usize) {
        match shard.checked_sub(self.first_cold) {
            None => (&*self.warm, shard),
            Some(shard) => (&*self.cold, shard),
        }
    }
}

impl Rows for Levels {
    fn shards(&self) -> Vec<String> {
        let mut all = self.warm.shards();
        all.extend(self.cold.shards());
        all
    }

    fn shard_of(&self, key: &Hashed) -> usize {
        self.warm.shard_of(key)
    }

    fn below(&self, shard: usize, key: &Hashed) -> Option<usize> {
        (shard < self.first_cold).then(|| self.first_cold + self.cold.shard_of(key))
    }

    fn fetch<'w>(
        &'w self,
        shard: usize,
        keys: &'w [Hashed],
        now: u32,
    ) -> Working<'w, Vec<Option<Row>>> {
        let (level, shard) = self.at(shard);
        level.fetch(shard, keys, now)
    }

    fn put<'w>(&'w self, shard: usize, rows: &'w [Row], now: u32) -> Working<'w, ()> {
        let (level, shard) = self.at(shard);
        level.put(shard, rows, now)
    }

    fn remove<'w>(&'w self, shard: usize, rows: &'w [(Hashed, u32)], now: u32) -> Working<'w, u64> {
        let (level, shard) = self.at(shard);
        level.remove(shard, rows, now)
    }

    fn page(&self, shard: usize, after: Option<Cursor>, now: u32) -> Working<'_, Page> {
        let (level, shard) = self.at(shard);
        level.page(shard, after, now)
    }

    fn ask(&self, shard: usize) -> Working<'_, ()> {
        let (level, shard) = self.at(shard);
        level.ask(shard)
    }

    fn size(&self, shard: usize) -> Working<'_, Size> {
        let (level, shard) = self.at(shard);
        level.size(shard)
    }

    fn warning(&self) -> Option<String> {
        self.warm.warning().or_else(|| self.cold.warning())
    }
}
