//! SQL databases as several parts of Tidegate use them: SQLite, PostgreSQL, MySQL or MariaDB.
//!
//! Owns what differs between them ([`Dialect`]), how a connection is made and set up ([`Connector`]), and errors with
//! advice for an operator ([`SqlError`]). Knows no table: those, and their schema, belong to its users.

#![allow(missing_docs, reason = "used in this workspace alone; a good name is not explained again")]

mod connector;
mod dialect;
mod error;
#[cfg(feature = "testing")]
pub mod testing;

pub use connector::{Connector, make_private, sqlite_url};
pub use dialect::{Dialect, chunks, rows};
pub use error::{Kind, SqlError, shown};
