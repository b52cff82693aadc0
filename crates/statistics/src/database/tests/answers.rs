//! Questions to real databases.

use super::scene::*;
use crate::aggregator::{Aggregator, Bounds};
use crate::database::{Database, Thinned, Thinner};
use crate::label::label;
use crate::testing::{Databases, Server};
use tidegate_limits::Statistic;

pub(super) async fn the_largest_series_come_first(server: &Server) {
    let database = server.database("largest").await;
    let mut points = Vec::new();
    for n in 0..30_u64 {
        let app = format!("app-{n:02}");
        points.push(point("s", NOW - 120, &[&app], counts(n, 30 - n, 5 * (n % 3))));
        points.push(point("s", NOW - 3_600, &[&app], counts(n, 0, 0)));
        points.push(point("s", NOW - 3 * DAY, &[&app], counts(1_000, 0, 0)));
    }
    write(&database, part(1, 1), &points).await;
    let statistic = statistic("s", &["app"], None);
    let answer = ask(&database, &statistic, "last=1d&top=3").await;
    let top: Vec<_> = sums(&answer);
    let expected = |n: u64| (format!("app-{n}"), counts(2 * n, 30 - n, 5 * (n % 3)));
    assert_eq!(top, [expected(29), expected(28), expected(27)]);
    assert!(answer.has_more);
    let answer = ask(&database, &statistic, "last=1d&top=2&order=denied").await;
    assert_eq!(sums(&answer)[0].0, "app-00");
    // Equal ones by their names.
    let answer = ask(&database, &statistic, "last=1d&top=2&order=hits").await;
    assert_eq!(
        sums(&answer).into_iter().map(|(name, _)| name).collect::<Vec<_>>(),
        ["app-02", "app-05"]
    );
    let answer = ask(&database, &statistic, "last=1d&top=100").await;
    assert_eq!((answer.series.len(), answer.has_more), (30, false));
    let none = ask(&database, &statistic, "app=none&last=1d").await;
    assert!(none.series.is_empty());
}

/// More series than are added up for an answer: the largest come from the leaders, and their counts from the points.
pub(super) async fn the_largest_of_many_series_come_first(server: &Server) {
    let database = server.database("crowd").await;
    let statistic = statistic("s", &["app", "path"], None);
    // 2,000 apps; of those the 20 last ones are ever larger, and the first ones are denied most.
    let hours = 5_u64;
    // Of the second path there are more than are added up, too.
    let path = |n: u64| if n.is_multiple_of(4) { "/0" } else { "/1" };
    for hour in 0..hours {
        let points: Vec<_> = (0..2_000_u64)
            .map(|n| {
                let (large, denied) = (n.saturating_sub(1_979) * 10, 20_u64.saturating_sub(n));
                let at = NOW - i64::try_from(hour).unwrap() * 3_600 - 60;
                point("s", at, &[&format!("app-{n:04}"), path(n)], counts(1 + large, denied, n % 3))
            })
            .collect();
        // In parts, each with large ones and small ones.
        for (index, part_of) in points.chunks(700).enumerate() {
            write(&database, part(hour, index as u64), part_of).await;
        }
    }
    let answer = ask(&database, &statistic, "by=app&top=3&last=6h").await;
    let large = |n: u64| {
        let of = counts(hours * (1 + (n - 1_979) * 10), 0, hours * (n % 3));
        (format!("app-{n}"), of)
    };
    assert_eq!(sums(&answer), [large(1_999), large(1_998), large(1_997)]);
    assert!(answer.has_more);
    // By two keys, by denials, over days and years of the same counts.
    for range in ["last=6h", "last=20d", "last=300d"] {
        let answer = ask(&database, &statistic, &format!("top=2&order=denied&{range}")).await;
        let denied = |n: u64| {
            let name = format!("app-{n:04}|{}", path(n));
            (name, counts(hours, hours * (20 - n), hours * (n % 3)))
        };
        assert_eq!(sums(&answer), [denied(0), denied(1)], "{range}");
    }
    // The leaders of a path with most of the apps are among those of all.
    for range in ["last=6h", "last=20d", "last=300d"] {
        let question = format!("path=/1&by=app&top=4&{range}");
        let answer = ask(&database, &statistic, &question).await;
        assert_eq!(sums(&answer), [1_999, 1_998, 1_997, 1_995].map(large), "{range}");
        assert!(answer.has_more, "{range}");
    }
    // Groups of two paths are fewer than leaders can tell apart, so all series are added up.
    let answer = ask(&database, &statistic, "by=path&last=6h&order=hits").await;
    let found: Vec<_> = sums(&answer).into_iter().map(|(path, of)| (path, of.hits)).collect();
    let hits = |of: &str| (0..2_000).filter(|n| path(*n) == of).map(|n| n % 3).sum::<u64>() * hours;
    assert_eq!(found, ["/1", "/0"].map(|path| (path.to_owned(), hits(path))));
}

