//! What the scenarios share: points, questions and sums.

use crate::batch::{Batch, Point};
use crate::database::{Database, PartId};
use crate::query::{Answer, AnswerSeries, Query};
use crate::series::{Counts, Series, Tally};
use crate::sketch::Sketch;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidegate_limits::Statistic;

/// 25 November 2026, 10:00 UTC.
pub(super) const NOW: i64 = 1_795_600_800;
pub(super) const DAY: i64 = 86_400;

pub(super) fn counts(allowed: u64, denied: u64, hits: u64) -> Counts {
    Counts { allowed, denied, hits }
}

pub(super) fn statistic(name: &str, by: &[&str], distinct: Option<&str>) -> Statistic {
    Statistic {
        name: name.to_owned(),
        domain: "shop".into(),
        by: by.iter().map(|key| (*key).to_owned()).collect(),
        distinct: distinct.map(str::to_owned),
    }
}

pub(super) fn point(statistic: &str, at: i64, values: &[&str], counts: Counts) -> Point {
    let minute = at.max(0).cast_unsigned() / 60 * 60;
    let tally = Tally { counts, sketch: None };
    Point { statistic: Arc::from(statistic), minute, series: Series::new(values), tally }
}

pub(super) fn with_users(mut point: Point, users: impl IntoIterator<Item = String>) -> Point {
    let mut sketch = Sketch::default();
    users.into_iter().for_each(|user| sketch.add(&user));
    point.tally.sketch = Some(sketch);
    point
}

pub(super) fn part(writer: u64, sequence: u64) -> PartId {
    PartId { writer, sequence }
}

/// Writes a part, again after errors that pass, such as a deadlock.
pub(super) async fn write(database: &Database, id: PartId, points: &[Point]) {
    for _ in 0..100 {
        match database.write(id, points, NOW).await {
            Ok(_) => return,
            Err(error) if error.is_refusal() => panic!("{error}"),
            Err(error) => println!("again: {error}"),
        }
    }
    panic!("not written in 100 tries");
}

/// As if the tables had been made at this time: minutes from here on are rolled up later.
pub(super) async fn roll_from(database: &Database, at: i64) {
    let sql = "UPDATE tidegate_meta SET until = ? WHERE name IN ('rolled', 'rolling')";
    let update = sqlx::query(database.dialect.sql(sql)).bind(at / 3_600 * 3_600);
    update.execute(&database.pool).await.unwrap();
}

/// The answer to a question of parameters.
pub(super) async fn ask(database: &Database, statistic: &Statistic, parameters: &str) -> Answer {
    let pairs = parameters.split('&').filter_map(|pair| pair.split_once('='));
    let mut query = Query::parse(statistic, pairs, NOW).unwrap();
    // Points of these tests have the name alone as their label.
    query.label.clone_from(&statistic.name);
    database.answer(&query, NOW).await.unwrap()
}

/// The sum of everything, over all time.
pub(super) async fn total(database: &Database, name: &str) -> AnswerSeries {
    let statistic = statistic(name, &["app"], Some("user"));
    let to = NOW + DAY;
    let answer = ask(database, &statistic, &format!("from={}&to={to}", to - 15 * 366 * DAY)).await;
    let series = answer.series.into_iter().next();
    series.unwrap_or(AnswerSeries {
        values: None,
        total: Counts::default(),
        distinct: None,
        points: Vec::new(),
    })
}

/// Names and sums of the series of an answer.
pub(super) fn sums(answer: &Answer) -> Vec<(String, Counts)> {
    let name = |series: &AnswerSeries| {
        series.values.as_ref().map_or("(other)".to_owned(), |values| values.join("|"))
    };
    answer.series.iter().map(|series| (name(series), series.total)).collect()
}

/// All rows of the points, without those of all: the counts by width and start.
pub(super) async fn rows(database: &Database) -> BTreeMap<(i64, i64), Counts> {
    use sqlx::Row;
    let sql = "SELECT p.width, p.start, p.allowed, p.denied, p.hits FROM tidegate_points p \
               JOIN tidegate_series s ON s.id = p.series WHERE s.kind < 2";
    let mut rows: BTreeMap<(i64, i64), Counts> = BTreeMap::new();
    for row in sqlx::query(sql).fetch_all(&database.pool).await.unwrap() {
        let count = |index: usize| row.get::<i64, _>(index).cast_unsigned();
        rows.entry((row.get(0), row.get(1))).or_default().add(counts(count(2), count(3), count(4)));
    }
    rows
}

pub(super) fn points_of(batch: Batch) -> Vec<Point> {
    batch.into_parts(usize::MAX).into_iter().flatten().collect()
}
