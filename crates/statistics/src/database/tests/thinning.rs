//! Thinning, beside a slow twin.

use super::scene::*;
use crate::database::{Database, Thinned, Thinner};
use crate::retention::{Calendar, Width};
use crate::series::Counts;
use crate::testing::Server;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Until all is thinned.
async fn thin(database: &Database, now: i64) {
    let mut thinner = Thinner::new(7);
    loop {
        match thinner.step(database, now).await {
            Ok(Thinned::All) => return,
            Ok(Thinned::Some(_)) => {}
            Ok(Thinned::Elsewhere) => panic!("another one thins"),
            Err(error) => println!("again: {error}"),
        }
    }
}

/// Where a minute is once it is thinned; none if it is too old.
fn place(database: &Database, minute: i64, now: i64) -> Option<(i64, i64)> {
    let (calendar, retention) = (&database.settings.calendar, &database.settings.retention);
    let (mut width, mut start) = (Width::Minute, minute);
    while start < retention.cutoff(width, calendar, now) {
        width = width.wider()?;
        start = calendar.floor(width, start);
    }
    Some((width.seconds(), start))
}

pub(super) async fn thinning_keeps_every_count(server: &Server) {
    let mut settings = server.create("thinning").await;
    settings.calendar = Calendar::parse("Europe/Berlin").unwrap();
    let database = Database::open(settings).await.unwrap();
    // Minutes of 12 years, more of them the nearer they are, from a fixed seed.
    let mut random = 1_u64;
    let mut next = |below: u64| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let mut expected: BTreeMap<(i64, i64), Counts> = BTreeMap::new();
    let mut points = Vec::new();
    for _ in 0..6_000 {
        let days = [1, 2, 40, 400, 4_400][usize::try_from(next(5)).unwrap()];
        let age = i64::try_from(next(days * 86_400)).unwrap();
        let minute = (NOW - age) / 60 * 60;
        let of = counts(next(5), next(3), next(9));
        let app = format!("app-{}", next(20));
        let point = point("s", minute, &[&app], of);
        points.push(with_users(point, [format!("{}", next(3_000))]));
        if let Some(place) = place(&database, minute, NOW) {
            expected.entry(place).or_default().add(of);
        }
    }
    for (sequence, points) in points.chunks(1_000).enumerate() {
        write(&database, part(1, sequence as u64), points).await;
    }
    let before = total(&database, "s").await;
    thin(&database, NOW).await;
    assert_eq!(rows(&database).await, expected);
    let after = total(&database, "s").await;
    let lost: Vec<i64> = points
        .iter()
        .map(|point| point.minute.cast_signed())
        .filter(|minute| place(&database, *minute, NOW).is_none())
        .collect();
    assert!(!lost.is_empty() && lost.iter().all(|minute| *minute < NOW - 3_600 * DAY));
    let mut kept = Counts::default();
    expected.values().for_each(|counts| kept.add(*counts));
    assert_eq!(after.total, kept);
    // Of distinct values the oldest are lost, too, though there are thousands of them in other points.
    let (before, after) = (before.distinct.unwrap(), after.distinct.unwrap());
    assert!(before.abs_diff(after) <= before / 10, "{before} {after}");
    // What comes late is thinned like the rest, and what is thinned stays.
    let late = point("s", NOW - 40 * DAY, &["app-1"], counts(5, 5, 5));
    let at = place(&database, late.minute.cast_signed(), NOW).unwrap();
    write(&database, part(2, 1), &[late]).await;
    thin(&database, NOW).await;
    expected.entry(at).or_default().add(counts(5, 5, 5));
    assert_eq!(rows(&database).await, expected);
}

pub(super) async fn one_sidecar_thins(server: &Server) {
    let database = server.database("lease").await;
    let old = point("s", NOW - 3 * DAY, &["web"], counts(1, 0, 1));
    write(&database, part(1, 1), &[old]).await;
    let (mut one, mut two) = (Thinner::new(1), Thinner::new(u64::MAX));
    // A row of the series, and one of all.
    assert_eq!(one.step(&database, NOW).await.unwrap(), Thinned::Some(2));
    assert_eq!(two.step(&database, NOW + 60).await.unwrap(), Thinned::Elsewhere);
    assert_eq!(one.step(&database, NOW + 60).await.unwrap(), Thinned::Some(0));
    // The first one has gone.
    assert_eq!(two.step(&database, NOW + 300).await.unwrap(), Thinned::Some(0));
    assert_eq!(one.step(&database, NOW + 300).await.unwrap(), Thinned::Elsewhere);
}

pub(super) async fn writers_go_on_while_it_is_thinned(server: &Server) {
    let database = Arc::new(server.database("beside").await);
    let writing = {
        let database = database.clone();
        tokio::spawn(async move {
            for sequence in 0..40 {
                let points: Vec<_> = (0..30)
                    .map(|n| {
                        point("s", NOW - n * 3_600 * 5, &[&(n % 7).to_string()], counts(1, 1, 1))
                    })
                    .collect();
                write(&database, part(1, sequence), &points).await;
            }
        })
    };
    while !writing.is_finished() {
        thin(&database, NOW).await;
    }
    writing.await.unwrap();
    thin(&database, NOW).await;
    assert_eq!(total(&database, "s").await.total, counts(1_200, 1_200, 1_200));
}
