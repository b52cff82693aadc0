//! Thinning: points that are old enough become fewer, wider ones.
//!
//! Each step is a small transaction that moves some rows, so a crash between two of them loses and doubles nothing. One
//! of several sidecars does it, by a lease in the database; if the lease fails (clocks differ), locks of rows still keep the
//! sums right.

use super::dialect::{chunks, rows};
use super::fold::Folding;
use super::{Database, DatabaseError, number};
use crate::retention::Width;
use crate::series::{Counts, Tally};
use crate::sketch::Sketch;
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};
use std::collections::BTreeMap;

/// Rows that one transaction moves.
const ROWS: usize = 2_000;
/// Series that one transaction looks at.
const SERIES: usize = 256;
/// For how long one sidecar thins alone. It renews the lease when half of this has passed.
const LEASE_SECONDS: i64 = 120;
/// A part that is sent again is younger than this.
const BATCHES_SECONDS: i64 = 7 * 86_400;

/// The way of one sidecar through all series, width by width.
#[derive(Debug)]
pub struct Thinner {
    /// Names this sidecar in the lease.
    owner: i64,
    width: Width,
    /// All series up to this one are done.
    after: Option<i64>,
    /// What comes after the widest points.
    folding: Option<Folding>,
    /// When the lease ends that this sidecar has, or had.
    leased_until: i64,
}

/// The result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thinned {
    /// So many rows were moved or deleted, and there may be more to do.
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
        Thinner {
            owner: owner.cast_signed(),
            width: Width::Minute,
            after: None,
            folding: None,
            leased_until: i64::MIN,
        }
    }

    /// Does a small part of the work: the next rows of the next series.
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
        if self.folding.is_some() {
            return self.next_width(database, now).await;
        }
        let series = database.next_series(self.after).await?;
        let Some(last) = series.last().copied() else {
            return self.next_width(database, now).await;
        };
        let moved = database.thin(self.width, &series, now).await?;
        if moved < ROWS {
            self.after = Some(last);
        }
        Ok(Thinned::Some(moved))
    }

    /// Whether the lease lasts for some time. Half of it is more than a step takes.
    fn has_lease(&self, now: i64) -> bool {
        (now + LEASE_SECONDS / 2..=now + LEASE_SECONDS).contains(&self.leased_until)
    }

    async fn next_width(&mut self, database: &Database, now: i64) -> sqlx::Result<Thinned> {
        self.after = None;
        if let Some(wider) = self.width.wider() {
            self.width = wider;
            return Ok(Thinned::Some(0));
        }
        let folding = match &mut self.folding {
            Some(folding) => folding,
            none => {
                database.forget_batches(now - BATCHES_SECONDS).await?;
                none.insert(Folding::new(database).await?)
            }
        };
        if !folding.step(database, now).await? {
            return Ok(Thinned::Some(0));
        }
        self.folding = None;
        self.width = Width::Minute;
        Ok(Thinned::All)
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

    async fn next_series(&self, after: Option<i64>) -> sqlx::Result<Vec<i64>> {
        let sql = format!("SELECT id FROM tidegate_series WHERE id > ? ORDER BY id LIMIT {SERIES}");
        // No identity is that low: it would be one of 2^64.
        let select = sqlx::query(self.dialect.sql(&sql)).bind(after.unwrap_or(i64::MIN));
        select.fetch_all(&self.pool).await?.iter().map(|row| row.try_get(0)).collect()
    }

    /// Makes old points of these series wider, or deletes the widest. Returns how many rows there were.
    async fn thin(&self, width: Width, series: &[i64], now: i64) -> sqlx::Result<usize> {
        let calendar = &self.settings.calendar;
        let cutoff = self.settings.retention.cutoff(width, calendar, now);
        if !self.has_old(width, series, cutoff).await? {
            return Ok(0);
        }
        let mut transaction = self.pool.begin_with(self.dialect.begin()).await?;
        // Nobody folds these series meanwhile.
        number(&mut transaction, self.dialect, "generation", self.dialect.for_share()).await?;
        let filter = format!("width = {} AND start < {cutoff}", width.seconds());
        let old = self.lock_points(&mut transaction, series, &filter, ROWS).await?;
        if let Some(wider) = width.wider() {
            let mut sums: BTreeMap<(i64, i64), Tally> = BTreeMap::new();
            for Locked { series, start, tally, .. } in &old {
                let start = calendar.floor(wider, *start);
                sums.entry((*series, start)).or_default().add(tally.clone());
            }
            self.add_counts(&mut transaction, wider, &sums).await?;
            self.add_sketches(&mut transaction, wider, &sums).await?;
        }
        self.delete_points(&mut transaction, &old).await?;
        transaction.commit().await?;
        Ok(old.len())
    }

    /// Whether there is anything to do. Mostly there is not, and then no writer has to wait.
    async fn has_old(&self, width: Width, series: &[i64], cutoff: i64) -> sqlx::Result<bool> {
        for chunk in chunks(series) {
            let sql = format!(
                "SELECT series FROM tidegate_points WHERE series IN {} AND width = ? AND start < ? LIMIT 1",
                rows(1, chunk.len())
            );
            let mut select = sqlx::query(self.dialect.sql(&sql));
            for series in chunk {
                select = select.bind(*series);
            }
            let select = select.bind(width.seconds()).bind(cutoff);
            if select.fetch_optional(&self.pool).await?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
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
