//! The tables, and the row of an owner in them.
//!
//! `tidegate_cold` has a row for each bucket that is not empty: its id is the number of its owner, and the bucket in the low
//! 32 bits. `tidegate_cold_owners` has the numbers, and how many bits name a bucket of an owner; neither ever changes.
//! `tidegate_cold_meta` has the version of the schema, and the identity of the database, by which a shard is recognised
//! that is named twice.

use crate::ColdError;
use crate::bucket::{Place, bucket_of};
use sqlx::{AnyConnection, Connection, Executor, Row};
use std::hash::BuildHasher;
use tidegate_sql::{Dialect, SqlError};
use xxhash_rust::xxh3::xxh3_64;

/// The version of the schema that this program makes.
const VERSION: i64 = 1;
/// Buckets as a power of two: 2^28 are enough for 13 billion counters, and leave room for an owner's number in an id.
pub(crate) const BITS_MAX: u8 = 28;
/// Numbers of owners have 31 bits, so that an id is not negative.
const NUMBER_MASK: u64 = (1 << 31) - 1;

/// An owner as one database knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    number: i64,
    /// How many bits of a hash name a bucket.
    bits: u8,
    /// The identity of the database.
    pub(crate) database: i64,
}

impl Owner {
    pub(crate) fn place(self, hash: u128) -> Place {
        let bucket = bucket_of(hash, self.bits);
        Place { id: self.id(bucket), bucket, bits: self.bits }
    }

    /// The bucket of a row.
    pub(crate) fn place_of_row(self, id: i64) -> Place {
        let bucket = u32::try_from(id - self.id(0)).unwrap_or(u32::MAX);
        Place { id, bucket, bits: self.bits }
    }

    pub(crate) fn id(self, bucket: u32) -> i64 {
        self.number << 32 | i64::from(bucket)
    }

    pub(crate) fn buckets(self) -> u64 {
        1 << self.bits
    }
}

/// Creates the tables where they are missing, and the row of the owner. Several processes may do it at once.
pub(crate) async fn register(
    connection: &mut AnyConnection,
    dialect: Dialect,
    owner: u128,
    bits: u8,
) -> Result<Owner, ColdError> {
    let error = |error| SqlError::of(dialect, &error);
    let found = migrate(connection, dialect).await.map_err(error)?;
    if found != VERSION {
        return Err(ColdError::Version { found, known: VERSION });
    }
    let (id, found) = number(connection, dialect, owner, bits).await.map_err(error)?;
    let bits = u8::try_from(found).ok().filter(|bits| *bits <= BITS_MAX);
    let bits = bits.ok_or(ColdError::Owner { id, found })?;
    let database = meta(connection, "database").await.map_err(error)?.unwrap_or(0);
    Ok(Owner { number: id, bits, database })
}

/// The number of an owner and the bits of its buckets, made if there are none.
async fn number(
    connection: &mut AnyConnection,
    dialect: Dialect,
    owner: u128,
    bits: u8,
) -> sqlx::Result<(i64, i64)> {
    let cluster = owner.to_be_bytes();
    // A database that lost its tables gives the owner the same number again, unless another owner has it.
    let mut number = xxh3_64(&cluster) & NUMBER_MASK;
    loop {
        let select = dialect.sql("SELECT id, buckets FROM tidegate_cold_owners WHERE cluster = ?");
        let select = sqlx::query(select).bind(cluster.to_vec());
        if let Some(row) = select.fetch_optional(&mut *connection).await? {
            return Ok((row.try_get(0)?, row.try_get(1)?));
        }
        let insert = dialect.insert_new("tidegate_cold_owners", "id, cluster, buckets", "(?,?,?)");
        let insert = sqlx::query(dialect.sql(&insert)).bind(number.cast_signed());
        let insert = insert.bind(cluster.to_vec()).bind(i64::from(bits));
        if insert.execute(&mut *connection).await?.rows_affected() == 0 {
            // Another process has made the row of this owner, or another owner has the number.
            number = (number + 1) & NUMBER_MASK;
        }
    }
}

