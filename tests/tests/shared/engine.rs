//! The engine of shared counters alone, in real servers: what they keep, and what happens when they fail in each of their
//! ways.

mod cluster;
mod failover;
mod failures;
mod hostile;
mod memcached;
mod server;
mod values;

use server::{Server, until};
use std::sync::Arc;
use std::time::Duration;
use tidegate_authority::{Counters, Undecided, wait};
use tidegate_core::Timestamp;
use tidegate_remote::{Remote, Settings, connect};
use tidegate_store::{Entries, Hashed};

const SECOND: u64 = 1_000_000_000;

/// A sidecar that waits for answers as long as a busy machine may take.
fn sidecar(server: &Server) -> Remote {
    sidecar_with_timeout(server, Duration::from_secs(10))
}

fn sidecar_with_timeout(server: &Server, timeout: Duration) -> Remote {
    let settings = Settings::at(&server.address()).unwrap();
    connect(Settings { timeout, ..settings }).unwrap()
}

fn key(number: u128) -> Hashed {
    Hashed::narrow(number << 64 | number)
}

fn now(remote: &Remote) -> Timestamp {
    remote.now().unwrap()
}

/// Adds one hit to each key. Returns the counts.
async fn hit_later(remote: &Remote, keys: &[Hashed]) -> Result<Vec<u64>, Undecided> {
    let now = now(remote);
    let mut counts = Vec::new();
    let mut update = |entries: &mut Entries<'_>| {
        counts.clear();
        for index in 0..entries.len() {
            let entry = entries.get(index);
            entry.state[0] += 1;
            *entry.expires_at = now.as_nanos() + 60 * SECOND;
            counts.push(entry.state[0]);
        }
    };
    remote.update(keys, now, &mut update).await?;
    Ok(counts)
}

fn hit(remote: &Remote, keys: &[Hashed]) -> Result<Vec<u64>, Undecided> {
    wait(hit_later(remote, keys))
}

/// The cause of an update that fails.
fn cause(remote: &Remote, keys: &[Hashed]) -> String {
    hit(remote, keys).expect_err("the update fails").to_string()
}

fn until_hit(remote: &Remote, keys: &[Hashed]) -> Vec<u64> {
    let mut counts = None;
    until("an update is committed", || {
        counts = hit(remote, keys).ok();
        counts.is_some()
    });
    counts.unwrap()
}

#[track_caller]
fn says(text: &str, expected: &str) {
    assert!(text.contains(expected), "expected {expected:?} in {text:?}");
}

/// Updates of all sidecars at once, from as many threads, `times` from each. Returns how many were committed.
fn storm(sidecars: &[Arc<Remote>], keys: &[Hashed], times: usize) -> usize {
    let threads: Vec<_> = sidecars
        .iter()
        .map(|remote| {
            let (remote, keys) = (remote.clone(), keys.to_vec());
            std::thread::spawn(move || (0..times).filter(|_| hit(&remote, &keys).is_ok()).count())
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).sum()
}
