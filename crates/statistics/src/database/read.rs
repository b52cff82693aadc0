//! Answers to queries.
//!
//! The database adds up, so an answer has as many rows as series and steps; only sketches are merged here. Rows of one width
//! count, the widest that are in one step each, and minutes that are not rolled up yet.

use super::dialect::{largest, sum};
use super::schema::{ALL, OTHER, VALUES};
use super::{Database, DatabaseError, leaders};
use crate::label::{label, labelled};
use crate::query::{Answer, AnswerPoint, AnswerSeries, Query, QueryError, Step};
use crate::retention::Width;
use crate::series::{Counts, Series};
use crate::sketch::{Sketch, Union};
use sqlx::any::{AnyArguments, AnyRow};
use sqlx::query::Query as Statement;
use sqlx::{Any, AnyConnection, Row};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::future::poll_fn;
use std::time::Duration;
use tidegate_limits::Statistic;
use tidegate_sql::{SqlError, rows as placeholders};

/// An answer takes so long at most.
const SECONDS_MAX: u64 = 10;
/// Sketches of one answer: 160 MB if all are full, though never in memory at once.
const SKETCHES_MAX: usize = 20_000;

/// The counts of a row of points or leaders.
const COUNTS: &str = "p.allowed, p.denied, p.hits";
/// As many series are added up and ordered. Of more, the leaders say which ones may be the largest.
const SERIES_FEW: i64 = 1_000;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AnswerError {
    #[error(transparent)]
    Query(#[from] QueryError),
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

/// The rows of a question, and what a statement binds for them.
#[derive(Clone, Copy)]
struct Selection<'q> {
    query: &'q Query,
    statistic: i64,
    from: i64,
    width: Width,
}

/// The values of a group: one for each key of `by`; none for all others.
type Group = Option<Vec<String>>;

impl Database {
    /// # Errors
    /// If the question has no answer of a bounded size, or the database none in time.
    pub async fn answer(&self, query: &Query, now: i64) -> Result<Answer, AnswerError> {
        let limit = Duration::from_secs(SECONDS_MAX);
        match tokio::time::timeout(limit, self.answer_unbounded(query, now)).await {
            Ok(answer) => answer,
            Err(_) => Err(DatabaseError::from(SqlError::Slow(limit)).into()),
        }
    }

    async fn answer_unbounded(&self, query: &Query, now: i64) -> Result<Answer, AnswerError> {
        let of_sums = query.of_sums();
        let query = of_sums.as_ref().unwrap_or(query);
        let calendar = &self.settings.calendar;
        let step = query.chosen_step(self.width_at(query.from, now).seconds())?;
        let from = query.start(step, calendar);
        let selection =
            Selection { query, statistic: self.statistic(&query.label), from, width: step.width() };
        let error = |error| DatabaseError::of(self.dialect, &error);
        let mut connection = self.readers.acquire().await.map_err(error)?;
        let mut groups = self.totals(&mut connection, &selection, now).await.map_err(error)?;
        let has_more = groups.len() > query.top;
        groups.truncate(query.top);
        let mut series = Vec::new();
        let mut room = SKETCHES_MAX;
        for (group, total) in groups {
            let points = self.points(&mut connection, &selection, &group, step);
            let mut points = points.await.map_err(error)?;
            let mut distinct = None;
            if query.distinct {
                let counted = self.distinct(&mut connection, &selection, &group, step, &mut room);
                if let Some((all, steps)) = counted.await.map_err(error)? {
                    distinct = Some(all);
                    for point in &mut points {
                        point.distinct = Some(steps.get(&point.start).copied().unwrap_or(0));
                    }
                }
            }
            series.push(AnswerSeries { values: group, total, distinct, points });
        }
        Ok(Answer {
            statistic: query.statistic.clone(),
            counts_distinct: query.distinct,
            by: query.by.iter().filter_map(|key| query.keys.get(*key).cloned()).collect(),
            from,
            to: query.to,
            step,
            series,
            has_more,
        })
    }

    /// The statistics that the database has, without their domains. Of several of one name the last one is that to which
    /// series were added last.
    ///
    /// # Errors
    /// If the database does not answer.
    pub async fn statistics(&self) -> Result<Vec<Statistic>, DatabaseError> {
        let sql = "SELECT label FROM tidegate_statistics ORDER BY name, seen LIMIT 10000";
        let rows = sqlx::query(sql).fetch_all(&self.readers).await;
        let rows = rows.map_err(|error| DatabaseError::of(self.dialect, &error))?;
        let labels = rows.iter().filter_map(|row| row.try_get::<Vec<u8>, _>(0).ok());
        Ok(labels.filter_map(|label| labelled(std::str::from_utf8(&label).ok()?)).collect())
    }

    /// The values of the series of a statistic, up to a number, without the others.
    ///
    /// # Errors
    /// If the database does not answer.
    pub async fn series(
        &self,
        statistic: &Statistic,
        most: u32,
    ) -> Result<Vec<Vec<String>>, DatabaseError> {
        let sql = format!(
            "SELECT v1, v2, v3, v4 FROM tidegate_series WHERE statistic = ? AND kind = {VALUES} LIMIT {most}"
        );
        let sql = self.dialect.sql(&sql);
        let rows =
            sqlx::query(sql).bind(self.statistic(&label(statistic))).fetch_all(&self.readers);
        let rows = rows.await.map_err(|error| DatabaseError::of(self.dialect, &error))?;
        let values = |row: &AnyRow| (0..statistic.by.len()).map(|index| text(row, index)).collect();
        let series: sqlx::Result<Vec<_>> = rows.iter().map(values).collect();
        series.map_err(|error| DatabaseError::of(self.dialect, &error))
    }

    /// The sums of each group, largest first; one more than the answer has.
    async fn totals(
        &self,
        connection: &mut AnyConnection,
        selection: &Selection<'_>,
        now: i64,
    ) -> sqlx::Result<Vec<(Group, Counts)>> {
        let query = selection.query;
        if !query.by.is_empty() && self.are_many(connection, selection).await? {
            let candidates = self.candidates(connection, selection, now).await?;
            // Of fewer nobody knows which others there are.
            if candidates.len() > query.top {
                let rows = Rows::Points { among: &candidates };
                return self.largest(connection, selection, rows, query.top + 1).await;
            }
        }
        self.largest(connection, selection, Rows::Points { among: &[] }, query.top + 1).await
    }

    /// Whether so many series match that adding up all of them would take long.
    async fn are_many(
        &self,
        connection: &mut AnyConnection,
        selection: &Selection<'_>,
    ) -> sqlx::Result<bool> {
        let filters = &selection.query.filters;
        let filters: String =
            filters.iter().map(|(key, _)| format!(" AND s.v{} = ?", key + 1)).collect();
        let sql = format!(
            "SELECT COUNT(*) FROM (SELECT 1 AS one FROM tidegate_series s WHERE s.statistic = ?{filters} LIMIT {}) AS matching",
            SERIES_FEW + 1
        );
        let mut statement = sqlx::query(self.dialect.sql(&sql)).bind(selection.statistic);
        for (_, value) in &selection.query.filters {
            statement = statement.bind(value.clone());
        }
        let count: i64 = statement.fetch_one(connection).await?.try_get(0)?;
        Ok(count > SERIES_FEW)
    }

    /// The groups of leaders that may be the largest: more than the answer has, as their sums are about right.
    async fn candidates(
        &self,
        connection: &mut AnyConnection,
        selection: &Selection<'_>,
        now: i64,
    ) -> sqlx::Result<Vec<Vec<String>>> {
        let width = leaders::width(selection.from, now);
        let from = self.settings.calendar.floor(width, selection.from);
        let selection = Selection { from, ..*selection };
        let top = selection.query.top;
        let most = top + top.max(10);
        let rows = Rows::Leaders(width, most);
        let groups = self.largest(connection, &selection, rows, most).await?;
        Ok(groups.into_iter().filter_map(|(group, _)| group).collect())
    }

    async fn largest(
        &self,
        connection: &mut AnyConnection,
        selection: &Selection<'_>,
        rows: Rows<'_>,
        most: usize,
    ) -> sqlx::Result<Vec<(Group, Counts)>> {
        let query = selection.query;
        let columns: Vec<String> = query.by.iter().map(|key| format!("v{}", key + 1)).collect();
        // Without groups the others count like all.
        let kind = if columns.is_empty() { "0" } else { "kind" };
        let mut by = columns.clone();
        if !columns.is_empty() {
            by.push(kind.to_owned());
        }
        let grouped =
            if by.is_empty() { String::new() } else { format!("GROUP BY {}", by.join(", ")) };
        // Equal ones by name, so that an answer is always the same.
        let order = format!("SUM({}) DESC", query.order.column(""));
        let order = [order].into_iter().chain(columns.iter().cloned());
        let order = if by.is_empty() {
            String::new()
        } else {
            format!("ORDER BY {}", order.collect::<Vec<_>>().join(", "))
        };
        let sums = self.sums();
        let names: String = columns.iter().map(|column| format!("{column}, ")).collect();
        let values: String = columns.iter().map(|column| format!("s.{column}, ")).collect();
        let from = self.matching(selection, rows, None, &format!("s.kind, {values}{COUNTS}"), "");
        let sql = format!(
            "SELECT {sums}, CAST({kind} AS {}), {names}1 {from} {grouped} HAVING COUNT(*) > 0 {order} LIMIT {most}",
            self.integer(),
        );
        let statement = self.statement(&sql, selection, rows, None);
        let mut groups = Vec::new();
        for row in statement.fetch_all(connection).await? {
            let Some(counts) = counts(&row)? else { continue };
            let kind: i64 = row.try_get(3)?;
            let values = (0..columns.len()).map(|index| text(&row, 4 + index));
            let values = values.collect::<sqlx::Result<Vec<_>>>()?;
            groups.push(((kind == VALUES).then_some(values), counts));
        }
        Ok(groups)
    }

    async fn points(
        &self,
        connection: &mut AnyConnection,
        selection: &Selection<'_>,
        group: &Group,
        step: Step,
    ) -> sqlx::Result<Vec<AnswerPoint>> {
        let rows = Rows::Points { among: &[] };
        let (sums, from) = (
            self.sums(),
            self.matching(selection, rows, Some(group), &format!("p.start, {COUNTS}"), ""),
        );
        let sql = format!("SELECT {sums}, start {from} GROUP BY start ORDER BY start");
        let statement = self.statement(&sql, selection, rows, Some(group));
        let mut points: BTreeMap<i64, Counts> = BTreeMap::new();
        for row in statement.fetch_all(connection).await? {
            let start = step.floor(&self.settings.calendar, row.try_get(3)?);
            points.entry(start).or_default().add(counts(&row)?.unwrap_or_default());
        }
        let point = |(start, counts)| AnswerPoint { start, counts, distinct: None };
        Ok(points.into_iter().map(point).collect())
    }

    /// The distinct values of all, after those of each step; none if there are more than `room` sketches.
    async fn distinct(
        &self,
        connection: &mut AnyConnection,
        selection: &Selection<'_>,
        group: &Group,
        step: Step,
        room: &mut usize,
    ) -> sqlx::Result<Option<(u64, BTreeMap<i64, u64>)>> {
        let rows = Rows::Points { among: &[] };
        let from = |columns| {
            self.matching(selection, rows, Some(group), columns, "AND p.sketch IS NOT NULL")
        };
        let sql = format!(
            "SELECT COUNT(*) FROM (SELECT 1 AS one {} LIMIT {}) AS all_points",
            from("p.start"),
            *room + 1
        );
        let statement = self.statement(&sql, selection, rows, Some(group));
        let count: i64 = statement.fetch_one(&mut *connection).await?.try_get(0)?;
        let Some(rest) = room.checked_sub(usize::try_from(count).unwrap_or(usize::MAX)) else {
            return Ok(None);
        };
        *room = rest;
        let mut all = Union::default();
        let mut steps: BTreeMap<i64, Union> = BTreeMap::new();
        // Mostly a step is one row, which needs no union.
        let mut first: BTreeMap<i64, Sketch> = BTreeMap::new();
        let sql = format!("SELECT start, sketch {}", from("p.start, p.sketch"));
        let statement = self.statement(&sql, selection, rows, Some(group));
        let mut found = statement.fetch(&mut *connection);
        // One after the other: all at once they may be 160 MB.
        while let Some(row) = poll_fn(|context| found.as_mut().poll_next(context)).await {
            let row = row?;
            if let Ok(sketch) = Sketch::decode(&row.try_get::<Vec<u8>, _>(1)?) {
                let start = step.floor(&self.settings.calendar, row.try_get(0)?);
                all.add(&sketch);
                match first.entry(start) {
                    Entry::Vacant(place) => drop(place.insert(sketch)),
                    Entry::Occupied(place) => {
                        let union = steps.entry(start).or_insert_with(|| {
                            let mut union = Union::default();
                            union.add(place.get());
                            union
                        });
                        union.add(&sketch);
                    }
                }
            }
        }
        let count = |(start, sketch): (i64, Sketch)| {
            (start, steps.get(&start).map_or_else(|| sketch.count(), Union::count))
        };
        Ok(Some((all.count(), first.into_iter().map(count).collect())))
    }

    /// The rows of a question as a table with these columns of series (`s`) and points (`p`), no more than needed. Values are
    /// bound by [`Database::statement`] in the same order. Points have to meet `and`.
    fn matching(
        &self,
        selection: &Selection<'_>,
        rows: Rows<'_>,
        group: Option<&Group>,
        columns: &str,
        and: &str,
    ) -> String {
        let query = selection.query;
        let conditions = if let Some(ids) = self.named(query, rows, group) {
            format!("s.id IN {}", placeholders(1, ids.len()))
        } else {
            let mut conditions = vec!["s.statistic = ?".to_owned()];
            conditions.push(match group {
                Some(None) => format!("s.kind = {OTHER}"),
                _ => format!("s.kind < {ALL}"),
            });
            conditions.extend(query.filters.iter().map(|(key, _)| format!("s.v{} = ?", key + 1)));
            if let Some(Some(values)) = group {
                let keys = query.by.iter().take(values.len());
                conditions.extend(keys.map(|key| format!("s.v{} = ?", key + 1)));
            }
            let among = rows.among();
            if !among.is_empty() {
                let keys: Vec<String> =
                    query.by.iter().map(|key| format!("s.v{}", key + 1)).collect();
                let values = match keys.len() {
                    1 => placeholders(1, among.len()),
                    keys => self.dialect.in_rows(&placeholders(among.len(), keys)),
                };
                conditions.push(format!("(({}) IN {values} OR s.kind = {OTHER})", keys.join(", ")));
            }
            conditions.join(" AND ")
        };
        if let Rows::Leaders(width, most) = rows {
            return self.leading(query, (width, most), columns, &conditions);
        }
        let of = |width: i64, from: &str, rest: &str| {
            format!(
                "SELECT {columns} FROM tidegate_series s JOIN tidegate_points p ON p.series = s.id WHERE {conditions} {and} \
                 AND p.width = {width} AND p.start >= {from} AND p.start < ? {rest}"
            )
        };
        if selection.width == Width::Minute {
            return format!("FROM ({}) AS points", of(60, "?", ""));
        }
        let number =
            |column, name| format!("(SELECT {column} FROM tidegate_meta WHERE name = '{name}')");
        let not_rolled = largest(self.dialect, "?", &number("until", "rolled"));
        // The mark of how far minutes are rolled up, in the same statement as the rows.
        let rest = format!(
            "AND (p.series > {} OR p.start >= {})",
            number("value", "rolled"),
            number("until", "rolling")
        );
        format!(
            "FROM ({} UNION ALL {}) AS points",
            of(selection.width.seconds(), "?", ""),
            of(60, &not_rolled, &rest)
        )
    }

    /// The leaders of a width as a table with these columns of series (`s`) and leaders (`p`).
    fn leading(
        &self,
        query: &Query,
        (width, most): (Width, usize),
        columns: &str,
        conditions: &str,
    ) -> String {
        let [allowed, denied, hits] =
            ["allowed", "denied", "hits"].map(|column| sum(self.dialect, column));
        // If each series is a group, only the largest are looked up.
        let largest = if query.is_by_series() {
            format!("ORDER BY SUM({}) DESC LIMIT {most}", query.order.column(""))
        } else {
            String::new()
        };
        // Series that match a filter are few, so they are found before leaders are added up. Without a filter no condition is
        // needed: a condition on the statistic would have SQLite scan all its series.
        let among = if query.filters.is_empty() {
            String::new()
        } else {
            format!("AND series IN (SELECT s.id FROM tidegate_series s WHERE {conditions})")
        };
        format!(
            "FROM (SELECT {columns} FROM (SELECT series, {allowed} AS allowed, {denied} AS denied, {hits} AS hits FROM tidegate_leaders \
             WHERE statistic = ? AND width = {} AND start >= ? AND start < ? {among} GROUP BY series {largest}) AS p \
             JOIN tidegate_series s ON s.id = p.series) AS leaders",
            width.seconds(),
        )
    }

    /// The statement of a question whose table is that of [`Database::matching`], with its values.
    fn statement(
        &self,
        sql: &str,
        selection: &Selection<'_>,
        rows: Rows<'_>,
        group: Option<&Group>,
    ) -> Statement<'static, Any, AnyArguments> {
        let mut statement = sqlx::query(self.dialect.sql(sql));
        let is_of_leaders = matches!(rows, Rows::Leaders(..));
        if is_of_leaders {
            statement =
                statement.bind(selection.statistic).bind(selection.from).bind(selection.query.to);
        }
        let ids = self.named(selection.query, rows, group);
        let parts = if is_of_leaders || selection.width == Width::Minute { 1 } else { 2 };
        for _ in 0..parts {
            if let Some(ids) = &ids {
                for id in ids {
                    statement = statement.bind(*id);
                }
            } else if !is_of_leaders || !selection.query.filters.is_empty() {
                statement = statement.bind(selection.statistic);
                let filters = selection.query.filters.iter().map(|(_, value)| value);
                let group = group.into_iter().flatten().flatten().take(selection.query.by.len());
                for value in filters.chain(group).chain(rows.among().iter().flatten()) {
                    statement = statement.bind(value.clone());
                }
            }
            if !is_of_leaders {
                statement = statement.bind(selection.from).bind(selection.query.to);
            }
        }
        statement
    }

    /// The identities of the series of a question, if it names all their values. What is asked of all is one series, too.
    fn named(&self, query: &Query, rows: Rows<'_>, group: Option<&Group>) -> Option<Vec<i64>> {
        let id = |series: &Series| self.id(&query.label, series);
        if query.by.is_empty() && query.filters.is_empty() {
            return Some(vec![id(&Series::All)]);
        }
        let others = query.filters.is_empty().then(|| id(&Series::Other));
        let of_values = |values: &[String]| {
            let mut all: Vec<Option<&str>> = vec![None; query.keys.len()];
            let filters = query.filters.iter().map(|(key, value)| (*key, value));
            for (key, value) in filters.chain(query.by.iter().copied().zip(values)) {
                *all.get_mut(key)? = Some(value);
            }
            let all: Option<Vec<&str>> = all.into_iter().collect();
            Some(id(&Series::new(&all?)))
        };
        match (group, rows) {
            (Some(None), _) => others.map(|id| vec![id]),
            (Some(Some(values)), _) => of_values(values).map(|id| vec![id]),
            (None, Rows::Leaders(..)) => None,
            (None, _) if query.by.is_empty() => of_values(&[]).map(|id| vec![id]),
            (None, Rows::Points { among: [] }) => None,
            (None, Rows::Points { among }) => {
                let ids: Option<Vec<i64>> = among.iter().map(|values| of_values(values)).collect();
                Some(ids?.into_iter().chain(others).collect())
            }
        }
    }

    fn sums(&self) -> String {
        ["allowed", "denied", "hits"].map(|column| sum(self.dialect, column)).join(", ")
    }

    fn integer(&self) -> &'static str {
        if self.dialect == super::Dialect::Mysql { "SIGNED" } else { "BIGINT" }
    }
}

