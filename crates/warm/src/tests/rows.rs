//! Rows that come back, page by page, and how much memory they take.

use super::*;
use std::time::Instant;

#[tokio::test]
async fn narrow_and_wide_states_come_back() {
    let Some(server) = Server::start() else { return };
    let warm = warm(&server);
    let mut rows: Vec<Row> = (0..500).map(|number| row(number, number as u64)).collect();
    rows.extend((0..500).map(wide));
    rows[7].state = [0, 0, u64::MAX, 1 << 40].into_iter().collect();
    warm.put(&rows, NOW).await.unwrap();
    let mut asked = keys(&rows);
    asked.insert(3, key(9_999));
    let mut expected: Vec<Option<Row>> = rows.iter().cloned().map(Some).collect();
    expected.insert(3, None);
    assert_eq!(warm.fetch(&asked, NOW).await.unwrap(), expected);
    assert_eq!(warm.remove(&versions(&rows)).await.unwrap(), 1_000);
    assert_eq!(warm.fetch(&asked, NOW).await.unwrap(), vec![None; 1_001]);
    // Of the owner only what writers go by is left.
    assert_eq!(server.command(&[b"DBSIZE"]).await, "1");
}

#[tokio::test]
async fn a_newer_version_is_not_removed() {
    let Some(server) = Server::start() else { return };
    let warm = warm(&server);
    // An end before the move, too.
    let moved_at = [NOW, NOW + 100, NOW + 900];
    let rows: Vec<Row> = moved_at.map(|moved_at| Row { moved_at, ..row(1, 1) }).to_vec();
    for row in rows {
        warm.put(std::slice::from_ref(&row), NOW).await.unwrap();
        assert_eq!(warm.remove(&[(row.key, row.moved_at - 1)]).await.unwrap(), 0);
        assert_eq!(warm.fetch(&[row.key], NOW).await.unwrap(), [Some(row.clone())]);
        assert_eq!(warm.remove(&[(row.key, row.moved_at)]).await.unwrap(), 1);
    }
}

#[tokio::test]
async fn a_row_takes_the_place_of_an_older_or_newer_one() {
    let Some(server) = Server::start() else { return };
    let warm = warm(&server);
    // A clock that was set back does not make a counter lose what it counted since.
    for moved_at in [NOW, NOW + 5, NOW - 5] {
        let row = Row { moved_at, ..row(1, u64::from(moved_at)) };
        warm.put(std::slice::from_ref(&row), NOW).await.unwrap();
        assert_eq!(warm.fetch(&[row.key], NOW).await.unwrap(), [Some(row)]);
    }
}

#[tokio::test]
async fn what_has_expired_is_absent_and_goes() {
    let Some(server) = Server::start() else { return };
    let warm = warm(&server);
    let short: Vec<Row> =
        (0..200).map(|number| Row { expires_at: NOW + 10, ..row(number, 1) }).collect();
    let long: Vec<Row> = (200..400).map(|number| row(number, 1)).collect();
    warm.put(&[&short[..], &long].concat(), NOW).await.unwrap();
    let later = NOW + 10;
    assert_eq!(warm.fetch(&keys(&short), later).await.unwrap(), vec![None; 200]);
    assert_eq!(warm.size().await.unwrap().counters, 400);
    let mut expected = long.clone();
    expected.sort_by_key(|row| row.key);
    assert_eq!(all(&warm, later).await.0, expected);
    assert_eq!(warm.size().await.unwrap().counters, 200);
    // What has expired is not written.
    warm.put(&short, later).await.unwrap();
    assert_eq!(warm.size().await.unwrap().counters, 200);
    // A hash lives a minute longer than its longest entry, also after a write of a shorter one.
    let place = crate::layout::Bucket::of(&long[0].key, 6);
    let name = crate::layout::Layout::new("tidegate:", 1).key(place);
    let left: u32 = server.command(&[b"TTL", name.as_bytes()]).await.parse().unwrap();
    assert!((600..=660).contains(&left), "{left}");
}

#[tokio::test]
async fn a_full_bucket_loses_what_has_expired() {
    let Some(server) = Server::start() else { return };
    let settings = Settings { buckets_log2: 0, ..settings(&server, LONG) };
    let warm = Warm::open(&settings, 1).unwrap();
    let short = |number| Row { expires_at: NOW + 10, ..row(number, 1) };
    let rows: Vec<Row> = (0..100).map(short).collect();
    warm.put(&rows, NOW).await.unwrap();
    warm.put(&[row(1_000, 1)], NOW + 10).await.unwrap();
    assert_eq!(warm.size().await.unwrap().counters, 1);
}

#[tokio::test]
async fn owners_do_not_see_each_other() {
    let Some(server) = Server::start() else { return };
    let (one, other) = (warm(&server), Warm::open(&settings(&server, LONG), 2).unwrap());
    one.put(&[row(1, 1)], NOW).await.unwrap();
    other.put(&[row(1, 2), row(2, 2)], NOW).await.unwrap();
    one.remove(&[(key(2), u32::MAX)]).await.unwrap();
    assert_eq!(all(&one, NOW).await.0, [row(1, 1)]);
    assert_eq!(
        other.fetch(&[key(1), key(2)], NOW).await.unwrap(),
        [Some(row(1, 2)), Some(row(2, 2))]
    );
}

