//! Writing a part of a batch: one transaction, once.

use super::dialect::{add_counts, replace_sketch};
use super::roll::Mark;
use super::schema::{ALL, OTHER, VALUES};
use super::{ALL_FIRST, Database, DatabaseError, KNOWN_MAX, Points, number, stored};
use crate::batch::Point;
use crate::label::{is_sum, name};
use crate::retention::Width;
use crate::series::Series;
use crate::sketch::Sketch;
use crate::sums;
use sqlx::{AnyConnection, Executor, Row};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, PoisonError};
use tidegate_sql::{chunks, rows};

/// Names a part for ever: the number of a writer, drawn at its start, and that of its part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartId {
    pub writer: u64,
    pub sequence: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    Now,
    /// The part was there already: the answer of an earlier try was lost.
    Before,
}

/// A series that the database may not have.
struct New<'a> {
    id: i64,
    series: &'a Series,
    requests: u64,
}

impl Database {
    /// Adds the counts of a part. After an error it is not known whether they are added, and the same part with the same
    /// number can be sent again.
    pub(crate) async fn write(
        &self,
        id: PartId,
        points: &[Point],
        now: i64,
    ) -> Result<Written, DatabaseError> {
        self.write_part(id, points, now).await.map_err(|error| self.error(&error))
    }

    async fn write_part(&self, id: PartId, points: &[Point], now: i64) -> sqlx::Result<Written> {
        let dialect = self.dialect;
        let mut transaction = self.pool.begin_with(dialect.begin()).await?;
        // No series is removed until the commit, so those that are known stay.
        let generation =
            number(&mut transaction, dialect, "generation", dialect.for_share()).await?;
        let mark = Mark::read(&mut transaction, dialect, dialect.for_share()).await?;
        let insert = dialect.insert_new("tidegate_batches", "writer, sequence, written", "(?,?,?)");
        let inserted = sqlx::query(dialect.sql(&insert))
            .bind(id.writer.cast_signed())
            .bind(id.sequence.cast_signed())
            .bind(now)
            .execute(&mut *transaction)
            .await?;
        if inserted.rows_affected() == 0 {
            transaction.rollback().await?;
            return Ok(Written::Before);
        }
        let sums = sums::of(points);
        let points: Vec<&Point> = points.iter().chain(&sums).collect();
        let (mut rows, added) = self.place(&mut transaction, &points, generation, now).await?;
        let all = rows.split_off(&(ALL_FIRST, i64::MIN));
        self.add_minutes(&mut transaction, mark, rows).await?;
        self.add_leaders(&mut transaction, &points, &added).await?;
        self.add_minutes(&mut transaction, mark, all).await?;
        transaction.commit().await?;
        self.remember(generation, added);
        Ok(Written::Now)
    }

    /// The rows of points, after their series were made. Series without room are the others. Returns also the series that
    /// the database has now.
    async fn place(
        &self,
        connection: &mut AnyConnection,
        points: &[&Point],
        generation: i64,
        now: i64,
    ) -> sqlx::Result<(Points, HashSet<i64>)> {
        let mut statistics: BTreeMap<&Arc<str>, HashMap<i64, New<'_>>> = BTreeMap::new();
        for Point { statistic, series, tally, .. } in points.iter().copied() {
            let id = self.id(statistic, series);
            let news = statistics.entry(statistic).or_insert_with(|| {
                let all =
                    New { id: self.id(statistic, &Series::All), series: &Series::All, requests: 0 };
                // Those of sums are those of their statistic.
                let all = (!is_sum(statistic)).then_some((all.id, all));
                all.into_iter().collect()
            });
            let new = news.entry(id).or_insert(New { id, series, requests: 0 });
            new.requests = new.requests.saturating_add(tally.counts.requests());
        }
        let mut present = HashSet::new();
        for (statistic, series) in statistics {
            let series = self.without_known(series, generation, &mut present);
            self.make_series(connection, statistic, series, &mut present, now).await?;
        }
        let mut rows = Points::new();
        for Point { statistic, minute, series, tally } in points.iter().copied() {
            let id = self.id(statistic, series);
            let id = if present.contains(&id) { id } else { self.id(statistic, &Series::Other) };
            let minute = i64::try_from(*minute).unwrap_or(0);
            rows.entry((id, minute)).or_default().add(tally.clone());
            let all = self.id(statistic, &Series::All);
            if present.contains(&all) {
                rows.entry((all, minute)).or_default().add(tally.clone());
            }
        }
        Ok((rows, present))
    }

