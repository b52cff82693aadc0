//! The SQL database of statistics: SQLite, PostgreSQL, MySQL or MariaDB.
//!
//! Counts are added to rows, so several sidecars write the same ones. A part of a batch is one transaction with a
//! number, so it is written once however often it is sent. Counts are written by the minute, and rolled up into rows of each
//! wider width later; an answer reads rows of one width, and minutes that are not in them yet.

mod dialect;
mod error;
mod fold;
mod leaders;
mod read;
mod roll;
mod schema;
mod thin;
mod write;

pub use error::DatabaseError;
pub use read::AnswerError;
pub use thin::{Thinned, Thinner};
pub use write::{PartId, Written};

use crate::retention::{Calendar, Retention, Width};
use crate::series::{Series, Tally};
use sqlx::{AnyConnection, AnyPool, Connection, Executor, Row};
use std::collections::{BTreeMap, HashSet};
use std::hash::BuildHasher;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;
use tidegate_sql::{Connector, Dialect, make_private, sqlite_url};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A count stops here: 2^53, which JSON and SQLite's sums have exactly.
const COUNT_MAX: i64 = 1 << 53;
/// Of the writer, which thins, too.
const WRITERS: u32 = 2;
/// Answers at once. They have connections of their own, as one that nobody waits for any more goes on for a while.
const READERS: u32 = 3;
/// A connection is made within this time, or not at all.
const CONNECT: Duration = Duration::from_secs(10);
/// The lowest identity of a series of all. These rows come last in the order of locks, as every writer has to wait for them.
const ALL_FIRST: i64 = 1 << 62;
/// Series that are known to be in the database: 16 MB.
const KNOWN_MAX: usize = 1_000_000;

/// Counts of a series (by its identity) and a time, in the order in which all writers lock their rows.
type Points = BTreeMap<(i64, i64), Tally>;

#[derive(Debug, Clone)]
pub struct Settings {
    /// Of `sqlite:`, `postgres://` or `mysql://`, with the password.
    pub url: String,
    pub retention: Retention,
    pub calendar: Calendar,
    /// The most series of one statistic. What comes later goes into the others.
    pub series_max: u64,
    /// The file of SQLite, if it may have to be made.
    file: Option<PathBuf>,
}

impl Settings {
    #[must_use]
    pub fn new(url: impl Into<String>) -> Settings {
        Settings {
            url: url.into(),
            retention: Retention::default(),
            calendar: Calendar::default(),
            series_max: 100_000,
            file: None,
        }
    }

    /// The database in a data directory.
    #[must_use]
    pub fn sqlite(file: &Path) -> Settings {
        let settings = Settings::new(sqlite_url(file));
        Settings { file: Some(file.to_owned()), ..settings }
    }

    /// # Errors
    /// If a part of them is wrong, so that no try could succeed.
    pub fn check(&self) -> Result<(), DatabaseError> {
        Dialect::of(&self.url)?;
        self.retention.check().map_err(DatabaseError::Settings)
    }
}

#[derive(Debug)]
pub struct Database {
    pool: AnyPool,
    readers: AnyPool,
    dialect: Dialect,
    settings: Settings,
    /// Makes identities of series.
    seed: u64,
    known: Mutex<Known>,
}

/// Series that are in the database, as long as none was removed.
#[derive(Debug, Default)]
struct Known {
    generation: i64,
    ids: HashSet<i64>,
}

impl Database {
    /// Connects, and creates the tables where they are missing.
    ///
    /// # Errors
    /// If the server cannot be reached, refuses the user, or has tables of a newer program.
    pub async fn open(settings: Settings) -> Result<Database, DatabaseError> {
        settings.check()?;
        if let Some(file) = &settings.file {
            // Values are those of clients. If the file cannot be made, SQLite says so.
            let _ = make_private(file);
        }
        let connector = Connector::new(&settings.url, CONNECT)?;
        let dialect = connector.dialect();
        let error = |error| DatabaseError::of(dialect, &error);
        // A pool tries again for a while, and hides why it has no connection.
        let mut connection = connector.connect().await?;
        if dialect == Dialect::Postgres {
            check_encoding(&mut connection).await.map_err(error)??;
        }
        let hour = settings.calendar.floor(Width::Hour, jiff::Timestamp::now().as_second());
        schema::migrate(&mut connection, dialect, hour).await?;
        let seed = number(&mut connection, dialect, "seed", "").await.map_err(error)?;
        connection.close().await.map_err(error)?;
        let (pool, readers) = (connector.writers(WRITERS), connector.readers(READERS));
        let seed = seed.cast_unsigned();
        Ok(Database { pool, readers, dialect, settings, seed, known: Mutex::default() })
    }

    /// Ends its connections.
    pub async fn close(&self) {
        self.pool.close().await;
        self.readers.close().await;
    }

    fn error(&self, error: &sqlx::Error) -> DatabaseError {
        DatabaseError::of(self.dialect, error)
    }

    /// The identity of a statistic.
    fn statistic(&self, label: &str) -> i64 {
        xxh3_64_with_seed(label.as_bytes(), self.seed).cast_signed()
    }

    /// The identity of a series: of all series from [`ALL_FIRST`], of others below it. Two series of one identity would be
    /// added up: with 6 million series that is as likely as two in a million.
    fn id(&self, label: &str, series: &Series) -> i64 {
        let (kind, values) = match series {
            Series::Values(values) => (1, &**values),
            Series::Other => (0, ""),
            Series::All => (2, ""),
        };
        let mut bytes = self.statistic(label).to_le_bytes().to_vec();
        bytes.push(kind);
        bytes.extend_from_slice(values.as_bytes());
        let hash = xxh3_64_with_seed(&bytes, self.seed);
        match series {
            Series::Values(_) | Series::Other => hash.cast_signed() >> 1,
            Series::All => ALL_FIRST | (hash >> 2).cast_signed(),
        }
    }

    /// The narrowest points that there are of a time.
    fn width_at(&self, at: i64, now: i64) -> Width {
        self.settings.retention.width_at(&self.settings.calendar, at, now)
    }
}

/// Values have any characters. A database that refuses some would refuse whole parts for them.
async fn check_encoding(connection: &mut AnyConnection) -> sqlx::Result<Result<(), DatabaseError>> {
    let row = connection.fetch_one("SELECT CAST(current_setting('server_encoding') AS TEXT)");
    let encoding: String = row.await?.try_get(0)?;
    // The second takes any bytes as they are.
    let takes_all = ["UTF8", "SQL_ASCII"].contains(&encoding.as_str());
    Ok(if takes_all { Ok(()) } else { Err(DatabaseError::Encoding(encoding)) })
}

/// A number of `tidegate_meta`.
async fn number(
    connection: &mut AnyConnection,
    dialect: Dialect,
    name: &'static str,
    lock: &str,
) -> sqlx::Result<i64> {
    let sql = dialect.sql(&format!("SELECT value FROM tidegate_meta WHERE name = ? {lock}"));
    sqlx::query(sql).bind(name).fetch_one(connection).await?.try_get(0)
}

/// A number that others do not guess.
pub(crate) fn random() -> u64 {
    std::collections::hash_map::RandomState::new().hash_one("tidegate")
}

/// A count as the database has it.
fn stored(count: u64) -> i64 {
    i64::try_from(count).map_or(COUNT_MAX, |count| count.min(COUNT_MAX))
}

#[cfg(test)]
mod tests;
