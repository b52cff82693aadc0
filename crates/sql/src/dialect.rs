//! What differs between SQLite, PostgreSQL and MySQL or MariaDB.
//!
//! Statements are written with `?` for parameters, and no `?` of another meaning.

use crate::SqlError;
use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};
use std::fmt::Write;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    Sqlite,
    Postgres,
    Mysql,
}

impl Dialect {
    /// # Errors
    /// If the URL is none of these databases.
    pub fn of(url: &str) -> Result<Dialect, SqlError> {
        match url.split_once(':').map(|(scheme, _)| scheme) {
            Some("sqlite") => Ok(Dialect::Sqlite),
            Some("postgres" | "postgresql") => Ok(Dialect::Postgres),
            Some("mysql" | "mariadb") => Ok(Dialect::Mysql),
            _ => Err(SqlError::Url),
        }
    }

    /// A statement, with the parameters numbered where the server wants that. Never made of a value.
    #[must_use]
    pub fn sql(self, text: &str) -> SqlStr {
        if self != Dialect::Postgres {
            return AssertSqlSafe(text.to_owned()).into_sql_str();
        }
        let mut numbered = String::with_capacity(text.len() + 64);
        for (index, part) in text.split('?').enumerate() {
            if index > 0 {
                // Writing to a string does not fail.
                let _ = write!(numbered, "${index}");
            }
            numbered.push_str(part);
        }
        AssertSqlSafe(numbered).into_sql_str()
    }

    /// The end of an insert that changes a row instead, if there is one of the same key.
    #[must_use]
    pub fn on_conflict(self, key: &str) -> String {
        match self {
            Dialect::Sqlite | Dialect::Postgres => format!("ON CONFLICT ({key}) DO UPDATE SET"),
            Dialect::Mysql => "ON DUPLICATE KEY UPDATE".to_owned(),
        }
    }

    /// An insert into `table` that leaves rows alone that are there.
    #[must_use]
    pub fn insert_new(self, table: &str, columns: &str, rows: &str) -> String {
        match self {
            Dialect::Sqlite | Dialect::Postgres => {
                format!("INSERT INTO {table} ({columns}) VALUES {rows} ON CONFLICT DO NOTHING")
            }
            Dialect::Mysql => format!("INSERT IGNORE INTO {table} ({columns}) VALUES {rows}"),
        }
    }

