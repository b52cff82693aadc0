//! Where idle counters are kept.

use crate::ColdError;
use crate::owner::BITS_MAX;
use std::time::Duration;
use tidegate_sql::{Connector, shown};

/// 2^21 buckets have about 24 counters each if there are 50 million, and 700 bytes. With twice as many counters a bucket, two
/// of them leave a third of a page of SQLite empty, and PostgreSQL finds no room beside them for their next versions: it took
/// 60 bytes for a counter instead of 46. With half as many, a counter takes about as much, and there are twice as many rows.
const BUCKETS_LOG2: u8 = 21;

/// Where idle counters are kept.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The shards: URLs of `sqlite:`, `postgres://` or `mysql://`, with the password. [`tidegate_sql::sqlite_url`] makes one
    /// of a path. Their names, which are the URLs without what is secret, decide which shard a counter moves to, whatever
    /// their order is here.
    pub urls: Vec<String>,
    /// A fetch ends within this time: a request waits for it.
    pub timeout: Duration,
    /// The same of other operations, which many rows take part in and nobody waits for.
    pub patience: Duration,
    /// The number of buckets of a new owner, as a power of two: one for about 25 counters. What a shard knows of an owner is
    /// never changed.
    pub buckets_log2: u8,
}

impl Settings {
    /// Two seconds for a fetch, and buckets for 50 million counters.
    pub fn new(urls: impl IntoIterator<Item = impl Into<String>>) -> Settings {
        Settings {
            urls: urls.into_iter().map(Into::into).collect(),
            timeout: Duration::from_secs(2),
            patience: Duration::from_secs(10),
            buckets_log2: BUCKETS_LOG2,
        }
    }

    /// Finds mistakes that no retry repairs.
    ///
    /// # Errors
    /// If there is no shard, one is named twice or is no database that is known, or a number is out of its range.
    pub fn check(&self) -> Result<(), ColdError> {
        if self.urls.is_empty() {
            return Err(ColdError::NoShard);
        }
        if self.timeout.is_zero() || self.patience.is_zero() {
            return Err(ColdError::Timeout);
        }
        if self.buckets_log2 > BITS_MAX {
            return Err(ColdError::Buckets { found: self.buckets_log2, max: BITS_MAX });
        }
        let names: Vec<String> = self.urls.iter().map(|url| shown(url)).collect();
        for (index, (url, name)) in self.urls.iter().zip(&names).enumerate() {
            Connector::new(url, self.timeout)?;
            if names.iter().take(index).any(|before| before == name) {
                return Err(ColdError::SameShard { first: name.clone(), second: name.clone() });
            }
        }
        Ok(())
    }
}
