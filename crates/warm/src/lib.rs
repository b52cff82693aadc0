//! Counters that are idle, in Redis or Valkey: a level above databases, which answers faster and costs memory.
//!
//! Owns the entries, their encoding (`entry`), and the hashes that many counters share (`layout`), so that a counter takes a
//! third of the memory of a key of its own. Knows no limit, no algorithm and no wall clock: states are words, and time is an
//! argument, in Unix seconds. Decides neither when a counter moves nor which copy of it counts.
//!
//! Several owners share a server and do not see each other. An operation ends within the times of the settings. After an
//! error of [`Warm::put`] or [`Warm::remove`] it is not known how many of the rows were changed; but none will be any more
//! once a later change of this owner has begun (`write`).
//!
//! Adversary: a server, or what is in it, that this program did not write. Answers have a bound; values that are no counters
//! are errors, and change nothing.

mod entry;
mod error;
mod layout;
mod read;
mod wire;
mod write;

pub use error::WarmError;

use layout::{BITS_MAX, Layout};
use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use tidegate_cold::{Cursor, Page, Row, Size};
use tidegate_remote::{Address, Servers};
use tidegate_store::Hashed;
use tokio::time::Instant;
use wire::Wire;

/// Counters of a bucket when as many are in the server as were planned: 40 to 80. The overhead of a hash, some 200 bytes, is
/// shared by many then, and 128, where servers begin to keep a hash as a table, is five standard deviations away.
const PER_BUCKET: u64 = 40;

/// Where idle counters are kept.
#[derive(Debug, Clone)]
pub struct Settings {
    /// A single server, and how to connect to it. A fetch ends within its `timeout`, which requests wait for, other
    /// operations within its `patience`. Each key begins with its `prefix`.
    pub server: tidegate_remote::Settings,
    /// The number of buckets of a new owner, as a power of two. What the server has of an owner is never changed.
    pub buckets_log2: u8,
}

impl Settings {
    /// Of a server that has up to so many counters.
    #[must_use]
    pub fn new(server: tidegate_remote::Settings, counters: u64) -> Settings {
        let buckets = (counters / PER_BUCKET).max(1).ilog2();
        // At most BITS_MAX.
        Settings { server, buckets_log2: buckets.clamp(4, u32::from(BITS_MAX)) as u8 }
    }

    /// The server without what is secret.
    #[must_use]
    pub fn name(&self) -> String {
        let server = &self.server;
        let scheme = if server.tls.is_some() { "rediss" } else { "redis" };
        let database = match server.database {
            0 => String::new(),
            database => format!("/{database}"),
        };
        let prefix = match server.prefix.as_str() {
            "tidegate:" => String::new(),
            prefix => format!("?prefix={prefix}"),
        };
        match &server.servers {
            Servers::Single(address @ Address::Tcp { .. }) => {
                format!("{scheme}://{address}{database}{prefix}")
            }
            Servers::Single(address) => format!("{address}{prefix}"),
            _ => format!("{scheme}://…"),
        }
    }
}

/// The counters of one owner in a server.
pub struct Warm {
    name: String,
    layout: Layout,
    timeout: Duration,
    patience: Duration,
    /// How many bits name a bucket, as far as this process knows.
    bits: AtomicU8,
    wire: Wire,
}

impl Warm {
    /// Does not need the server: the first operation connects.
    ///
    /// # Errors
    /// If the settings are not those of a single server.
    pub fn open(settings: &Settings, owner: u128) -> Result<Warm, WarmError> {
        if settings.buckets_log2 > BITS_MAX {
            return Err(WarmError::BucketsMax { found: settings.buckets_log2, max: BITS_MAX });
        }
        Ok(Warm {
            name: settings.name(),
            layout: Layout::new(&settings.server.prefix, owner),
            timeout: settings.server.timeout,
            patience: settings.server.patience.max(settings.server.timeout),
            bits: AtomicU8::new(settings.buckets_log2),
            wire: Wire::new(&settings.server)?,
        })
    }

    /// The server, without what is secret.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Why the server may lose counters, if it may, as far as it is known.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        self.wire.warning()
    }

    /// The rows of these keys, in their order. Expired rows count as absent.
    ///
    /// # Errors
    /// If the server does not answer in time, or a value is damaged.
    pub async fn fetch(&self, keys: &[Hashed], now: u32) -> Result<Vec<Option<Row>>, WarmError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        self.read(keys, now, Instant::now() + self.timeout).await
    }

    /// Writes these rows, or, if it fails, some of them. A row replaces that of the same key, whatever its version. What has
    /// expired is not written.
    ///
    /// # Errors
    /// If the server does not do it in time.
    pub async fn put(&self, rows: &[Row], now: u32) -> Result<(), WarmError> {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.expires_at > now).collect();
        if rows.is_empty() {
            return Ok(());
        }
        self.write_rows(&rows, now, self.deadline()).await
    }

    /// Removes the rows that have this version or an older one, or, if it fails, some of them. Returns how many they were.
    ///
    /// # Errors
    /// Those of [`Self::put`].
    pub async fn remove(&self, rows: &[(Hashed, u32)]) -> Result<u64, WarmError> {
        if rows.is_empty() {
            return Ok(0);
        }
        self.write_removals(rows, self.deadline()).await
    }

    /// The next rows, in an order of buckets that does not change. Removes what has expired.
    ///
    /// # Errors
    /// If the server does not answer in time, or a value is damaged.
    pub async fn page(&self, after: Option<Cursor>, now: u32) -> Result<Page, WarmError> {
        self.next_page(after, now, self.deadline()).await
    }

    /// How many counters the owner has, with those that have expired and are not removed yet, and the memory that they take,
    /// by a sample. The first is exact for up to 2^17 buckets of each class.
    ///
    /// # Errors
    /// If the server does not answer in time.
    pub async fn size(&self) -> Result<Size, WarmError> {
        self.measure(self.deadline()).await
    }

    /// Ends the connection. Later operations fail.
    pub fn close(&self) {
        self.wire.close();
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.patience
    }

    fn bits(&self) -> u8 {
        self.bits.load(Ordering::Relaxed)
    }

    fn set_bits(&self, bits: u8) {
        self.bits.store(bits, Ordering::Relaxed);
    }
}

impl fmt::Debug for Warm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Warm").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