    /// Keeps others from changing the rows that are read. SQLite has one writer at a time.
    #[must_use]
    pub fn for_update(self) -> &'static str {
        if self == Dialect::Sqlite { "" } else { "FOR UPDATE" }
    }

    #[must_use]
    pub fn for_share(self) -> &'static str {
        match self {
            Dialect::Sqlite => "",
            Dialect::Postgres => "FOR SHARE",
            Dialect::Mysql => "LOCK IN SHARE MODE",
        }
    }

    /// Rows of parameters as the right side of `(a, b, c) IN`.
    #[must_use]
    pub fn in_rows(self, rows: &str) -> String {
        match self {
            // PostgreSQL would plan a search for each row of a mere list.
            Dialect::Sqlite | Dialect::Postgres => format!("(VALUES {rows})"),
            Dialect::Mysql => format!("({rows})"),
        }
    }

    /// Begins a transaction that will write.
    #[must_use]
    pub fn begin(self) -> &'static str {
        // Otherwise a transaction that read first could not write any more after another one's write.
        if self == Dialect::Sqlite { "BEGIN IMMEDIATE" } else { "BEGIN" }
    }

    /// Whether another process had the file of SQLite locked.
    #[must_use]
    pub fn is_locked(self, error: &sqlx::Error) -> bool {
        const BUSY: u32 = 5;
        let code = error.as_database_error().and_then(|error| error.code());
        let code = code.and_then(|code| code.parse::<u32>().ok());
        // An extended code has it in its low byte.
        self == Dialect::Sqlite && code.is_some_and(|code| code & 0xff == BUSY)
    }

    /// Whether a transaction lost against another one, so that it can succeed if it runs again.
    #[must_use]
    pub fn is_conflict(self, error: &sqlx::Error) -> bool {
        let code = error.as_database_error().and_then(|error| error.code());
        match self {
            Dialect::Sqlite => self.is_locked(error),
            // A serialization failure and a deadlock. MySQL has the first one for both.
            Dialect::Postgres | Dialect::Mysql => {
                code.is_some_and(|code| ["40001", "40P01"].contains(&code.as_ref()))
            }
        }
    }

    /// Whether a statement names a table that is not there.
    #[must_use]
    pub fn is_table_missing(self, error: &sqlx::Error) -> bool {
        let Some(error) = error.as_database_error() else { return false };
        match self {
            // It has no code of its own.
            Dialect::Sqlite => error.message().starts_with("no such table"),
            Dialect::Postgres => error.code().is_some_and(|code| code == "42P01"),
            Dialect::Mysql => error.code().is_some_and(|code| code == "42S02"),
        }
    }

    /// Whether the connection can do nothing any more, as its server ended or was restarted.
    #[must_use]
    pub fn is_disconnected(self, error: &sqlx::Error) -> bool {
        match error {
            sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => true,
            // What a server says before it ends.
            _ => error
                .as_database_error()
                .and_then(|error| error.code())
                .is_some_and(|code| code.starts_with("57P") || code.starts_with("08")),
        }
    }

    /// Statements for each new connection.
    #[must_use]
    pub fn settings(self) -> &'static [&'static str] {
        match self {
            // With a write-ahead log a killed process loses nothing that was committed, and readers do not wait.
            Dialect::Sqlite => &[
                "PRAGMA busy_timeout = 5000",
                "PRAGMA journal_mode = WAL",
                "PRAGMA synchronous = NORMAL",
            ],
            Dialect::Postgres => &["SET lock_timeout = '10s'", "SET statement_timeout = '30s'"],
            // Repeatable reads would show rows as they were before a lock was granted.
            Dialect::Mysql => &[
                "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
                "SET SESSION innodb_lock_wait_timeout = 10",
            ],
        }
    }

    /// Settings of connections that write. A transaction may change rows in thousands of pages: with SQLite's own cache of
    /// 2 MB some of them are written twice, and with a log of 4 MB each transaction waits for a checkpoint.
    #[must_use]
    pub fn writer_settings(self) -> &'static [&'static str] {
        match self {
            // 8 MiB, and 8,000 pages of 4 KiB.
            Dialect::Sqlite => &["PRAGMA cache_size = -8192", "PRAGMA wal_autocheckpoint = 8000"],
            Dialect::Postgres | Dialect::Mysql => &[],
        }
    }

    /// Settings of connections whose changes must be on the disk when they are made: after the end of the machine, too.
    pub fn durable_settings(self) -> &'static [&'static str] {
        match self {
            Dialect::Sqlite => &["PRAGMA synchronous = FULL"],
            // They do it by default.
            Dialect::Postgres | Dialect::Mysql => &[],
        }
    }

    /// Settings of connections for answers; the first that the server knows counts.
    #[must_use]
    pub fn reader_settings(self) -> &'static [&'static str] {
        match self {
            Dialect::Sqlite => &["PRAGMA query_only = ON"],
            Dialect::Postgres => {
                &["SET default_transaction_read_only = on; SET statement_timeout = '10s'"]
            }
            Dialect::Mysql => {
                &["SET SESSION max_statement_time = 10", "SET SESSION max_execution_time = 10000"]
            }
        }
    }

    #[must_use]
    pub fn text_type(self) -> &'static str {
        match self {
            Dialect::Sqlite | Dialect::Postgres => "TEXT",
            // Bytes, as all orders of its texts that MySQL and MariaDB share take some different values for equal.
            Dialect::Mysql => "VARBINARY(256)",
        }
    }

    #[must_use]
    pub fn bytes_type(self) -> &'static str {
        match self {
            Dialect::Sqlite | Dialect::Mysql => "BLOB",
            Dialect::Postgres => "BYTEA",
        }
    }
}

/// Rows of parameters: `(?,?),(?,?)`.
#[must_use]
pub fn rows(count: usize, columns: usize) -> String {
    let row = format!("({})", vec!["?"; columns].join(","));
    vec![row; count].join(",")
}

/// Parts of a list in few sizes, so that there are few statements to prepare.
pub fn chunks<T>(mut all: &[T]) -> impl Iterator<Item = &[T]> {
    const SIZES: [usize; 4] = [512, 64, 8, 1];
    std::iter::from_fn(move || {
        let size = SIZES.into_iter().find(|size| *size <= all.len())?;
        let (chunk, rest) = all.split_at(size);
        all = rest;
        Some(chunk)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_numbered_where_the_server_wants_it() {
        let text = format!("INSERT INTO t (a, b) VALUES {}", rows(2, 2));
        assert_eq!(Dialect::Mysql.sql(&text).as_str(), "INSERT INTO t (a, b) VALUES (?,?),(?,?)");
        let postgres = Dialect::Postgres.sql(&text);
        assert_eq!(postgres.as_str(), "INSERT INTO t (a, b) VALUES ($1,$2),($3,$4)");
    }

    #[test]
    fn chunks_are_the_whole_list() {
        for len in [0, 1, 9, 600, 1_100] {
            let all: Vec<usize> = (0..len).collect();
            assert_eq!(chunks(&all).flatten().copied().collect::<Vec<_>>(), all);
        }
    }
}
