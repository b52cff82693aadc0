//! The writer with databases that are there, away, locked and back.

use super::*;
use crate::aggregator::{Aggregator, Bounds};
use crate::query::Query;
use crate::testing::{Databases, Kind, Server, until};
use sqlx::{AnyConnection, Connection, Executor};
use tidegate_limits::Statistic;

const NOW: i64 = 1_795_600_800;
/// Many times what anything here takes.
const LONG: Duration = Duration::from_secs(120);

fn batch(app: &str) -> Batch {
    let aggregator = Aggregator::new(Bounds::default());
    aggregator.record("s", &[app], Some("u"), Counts { allowed: 1, denied: 2, hits: 3 });
    aggregator.take((NOW - 60).cast_unsigned())
}

fn writer(settings: &Settings) -> Writer {
    Writer::start_with(settings.clone(), BACKLOG_BYTES_MAX, || NOW).unwrap()
}

/// The requests that were allowed, as the database has them.
async fn allowed(database: &Database) -> u64 {
    let (name, domain) = ("s".to_owned(), "shop".into());
    let statistic = Statistic { name, domain, by: vec!["app".to_owned()], distinct: None };
    let mut query = Query::parse(&statistic, [("last", "1d")], NOW).unwrap();
    query.label = "s".to_owned();
    let answer = database.answer(&query, NOW).await.unwrap();
    answer.series.first().map_or(0, |series| series.total.allowed)
}

async fn within(condition: impl AsyncFn() -> bool) {
    assert!(timeout(LONG, until(condition)).await.is_ok(), "not in time");
}

#[tokio::test]
async fn what_is_added_is_written() {
    let server = Server::start(Kind::Sqlite).await.unwrap();
    let settings = server.create("written").await;
    let writer = writer(&settings);
    for app in 0..50 {
        writer.add(batch(&app.to_string()));
    }
    let counts = writer.finish(LONG).await;
    assert!(counts.is_up && counts.parts_written >= 1, "{counts:?}");
    assert_eq!((counts.failed, counts.dropped, counts.backlog_bytes), (0, Counts::default(), 0));
    assert_eq!(allowed(&Database::open(settings).await.unwrap()).await, 50);
}

#[tokio::test]
async fn wrong_settings_are_refused_at_the_start() {
    assert!(Writer::start(Settings::new("redis://x"), 1).is_err());
    let mut settings = Settings::new("sqlite://x");
    settings.retention.days = 0;
    let error = Writer::start(settings, 1).unwrap_err().to_string();
    assert!(error.contains("retention"), "{error}");
}

#[tokio::test]
async fn a_database_that_is_missing_at_the_start_gets_all_later() {
    let server = Server::start(Kind::Sqlite).await.unwrap();
    let settings = server.create("later/statistics.db").await;
    let writer = writer(&settings);
    writer.add(batch("web"));
    within(async || writer.counts().failed >= 2).await;
    writer.add(batch("ios"));
    let counts = writer.counts();
    assert!(!counts.is_up && counts.backlog_bytes > 0, "{counts:?}");
    assert!(writer.database().borrow().is_none());
    let file = settings.url.strip_prefix("sqlite://").unwrap();
    std::fs::create_dir(file.rsplit_once('/').unwrap().0).unwrap();
    let counts = writer.finish(LONG).await;
    assert_eq!((counts.backlog_bytes, counts.dropped), (0, Counts::default()));
    assert_eq!(allowed(&Database::open(settings).await.unwrap()).await, 2);
}

/// Another process holds the file for longer than a statement waits.
#[tokio::test]
async fn a_locked_file_delays_nobody_and_gets_all_later() {
    let server = Server::start(Kind::Sqlite).await.unwrap();
    let settings = server.create("locked").await;
    let writer = writer(&settings);
    within(async || writer.database().borrow().is_some()).await;
    let mut other = AnyConnection::connect(&settings.url).await.unwrap();
    other.execute("BEGIN IMMEDIATE").await.unwrap();
    for _ in 0..1_000 {
        writer.add(batch("web"));
    }
    within(async || writer.counts().failed >= 1).await;
    other.execute("COMMIT").await.unwrap();
    writer.add(batch("web"));
    let counts = writer.finish(LONG).await;
    assert_eq!((counts.backlog_bytes, counts.dropped), (0, Counts::default()));
    assert_eq!(allowed(&Database::open(settings).await.unwrap()).await, 1_001);
}

#[tokio::test]
async fn what_has_no_room_is_counted() {
    let server = Server::start(Kind::Sqlite).await.unwrap();
    let settings = server.create("none/statistics.db").await;
    let writer = Writer::start_with(settings, 20_000, || NOW).unwrap();
    for app in 0..500 {
        writer.add(batch(&app.to_string()));
    }
    let counts = writer.finish(Duration::ZERO).await;
    assert!(counts.backlog_bytes <= 20_000, "{counts:?}");
    assert!(counts.dropped.allowed >= 100 && counts.dropped.allowed <= 500, "{counts:?}");
}

/// The server is killed while batches come, and started again.
async fn outage(kind: Kind) {
    let Some(mut server) = Server::start(kind).await else { return };
    let settings = server.create("outage").await;
    let writer = writer(&settings);
    writer.add(batch("web"));
    within(async || writer.counts().parts_written == 1).await;
    for round in 1..=3 {
        server.kill();
        let failed = writer.counts().failed;
        for _ in 0..10 {
            writer.add(batch("web"));
        }
        within(async || writer.counts().failed > failed + 1).await;
        assert!(!writer.counts().is_up);
        server.restart().await;
        within(async || writer.counts().is_up && writer.counts().backlog_bytes == 0).await;
        let database = writer.database().borrow().clone().unwrap();
        assert_eq!(allowed(&database).await, 1 + round * 10);
    }
    assert_eq!(writer.finish(LONG).await.dropped, Counts::default());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_that_was_away_gets_all() {
    outage(Kind::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_that_was_away_gets_all() {
    outage(Kind::Mariadb).await;
}
