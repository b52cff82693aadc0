//! Thinning: minutes are rolled up, rows that are older than their width is kept are deleted, and series are bounded.
//!
//! Each step is a small transaction, so a crash between two of them loses and doubles nothing. One of several sidecars does
//! it, by a lease in the database; if the lease fails (clocks differ), locks of rows still keep the sums right.

use super::fold::Folding;
use super::roll::{Mark, NONE};
use super::{Database, DatabaseError};
use crate::retention::Width;
use crate::series::{Counts, Tally};
use crate::sketch::Sketch;
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Connection, Row};
use tidegate_sql::{chunks, rows};

/// Rows that one transaction changes, if they are those of several series.
pub(super) const ROWS: usize = 2_000;
/// Series that one transaction looks at.
const SERIES: usize = 256;
/// For how long one sidecar thins alone. It renews the lease when half of this has passed.
const LEASE_SECONDS: i64 = 120;
/// A part that is sent again is younger than this.
const BATCHES_SECONDS: i64 = 7 * 86_400;

/// The way of one sidecar through all series.
#[derive(Debug)]
pub struct Thinner {
    /// Names this sidecar in the lease.
    owner: i64,
    stage: Stage,
    /// When the lease ends that this sidecar has, or had.
    leased_until: i64,
}

#[derive(Debug)]
enum Stage {
    Rolling,
    /// Rows of this width, of the series after this one.
    Deleting {
        width: Width,
        after: i64,
    },
    Folding(Folding),
}

/// The result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thinned {
    /// So many rows were rolled up or deleted, and there may be more to do.
    Some(usize),
    /// The last series was reached.
    All,
    /// Another sidecar does it.
    Elsewhere,
}

/// A row of the points that was locked.
pub(super) struct Locked {
    pub(super) series: i64,
    pub(super) width: i64,
    pub(super) start: i64,
    pub(super) tally: Tally,
}

impl Thinner {
    #[must_use]
    pub fn new(owner: u64) -> Thinner {
        Thinner { owner: owner.cast_signed(), stage: Stage::Rolling, leased_until: i64::MIN }
    }

    /// Does a small part of the work.
    ///
    /// # Errors
    /// If the database does not do it. The same step is next then.
    pub async fn step(&mut self, database: &Database, now: i64) -> Result<Thinned, DatabaseError> {
        self.try_step(database, now).await.map_err(|error| database.error(&error))
    }

    async fn try_step(&mut self, database: &Database, now: i64) -> sqlx::Result<Thinned> {
        if !self.has_lease(now) {
            if !database.lease(self.owner, now).await? {
                return Ok(Thinned::Elsewhere);
            }
            self.leased_until = now + LEASE_SECONDS;
        }
        // A stage is left only after its part succeeded, so after an error the same part is next.
        match &mut self.stage {
            Stage::Rolling => {
                let rolled = database.roll(now).await?;
                if rolled.is_none() {
                    self.stage = Stage::Deleting { width: Width::Minute, after: NONE };
                }
                Ok(Thinned::Some(rolled.unwrap_or(0)))
            }
            Stage::Deleting { width, after } => {
                if let Some((deleted, last)) = database.delete_old(*width, *after, now).await? {
                    *after = last;
                    return Ok(Thinned::Some(deleted));
                }
                self.stage = if let Some(width) = width.wider() {
                    Stage::Deleting { width, after: NONE }
                } else {
                    database.forget_batches(now - BATCHES_SECONDS).await?;
                    Stage::Folding(Folding::new(database).await?)
                };
                Ok(Thinned::Some(0))
            }
            Stage::Folding(folding) => {
                if !folding.step(database, now).await? {
                    return Ok(Thinned::Some(0));
                }
                self.stage = Stage::Rolling;
                Ok(Thinned::All)
            }
        }
    }

    /// Whether the lease lasts for some time. Half of it is more than a step takes.
    fn has_lease(&self, now: i64) -> bool {
        (now + LEASE_SECONDS / 2..=now + LEASE_SECONDS).contains(&self.leased_until)
    }
}