/// Returns the version that was found, or made.
async fn migrate(connection: &mut AnyConnection, dialect: Dialect) -> sqlx::Result<i64> {
    // Without tables this fails, and they are made.
    if let Ok(Some(found)) = meta(connection, "schema").await {
        return Ok(found);
    }
    if dialect == Dialect::Mysql {
        // Its changes of tables are no part of a transaction, so a lock of the session keeps others away.
        connection.execute("DO GET_LOCK('tidegate_cold', 30)").await?;
    }
    let result = migrate_locked(connection, dialect).await;
    if dialect == Dialect::Mysql {
        connection.execute("DO RELEASE_LOCK('tidegate_cold')").await?;
    }
    result
}

async fn migrate_locked(connection: &mut AnyConnection, dialect: Dialect) -> sqlx::Result<i64> {
    let mut transaction = connection.begin_with(dialect.begin()).await?;
    if dialect == Dialect::Postgres {
        // "cold" as a number.
        transaction.execute("SELECT pg_advisory_xact_lock(1668246628)").await?;
    }
    transaction
        .execute(
            "CREATE TABLE IF NOT EXISTS tidegate_cold_meta \
             (name VARCHAR(64) PRIMARY KEY, value BIGINT NOT NULL)",
        )
        .await?;
    let found = meta(&mut transaction, "schema").await?;
    if found.is_none() {
        for statement in tables(dialect) {
            transaction.execute(*statement).await?;
        }
        let random = std::collections::hash_map::RandomState::new().hash_one("tidegate") >> 1;
        for (name, value) in [("database", random.cast_signed()), ("schema", VERSION)] {
            let row = format!("('{name}', {value})");
            let insert = dialect.insert_new("tidegate_cold_meta", "name, value", &row);
            transaction.execute(dialect.sql(&insert)).await?;
        }
    }
    transaction.commit().await?;
    Ok(found.unwrap_or(VERSION))
}

async fn meta(connection: &mut AnyConnection, name: &str) -> sqlx::Result<Option<i64>> {
    // Of two names, so it needs no parameter.
    let select = match name {
        "schema" => "SELECT value FROM tidegate_cold_meta WHERE name = 'schema'",
        _ => "SELECT value FROM tidegate_cold_meta WHERE name = 'database'",
    };
    match connection.fetch_optional(select).await? {
        Some(row) => row.try_get(0).map(Some),
        None => Ok(None),
    }
}

fn tables(dialect: Dialect) -> &'static [&'static str] {
    match dialect {
        Dialect::Sqlite => &[
            // With this type the key is the table.
            "CREATE TABLE IF NOT EXISTS tidegate_cold (id INTEGER PRIMARY KEY, entries BLOB NOT NULL)",
            "CREATE TABLE IF NOT EXISTS tidegate_cold_owners \
             (id BIGINT PRIMARY KEY, cluster BLOB NOT NULL UNIQUE, buckets BIGINT NOT NULL)",
        ],
        Dialect::Postgres => &[
            // Every write of a bucket makes a new row. With room in its page, that takes the place of an older one without
            // a vacuum. Hashes do not compress, and parts of rows in another table would need one.
            "CREATE TABLE IF NOT EXISTS tidegate_cold (id BIGINT PRIMARY KEY, entries BYTEA NOT NULL) \
             WITH (fillfactor = 80, toast_tuple_target = 4080, autovacuum_vacuum_scale_factor = 0.05)",
            "ALTER TABLE tidegate_cold ALTER COLUMN entries SET STORAGE EXTERNAL",
            "CREATE TABLE IF NOT EXISTS tidegate_cold_owners \
             (id BIGINT PRIMARY KEY, cluster BYTEA NOT NULL UNIQUE, buckets BIGINT NOT NULL)",
        ],
        Dialect::Mysql => &[
            // A BLOB ends at 64 KiB, which a bucket of wide counters may pass.
            "CREATE TABLE IF NOT EXISTS tidegate_cold \
             (id BIGINT PRIMARY KEY, entries MEDIUMBLOB NOT NULL) ENGINE = InnoDB",
            "CREATE TABLE IF NOT EXISTS tidegate_cold_owners \
             (id BIGINT PRIMARY KEY, cluster VARBINARY(16) NOT NULL UNIQUE, buckets BIGINT NOT NULL) \
             ENGINE = InnoDB",
        ],
    }
}
