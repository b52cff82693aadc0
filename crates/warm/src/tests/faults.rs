//! Servers that stand still, forget or answer nonsense, and commands that are late.

use super::*;
use crate::WarmError;
use crate::layout::{Bucket, Layout};
use rustix::process::Signal;
use std::time::Instant;

const SHORT: Duration = Duration::from_millis(300);

/// Tries an operation until it succeeds.
async fn again<T>(operation: impl AsyncFn() -> Result<T, WarmError>) -> T {
    let start = Instant::now();
    loop {
        match operation().await {
            Ok(done) => return done,
            Err(error) => assert!(start.elapsed() < LONG, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_server_that_stands_still_is_an_error_in_time_and_late_writes_do_nothing() {
    let Some(server) = Server::start() else { return };
    let warm = Warm::open(&settings(&server, SHORT), 1).unwrap();
    again(async || warm.put(&[row(1, 1)], NOW).await).await;
    server.signal(Signal::STOP);
    let errors = async {
        // Both are in the server's memory now, and executed when it goes on.
        [
            warm.put(&[row(1, 2), row(2, 2)], NOW).await.unwrap_err(),
            warm.remove(&[(key(1), u32::MAX)]).await.unwrap_err(),
            warm.fetch(&[key(1)], NOW).await.unwrap_err(),
        ]
    };
    for error in tokio::time::timeout(Duration::from_secs(30), errors).await.expect("in time") {
        assert!(matches!(error, WarmError::Link(_)), "{error}");
    }
    server.signal(Signal::CONT);
    // A server reads all that has arrived before what arrives now. So the late ones are executed when this has an answer.
    again(async || warm.put(&[row(1, 3)], NOW).await).await;
    let found = again(async || warm.fetch(&[key(1)], NOW).await).await;
    assert_eq!(found, [Some(row(1, 3))]);
}

/// A command that arrives after a later operation, as by a network that delays it.
#[tokio::test]
async fn a_write_that_comes_after_a_later_one_does_nothing() {
    let Some(server) = Server::start() else { return };
    let (late, next) = (warm(&server), warm(&server));
    late.put(&[row(1, 1)], NOW).await.unwrap();
    let session = late.wire.session(late.deadline()).await.unwrap();
    let claim = session.claim().clone();
    next.put(&[row(1, 2)], NOW).await.unwrap();
    // The same command again, with the fence of before.
    let claim = claim.unwrap();
    let bucket = Bucket::of(&key(1), 6);
    let mut put = redis::cmd("EVALSHA");
    let layout = Layout::new("tidegate:", 1);
    put.arg(&claim.put).arg(2).arg(&layout.owner).arg(layout.key(bucket));
    put.arg(&claim.fence).arg(6).arg(NOW).arg(96).arg(1).arg(600).arg(bucket.field(&key(1)));
    let mut late_put = redis::Pipeline::new();
    late_put.add_command(put.arg("value").clone());
    assert_eq!(
        session.ask(&late_put, 1_024, late.deadline()).await.unwrap(),
        [redis::Value::Int(-1)]
    );
    assert_eq!(next.fetch(&[key(1)], NOW).await.unwrap(), [Some(row(1, 2))]);
    // An operation that begins now takes the fence again.
    late.put(&[row(1, 3)], NOW).await.unwrap();
    assert_eq!(next.fetch(&[key(1)], NOW).await.unwrap(), [Some(row(1, 3))]);
    assert_eq!(next.remove(&[(key(1), NOW)]).await.unwrap(), 1);
}

#[tokio::test]
async fn scripts_and_data_that_are_lost_are_made_again() {
    let Some(mut server) = Server::start() else { return };
    let warm = warm(&server);
    let rows: Vec<Row> = (0..500).map(|number| row(number, 1)).collect();
    warm.put(&rows, NOW).await.unwrap();
    server.command(&[b"SCRIPT", b"FLUSH"]).await;
    warm.put(&rows, NOW).await.unwrap();
    server.command(&[b"FLUSHALL"]).await;
    assert_eq!(warm.fetch(&keys(&rows), NOW).await.unwrap(), vec![None; 500]);
    warm.put(&rows, NOW).await.unwrap();
    assert_eq!(all(&warm, NOW).await.0.len(), 500);
    server.crash_and_restart();
    assert_eq!(again(async || warm.fetch(&keys(&rows), NOW).await).await, vec![None; 500]);
    again(async || warm.put(&rows, NOW).await).await;
    assert_eq!(warm.remove(&versions(&rows)).await.unwrap(), 500);
}

#[tokio::test]
async fn there_is_no_server_at_first() {
    let Some(mut server) = Server::start() else { return };
    server.signal(Signal::STOP);
    let warm = Warm::open(&settings(&server, SHORT), 1).unwrap();
    warm.fetch(&[key(1)], NOW).await.unwrap_err();
    server.signal(Signal::CONT);
    server.crash_and_restart();
    again(async || warm.put(&[row(1, 1)], NOW).await).await;
    warm.close();
    assert_eq!(warm.fetch(&[key(1)], NOW).await, Err(WarmError::Closed));
}

#[tokio::test]
async fn what_is_no_counter_is_an_error_and_stays() {
    let Some(server) = Server::start() else { return };
    let warm = warm(&server);
    warm.put(&[row(1, 1), row(2, 2)], NOW).await.unwrap();
    let bucket = Bucket::of(&key(1), 6);
    let (name, field) = (Layout::new("tidegate:", 1).key(bucket), bucket.field(&key(1)));
    let name = name.as_bytes();
    let (cut, words) = ([1, 2, 3], [0xff; 20]);
    for value in [&b""[..], &cut, &words] {
        server.command(&[b"HSET", name, &field, value]).await;
        let damaged = |error: WarmError| matches!(error, WarmError::Damaged { .. });
        assert!(damaged(warm.fetch(&[key(1)], NOW).await.unwrap_err()));
        assert!(damaged(warm.page(None, NOW).await.unwrap_err()));
        // The others are not touched by it.
        assert_eq!(warm.fetch(&[key(2)], NOW).await.unwrap(), [Some(row(2, 2))]);
    }
    let error = warm.remove(&[(key(1), u32::MAX)]).await.unwrap_err().to_string();
    assert!(error.contains("no counter") && error.contains("warm:"), "{error}");
    server.command(&[b"DEL", name]).await;
    server.command(&[b"HSET", name, b"short", b"value"]).await;
    warm.page(None, NOW).await.unwrap_err();
    // Longer than any value is.
    server.command(&[b"HSET", name, &field, &[7; 300_000]]).await;
    warm.fetch(&[key(1)], NOW).await.unwrap_err();
    server.command(&[b"DEL", name]).await;
    server.command(&[b"SET", name, b"text"]).await;
    let error = again_err(async || warm.fetch(&[key(1)], NOW).await).await;
    assert!(error.contains("WRONGTYPE"), "{error}");
    warm.put(&[row(1, 1)], NOW).await.unwrap_err();
    server.command(&[b"DEL", name]).await;
    again(async || warm.put(&[row(1, 1)], NOW).await).await;
    server
        .command(&[b"HSET", b"tidegate:warm:00000000000000000000000000000001", b"bits", b"99"])
        .await;
    assert!(warm.fetch(&[key(1)], NOW).await.unwrap_err().to_string().contains("no counter"));
}

/// The error of an operation once there is a connection again.
async fn again_err<T: std::fmt::Debug>(
    operation: impl AsyncFn() -> Result<T, WarmError>,
) -> String {
    loop {
        match operation().await.unwrap_err() {
            WarmError::Link(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            error => return error.to_string(),
        }
    }
}

#[tokio::test]
async fn a_server_that_may_evict_is_warned_of() {
    let Some(server) = Server::start() else { return };
    let warm = warm(&server);
    warm.fetch(&[key(1)], NOW).await.unwrap();
    assert_eq!(warm.warning(), None);
    server.command(&[b"CONFIG", b"SET", b"maxmemory", b"100mb"]).await;
    server.command(&[b"CONFIG", b"SET", b"maxmemory-policy", b"allkeys-lru"]).await;
    let warm = super::warm(&server);
    warm.fetch(&[key(1)], NOW).await.unwrap();
    assert!(warm.warning().unwrap().contains("allkeys-lru"));
}

#[tokio::test]
async fn two_processes_that_write_at_once_lose_nothing() {
    let Some(server) = Server::start() else { return };
    let (one, other) = (warm(&server), warm(&server));
    for round in 0..50_u128 {
        let mine: Vec<Row> = (0..20).map(|number| row(round * 100 + number, 1)).collect();
        let theirs: Vec<Row> = (50..70).map(|number| row(round * 100 + number, 2)).collect();
        let (a, b) = tokio::join!(
            again(async || one.put(&mine, NOW).await),
            again(async || other.put(&theirs, NOW).await)
        );
        assert_eq!((a, b), ((), ()));
    }
    assert_eq!(all(&one, NOW).await.0.len(), 50 * 40);
}
