//! Bounded series: those without points are removed, and when a statistic is nearly full, the least used become a part
//! of the others.

use super::dialect::sum;
use super::roll::{Mark, NONE};
use super::schema::VALUES;
use super::thin::Locked;
use super::{Database, stored};
use crate::retention::Width;
use crate::series::{Series, Tally};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};
use std::collections::{BTreeMap, BinaryHeap};
use tidegate_sql::{chunks, rows};

/// Series of one transaction.
const SERIES: usize = 64;
/// Series without points that are looked for at once.
const EMPTY: usize = 1_000;
/// Series whose points are added up at once.
const WEIGHED: usize = 64;
/// Rows of one transaction.
const ROWS: usize = 2_000;

/// One statistic after the other, in steps that are each done in seconds, however many points there are.
#[derive(Debug, Default)]
pub(super) struct Folding {
    /// Statistics that are still to be done, the next one last.
    labels: Vec<String>,
    /// The statistic that is under way, and what is done with it.
    current: Option<(String, Stage)>,
}

#[derive(Debug)]
enum Stage {
    /// Those without points are looked for.
    Empty,
    /// Their sums are made, and the least remembered.
    Weighing { left: Vec<i64>, least: BinaryHeap<(i64, i64)>, extra: usize },
    /// These become a part of the others, or of nothing.
    Removing { left: Vec<i64>, then: Option<Box<Stage>> },
}

impl Folding {
    /// Looks for what there is to do.
    pub(super) async fn new(database: &Database) -> sqlx::Result<Folding> {
        let sql = "SELECT label FROM tidegate_statistics ORDER BY id";
        let rows = sqlx::query(sql).fetch_all(&database.pool).await?;
        let label =
            |row: &AnyRow| Ok(String::from_utf8_lossy(&row.try_get::<Vec<u8>, _>(0)?).into_owned());
        Ok(Folding { labels: rows.iter().map(label).collect::<sqlx::Result<_>>()?, current: None })
    }

    /// Does a small part of the work; true if all is done.
    pub(super) async fn step(&mut self, database: &Database, now: i64) -> sqlx::Result<bool> {
        let Some((label, stage)) = &mut self.current else {
            let Some(label) = self.labels.pop() else { return Ok(true) };
            database.trim_leaders(&label, now).await?;
            self.current = Some((label, Stage::Empty));
            return Ok(false);
        };
        // The stage is left only after its part succeeded, so after an error the same part is next.
        let next = match stage {
            Stage::Empty => {
                let empty = database.empty_series(label).await?;
                let is_all = empty.len() < EMPTY;
                let weighing = if is_all { database.weighing(label).await? } else { None };
                let then = if is_all { weighing } else { Some(Stage::Empty) };
                Some(Stage::Removing { left: empty, then: then.map(Box::new) })
            }
            Stage::Weighing { left, least, extra } => {
                let chunk = &left[left.len().saturating_sub(WEIGHED)..];
                for weighed in database.weigh(chunk).await? {
                    least.push(weighed);
                    if least.len() > *extra {
                        least.pop();
                    }
                }
                left.truncate(left.len() - chunk.len());
                if left.is_empty() {
                    let left = least.drain().map(|(_, id)| id).collect();
                    Some(Stage::Removing { left, then: None })
                } else {
                    None
                }
            }
            Stage::Removing { left, .. } if !left.is_empty() => {
                let chunk = &left[left.len().saturating_sub(SERIES)..];
                if !database.fold_series(label, chunk).await? {
                    return Ok(true);
                }
                left.truncate(left.len() - chunk.len());
                None
            }
            Stage::Removing { then, .. } => match then.take() {
                Some(then) => Some(*then),
                None => {
                    self.current = None;
                    return Ok(false);
                }
            },
        };
        if let Some(next) = next {
            *stage = next;
        }
        Ok(false)
    }
}

impl Database {
    /// Series of a statistic without points.
    async fn empty_series(&self, label: &str) -> sqlx::Result<Vec<i64>> {
        let sql = format!(
            "SELECT id FROM tidegate_series WHERE statistic = ? AND kind = {VALUES} AND NOT EXISTS \
             (SELECT 1 FROM tidegate_points WHERE series = id) LIMIT {EMPTY}"
        );
        let select = sqlx::query(self.dialect.sql(&sql)).bind(self.statistic(label));
        select.fetch_all(&self.pool).await?.iter().map(|row| row.try_get(0)).collect()
    }

