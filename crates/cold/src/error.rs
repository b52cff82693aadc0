//! Why an operation was not done.

use crate::bucket::Flaw;
use tidegate_sql::SqlError;

/// Why an operation on counters in a database was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ColdError {
    /// There is no shard.
    #[error("name at least one database for idle counters")]
    NoShard,
    /// Two URLs name one database.
    #[error("{first} and {second} are the same database; name it once")]
    SameShard {
        /// The shard that comes first.
        first: String,
        /// The one that comes later.
        second: String,
    },
    /// A number of buckets that is not possible.
    #[error("2^{found} buckets are not allowed (2^0 to 2^{max})")]
    Buckets {
        /// The logarithm of the number that was asked for.
        found: u8,
        /// The highest logarithm.
        max: u8,
    },
    /// A timeout of zero.
    #[error("a timeout of zero lets no operation succeed")]
    Timeout,
    /// The tables belong to a newer program.
    #[error(
        "the tables of idle counters have schema version {found}, and this program knows up to {known}; use a newer one"
    )]
    Version {
        /// The version of the tables.
        found: i64,
        /// The highest version that this program knows.
        known: i64,
    },
    /// The row of an owner is not one that this program writes.
    #[error("row {id} of tidegate_cold_owners: 2^{found} buckets are not possible")]
    Owner {
        /// The key of the row.
        id: i64,
        /// The logarithm of its number of buckets.
        found: i64,
    },
    /// The bytes of a row are not those that were written.
    #[error("row {id} of tidegate_cold is damaged: {flaw}; its counters are lost if you delete it")]
    Damaged {
        /// The key of the row.
        id: i64,
        /// What is wrong with it.
        flaw: Flaw,
    },
    /// Each try lost against another transaction.
    #[error("other writers changed the same rows during each of {tries} tries")]
    Contended {
        /// How often it was tried.
        tries: u32,
    },
    /// [`crate::Cold::close`] was called.
    #[error("the connections are closed")]
    Closed,
    /// The database did not do it.
    #[error(transparent)]
    Sql(#[from] SqlError),
}
