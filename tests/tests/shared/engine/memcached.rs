//! The engine in real memcacheds: what they keep, and what happens when one fails in each of its ways.

mod failures;
mod hostile;
mod server;
mod values;

use super::{SECOND, cause, hit, hit_later, key, says, storm, until, until_hit};
use server::Server;
use std::sync::Arc;
use std::time::Duration;
use tidegate_authority::{Counters, wait};
use tidegate_remote::{Address, Remote, Servers, Settings, connect};
use tidegate_store::{Entries, Hashed};

/// As long as a busy machine may take.
const PATIENT: Duration = Duration::from_secs(10);

fn settings(servers: &[&Server]) -> Settings {
    let addresses = servers.iter().map(|server| server.address().parse::<Address>().unwrap());
    Settings { timeout: PATIENT, ..Settings::new(Servers::Memcached(addresses.collect())) }
}

fn sidecar(server: &Server) -> Remote {
    connect(settings(&[server])).unwrap()
}

/// One of several keys at a place.
fn key_at(place: u128, number: u128) -> Hashed {
    Hashed::narrow(number << 64 | place)
}

/// Runs `hits` at once, and says how each ended.
fn all_at_once<F>(hits: impl Iterator<Item = F>) -> Vec<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async { hits.collect::<tokio::task::JoinSet<_>>().join_all().await })
}