impl Database {
    /// Takes or renews the lease; false if another sidecar has it.
    async fn lease(&self, owner: i64, now: i64) -> sqlx::Result<bool> {
        let sql = "UPDATE tidegate_meta SET value = ?, until = ? \
                   WHERE name = 'thinner' AND (value = ? OR until < ?)";
        let until = now + LEASE_SECONDS;
        let update = sqlx::query(self.dialect.sql(sql));
        let update = update.bind(owner).bind(until).bind(owner).bind(now);
        update.execute(&self.pool).await?;
        // MySQL does not count a row that was the same before.
        let sql = "SELECT value FROM tidegate_meta WHERE name = 'thinner'";
        let value: i64 = sqlx::query(sql).fetch_one(&self.pool).await?.try_get(0)?;
        Ok(value == owner)
    }

    /// Deletes rows of the next series that are older than their width is kept. Returns how many, and the last of these
    /// series; none after the last one.
    async fn delete_old(
        &self,
        width: Width,
        after: i64,
        now: i64,
    ) -> sqlx::Result<Option<(usize, i64)>> {
        let mut connection = self.pool.acquire().await?;
        let mut series = self.next_series(&mut connection, after, SERIES).await?;
        let mut cutoff = self.settings.retention.cutoff(width, &self.settings.calendar, now);
        if width == Width::Minute {
            cutoff = cutoff.min(Mark::read(&mut connection, self.dialect, "").await?.done);
        }
        let old = format!("width = {} AND start < {cutoff}", width.seconds());
        let count = self.bound(&mut connection, &mut series, &old).await?;
        let Some(last) = series.last().copied() else { return Ok(None) };
        if count > 0 {
            let mut transaction = connection.begin_with(self.dialect.begin()).await?;
            for chunk in chunks(&series) {
                let series = rows(1, chunk.len());
                let sql = format!("DELETE FROM tidegate_points WHERE series IN {series} AND {old}");
                let mut delete = sqlx::query(self.dialect.sql(&sql));
                for series in chunk {
                    delete = delete.bind(*series);
                }
                delete.execute(&mut *transaction).await?;
            }
            transaction.commit().await?;
        }
        Ok(Some((count, last)))
    }

    /// The first rows of these series that a condition of our own selects.
    pub(super) async fn lock_points(
        &self,
        connection: &mut AnyConnection,
        series: &[i64],
        filter: &str,
        most: usize,
    ) -> sqlx::Result<Vec<Locked>> {
        let mut found = Vec::new();
        for chunk in chunks(series) {
            let room = most - found.len();
            if room == 0 {
                break;
            }
            let sql = format!(
                "SELECT series, width, start, allowed, denied, hits, sketch FROM tidegate_points \
                 WHERE series IN {} AND {filter} ORDER BY series, width, start LIMIT {room} {}",
                rows(1, chunk.len()),
                self.dialect.for_update()
            );
            let mut select = sqlx::query(self.dialect.sql(&sql));
            for series in chunk {
                select = select.bind(*series);
            }
            for row in select.fetch_all(&mut *connection).await? {
                let sketch: Option<Vec<u8>> = row.try_get(6)?;
                let sketch = sketch.and_then(|bytes| Sketch::decode(&bytes).ok());
                let tally = Tally { counts: counts(&row, 3)?, sketch };
                let (series, width, start) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
                found.push(Locked { series, width, start, tally });
            }
        }
        Ok(found)
    }

    pub(super) async fn delete_points(
        &self,
        connection: &mut AnyConnection,
        points: &[Locked],
    ) -> sqlx::Result<()> {
        for chunk in chunks(points) {
            let keys = self.dialect.in_rows(&rows(chunk.len(), 3));
            let sql = format!("DELETE FROM tidegate_points WHERE (series, width, start) IN {keys}");
            let mut delete = sqlx::query(self.dialect.sql(&sql));
            for point in chunk {
                delete = delete.bind(point.series).bind(point.width).bind(point.start);
            }
            delete.execute(&mut *connection).await?;
        }
        Ok(())
    }

    /// Deletes the numbers of parts that nobody sends any more.
    async fn forget_batches(&self, before: i64) -> sqlx::Result<()> {
        let sql = self.dialect.sql("DELETE FROM tidegate_batches WHERE written < ?");
        sqlx::query(sql).bind(before).execute(&self.pool).await?;
        Ok(())
    }
}

fn counts(row: &AnyRow, first: usize) -> sqlx::Result<Counts> {
    let count = |index: usize| row.try_get::<i64, _>(index).map(|of| of.max(0).cast_unsigned());
    Ok(Counts { allowed: count(first)?, denied: count(first + 1)?, hits: count(first + 2)? })
}
