//! The database of cold counters: its size, and the statements that it gets.

use super::plain::Plain;
use anyhow::Context;
use sqlx::{AnyConnection, Connection, Executor, Row};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidegate_sql::{Connector, sqlite_url};
use tidegate_tests::shared_servers::{Postgres, PostgresPrograms};

const PATIENCE: Duration = Duration::from_secs(20);

/// The kind of a database.
#[derive(Debug, Clone)]
pub(super) enum Kind {
    Sqlite,
    Postgres(PostgresPrograms),
}

impl Kind {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Kind::Sqlite => "SQLite",
            Kind::Postgres(_) => "PostgreSQL",
        }
    }
}

/// A database that is ready. The server of PostgreSQL ends with it.
#[derive(Debug)]
pub(super) struct Database {
    kind: Kind,
    /// As in `--cold`.
    url: String,
    dir: PathBuf,
    server: Option<Postgres>,
}

impl Database {
    /// `dir` has the files of SQLite, in the data directory of the sidecar.
    pub(super) async fn start(kind: &Kind, dir: &Path) -> anyhow::Result<Database> {
        let server = match kind {
            Kind::Sqlite => None,
            Kind::Postgres(programs) => Some(Postgres::start(programs).await?),
        };
        let url = server.as_ref().map_or_else(|| "data-dir".to_owned(), Postgres::url);
        Ok(Database { kind: kind.clone(), url, dir: dir.to_owned(), server })
    }

    pub(super) fn kind(&self) -> &Kind {
        &self.kind
    }

    pub(super) fn name(&self) -> &'static str {
        self.kind.name()
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// The bytes of all cold counters. No sidecar has it open.
    pub(super) async fn bytes(&self) -> anyhow::Result<u64> {
        self.bytes_of(&self.dir.join("data/cold.sqlite"), "tidegate_cold").await
    }

    /// The bytes of a plain table with a row for each of so many counters.
    pub(super) async fn plain_bytes(&self, counters: u64, plain: Plain) -> anyhow::Result<u64> {
        let file = self.dir.join(format!("{}.sqlite", plain.table()));
        let mut connection = self.connect(&file).await?;
        plain.fill(&mut connection, counters).await?;
        connection.close().await?;
        self.bytes_of(&file, plain.table()).await
    }

    async fn bytes_of(&self, file: &Path, table: &str) -> anyhow::Result<u64> {
        let mut connection = self.connect(file).await?;
        if self.server.is_none() {
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").await?;
            connection.close().await?;
            return Ok(std::fs::metadata(file)?.len());
        }
        let select =
            sqlx::query("SELECT pg_total_relation_size($1::regclass)").bind(table.to_owned());
        let bytes: i64 = select.fetch_one(&mut connection).await?.try_get(0)?;
        Ok(bytes.cast_unsigned())
    }

    /// SQLite has one table in each file.
    async fn connect(&self, file: &Path) -> anyhow::Result<AnyConnection> {
        let url = if self.server.is_some() { self.url.clone() } else { sqlite_url(file) };
        Ok(Connector::new(&url, PATIENCE)?.connect().await?)
    }

    /// The statements that the server gets while `doing` is done; none for SQLite, which does not count them.
    pub(super) async fn statements_during(
        &self,
        doing: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<Option<usize>> {
        let Some(server) = &self.server else { return Ok(None) };
        let count = || {
            let log = server.process.log();
            // Prepared ones, and others.
            log.matches("LOG:  execute ").count() + log.matches("LOG:  statement: ").count()
        };
        self.log_statements("all").await?;
        let before = count();
        doing.await?;
        let after = count();
        self.log_statements("none").await?;
        Ok(Some(after - before))
    }

    async fn log_statements(&self, which: &str) -> anyhow::Result<()> {
        let mut connection = self.connect(&self.dir).await?;
        let alter = match which {
            "all" => "ALTER SYSTEM SET log_statement = 'all'",
            _ => "ALTER SYSTEM SET log_statement = 'none'",
        };
        connection.execute(alter).await?;
        connection.execute("SELECT pg_reload_conf()").await?;
        // Other sessions follow the new settings before their next statement, once the server has sent them the signal.
        for _ in 0..100 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let shown: String = connection.fetch_one("SHOW log_statement").await?.try_get(0)?;
            if shown == which {
                return Ok(connection.close().await?);
            }
        }
        None.context("PostgreSQL does not follow its settings")
    }
}
