//! Thinning, beside a slow twin.

use super::scene::*;
use crate::database::{Database, Thinned, Thinner};
use crate::retention::{Calendar, Width};
use crate::series::Counts;
use crate::testing::{Databases, Server};
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

/// A number below another one, from a fixed seed.
fn random(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

/// The rows that a minute is in once everything is thinned.
fn places(database: &Database, minute: i64) -> Vec<(i64, i64)> {
    let (calendar, retention) = (&database.settings.calendar, &database.settings.retention);
    // The hour that is not over.
    let is_rolled = minute < calendar.floor(Width::Hour, NOW - 60);
    let widths = Width::ALL.into_iter().filter(|width| is_rolled || *width == Width::Minute);
    let place = widths.map(|width| (width, calendar.floor(width, minute)));
    let kept = place.filter(|(width, start)| *start >= retention.cutoff(*width, calendar, NOW));
    kept.map(|(width, start)| (width.seconds(), start)).collect()
}

pub(super) async fn thinning_keeps_every_count(server: &Server) {
    let mut settings = server.create("thinning").await;
    settings.calendar = Calendar::parse("Europe/Berlin").unwrap();
    let database = Database::open(settings).await.unwrap();
    // What is older comes late, and is written to all widths at once.
    roll_from(&database, NOW - 3 * DAY).await;
    // Minutes of 12 years, more of them the nearer they are.
    let mut state = 1;
    let mut next = |below| random(&mut state, below);
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
        for place in places(&database, minute) {
            expected.entry(place).or_default().add(of);
        }
    }
    for (sequence, points) in points.chunks(1_000).enumerate() {
        write(&database, part(1, sequence as u64), points).await;
    }
    let before = total(&database, "s").await;
    thin(&database, NOW).await;
    assert!(rows(&database).await == expected);
    let after = total(&database, "s").await;
    let lost =
        points.iter().filter(|point| places(&database, point.minute.cast_signed()).is_empty());
    let lost: Vec<i64> = lost.map(|point| point.minute.cast_signed()).collect();
    assert!(!lost.is_empty() && lost.iter().all(|minute| *minute < NOW - 3_600 * DAY));
    let mut kept = Counts::default();
    for point in points.iter().filter(|point| !lost.contains(&point.minute.cast_signed())) {
        kept.add(point.tally.counts);
    }
    assert_eq!(after.total, kept);
    // Of distinct values the oldest are lost, too, though there are thousands of them in other points.
    let (before, after) = (before.distinct.unwrap(), after.distinct.unwrap());
    assert!(before.abs_diff(after) <= before / 10, "{before} {after}");
    // What comes late is in the rows that are kept.
    let late = point("s", NOW - 40 * DAY, &["app-1"], counts(5, 5, 5));
    for place in places(&database, late.minute.cast_signed()) {
        expected.entry(place).or_default().add(counts(5, 5, 5));
    }
    write(&database, part(2, 1), &[late]).await;
    thin(&database, NOW).await;
    assert!(rows(&database).await == expected);
}

/// Whatever step the thinner has come to, and whatever is written between two of them.
pub(super) async fn answers_stay_right_while_minutes_are_rolled_up(server: &Server) {
    const APPS: u64 = 600;
    let database = server.database("rolling").await;
    roll_from(&database, NOW - 8 * 3_600).await;
    let mut state = 7;
    let mut sequence = 0;
    let mut expected = Counts::default();
    let mut of_one = Counts::default();
    let mut users = 0;
    let mut thinner = Thinner::new(7);
    for round in 0.. {
        let points = if round == 0 { 3_000 } else { 20 };
        let points: Vec<_> = (0..points)
            .map(|_| {
                let age = 1 + i64::try_from(random(&mut state, 8 * 3_600 - 1)).unwrap();
                let app = random(&mut state, APPS);
                let of = counts(random(&mut state, 5), 1, 2);
                expected.add(of);
                if app == 3 {
                    of_one.add(of);
                }
                users += 1;
                let point = point("s", NOW - age, &[&format!("app-{app}")], of);
                with_users(point, [users.to_string()])
            })
            .collect();
        sequence += 1;
        write(&database, part(1, sequence), &points).await;
        for step in ["1m", "5m", "15m", "1h", "6h", "1d"] {
            let statistic = statistic("s", &["app"], Some("user"));
            let answer = ask(&database, &statistic, &format!("last=9h&step={step}")).await;
            assert_eq!(answer.series[0].total, expected, "{step}, round {round}");
            let distinct = answer.series[0].distinct.unwrap();
            assert!(distinct.abs_diff(users) <= users / 50, "{distinct} of {users}");
            let parts = answer.series[0].points.iter().map(|point| point.counts);
            let mut sum = Counts::default();
            parts.for_each(|counts| sum.add(counts));
            assert_eq!(sum, expected, "{step}, round {round}");
            let answer =
                ask(&database, &statistic, &format!("app=app-3&last=9h&step={step}")).await;
            assert_eq!(answer.series[0].total, of_one, "{step}, round {round}");
        }
        match thinner.step(&database, NOW + 60).await {
            Ok(Thinned::All) => {
                // Two parts of the series in each of several rounds.
                assert!(round > 5, "{round}");
                break;
            }
            Ok(Thinned::Some(_)) => {}
            Ok(Thinned::Elsewhere) => panic!("another one thins"),
            Err(error) => println!("again: {error}"),
        }
    }
    let hours = rows(&database).await;
    let hours = hours.into_iter().filter(|((width, _), _)| *width == 3_600);
    let mut sum = Counts::default();
    hours.for_each(|(_, counts)| sum.add(counts));
    assert_eq!(sum, expected);
}

pub(super) async fn one_sidecar_thins(server: &Server) {
    let database = server.database("lease").await;
    roll_from(&database, NOW - 3_600).await;
    let point = point("s", NOW - 60, &["web"], counts(1, 0, 1));
    write(&database, part(1, 1), &[point]).await;
    let (mut one, mut two) = (Thinner::new(1), Thinner::new(u64::MAX));
    // A row of the series, and one of all, when their hour is over.
    assert_eq!(one.step(&database, NOW + 60).await.unwrap(), Thinned::Some(2));
    assert_eq!(two.step(&database, NOW + 120).await.unwrap(), Thinned::Elsewhere);
    assert_eq!(one.step(&database, NOW + 120).await.unwrap(), Thinned::Some(0));
    // The first one has gone.
    assert_eq!(two.step(&database, NOW + 360).await.unwrap(), Thinned::Some(0));
    assert_eq!(one.step(&database, NOW + 360).await.unwrap(), Thinned::Elsewhere);
}

pub(super) async fn writers_go_on_while_it_is_thinned(server: &Server) {
    let database = Arc::new(server.database("beside").await);
    roll_from(&database, NOW - 100 * 3_600).await;
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
