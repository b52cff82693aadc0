//! Why the database did not do something.

use tidegate_sql::{Dialect, Kind, SqlError};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatabaseError {
    #[error("the time zone or retention of statistics: {0}")]
    Settings(String),
    #[error(
        "the statistics have schema version {found}, and this program knows up to {known}; use a newer one"
    )]
    Version { found: i64, known: i64 },
    #[error(
        "the statistics have schema version {0}, of a program before the first release; name a new database"
    )]
    Ancient(i64),
    #[error(
        "the database has the encoding {0}, which lacks most characters; create one with ENCODING 'UTF8'"
    )]
    Encoding(String),
    #[error(transparent)]
    Sql(#[from] SqlError),
}

impl DatabaseError {
    /// Whether the same rows would be refused again.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(self, DatabaseError::Sql(SqlError::Server { kind: Kind::Refused, .. }))
    }

    pub(super) fn of(dialect: Dialect, error: &sqlx::Error) -> DatabaseError {
        SqlError::of(dialect, error).into()
    }
}