    /// What is to be weighed, if a statistic is nearly full: it is folded to eight tenths of its bound, so that there is room
    /// for a while.
    async fn weighing(&self, label: &str) -> sqlx::Result<Option<Stage>> {
        let sql = format!("SELECT id FROM tidegate_series WHERE statistic = ? AND kind = {VALUES}");
        let select = sqlx::query(self.dialect.sql(&sql)).bind(self.statistic(label));
        let rows = select.fetch_all(&self.pool).await?;
        let left: Vec<i64> = rows.iter().map(|row| row.try_get(0)).collect::<sqlx::Result<_>>()?;
        let most = usize::try_from(self.settings.series_max).unwrap_or(usize::MAX);
        let extra = left.len().saturating_sub(most - most / 5);
        let is_full = left.len() > most - most / 10;
        Ok(is_full.then(|| Stage::Weighing { left, least: BinaryHeap::new(), extra }))
    }

    /// The requests and the identity of each of these series. Requests whose minutes are kept count twice.
    async fn weigh(&self, ids: &[i64]) -> sqlx::Result<Vec<(i64, i64)>> {
        let mut weighed = Vec::new();
        for chunk in chunks(ids) {
            let sql = format!(
                "SELECT {}, series FROM tidegate_points WHERE series IN {} AND width IN (60, 604800) GROUP BY series",
                sum(self.dialect, "allowed + denied"),
                rows(1, chunk.len())
            );
            let mut select = sqlx::query(self.dialect.sql(&sql));
            for id in chunk {
                select = select.bind(*id);
            }
            for row in select.fetch_all(&self.pool).await? {
                weighed.push((row.try_get(0)?, row.try_get(1)?));
            }
        }
        Ok(weighed)
    }

    /// Moves all points of some series to the others, and removes the series. False if another sidecar rolls minutes up:
    /// then those of the others may be done, and those of the series not.
    async fn fold_series(&self, statistic: &str, ids: &[i64]) -> sqlx::Result<bool> {
        loop {
            let mut transaction = self.pool.begin_with(self.dialect.begin()).await?;
            // Waits for all writers, which have to look for their series again after this.
            let sql = "UPDATE tidegate_meta SET value = value + 1 WHERE name = 'generation'";
            sqlx::query(sql).execute(&mut *transaction).await?;
            let lock = self.dialect.for_share();
            if Mark::read(&mut transaction, self.dialect, lock).await?.after != NONE {
                transaction.rollback().await?;
                return Ok(false);
            }
            self.lock_statistic(&mut transaction, statistic, 0).await?;
            let points = self.lock_points(&mut transaction, ids, "width > 0", ROWS).await?;
            self.add_to_others(&mut transaction, statistic, &points).await?;
            self.delete_points(&mut transaction, &points).await?;
            let is_done = points.len() < ROWS;
            if is_done {
                self.delete_series(&mut transaction, statistic, ids).await?;
            }
            transaction.commit().await?;
            if is_done {
                return Ok(true);
            }
        }
    }

    async fn add_to_others(
        &self,
        connection: &mut AnyConnection,
        statistic: &str,
        points: &[Locked],
    ) -> sqlx::Result<()> {
        let other = self.id(statistic, &Series::Other);
        for width in Width::ALL {
            let mut sums: BTreeMap<(i64, i64), Tally> = BTreeMap::new();
            for point in points.iter().filter(|point| point.width == width.seconds()) {
                sums.entry((other, point.start)).or_default().add(point.tally.clone());
            }
            self.add_counts(connection, width, &sums).await?;
            self.add_sketches(connection, width, &sums).await?;
        }
        Ok(())
    }

    async fn delete_series(
        &self,
        connection: &mut AnyConnection,
        statistic: &str,
        ids: &[i64],
    ) -> sqlx::Result<()> {
        let mut deleted = 0;
        for chunk in chunks(ids) {
            let sql = format!("DELETE FROM tidegate_series WHERE id IN {}", rows(1, chunk.len()));
            let mut delete = sqlx::query(self.dialect.sql(&sql));
            for id in chunk {
                delete = delete.bind(*id);
            }
            deleted += delete.execute(&mut *connection).await?.rows_affected();
        }
        let sql = "UPDATE tidegate_statistics SET series = series - ? WHERE id = ?";
        let update = sqlx::query(self.dialect.sql(sql));
        let update = update.bind(stored(deleted)).bind(self.statistic(statistic));
        update.execute(connection).await?;
        Ok(())
    }
}
