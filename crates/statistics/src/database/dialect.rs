//! Parts of statements about counts and sketches that differ between the databases.

use super::COUNT_MAX;
use tidegate_sql::Dialect;

/// `ON CONFLICT` of an insert into a table with counts: they add up, up to a bound.
pub(super) fn add_counts(dialect: Dialect, table: &str, key: &str) -> String {
    let sum = |column: &str| match dialect {
        Dialect::Sqlite => {
            format!("{column} = MIN({table}.{column} + excluded.{column}, {COUNT_MAX})")
        }
        Dialect::Postgres => {
            format!("{column} = LEAST({table}.{column} + excluded.{column}, {COUNT_MAX})")
        }
        Dialect::Mysql => format!("{column} = LEAST({column} + VALUES({column}), {COUNT_MAX})"),
    };
    let sums = ["allowed", "denied", "hits"].map(sum).join(", ");
    format!("{} {sums}", dialect.on_conflict(key))
}

/// The same for sketches of points: the new one takes the place of the old one.
pub(super) fn replace_sketch(dialect: Dialect) -> String {
    let new = match dialect {
        Dialect::Sqlite | Dialect::Postgres => "excluded.sketch",
        Dialect::Mysql => "VALUES(sketch)",
    };
    format!("{} sketch = {new}", dialect.on_conflict("series, width, start"))
}

/// A sum that fits 64 bits.
pub(super) fn sum(dialect: Dialect, column: &str) -> String {
    match dialect {
        // `SUM` fails beyond 64 bits. `TOTAL` is exact up to the bound of a count.
        Dialect::Sqlite => format!("CAST(MIN(TOTAL({column}), 9e18) AS INTEGER)"),
        Dialect::Postgres => format!("CAST(LEAST(SUM({column}), 9000000000000000000) AS BIGINT)"),
        Dialect::Mysql => format!("CAST(LEAST(SUM({column}), 9000000000000000000) AS SIGNED)"),
    }
}

/// The larger of two numbers.
pub(super) fn largest(dialect: Dialect, one: &str, other: &str) -> String {
    let function = if dialect == Dialect::Sqlite { "MAX" } else { "GREATEST" };
    format!("{function}({one}, {other})")
}
