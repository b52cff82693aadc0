//! Where idle counters are kept.

use crate::ColdError;
use crate::owner::BITS_MAX;
use std::time::Duration;
use tidegate_sql::{Connector, shown};

/// 2^20 buckets have about 48 counters each if there are 50 million. Then a bucket has 1,200 bytes: several fit into a page
/// of each of the databases, and the bytes that all of its counters share are few.
const BUCKETS_LOG2: u8 = 20;

/// Where idle counters are kept.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The shards: URLs of `sqlite:`, `postgres://` or `mysql://`, with the password. [`tidegate_sql::sqlite_url`] makes one
    /// of a path. Their names, which are the URLs without what is secret, decide which shard a counter moves to, whatever
    /// their order is here.
    pub urls: Vec<String>,
    /// An operation ends within this time.
    pub timeout: Duration,
    /// The number of buckets of a new owner, as a power of two: one for about 50 counters. What a shard knows of an owner is
    /// never changed.
    pub buckets_log2: u8,
}

impl Settings {
    /// Two seconds for an operation, and buckets for 50 million counters.
    pub fn new(urls: impl IntoIterator<Item = impl Into<String>>) -> Settings {
        Settings {
            urls: urls.into_iter().map(Into::into).collect(),
            timeout: Duration::from_secs(2),
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
        if self.timeout.is_zero() {
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
