//! Sums by one key of a statistic of several.

use super::scene::*;
use crate::database::{Database, Thinned, Thinner};
use crate::label::label;
use crate::query::{Answer, Query};
use crate::series::Counts;
use crate::testing::{Databases, Server};
use std::collections::{BTreeMap, BTreeSet};
use tidegate_limits::Statistic;

const APPS: u64 = 12;
const PATHS: u64 = 5;

async fn asked(database: &Database, statistic: &Statistic, parameters: &str, now: i64) -> Answer {
    let pairs = parameters.split('&').filter_map(|pair| pair.split_once('='));
    let query = Query::parse(statistic, pairs, now).unwrap();
    database.answer(&query, now).await.unwrap()
}

/// What a slow twin adds up: the counts of a value, and its users.
#[derive(Debug, Default, Clone, PartialEq)]
struct Sum(Counts, BTreeSet<String>);

/// The counts and distinct users of each series of an answer.
fn found(answer: &Answer) -> BTreeMap<String, (Counts, u64)> {
    let names = sums(answer).into_iter().map(|(name, _)| name);
    let of = answer.series.iter().map(|series| (series.total, series.distinct.unwrap()));
    names.zip(of).collect()
}

/// More series than have room: they are others together, and yet each app and each path has its sums, before and after
/// points were thinned and series folded.
pub(super) async fn sums_of_a_value_are_those_of_all_its_series(server: &Server) {
    let mut settings = server.create("sums").await;
    settings.series_max = 30;
    let database = Database::open(settings).await.unwrap();
    let statistic =
        Statistic { domain: "".into(), ..statistic("calls", &["app", "path"], Some("user")) };
    let label = label(&statistic);
    let (mut apps, mut paths) = (BTreeMap::<String, Sum>::new(), BTreeMap::<String, Sum>::new());
    for minute in 0..10_u64 {
        let mut points = Vec::new();
        for n in 0..APPS * PATHS {
            let (app, path) = (format!("app-{:02}", n / PATHS), format!("/{}", n % PATHS));
            let user = format!("user-{}", (n + minute) % 7);
            let counts = counts(n + 1, minute, n % 3);
            for sum in [apps.entry(app.clone()), paths.entry(path.clone())] {
                let Sum(all, users) = sum.or_default();
                all.add(counts);
                users.insert(user.clone());
            }
            let at = NOW - 60 * i64::try_from(1 + minute).unwrap();
            points.push(with_users(point(&label, at, &[&app, &path], counts), [user]));
        }
        for (index, points) in points.chunks(25).enumerate() {
            write(&database, part(minute, index as u64), points).await;
        }
    }
    let expected = |sums: &BTreeMap<String, Sum>| -> BTreeMap<String, (Counts, u64)> {
        let of =
            |(name, Sum(all, users)): (&String, &Sum)| (name.clone(), (*all, users.len() as u64));
        sums.iter().map(of).collect()
    };
    let check = async |now: i64, last: &str| {
        let by_app = asked(&database, &statistic, &format!("by=app&top=100&{last}"), now).await;
        assert_eq!((found(&by_app), &by_app.by[..]), (expected(&apps), &["app".to_owned()][..]));
        let by_path = asked(&database, &statistic, &format!("by=path&top=100&{last}"), now).await;
        assert_eq!(found(&by_path), expected(&paths));
        let one = asked(&database, &statistic, &format!("path=/3&{last}"), now).await;
        let of_one = expected(&paths)["/3"];
        assert_eq!(found(&one).into_values().collect::<Vec<_>>(), [of_one]);
        // Without the sums, what had no room would be missing here.
        let pairs = asked(&database, &statistic, &format!("top=100&{last}"), now).await;
        assert!(found(&pairs).contains_key("(other)"), "{:?}", found(&pairs));
        let mut all = Counts::default();
        found(&pairs).into_values().for_each(|(counts, _)| all.add(counts));
        assert_eq!(all, asked(&database, &statistic, last, now).await.series[0].total);
    };
    check(NOW, "last=1h").await;
    let later = NOW + 40 * DAY;
    let mut thinner = Thinner::new(1);
    while thinner.step(&database, later).await.unwrap() != Thinned::All {}
    check(later, "last=60d").await;
    assert_eq!(database.statistics().await.unwrap(), [statistic]);
}
