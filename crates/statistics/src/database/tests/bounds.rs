//! The bound of the series.

use super::scene::*;
use crate::database::{Database, Thinned, Thinner};
use crate::testing::{Databases, Server};

async fn bounded(server: &Server, name: &str, series_max: u64) -> Database {
    let mut settings = server.create(name).await;
    settings.series_max = series_max;
    Database::open(settings).await.unwrap()
}

async fn names(database: &Database) -> Vec<String> {
    let answer = ask(database, &statistic("s", &["app"], None), "last=1d&top=100").await;
    let mut names: Vec<_> = sums(&answer).into_iter().map(|(name, _)| name).collect();
    names.sort();
    names
}

pub(super) async fn series_beyond_the_bound_are_others(server: &Server) {
    let database = bounded(server, "others", 10).await;
    let of = |n: u64| point("s", NOW - 60, &[&format!("app-{n:02}")], counts(n, 1, 1));
    let points: Vec<_> = (0..8).map(of).collect();
    write(&database, part(1, 1), &points).await;
    // Room for two, who get it by their requests; those that are known keep their names.
    let points: Vec<_> = (0..20).map(of).collect();
    write(&database, part(1, 2), &points).await;
    let expected = [
        "(other)", "app-00", "app-01", "app-02", "app-03", "app-04", "app-05", "app-06", "app-07",
        "app-18", "app-19",
    ];
    assert_eq!(names(&database).await, expected);
    let all = total(&database, "s").await.total;
    assert_eq!(all, counts(28 + 190, 28, 28));
    // Another statistic has room of its own, and a client's value is not the others.
    let value = point("t", NOW - 60, &["(other)"], counts(1, 0, 1));
    write(&database, part(1, 3), &[value]).await;
    let answer = ask(&database, &statistic("t", &["app"], None), "last=1d&top=5").await;
    assert_eq!(answer.series[0].values, Some(vec!["(other)".to_owned()]));
}

pub(super) async fn the_least_used_make_room(server: &Server) {
    let database = bounded(server, "room", 20).await;
    let of = |n: u64| {
        let app = format!("app-{n:02}");
        let point = point("s", NOW - 60, &[&app], counts(n + 1, 0, 1));
        with_users(point, [app])
    };
    let points: Vec<_> = (0..20).map(of).collect();
    write(&database, part(1, 1), &points).await;
    let mut thinner = Thinner::new(1);
    while thinner.step(&database, NOW).await.unwrap() != Thinned::All {}
    let expected: Vec<_> =
        ["(other)".to_owned()].into_iter().chain((4..20).map(|n| format!("app-{n:02}"))).collect();
    assert_eq!(names(&database).await, expected);
    let all = total(&database, "s").await;
    assert_eq!((all.total, all.distinct), (counts(210, 0, 20), Some(20)));
    // There is room again, also for one that was folded.
    write(&database, part(1, 2), &[of(1), of(30)]).await;
    let names = names(&database).await;
    assert!(names.contains(&"app-01".to_owned()) && names.contains(&"app-30".to_owned()));
    assert_eq!(names.len(), 19);
}

/// A writer remembers which series there are. Without the generation, counts of a series that another sidecar had
/// removed would belong to no series.
pub(super) async fn a_series_that_was_removed_is_made_again(server: &Server) {
    let database = server.database("again").await;
    let another = Database::open(database.settings.clone()).await.unwrap();
    let ancient = point("s", NOW - 3_700 * DAY, &["web"], counts(1, 0, 1));
    write(&database, part(1, 1), &[ancient]).await;
    let mut thinner = Thinner::new(1);
    while thinner.step(&another, NOW).await.unwrap() != Thinned::All {}
    assert_eq!(total(&database, "s").await.total, counts(0, 0, 0));
    let recent = point("s", NOW - 60, &["web"], counts(2, 0, 2));
    write(&database, part(1, 2), &[recent]).await;
    assert_eq!(names(&database).await, ["web"]);
    assert_eq!(total(&database, "s").await.total, counts(2, 0, 2));
}
