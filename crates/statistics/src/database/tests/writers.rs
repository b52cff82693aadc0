//! Several writers, lost answers, and bounds of counts.

use super::scene::*;
use crate::database::Written;
use crate::testing::{Databases, Server};
use std::sync::Arc;

pub(super) async fn eight_writers_lose_and_double_nothing(server: &Server) {
    let database = Arc::new(server.database("eight").await);
    let writers = (0..8_u64).map(|writer| {
        let database = database.clone();
        tokio::spawn(async move {
            for sequence in 0..6 {
                // The same rows for all of them, in any order; and users of whom half are those of the next writer.
                let mut points: Vec<_> = (0..40)
                    .map(|n| {
                        point(
                            "s",
                            NOW - (n % 4 + 1) * 60,
                            &[&format!("app-{}", n / 4)],
                            counts(1, 2, 4),
                        )
                    })
                    .collect();
                let users = writer * 1_000..writer * 1_000 + 2_000;
                let app = point("s", NOW, &["users"], counts(0, 0, 0));
                points.push(with_users(app, users.map(|user| user.to_string())));
                if writer % 2 == 0 {
                    points.reverse();
                }
                write(&database, part(writer, sequence), &points).await;
                // The answer is lost, so it is sent again.
                write(&database, part(writer, sequence), &points).await;
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    let total = total(&database, "s").await;
    assert_eq!(total.total, counts(8 * 6 * 40, 8 * 6 * 80, 8 * 6 * 160));
    // What is kept of all is what is kept of each.
    let each = ask(&database, &statistic("s", &["app"], None), "by=app&top=100&last=1d").await;
    let mut sum = counts(0, 0, 0);
    each.series.iter().for_each(|series| sum.add(series.total));
    assert_eq!(sum, total.total);
    let users = total.distinct.unwrap();
    assert!(users.abs_diff(9_000) <= 180, "{users}");
    let app = ask(&database, &statistic("s", &["app"], None), "app=app-3&last=1d").await;
    assert_eq!(sums(&app), [(String::new(), counts(8 * 6 * 4, 8 * 6 * 8, 8 * 6 * 16))]);
}

pub(super) async fn a_part_counts_once_however_often_it_is_sent(server: &Server) {
    let database = server.database("once").await;
    let points = [point("s", NOW, &["web"], counts(3, 2, 7))];
    let id = part(u64::MAX, 7);
    assert_eq!(database.write(id, &points, NOW).await.unwrap(), Written::Now);
    for _ in 0..3 {
        assert_eq!(database.write(id, &points, NOW).await.unwrap(), Written::Before);
    }
    assert_eq!(total(&database, "s").await.total, counts(3, 2, 7));
    // Also by a writer that knows nothing of what was before.
    let again = super::super::Database::open(database.settings.clone()).await.unwrap();
    assert_eq!(again.write(id, &points, NOW).await.unwrap(), Written::Before);
    assert_eq!(again.write(part(u64::MAX, 8), &points, NOW).await.unwrap(), Written::Now);
    assert_eq!(total(&database, "s").await.total, counts(6, 4, 14));
}

pub(super) async fn counts_stop_at_their_bound(server: &Server) {
    let database = server.database("bound").await;
    let most = 1 << 53;
    let points = [point("s", NOW, &["web"], counts(u64::MAX, 1, most))];
    for sequence in 0..3 {
        write(&database, part(1, sequence), &points).await;
    }
    // All of a week are one row.
    assert_eq!(total(&database, "s").await.total, counts(most, 3, most));
    // Sums of many such rows do not fail either.
    let weeks: Vec<_> = (1..=1_040)
        .map(|n| point("s", NOW - n * 7 * DAY, &["web"], counts(u64::MAX, 1, 1)))
        .collect();
    write(&database, part(1, 3), &weeks).await;
    let range = format!("from={}&to={NOW}", NOW - 1_042 * 7 * DAY);
    let all = ask(&database, &statistic("s", &["app"], None), &range).await.series.remove(0).total;
    assert_eq!(all.denied, 3 + 1_040);
    // Beyond the bound a sum may be rounded.
    assert!(all.hits.abs_diff(most + 1_040) <= 1, "{}", all.hits);
    assert_eq!(all.allowed, 9_000_000_000_000_000_000);
}

pub(super) async fn a_sketch_that_was_damaged_is_replaced(server: &Server) {
    let database = server.database("damaged").await;
    let users = |from: u32| (from..from + 50).map(|user| user.to_string());
    let app = point("s", NOW - 60, &["web"], counts(1, 0, 1));
    write(&database, part(1, 1), &[with_users(app.clone(), users(0))]).await;
    let bytes = vec![0xff_u8; 100];
    let sql = database.dialect.sql("UPDATE tidegate_points SET sketch = ?");
    sqlx::query(sql).bind(bytes).execute(&database.pool).await.unwrap();
    assert_eq!(total(&database, "s").await.distinct, Some(0));
    write(&database, part(1, 2), &[with_users(app, users(50))]).await;
    let all = total(&database, "s").await;
    assert_eq!((all.total, all.distinct), (counts(2, 0, 2), Some(50)));
}
