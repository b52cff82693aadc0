//! Counters that are idle, in SQL databases: SQLite, PostgreSQL, MySQL or MariaDB, one or several shards.
//!
//! Owns the rows, their encoding (`bucket`), and which shard has a counter (`shards`). Many counters share a row, so they take
//! less than half of the space of a row each. Knows no limit, no algorithm and no wall clock: states are words, and time is an
//! argument, in Unix seconds. Decides neither when a counter moves nor which copy of it counts.
//!
//! Several owners share a database and do not see each other. Several processes of one owner may work at the same time: a
//! transaction of one loses no counter of another.
//!
//! A fetch ends within the timeout of the settings, other operations within their patience. After an error of [`Cold::put`] or [`Cold::remove`] it is not known
//! whether the change was made. No operation is tried again by itself once its commit was sent.
//!
//! ```
//! # use tidegate_cold::{Cold, Row, Settings};
//! # use tidegate_store::Hashed;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let directory = tempfile::tempdir()?;
//! let url = tidegate_sql::sqlite_url(&directory.path().join("cold.db"));
//! let cold = Cold::open(&Settings::new([url]), 7)?;
//!
//! let now = 1_795_600_800;
//! let key = Hashed::narrow(0x5eed << 100);
//! let row = Row { key, state: [3, 60].into_iter().collect(), expires_at: now + 60, moved_at: now };
//! let shard = cold.shard_of(&key);
//! cold.put(shard, &[row.clone()], now).await?;
//! assert_eq!(cold.fetch(shard, &[key], now).await?, [Some(row)]);
//! // It comes back into memory, and unless it has moved down again, its row goes.
//! assert_eq!(cold.remove(shard, &[(key, now)], now).await?, 1);
//! assert_eq!(cold.fetch(shard, &[key], now).await?, [None]);
//! # Ok(())
//! # }
//! ```

mod bucket;
mod error;
mod owner;
mod pool;
mod read;
mod settings;
mod shard;
mod shards;
mod write;

pub use bucket::Flaw;
pub use error::ColdError;
pub use settings::Settings;

use read::{Fetch, Measure, Next};
use shard::{Databases, Shard};
use shards::Shards;
use smallvec::SmallVec;
use tidegate_store::Hashed;
use write::{Edit, Write};

/// An expired row is dropped by [`Cold::page`] when it has been expired for so long, so that a bucket is written again for
/// many of them.
const EXPIRED_SECONDS: u32 = 3_600;

/// A counter that moved down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The hash and the class of its key.
    pub key: Hashed,
    /// The words of its state. Zero words at the end are left out of what is fetched.
    pub state: SmallVec<[u64; 4]>,
    /// The Unix second from which on it counts as absent.
    pub expires_at: u32,
    /// The Unix second at which it moved down: its version.
    pub moved_at: u32,
}

/// A position in the keys of a shard: the bucket after which it goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor(pub u32);

/// Some rows of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// They may be none, though more follow.
    pub rows: Vec<Row>,
    /// Where the next page begins; none after the last one.
    pub next: Option<Cursor>,
}

/// How much an owner has in a shard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Size {
    /// Counters, with those that have expired and are not dropped yet.
    pub counters: u64,
    /// Bytes of their encoding, without what the database needs besides.
    pub bytes: u64,
}

/// The counters of one owner in all shards. A shard is named by its index in the URLs of the settings.
#[derive(Debug)]
pub struct Cold {
    shards: Vec<Shard>,
    route: Shards,
}

impl Cold {
    /// Does not need the servers: the first operation connects to a shard, makes its tables and registers the owner.
    ///
    /// # Errors
    /// Those of [`Settings::check`].
    pub fn open(settings: &Settings, owner: u128) -> Result<Cold, ColdError> {
        settings.check()?;
        let (times, bits) = ((settings.timeout, settings.patience), settings.buckets_log2);
        let databases = Databases::default();
        let shard = |url: &String| Shard::new(url, times, owner, bits, databases.clone());
        let shards = settings.urls.iter().map(shard).collect::<Result<Vec<_>, _>>()?;
        let route = Shards::new(shards.iter().map(|shard| shard.name.as_str()));
        Ok(Cold { shards, route })
    }

