//! Why the database did not do something, and what an operator can do about it.

use crate::Dialect;
use std::io::ErrorKind;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SqlError {
    #[error("expected a URL that begins with sqlite:, postgres:// or mysql://")]
    Url,
    #[error("{message}{advice}")]
    Server { message: String, advice: &'static str, kind: Kind },
    #[error("no answer within {} s", .0.as_secs_f64())]
    Slow(Duration),
}

/// What an error means for the rows that were to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// They can be written later.
    Later,
    /// They would be refused again.
    Refused,
}

impl SqlError {
    /// Whether the same rows would be refused again.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(self, SqlError::Server { kind: Kind::Refused, .. })
    }

    #[must_use]
    pub fn of(dialect: Dialect, error: &sqlx::Error) -> SqlError {
        let code = error.as_database_error().and_then(|error| error.code().map(String::from));
        let code = code.as_deref().unwrap_or_default();
        let tls = "; check the TLS options in the URL, and the server's certificate";
        let advice = match error {
            sqlx::Error::Tls(_) => tls,
            // What a handshake fails with.
            sqlx::Error::Io(cause) if cause.kind() == ErrorKind::InvalidData => tls,
            sqlx::Error::Io(_) if dialect != Dialect::Sqlite => {
                "; check that the server runs, and its host and port in the URL"
            }
            _ => advice(dialect, code),
        };
        let is_refused = match dialect {
            // Constraint, too big, mismatch: the low byte of an extended code.
            Dialect::Sqlite => {
                code.parse().is_ok_and(|code: u32| [18, 19, 20].contains(&(code & 0xff)))
            }
            Dialect::Postgres | Dialect::Mysql => code.starts_with("22") || code.starts_with("23"),
        };
        let kind = if is_refused { Kind::Refused } else { Kind::Later };
        let message = match error.as_database_error() {
            Some(error) => error.message().to_owned(),
            None => error.to_string(),
        };
        SqlError::Server { message, advice, kind }
    }
}

/// By SQLSTATE, or SQLite's result code.
fn advice(dialect: Dialect, code: &str) -> &'static str {
    match (dialect, code) {
        (Dialect::Sqlite, "14") => {
            "; check that its directory exists, and that this user may write there"
        }
        (Dialect::Sqlite, "8" | "1032") => "; let this user write the file",
        (Dialect::Sqlite, "11" | "26") => "; move the file away, and a new one is made",
        (Dialect::Sqlite, "13") => "; make room on the disk",
        (Dialect::Postgres, "28P01" | "28000") | (Dialect::Mysql, "28000") => {
            "; check the user and the password in the URL"
        }
        (Dialect::Postgres, "3D000") => "; create the database, or name another one in the URL",
        (Dialect::Mysql, "42000") => {
            "; check the database in the URL, and that the user may create and change tables in it"
        }
        (Dialect::Postgres, "42501" | "3F000") => {
            "; let the user create and change tables in the database's schema"
        }
        (Dialect::Postgres, "25006") => "; name the server that takes writes in the URL",
        (Dialect::Postgres, "53300") | (Dialect::Mysql, "08004") => {
            "; let the server take more connections"
        }
        _ => "",
    }
}

/// A URL without what is secret in it: users, passwords and options.
#[must_use]
pub fn shown(url: &str) -> String {
    let url = url.split('?').next().unwrap_or_default();
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let rest = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
            format!("{scheme}://{rest}")
        }
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        for (url, expected) in [
            ("postgres://tide:s3@cret@db:5432/stats?password=x", "postgres://db:5432/stats"),
            ("mysql://db/stats", "mysql://db/stats"),
            (
                "sqlite:/var/lib/tidegate/statistics.db?mode=rwc",
                "sqlite:/var/lib/tidegate/statistics.db",
            ),
        ] {
            assert_eq!(shown(url), expected);
        }
    }
}
