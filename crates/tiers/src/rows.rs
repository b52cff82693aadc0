//! Rows: what a database of cold counters must do.

use smallvec::SmallVec;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use tidegate_store::Hashed;

/// A counter that moved down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub key: Hashed,
    pub state: SmallVec<[u64; 4]>,
    /// The second since the Unix epoch at which it expires.
    pub expires_at: u32,
    /// The second at which it moved down.
    pub moved_at: u32,
}

/// Some keys of a shard.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    pub keys: Vec<Hashed>,
    /// Where the next one begins; none after the last.
    pub next: Option<u64>,
}

/// Why a database did not do something.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Away(pub String);

/// An operation under way.
pub type Working<'w, T> = Pin<Box<dyn Future<Output = Result<T, Away>> + Send + 'w>>;

/// Databases of cold counters, each of which is a shard. Every operation ends within a bounded time. One that fails may
/// have been done, or be done soon, but before any operation on the same keys that begins later.
pub trait Rows: Send + Sync + fmt::Debug {
    /// The names of the shards, which a shard keeps wherever it is listed.
    fn shards(&self) -> Vec<String>;

    /// The shard that a counter moves down to.
    fn shard_of(&self, key: &Hashed) -> usize;

    /// The rows of these keys that have not expired at `now`.
    fn fetch<'w>(
        &'w self,
        shard: usize,
        keys: &'w [Hashed],
        now: u32,
    ) -> Working<'w, Vec<Option<Row>>>;

    /// Writes rows, all or none. A row replaces the one of its key.
    fn put<'w>(&'w self, shard: usize, rows: &'w [Row], now: u32) -> Working<'w, ()>;

    /// Removes rows that moved down at these seconds or before.
    fn remove<'w>(&'w self, shard: usize, rows: &'w [(Hashed, u32)], now: u32) -> Working<'w, ()>;

    /// The keys that have rows, page by page. Removes what has expired at `now`.
    fn page(&self, shard: usize, from: u64, now: u32) -> Working<'_, Page>;
}
