//! The tables.
//!
//! `tidegate_statistics` has labels, `tidegate_series` names series, `tidegate_points` has their counts, `tidegate_leaders` those
//! of the largest again. Identities of series are hashes, so no writer has to ask for one. `tidegate_batches` has the parts
//! that were written, so that none is written twice. `tidegate_meta` has single numbers: the version, the generation of the
//! series, the seed of their identities, how far minutes are rolled up, and the sidecar that thins, with the end of its lease.

use super::error::DatabaseError;
use super::random;
use super::roll::NONE;
use sqlx::{AnyConnection, Connection, Executor, Row};
use tidegate_sql::Dialect;

/// The version that this program makes.
pub(super) const VERSION: i64 = 4;

/// Kinds of series in the database: one with values, that of the others, that of all.
pub(super) const VALUES: i64 = 0;
pub(super) const OTHER: i64 = 1;
pub(super) const ALL: i64 = 2;

/// Creates what is missing. Several sidecars may do it at once. Minutes of new tables are rolled up from `rolled` on.
pub(super) async fn migrate(
    connection: &mut AnyConnection,
    dialect: Dialect,
    rolled: i64,
) -> Result<(), DatabaseError> {
    let error = |error| DatabaseError::of(dialect, &error);
    let found = apply(connection, dialect, rolled).await.map_err(error)?;
    match found {
        VERSION => Ok(()),
        found if found > VERSION => Err(DatabaseError::Version { found, known: VERSION }),
        found => Err(DatabaseError::Ancient(found)),
    }
}

/// Returns the version that was found, or made.
async fn apply(connection: &mut AnyConnection, dialect: Dialect, rolled: i64) -> sqlx::Result<i64> {
    // A user who may only read can ask for answers. Without tables this fails, and they are made.
    if let Ok(Some(found)) = version(connection).await {
        return Ok(found);
    }
    if dialect == Dialect::Mysql {
        // Its changes of tables are no part of a transaction, so a lock of the session keeps others away.
        connection.execute("DO GET_LOCK('tidegate_schema', 30)").await?;
    }
    let result = apply_locked(connection, dialect, rolled).await;
    if dialect == Dialect::Mysql {
        connection.execute("DO RELEASE_LOCK('tidegate_schema')").await?;
    }
    result
}

async fn apply_locked(
    connection: &mut AnyConnection,
    dialect: Dialect,
    rolled: i64,
) -> sqlx::Result<i64> {
    let mut transaction = connection.begin_with(dialect.begin()).await?;
    if dialect == Dialect::Postgres {
        // "tide" as a number.
        transaction.execute("SELECT pg_advisory_xact_lock(1953064037)").await?;
    }
    transaction
        .execute(
            "CREATE TABLE IF NOT EXISTS tidegate_meta \
             (name VARCHAR(64) PRIMARY KEY, value BIGINT NOT NULL, until BIGINT NOT NULL)",
        )
        .await?;
    let found = version(&mut transaction).await?.unwrap_or(0);
    if found == 0 {
        for statement in first(dialect) {
            transaction.execute(dialect.sql(&statement)).await?;
        }
        // Clients choose values, so the identities of series must not be known.
        let seed = random() >> 1;
        for (name, value, until) in [
            ("generation", 0, 0),
            ("thinner", 0, 0),
            ("seed", seed.cast_signed(), 0),
            ("rolled", NONE, rolled),
            ("rolling", 0, rolled),
            ("schema", VERSION, 0),
        ] {
            let row = format!("('{name}', {value}, {until})");
            let insert = dialect.insert_new("tidegate_meta", "name, value, until", &row);
            transaction.execute(dialect.sql(&insert)).await?;
        }
    }
    transaction.commit().await?;
    Ok(if found == 0 { VERSION } else { found })
}

async fn version(connection: &mut AnyConnection) -> sqlx::Result<Option<i64>> {
    let select = "SELECT value FROM tidegate_meta WHERE name = 'schema'";
    match connection.fetch_optional(select).await? {
        Some(row) => row.try_get(0).map(Some),
        None => Ok(None),
    }
}

fn first(dialect: Dialect) -> Vec<String> {
    let (text, bytes) = (dialect.text_type(), dialect.bytes_type());
    // The key is the table: rows of a series lie together, and there is no second copy of the key.
    let end = match dialect {
        Dialect::Sqlite => " WITHOUT ROWID",
        Dialect::Mysql => " ENGINE = InnoDB",
        Dialect::Postgres => "",
    };
    let index = match dialect {
        // It has no IF NOT EXISTS, so the index is made with its table.
        Dialect::Mysql => {
            ", INDEX tidegate_series_values (statistic, v1), INDEX tidegate_series_v2 (statistic, v2), \
             INDEX tidegate_series_v3 (statistic, v3), INDEX tidegate_series_v4 (statistic, v4)"
        }
        _ => "",
    };
    let mut statements = vec![
        format!(
            "CREATE TABLE IF NOT EXISTS tidegate_statistics \
             (id BIGINT PRIMARY KEY, name VARCHAR(63) NOT NULL, label {bytes} NOT NULL, \
             series BIGINT NOT NULL, seen BIGINT NOT NULL){end}"
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS tidegate_series \
             (id BIGINT PRIMARY KEY, statistic BIGINT NOT NULL, kind BIGINT NOT NULL, \
             v1 {text}, v2 {text}, v3 {text}, v4 {text}{index}){end}"
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS tidegate_points \
             (series BIGINT NOT NULL, width BIGINT NOT NULL, start BIGINT NOT NULL, \
             allowed BIGINT NOT NULL, denied BIGINT NOT NULL, hits BIGINT NOT NULL, sketch {bytes}, \
             PRIMARY KEY (series, width, start)){end}"
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS tidegate_leaders \
             (statistic BIGINT NOT NULL, width BIGINT NOT NULL, start BIGINT NOT NULL, series BIGINT NOT NULL, \
             allowed BIGINT NOT NULL, denied BIGINT NOT NULL, hits BIGINT NOT NULL, \
             PRIMARY KEY (statistic, width, start, series)){end}"
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS tidegate_batches \
             (writer BIGINT NOT NULL, sequence BIGINT NOT NULL, written BIGINT NOT NULL, \
             PRIMARY KEY (writer, sequence)){end}"
        ),
    ];
    if dialect != Dialect::Mysql {
        let create = "CREATE INDEX IF NOT EXISTS tidegate_series_values";
        statements.push(format!("{create} ON tidegate_series (statistic, v1)"));
        // Most statistics have fewer keys.
        statements.extend(["v2", "v3", "v4"].map(|column| {
            format!(
                "CREATE INDEX IF NOT EXISTS tidegate_series_{column} ON tidegate_series (statistic, {column}) \
                 WHERE {column} IS NOT NULL"
            )
        }));
    }
    statements
}