/// The rows that make up an answer.
#[derive(Clone, Copy)]
enum Rows<'a> {
    /// Of these groups alone, and the others; of all, if none are named.
    Points { among: &'a [Vec<String>] },
    /// Of this width, and so many groups.
    Leaders(Width, usize),
}

impl<'a> Rows<'a> {
    fn among(self) -> &'a [Vec<String>] {
        match self {
            Rows::Points { among } => among,
            Rows::Leaders(..) => &[],
        }
    }
}

/// The sums of a row; none if there was nothing to add up.
fn counts(row: &AnyRow) -> sqlx::Result<Option<Counts>> {
    let mut counts = [0; 3];
    for (index, count) in counts.iter_mut().enumerate() {
        match row.try_get::<Option<i64>, _>(index)? {
            Some(sum) => *count = sum.max(0).cast_unsigned(),
            None => return Ok(None),
        }
    }
    let [allowed, denied, hits] = counts;
    Ok(Some(Counts { allowed, denied, hits }))
}

/// A value, which MySQL has as bytes.
fn text(row: &AnyRow, index: usize) -> sqlx::Result<String> {
    if let Ok(text) = row.try_get::<Option<String>, _>(index) {
        return Ok(text.unwrap_or_default());
    }
    let bytes: Option<Vec<u8>> = row.try_get(index)?;
    Ok(String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned())
}
