//! Rows: what a database of cold counters must do, and how the databases of `tidegate-cold` and the server of
//! `tidegate-warm` do it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use tidegate_cold::{Cold, ColdError, Cursor, Page, Row, Size};
use tidegate_store::Hashed;
use tidegate_warm::{Warm, WarmError};

/// Why a database did not do something.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Away(pub String);

/// An operation under way.
pub type Working<'w, T> = Pin<Box<dyn Future<Output = Result<T, Away>> + Send + 'w>>;

/// Databases of cold counters, each of which is a shard.
///
/// Every operation ends within a bounded time. One that fails may have been done, for all of its rows, some or none. It may
/// also be done later, but not once a later change of the same keys has succeeded, of whatever process.
pub trait Rows: Send + Sync + fmt::Debug {
    /// The names of the shards, which a shard keeps wherever it is listed.
    fn shards(&self) -> Vec<String>;

    /// The shard that a counter moves down to.
    fn shard_of(&self, key: &Hashed) -> usize;

    /// The shard that a row of this shard goes on to when nobody asks for it, if there is a level below.
    fn below(&self, _shard: usize, _key: &Hashed) -> Option<usize> {
        None
    }

    /// The rows of these keys that have not expired at `now`.
    fn fetch<'w>(
        &'w self,
        shard: usize,
        keys: &'w [Hashed],
        now: u32,
    ) -> Working<'w, Vec<Option<Row>>>;

    /// Writes rows. A row replaces the one of its key, whatever its version: a clock may have been set back. If this fails,
    /// some of the rows may have been written. Nobody may rely on which: until a put has succeeded, the counter stays hot, or
    /// its row stays on the level above.
    fn put<'w>(&'w self, shard: usize, rows: &'w [Row], now: u32) -> Working<'w, ()>;

    /// Removes rows that moved down at these seconds or before. Returns how many they were.
    fn remove<'w>(&'w self, shard: usize, rows: &'w [(Hashed, u32)], now: u32) -> Working<'w, u64>;

    /// The keys that have rows, page by page. Removes what has expired at `now`.
    fn page(&self, shard: usize, after: Option<Cursor>, now: u32) -> Working<'_, Page>;

    /// Asks for nothing but an answer.
    fn ask(&self, shard: usize) -> Working<'_, ()>;

    /// How much there is in a shard, about.
    fn size(&self, shard: usize) -> Working<'_, Size>;

    /// Why rows may be lost, if they may, as far as it is known.
    fn warning(&self) -> Option<String> {
        None
    }
}

impl From<ColdError> for Away {
    fn from(error: ColdError) -> Away {
        Away(error.to_string())
    }
}

impl Rows for Cold {
    fn shards(&self) -> Vec<String> {
        (0..Cold::shards(self)).map(|shard| self.name(shard).to_owned()).collect()
    }

    fn shard_of(&self, key: &Hashed) -> usize {
        Cold::shard_of(self, key)
    }

    fn fetch<'w>(
        &'w self,
        shard: usize,
        keys: &'w [Hashed],
        now: u32,
    ) -> Working<'w, Vec<Option<Row>>> {
        Box::pin(async move { Ok(Cold::fetch(self, shard, keys, now).await?) })
    }

    fn put<'w>(&'w self, shard: usize, rows: &'w [Row], now: u32) -> Working<'w, ()> {
        Box::pin(async move { Ok(Cold::put(self, shard, rows, now).await?) })
    }

    fn remove<'w>(&'w self, shard: usize, rows: &'w [(Hashed, u32)], now: u32) -> Working<'w, u64> {
        Box::pin(async move { Ok(Cold::remove(self, shard, rows, now).await?) })
    }

    fn page(&self, shard: usize, after: Option<Cursor>, now: u32) -> Working<'_, Page> {
        Box::pin(async move { Ok(Cold::page(self, shard, after, now).await?) })
    }

    fn ask(&self, shard: usize) -> Working<'_, ()> {
        Box::pin(
            async move { Ok(Cold::fetch(self, shard, &[Hashed::narrow(0)], 0).await.map(drop)?) },
        )
    }

    fn size(&self, shard: usize) -> Working<'_, Size> {
        Box::pin(async move { Ok(Cold::size(self, shard).await?) })
    }
}

impl From<WarmError> for Away {
    fn from(error: WarmError) -> Away {
        Away(error.to_string())
    }
}

/// One shard.
impl Rows for Warm {
    fn shards(&self) -> Vec<String> {
        vec![self.name().to_owned()]
    }

    fn shard_of(&self, _key: &Hashed) -> usize {
        0
    }

    fn fetch<'w>(
        &'w self,
        _shard: usize,
        keys: &'w [Hashed],
        now: u32,
    ) -> Working<'w, Vec<Option<Row>>> {
        Box::pin(async move { Ok(Warm::fetch(self, keys, now).await?) })
    }

    fn put<'w>(&'w self, _shard: usize, rows: &'w [Row], now: u32) -> Working<'w, ()> {
        Box::pin(async move { Ok(Warm::put(self, rows, now).await?) })
    }

    fn remove<'w>(
        &'w self,
        _shard: usize,
        rows: &'w [(Hashed, u32)],
        _now: u32,
    ) -> Working<'w, u64> {
        Box::pin(async move { Ok(Warm::remove(self, rows).await?) })
    }

    fn page(&self, _shard: usize, after: Option<Cursor>, now: u32) -> Working<'_, Page> {
        Box::pin(async move { Ok(Warm::page(self, after, now).await?) })
    }

    fn size(&self, _shard: usize) -> Working<'_, Size> {
        Box::pin(async move { Ok(Warm::size(self).await?) })
    }

    fn ask(&self, _shard: usize) -> Working<'_, ()> {
        Box::pin(async move { Ok(Warm::fetch(self, &[Hashed::narrow(0)], 0).await.map(drop)?) })
    }

    fn warning(&self) -> Option<String> {
        Warm::warning(self)
    }
}