#[tokio::test]
async fn the_buckets_of_an_owner_stay_as_they_were() {
    let Some(server) = Server::start() else { return };
    let rows: Vec<Row> = (0..300).map(|number| row(number, 1)).collect();
    warm(&server).put(&rows, NOW).await.unwrap();
    let expected: Vec<Option<Row>> = rows.iter().cloned().map(Some).collect();
    let others = || {
        let settings = Settings { buckets_log2: 12, ..settings(&server, LONG) };
        Warm::open(&settings, 1).unwrap()
    };
    assert_eq!(others().fetch(&keys(&rows), NOW).await.unwrap(), expected);
    assert_eq!(all(&others(), NOW).await.0.len(), 300);
    assert_eq!(others().size().await.unwrap().counters, 300);
    others().put(&rows, NOW).await.unwrap();
    assert_eq!(others().size().await.unwrap().counters, 300);
    assert_eq!(others().remove(&versions(&rows)).await.unwrap(), 300);
}

#[tokio::test]
async fn empty_buckets_cost_no_round_trip_each() {
    let Some(server) = Server::start() else { return };
    let settings = Settings { buckets_log2: 12, ..settings(&server, LONG) };
    let warm = Warm::open(&settings, 1).unwrap();
    assert_eq!(all(&warm, NOW).await, (vec![], 8));
    let mut rows: Vec<Row> = (0..40_000).map(|number| row(number, 1)).collect();
    for rows in rows.chunks(1_000) {
        warm.put(rows, NOW).await.unwrap();
    }
    rows.sort_by_key(|row| row.key);
    let (found, pages) = all(&warm, NOW).await;
    assert!(found == rows && pages <= 16, "{pages}");
    let size = warm.size().await.unwrap();
    assert!(size.counters == 40_000 && size.bytes > 20 * 40_000, "{size:?}");
}

/// Rows of a fixed window of a day: a count, and when it began.
fn of_a_day(number: u128) -> Row {
    let state = [number as u64 % 1_000 + 1, 1_795_564_800].into_iter().collect();
    Row { state, expires_at: NOW + 86_400 - number as u32 % 3_600, ..row(number, 1) }
}

/// The memory of a counter, of so many in buckets for `planned`, and how long it takes to put one.
async fn put_all(warm: (&Server, u64), count: u64, make: impl Fn(u128) -> Row) -> (u64, Duration) {
    let (server, planned) = warm;
    let settings = Settings::new(settings(server, LONG).server, planned);
    let warm = Warm::open(&settings, u128::from(planned)).unwrap();
    let (before, start) = (server.used_memory().await, Instant::now());
    let numbers: Vec<u128> = (0..u128::from(count)).collect();
    for numbers in numbers.chunks(1_000) {
        let rows: Vec<Row> = numbers.iter().map(|number| make(*number)).collect();
        warm.put(&rows, NOW).await.unwrap();
    }
    ((server.used_memory().await - before) / count, start.elapsed() / count as u32)
}

/// Prints how much memory a counter takes beside a plain key for each counter, and how long operations take.
#[tokio::test]
async fn a_counter_takes_less_than_half_of_a_plain_key() {
    const COUNTERS: u64 = 500_000;
    let Some(server) = Server::start() else { return };
    let (ours, put) = put_all((&server, COUNTERS), COUNTERS, of_a_day).await;
    let settings = settings(&server, LONG).server;
    let warm = Settings::new(settings.clone(), COUNTERS);
    let warm = Warm::open(&warm, u128::from(COUNTERS)).unwrap();
    let mut times: Vec<Duration> = Vec::new();
    for number in 0..1_000 {
        let start = Instant::now();
        assert!(warm.fetch(&[key(number * 487)], NOW).await.unwrap()[0].is_some());
        times.push(start.elapsed());
    }
    times.sort();
    println!(
        "{ours} bytes for a warm counter, {put:?} to put one of 1,000; a fetch takes {:?}, {:?} at the 99th percentile",
        times[500], times[990]
    );
    for (planned, count) in [(400_000, 100_000), (100_000, 200_000)] {
        let (bytes, _) = put_all((&server, planned), count, of_a_day).await;
        println!("{bytes} bytes, with {count} of {planned} counters that were planned");
    }
    let (bytes, _) = put_all((&server, 20_000), 20_000, wide).await;
    println!("{bytes} bytes for a wide counter with a state of 264 bytes");
    let before = server.used_memory().await;
    let link = tidegate_remote::Links::new(&settings).unwrap().open().await.unwrap();
    let numbers: Vec<u64> = (0..COUNTERS).collect();
    for numbers in numbers.chunks(1_000) {
        let mut pipeline = redis::Pipeline::new();
        for number in numbers {
            let mut set = redis::cmd("SET");
            set.arg(format!("bench|user|{number}")).arg(number % 1_000 + 1).arg("EX").arg(86_400);
            pipeline.add_command(set);
        }
        let deadline = tokio::time::Instant::now() + LONG;
        link.ask(&pipeline, 1 << 20, deadline).await.unwrap();
    }
    let plain = (server.used_memory().await - before) / COUNTERS;
    println!("{plain} bytes for a plain key");
    assert!(2 * ours < plain, "{ours} {plain}");
}
