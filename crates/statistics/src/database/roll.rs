//! Rolling up: the minutes of whole hours are added to rows of every wider width, so an answer about a year reads days.
//!
//! Minutes stay as long as they are kept. How far the rolling has come is in the database: all series up to a time, and of
//! the hours after it the series up to an identity. A step adds the minutes of some series and moves that mark in one
//! transaction, while no writer writes; so a crash or a lost answer loses and doubles nothing. A point that comes later
//! than its hour was rolled up is added to all widths by its writer.

use super::thin::{Locked, ROWS};
use super::{Database, Points};
use crate::retention::Width;
use sqlx::{AnyConnection, Row};
use std::collections::BTreeMap;
use tidegate_sql::{Dialect, chunks, rows};

/// No identity is that low: it would be one of 2^64.
pub(super) const NONE: i64 = i64::MIN;
/// Sidecars write the last slots of an hour before this has passed. It is no harm if they do not, only work.
const LATE_SECONDS: i64 = 60;
/// The most time that is rolled up at once.
const ONCE_SECONDS: i64 = 86_400;
/// Series that one transaction looks at.
const SERIES: usize = 512;

/// How far minutes are rolled up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    /// Those of all series before this time.
    pub(super) done: i64,
    /// Those of the series up to this identity before `next`; [`NONE`] between two rounds.
    pub(super) after: i64,
    pub(super) next: i64,
}

impl Mark {
    /// Whether a minute of a series is in rows of all widths, or has to be added there, too.
    pub(super) fn has(self, series: i64, minute: i64) -> bool {
        minute < if series <= self.after { self.next } else { self.done }
    }

    /// Reads it. Under a lock it stays as it is up to the end of the transaction.
    pub(super) async fn read(
        connection: &mut AnyConnection,
        dialect: Dialect,
        lock: &str,
    ) -> sqlx::Result<Mark> {
        let sql = format!(
            "SELECT rolled.value, rolled.until, rolling.until FROM tidegate_meta rolled, tidegate_meta rolling \
             WHERE rolled.name = 'rolled' AND rolling.name = 'rolling' {lock}"
        );
        let row = sqlx::query(dialect.sql(&sql)).fetch_one(connection).await?;
        Ok(Mark { after: row.try_get(0)?, done: row.try_get(1)?, next: row.try_get(2)? })
    }

    async fn store(self, connection: &mut AnyConnection, dialect: Dialect) -> sqlx::Result<()> {
        let sql = "UPDATE tidegate_meta SET value = ?, until = ? WHERE name = ?";
        for (name, value, until) in [("rolled", self.after, self.done), ("rolling", 0, self.next)] {
            let update = sqlx::query(dialect.sql(sql)).bind(value).bind(until).bind(name);
            update.execute(&mut *connection).await?;
        }
        Ok(())
    }
}

impl Database {
    /// Rolls up the minutes of the next series. Returns how many there were; none if all whole hours are rolled up.
    pub(super) async fn roll(&self, now: i64) -> sqlx::Result<Option<usize>> {
        let target = self.settings.calendar.floor(Width::Hour, now - LATE_SECONDS);
        let mut transaction = self.pool.begin_with(self.dialect.begin()).await?;
        // Waits for all writers, and they for the end of this.
        let mut mark =
            Mark::read(&mut transaction, self.dialect, self.dialect.for_update()).await?;
        if mark.after == NONE {
            if mark.done >= target {
                transaction.rollback().await?;
                return Ok(None);
            }
            mark.next = target.min(mark.done + ONCE_SECONDS);
        }
        let mut series = self.next_series(&mut transaction, mark.after, SERIES).await?;
        if series.is_empty() {
            let mark = Mark { done: mark.next, after: NONE, next: mark.next };
            mark.store(&mut transaction, self.dialect).await?;
            transaction.commit().await?;
            return Ok(Some(0));
        }
        let time = format!("width = 60 AND start >= {} AND start < {}", mark.done, mark.next);
        let count = self.bound(&mut transaction, &mut series, &time).await?;
        if let Some(last) = series.last() {
            mark.after = *last;
        }
        if count > 0 {
            let minutes = self.lock_points(&mut transaction, &series, &time, count).await?;
            let point = |Locked { series, start, tally, .. }| ((series, start), tally);
            self.add_wider(&mut transaction, minutes.into_iter().map(point).collect()).await?;
        }
        mark.store(&mut transaction, self.dialect).await?;
        transaction.commit().await?;
        Ok(Some(count))
    }

    /// Adds minutes to the rows of each wider width.
    pub(super) async fn add_wider(
        &self,
        connection: &mut AnyConnection,
        minutes: Points,
    ) -> sqlx::Result<()> {
        let mut narrower = minutes;
        for width in Width::ALL.into_iter().filter(|width| *width > Width::Minute) {
            let mut points = Points::new();
            for ((series, start), tally) in narrower {
                let start = self.settings.calendar.floor(width, start);
                points.entry((series, start)).or_default().add(tally);
            }
            self.add_counts(connection, width, &points).await?;
            self.add_sketches(connection, width, &points).await?;
            narrower = points;
        }
        Ok(())
    }

    /// The next series in the order of their identities.
    pub(super) async fn next_series(
        &self,
        connection: &mut AnyConnection,
        after: i64,
        most: usize,
    ) -> sqlx::Result<Vec<i64>> {
        let sql = format!("SELECT id FROM tidegate_series WHERE id > ? ORDER BY id LIMIT {most}");
        let select = sqlx::query(self.dialect.sql(&sql)).bind(after);
        select.fetch_all(connection).await?.iter().map(|row| row.try_get(0)).collect()
    }

    /// Leaves as many of the first series as have few rows that a condition of our own selects, and one at least. Returns
    /// how many rows these have.
    pub(super) async fn bound(
        &self,
        connection: &mut AnyConnection,
        series: &mut Vec<i64>,
        condition: &str,
    ) -> sqlx::Result<usize> {
        let mut counts = BTreeMap::new();
        for chunk in chunks(series) {
            let sql = format!(
                "SELECT series, COUNT(*) FROM tidegate_points WHERE series IN {} AND {condition} GROUP BY series",
                rows(1, chunk.len())
            );
            let mut select = sqlx::query(self.dialect.sql(&sql));
            for series in chunk {
                select = select.bind(*series);
            }
            for row in select.fetch_all(&mut *connection).await? {
                let count: i64 = row.try_get(1)?;
                counts.insert(row.try_get::<i64, _>(0)?, usize::try_from(count).unwrap_or(0));
            }
        }
        let mut sum = 0;
        let of = |id: &i64| counts.get(id).copied().unwrap_or(0);
        let fit = series.iter().take_while(|id| {
            sum += of(id);
            sum <= ROWS
        });
        let fit = fit.count().max(1);
        series.truncate(fit);
        Ok(series.iter().map(of).sum())
    }
}