    /// How many shards there are.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// The URL of a shard, without what is secret in it.
    ///
    /// # Panics
    /// If there is no such shard, as all that take one do.
    #[must_use]
    pub fn name(&self, shard: usize) -> &str {
        &self.shards[shard].name
    }

    /// The shard that a counter moves down to. It may be in another one, if it moved there when the shards were others.
    #[must_use]
    pub fn shard_of(&self, key: &Hashed) -> usize {
        self.route.of(key.hash)
    }

    /// The rows of these keys in one shard, in the order of the keys. Expired rows count as absent.
    ///
    /// # Errors
    /// If the database does not answer in time, or a row is damaged.
    pub async fn fetch(
        &self,
        shard: usize,
        keys: &[Hashed],
        now: u32,
    ) -> Result<Vec<Option<Row>>, ColdError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        self.shards[shard].fetch(&Fetch { keys, now }).await
    }

    /// Writes all of these rows, or none. A row replaces that of the same key, whatever its version. What has expired is not
    /// written, and is dropped from the buckets that are.
    ///
    /// # Errors
    /// If the database does not do it in time, or the bytes that a row would join are damaged.
    pub async fn put(&self, shard: usize, rows: &[Row], now: u32) -> Result<(), ColdError> {
        self.write(shard, rows.iter().map(Edit::Put).collect(), now).await.map(drop)
    }

    /// Removes the rows that have this version or an older one. Returns how many they were.
    ///
    /// # Errors
    /// Those of [`Self::put`].
    pub async fn remove(
        &self,
        shard: usize,
        rows: &[(Hashed, u32)],
        now: u32,
    ) -> Result<u64, ColdError> {
        let edits = rows.iter().map(|(key, version)| Edit::Remove(*key, *version)).collect();
        self.write(shard, edits, now).await
    }

    async fn write(&self, shard: usize, edits: Vec<Edit<'_>>, now: u32) -> Result<u64, ColdError> {
        if edits.is_empty() {
            return Ok(0);
        }
        self.shards[shard].work(&Write::new(edits, now)).await
    }

    /// The next rows of a shard, in an order of their keys that does not change. Rows that expired an hour ago are dropped.
    ///
    /// # Errors
    /// If the database does not answer in time, or a row is damaged.
    pub async fn page(
        &self,
        shard: usize,
        after: Option<Cursor>,
        now: u32,
    ) -> Result<Page, ColdError> {
        let shard = &self.shards[shard];
        let next = Next { after: after.map(|cursor| cursor.0) };
        let buckets = shard.work(&next).await?;
        let is_old = |row: &&Row| row.expires_at.saturating_add(EXPIRED_SECONDS) <= now;
        let old = buckets.all.iter().filter_map(|(_, rows)| rows.iter().find(is_old));
        let old: Vec<Edit<'_>> = old.map(|row| Edit::Tidy(row.key)).collect();
        if !old.is_empty() {
            shard.work(&Write::new(old, now)).await?;
        }
        let last = buckets.all.last().filter(|_| !buckets.is_last);
        let next = last.map(|(place, _)| Cursor(place.bucket));
        let rows = buckets.all.into_iter().flat_map(|(_, rows)| rows);
        Ok(Page { rows: rows.filter(|row| row.expires_at > now).collect(), next })
    }

    /// How much the owner has in a shard, by a sample of its buckets: exact for few of them, otherwise with an error of a few
    /// percent.
    ///
    /// # Errors
    /// If the database does not answer in time, or a row is damaged.
    pub async fn size(&self, shard: usize) -> Result<Size, ColdError> {
        self.shards[shard].work(&Measure).await
    }

    /// Ends the connections. Later operations fail.
    pub async fn close(&self) {
        for shard in &self.shards {
            shard.close().await;
        }
    }
}

#[cfg(test)]
mod tests;