    fn without_known<'a>(
        &self,
        mut series: HashMap<i64, New<'a>>,
        generation: i64,
        present: &mut HashSet<i64>,
    ) -> Vec<New<'a>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.generation == generation {
            series.retain(|id, _| !known.ids.contains(id) || !present.insert(*id));
        }
        series.into_values().collect()
    }

    fn remember(&self, generation: i64, present: HashSet<i64>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.generation != generation || known.ids.len() + present.len() > KNOWN_MAX {
            known.ids.clear();
        }
        known.generation = generation;
        known.ids.extend(present);
    }

    /// Makes series of a statistic, as far as there is room: first those with most requests. The series of all others and
    /// that of all have always room.
    async fn make_series(
        &self,
        connection: &mut AnyConnection,
        statistic: &str,
        mut series: Vec<New<'_>>,
        present: &mut HashSet<i64>,
        now: i64,
    ) -> sqlx::Result<()> {
        self.find_series(connection, &series, present).await?;
        series.retain(|new| !present.contains(&new.id));
        if series.is_empty() {
            return Ok(());
        }
        let room = self.lock_statistic(connection, statistic, now).await?;
        // Another writer may have made some while this one waited for the lock.
        self.find_series(connection, &series, present).await?;
        let is_new = |new: &New<'_>| !present.contains(&new.id) && new.series.values().is_some();
        series.retain(is_new);
        series.sort_unstable_by(|a, b| b.requests.cmp(&a.requests).then(a.id.cmp(&b.id)));
        let is_short = series.len() > room;
        series.truncate(room);
        let added = series.len();
        let other = self.id(statistic, &Series::Other);
        if is_short || !present.contains(&other) {
            series.push(New { id: other, series: &Series::Other, requests: 0 });
        }
        let all = self.id(statistic, &Series::All);
        if !present.contains(&all) && !is_sum(statistic) {
            series.push(New { id: all, series: &Series::All, requests: 0 });
        }
        // The order in which rows are locked.
        series.sort_unstable_by_key(|new| new.id);
        self.insert_series(connection, statistic, &series).await?;
        present.extend(series.iter().map(|new| new.id));
        let sql = "UPDATE tidegate_statistics SET series = series + ? WHERE id = ?";
        let update = sqlx::query(self.dialect.sql(sql));
        update
            .bind(stored(added as u64))
            .bind(self.statistic(statistic))
            .execute(connection)
            .await?;
        Ok(())
    }

    /// Waits until no other writer makes series of the statistic, and returns how many there is room for.
    pub(super) async fn lock_statistic(
        &self,
        connection: &mut AnyConnection,
        label: &str,
        now: i64,
    ) -> sqlx::Result<usize> {
        let dialect = self.dialect;
        let id = self.statistic(label);
        let columns = "id, name, label, series, seen";
        let insert = dialect.insert_new("tidegate_statistics", columns, "(?,?,?,0,0)");
        let name = name(label).unwrap_or_else(|| label.to_owned());
        let insert = sqlx::query(dialect.sql(&insert)).bind(id).bind(name);
        insert.bind(label.as_bytes().to_vec()).execute(&mut *connection).await?;
        let sql = dialect.sql("UPDATE tidegate_statistics SET seen = ? WHERE id = ? AND seen < ?");
        sqlx::query(sql).bind(now).bind(id).bind(now).execute(&mut *connection).await?;
        let lock = dialect.for_update();
        let select = format!("SELECT series FROM tidegate_statistics WHERE id = ? {lock}");
        let select = sqlx::query(dialect.sql(&select)).bind(id);
        let series: i64 = select.fetch_one(connection).await?.try_get(0)?;
        let room = stored(self.settings.series_max).saturating_sub(series);
        Ok(usize::try_from(room).unwrap_or(0))
    }

    /// Adds to `present` those of the series that the database has.
    async fn find_series(
        &self,
        connection: &mut AnyConnection,
        series: &[New<'_>],
        present: &mut HashSet<i64>,
    ) -> sqlx::Result<()> {
        for chunk in chunks(series) {
            let parameters = rows(1, chunk.len());
            let sql = format!("SELECT id FROM tidegate_series WHERE id IN {parameters}");
            let mut select = sqlx::query(self.dialect.sql(&sql));
            for new in chunk {
                select = select.bind(new.id);
            }
            for row in select.fetch_all(&mut *connection).await? {
                present.insert(row.try_get(0)?);
            }
        }
        Ok(())
    }

    async fn insert_series(
        &self,
        connection: &mut AnyConnection,
        statistic: &str,
        series: &[New<'_>],
    ) -> sqlx::Result<()> {
        for chunk in chunks(series) {
            let columns = "id, statistic, kind, v1, v2, v3, v4";
            let insert = self.dialect.insert_new("tidegate_series", columns, &rows(chunk.len(), 7));
            let mut insert = sqlx::query(self.dialect.sql(&insert));
            for New { id, series, .. } in chunk {
                let values = series.values();
                let kind = match series {
                    Series::Values(_) => VALUES,
                    Series::Other => OTHER,
                    Series::All => ALL,
                };
                insert = insert.bind(*id).bind(self.statistic(statistic)).bind(kind);
                let values = values.unwrap_or_default();
                for index in 0..4 {
                    insert = insert.bind(values.get(index).map(|value| (*value).to_owned()));
                }
            }
            insert.execute(&mut *connection).await?;
        }
        Ok(())
    }

    /// Adds to the rows of minutes, and to wider ones where these are made already.
    async fn add_minutes(
        &self,
        connection: &mut AnyConnection,
        mark: Mark,
        mut points: Points,
    ) -> sqlx::Result<()> {
        self.add_counts(connection, Width::Minute, &points).await?;
        self.add_sketches(connection, Width::Minute, &points).await?;
        points.retain(|(series, minute), _| mark.has(*series, *minute));
        if points.is_empty() { Ok(()) } else { self.add_wider(connection, points).await }
    }

    /// Adds to rows of this width, which are locked by it.
    pub(super) async fn add_counts(
        &self,
        connection: &mut AnyConnection,
        width: Width,
        points: &Points,
    ) -> sqlx::Result<()> {
        let all: Vec<_> = points.iter().collect();
        for chunk in chunks(&all) {
            let sql = format!(
                "INSERT INTO tidegate_points (series, width, start, allowed, denied, hits) VALUES {} {}",
                rows(chunk.len(), 6),
                add_counts(self.dialect, "tidegate_points", "series, width, start")
            );
            let mut insert = sqlx::query(self.dialect.sql(&sql));
            for ((series, start), tally) in chunk {
                let counts = tally.counts;
                insert = insert.bind(*series).bind(width.seconds()).bind(*start);
                for count in [counts.allowed, counts.denied, counts.hits] {
                    insert = insert.bind(stored(count));
                }
            }
            connection.execute(insert).await?;
        }
        Ok(())
    }

    /// Merges sketches into rows of this width, which this transaction has locked.
    pub(super) async fn add_sketches(
        &self,
        connection: &mut AnyConnection,
        width: Width,
        points: &Points,
    ) -> sqlx::Result<()> {
        let sketches = points.iter().filter_map(|(key, tally)| Some((*key, tally.sketch.clone()?)));
        let all: Vec<((i64, i64), Sketch)> = sketches.collect();
        for chunk in chunks(&all) {
            let mut chunk: BTreeMap<(i64, i64), Sketch> = chunk.iter().cloned().collect();
            self.merge_stored(connection, width, &mut chunk).await?;
            let sql = format!(
                "INSERT INTO tidegate_points (series, width, start, allowed, denied, hits, sketch) \
                 VALUES {} {}",
                rows(chunk.len(), 7),
                replace_sketch(self.dialect)
            );
            let mut insert = sqlx::query(self.dialect.sql(&sql));
            for ((series, start), sketch) in &chunk {
                insert = insert.bind(*series).bind(width.seconds()).bind(*start);
                insert = insert.bind(0_i64).bind(0_i64).bind(0_i64).bind(sketch.encode());
            }
            insert.execute(&mut *connection).await?;
        }
        Ok(())
    }

    async fn merge_stored(
        &self,
        connection: &mut AnyConnection,
        width: Width,
        sketches: &mut BTreeMap<(i64, i64), Sketch>,
    ) -> sqlx::Result<()> {
        let keys = self.dialect.in_rows(&rows(sketches.len(), 3));
        let sql = format!(
            "SELECT series, start, sketch FROM tidegate_points \
             WHERE (series, width, start) IN {keys} AND sketch IS NOT NULL {}",
            self.dialect.for_update()
        );
        let mut select = sqlx::query(self.dialect.sql(&sql));
        for (series, start) in sketches.keys() {
            select = select.bind(*series).bind(width.seconds()).bind(*start);
        }
        for row in select.fetch_all(connection).await? {
            let key = (row.try_get(0)?, row.try_get(1)?);
            // A sketch that somebody else has changed is replaced.
            let stored = Sketch::decode(&row.try_get::<Vec<u8>, _>(2)?);
            if let (Some(sketch), Ok(stored)) = (sketches.get_mut(&key), stored) {
                sketch.merge(&stored);
            }
        }
        Ok(())
    }
}
