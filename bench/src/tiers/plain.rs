//! A plain table: a row for each counter, by a text key, as one would first write it.

use sqlx::{AnyConnection, Connection, Executor};
use tidegate_sql::{Dialect, chunks, rows};

/// Rows of a transaction, as many as a move has.
const BATCH: usize = 1_000;
/// A prime above the number of counters: users come in an order that is not that of their names, each once.
const PRIME: u64 = 99_999_989;
const STEP: u64 = 48_271;
/// The end of a window, in Unix seconds.
const UNTIL: i64 = 1_795_600_800;

/// How a table is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plain {
    /// As the database does by itself.
    Usual,
    /// In the index of the key alone, which SQLite can do.
    WithoutRowid,
}

impl Plain {
    pub(super) fn table(self) -> &'static str {
        match self {
            Plain::Usual => "plain",
            Plain::WithoutRowid => "plain_without_rowid",
        }
    }

    fn create(self) -> &'static str {
        match self {
            Plain::Usual => {
                "CREATE TABLE plain \
                 (name VARCHAR(200) PRIMARY KEY, count BIGINT NOT NULL, until BIGINT NOT NULL)"
            }
            Plain::WithoutRowid => {
                "CREATE TABLE plain_without_rowid \
                 (name TEXT PRIMARY KEY, count BIGINT NOT NULL, until BIGINT NOT NULL) WITHOUT ROWID"
            }
        }
    }

    /// Makes the table, with a row for each of so many counters.
    pub(super) async fn fill(
        self,
        connection: &mut AnyConnection,
        counters: u64,
    ) -> anyhow::Result<()> {
        connection.execute(self.create()).await?;
        let dialect = match connection.backend_name() {
            "PostgreSQL" => Dialect::Postgres,
            _ => Dialect::Sqlite,
        };
        let users: Vec<u64> = (0..counters).map(|index| index * STEP % PRIME).collect();
        for batch in users.chunks(BATCH) {
            let mut transaction = connection.begin().await?;
            for chunk in chunks(batch) {
                let (table, values) = (self.table(), rows(chunk.len(), 3));
                let sql = format!("INSERT INTO {table} (name, count, until) VALUES {values}");
                let mut insert = sqlx::query(dialect.sql(&sql));
                for user in chunk {
                    insert = insert.bind(format!("bench|user|{user}"));
                    insert = insert.bind((user % 1_000).cast_signed()).bind(UNTIL);
                }
                insert.execute(&mut *transaction).await?;
            }
            transaction.commit().await?;
        }
        Ok(())
    }
}