/// What is far behind is no leader for long, and what ended long ago has none for each hour.
pub(super) async fn leaders_are_few(server: &Server) {
    let database = server.database("leaders").await;
    for sequence in 0..100_u64 {
        let points: Vec<_> = (0..40)
            .map(|n| {
                let app = format!("app-{}", sequence * 40 + n);
                point("s", NOW - 7_200, &[&app], counts(1 + sequence, 0, 0))
            })
            .collect();
        write(&database, part(1, sequence), &points).await;
    }
    let ancient = point("s", NOW - 100 * DAY, &["app-0"], counts(1, 0, 0));
    write(&database, part(1, 100), &[ancient]).await;
    // 32 of each part, in an hour, a day and a week; and the week of long ago, whose hour and day nobody asks for.
    assert_eq!(leaders(&database).await, [3_201, 3_201, 3_201]);
    let mut thinner = Thinner::new(1);
    while thinner.step(&database, NOW).await.unwrap() != Thinned::All {}
    assert_eq!(leaders(&database).await, [300, 300, 301]);
    let answer = ask(&database, &statistic("s", &["app"], None), "top=1&last=3h").await;
    assert_eq!(sums(&answer)[0].1, counts(100, 0, 0));
}

async fn leaders(database: &Database) -> Vec<i64> {
    use sqlx::Row;
    let sql = "SELECT COUNT(*) FROM tidegate_leaders GROUP BY width ORDER BY width";
    let rows = sqlx::query(sql).fetch_all(&database.pool).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

pub(super) async fn filters_and_sums(server: &Server) {
    let database = server.database("filters").await;
    let mut points = Vec::new();
    for app in ["web", "ios"] {
        for path in ["/a", "/b", "/c"] {
            for minutes in [1, 2, 90] {
                points.push(point("s", NOW - minutes * 60, &[app, path], counts(1, 2, 3)));
            }
        }
    }
    write(&database, part(1, 1), &points).await;
    let statistic = statistic("s", &["app", "path"], None);
    let all = ask(&database, &statistic, "last=1d").await;
    assert_eq!(sums(&all), [(String::new(), counts(18, 36, 54))]);
    let web = ask(&database, &statistic, "app=web&last=1h&step=1m").await;
    assert_eq!(sums(&web), [(String::new(), counts(6, 12, 18))]);
    let points: Vec<_> = web.series[0].points.iter().map(|at| (at.start, at.counts)).collect();
    assert_eq!(points, [(NOW - 120, counts(3, 6, 9)), (NOW - 60, counts(3, 6, 9))]);
    let paths = ask(&database, &statistic, "by=path&last=1h").await;
    let each = counts(4, 8, 12);
    let expected = [("/a".to_owned(), each), ("/b".to_owned(), each), ("/c".to_owned(), each)];
    assert_eq!(sums(&paths), expected);
    let pairs = ask(&database, &statistic, "by=path,app&path=/b&last=1d&step=1d").await;
    let each = counts(3, 6, 9);
    assert_eq!(sums(&pairs), [("/b|ios".to_owned(), each), ("/b|web".to_owned(), each)]);
    assert_eq!(pairs.from, NOW - 10 * 3_600 - DAY);
    // What is before the range or after it does not count.
    let from = NOW - 90 * 60;
    let some = ask(&database, &statistic, &format!("from={from}&to={}&step=1m", NOW - 60)).await;
    assert_eq!(sums(&some), [(String::new(), counts(12, 24, 36))]);
}

pub(super) async fn distinct_values_merge_over_time_and_series(server: &Server) {
    let database = server.database("distinct").await;
    let statistic = statistic("s", &["app"], Some("user"));
    let mut sequence = 0;
    // 60 minutes, each with a thousand of 30,500 users, of whom half are those of the minute before.
    for minute in 0..60_i64 {
        let aggregator = Aggregator::new(Bounds::default());
        for user in minute * 500..minute * 500 + 1_000 {
            let app = if user % 2 == 0 { "web" } else { "ios" };
            aggregator.record("s", &[app], Some(&format!("user-{user}")), counts(1, 0, 1));
        }
        let batch = aggregator.take((NOW - (60 - minute) * 60 + 30).cast_unsigned());
        sequence += 1;
        write(&database, part(1, sequence), &points_of(batch)).await;
    }
    let near = |found: Option<u64>, expected: u64| {
        let found = found.unwrap();
        assert!(found.abs_diff(expected) * 50 <= expected, "{found} instead of {expected}");
    };
    let all = ask(&database, &statistic, "last=1h&step=1m").await;
    assert_eq!(all.series[0].total.allowed, 60_000);
    near(all.series[0].distinct, 30_500);
    assert_eq!(all.series[0].points.len(), 60);
    all.series[0].points.iter().for_each(|point| near(point.distinct, 1_000));
    let web = ask(&database, &statistic, "app=web&last=1h&step=1h").await;
    near(web.series[0].distinct, 15_250);
    let both = ask(&database, &statistic, "top=2&last=1h&step=15m").await;
    assert_eq!(both.series.len(), 2);
    near(both.series[0].points[1].distinct, 15 * 250 + 250);
}

/// Answers that nobody waits for keep their connections for a while.
pub(super) async fn busy_readers_delay_no_writer(server: &Server) {
    let database = server.database("busy").await;
    let mut readers = Vec::new();
    for _ in 0..super::super::READERS {
        readers.push(database.readers.acquire().await.unwrap());
    }
    let points = [point("s", NOW - 60, &["web"], counts(1, 0, 1))];
    for sequence in 0..3 {
        database.write(part(1, sequence), &points, NOW).await.unwrap();
    }
    drop(readers);
    assert_eq!(total(&database, "s").await.total, counts(3, 0, 3));
}

/// The sum of two thousand series has more sketches than an answer merges: the counts are there without them.
pub(super) async fn what_has_too_many_sketches_is_not_counted(server: &Server) {
    let database = server.database("many").await;
    let mut points = Vec::new();
    for minute in 1..12 {
        for app in 0..2_000 {
            let values = [&app.to_string(), "x"];
            let app = point("s", NOW - minute * 60, &values, counts(1, 0, 1));
            points.push(with_users(app, ["u".to_owned()]));
        }
    }
    for (sequence, points) in points.chunks(4_000).enumerate() {
        write(&database, part(1, sequence as u64), points).await;
    }
    let statistic = statistic("s", &["app", "kind"], Some("user"));
    let sum = ask(&database, &statistic, "by=kind&last=1h").await;
    assert_eq!((sum.series[0].total, sum.series[0].distinct), (counts(22_000, 0, 22_000), None));
    // The sum of all has sketches of its own.
    let all = ask(&database, &statistic, "last=1h").await;
    assert_eq!((all.series[0].total, all.series[0].distinct), (counts(22_000, 0, 22_000), Some(1)));
    let one = ask(&database, &statistic, "app=7&last=1h").await;
    assert_eq!((one.series[0].total, one.series[0].distinct), (counts(11, 0, 11), Some(1)));
    let top = ask(&database, &statistic, "top=100&last=1h").await;
    assert!(top.series.iter().all(|series| series.distinct == Some(1)));
}

pub(super) async fn hostile_values_come_back_as_they_were(server: &Server) {
    let database = server.database("hostile").await;
    let long = "é".repeat(128);
    let values = [
        "",
        " ",
        "a",
        "a ",
        "A",
        "á",
        "'; DROP TABLE tidegate_points; --",
        "\" ? $1 %s \\ \\'",
        "\u{1}\u{1b}[31m",
        "\u{feff}",
        "日本語",
        "😀",
        "null",
        "(other)",
        "\u{10ffff}",
        "x\ny",
        &long,
    ];
    let points: Vec<_> = values
        .iter()
        .zip(1_u64..)
        .map(|(value, n)| point("s", NOW - 60, &[value, value], counts(n, 0, n)))
        .collect();
    write(&database, part(1, 1), &points).await;
    let statistic = statistic("s", &["app", "user"], None);
    let answer = ask(&database, &statistic, "last=1d&top=100").await;
    assert_eq!(answer.series.len(), values.len());
    for (value, n) in values.iter().zip(1_u64..) {
        let named = Some(vec![(*value).to_owned(), (*value).to_owned()]);
        let series = answer.series.iter().find(|series| series.values == named);
        assert_eq!(series.map(|series| series.total), Some(counts(n, 0, n)), "{value:?}");
        let query = [("app", *value), ("last", "1d")];
        let mut query = crate::query::Query::parse(&statistic, query, NOW).unwrap();
        query.label.clone_from(&statistic.name);
        let found = database.answer(&query, NOW).await.unwrap();
        assert_eq!(sums(&found), [(String::new(), counts(n, 0, n))], "{value:?}");
        assert_eq!(found.series[0].points.len(), 1, "{value:?}");
    }
    // Too long, and with a zero: as the aggregator keeps them.
    let aggregator = Aggregator::new(Bounds::default());
    aggregator.record("t", &[&"x".repeat(10_000), "a\0b"], None, counts(1, 0, 1));
    write(&database, part(1, 2), &points_of(aggregator.take(NOW.cast_unsigned()))).await;
    let answer =
        ask(&database, &super::scene::statistic("t", &["app", "user"], None), "last=1d&top=1")
            .await;
    let expected = [format!("{}…", "x".repeat(253)), "a␀b".to_owned()];
    assert_eq!(answer.series[0].values.as_deref(), Some(&expected[..]));
}

pub(super) async fn the_database_knows_its_statistics(server: &Server) {
    let database = server.database("known").await;
    assert_eq!(database.statistics().await.unwrap(), []);
    let of = |by: &[&str]| Statistic { domain: "".into(), ..statistic("calls", by, Some("user")) };
    let (old, new) = (of(&["app"]), of(&["app", "path"]));
    for (sequence, statistic, value) in [(1, &new, "a"), (2, &old, "b"), (3, &new, "c")] {
        let point =
            point(&label(statistic), NOW - 60, &vec![value; statistic.by.len()], counts(1, 0, 1));
        let now = NOW + i64::try_from(sequence).unwrap();
        database.write(part(1, sequence), &[point], now).await.unwrap();
    }
    assert_eq!(database.statistics().await.unwrap(), [old.clone(), new.clone()]);
    // Each has series of its own.
    for (statistic, expected) in [(&old, 1), (&new, 2)] {
        let query = crate::query::Query::parse(statistic, [("top", "9")], NOW).unwrap();
        assert_eq!(database.answer(&query, NOW).await.unwrap().series.len(), expected);
    }
}
