//! HTTP load over many connections; every request is accounted for.
//!
//! Closed loop: each connection sends its next request when the last one is answered. Open loop:
//! requests are due at a fixed rate, whatever becomes of those before; a request that waits for a free
//! connection has been waiting since it was due, and its latency says so.

use crate::client::{Client, Reply};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::{JoinHandle, JoinSet};

/// The headers of a request.
pub type Headers = Vec<(&'static str, Vec<u8>)>;

/// When requests are sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// As fast as they are answered.
    Closed,
    /// So many a second.
    Open(f64),
}

/// What is sent where.
#[derive(Clone)]
pub struct Load {
    /// The Envoys; connections are dealt out to them in turn.
    pub targets: Vec<SocketAddr>,
    /// Over how many connections in all.
    pub connections: u32,
    /// How many in all.
    pub requests: u64,
    /// When.
    pub pace: Pace,
    /// The path of all.
    pub path: String,
    /// The headers of each, by its number from 0.
    pub headers: Arc<dyn Fn(u64) -> Headers + Send + Sync>,
}

impl Load {
    /// Closed-loop load over 16 connections, all as one client, named in the header `x-client`.
    #[must_use]
    pub fn of_one_client(targets: Vec<SocketAddr>, client: &str, requests: u64) -> Load {
        let client = client.as_bytes().to_vec();
        let headers = Arc::new(move |_| vec![("x-client", client.clone())]);
        let path = "/".to_owned();
        Load { targets, connections: 16, requests, pace: Pace::Closed, path, headers }
    }

    /// As [`Load::of_one_client`], of clients `<prefix>0`, `<prefix>1` and so on, in turn.
    #[must_use]
    pub fn of_clients(
        targets: Vec<SocketAddr>,
        prefix: &'static str,
        clients: u64,
        requests: u64,
    ) -> Load {
        let headers = Arc::new(move |number| {
            vec![("x-client", format!("{prefix}{}", number % clients).into_bytes())]
        });
        Load { headers, ..Load::of_one_client(targets, "", requests) }
    }

    /// Sends it in the background.
    #[must_use]
    pub fn start(self) -> Running {
        let stop = Arc::new(AtomicBool::new(false));
        let driving = tokio::spawn(drive(self, stop.clone()));
        Running { stop, driving }
    }

    /// Sends it all.
    ///
    /// # Errors
    /// When no connection can be opened.
    pub async fn run(self) -> anyhow::Result<Outcome> {
        self.start().end().await
    }
}

/// Load that is being sent.
#[derive(Debug)]
pub struct Running {
    stop: Arc<AtomicBool>,
    driving: JoinHandle<anyhow::Result<Outcome>>,
}

impl Running {
    /// Whether all of it was sent and answered.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.driving.is_finished()
    }

    /// Waits for the end of it.
    ///
    /// # Errors
    /// When no connection could be opened.
    pub async fn end(self) -> anyhow::Result<Outcome> {
        self.driving.await?
    }

    /// Sends no more, and waits for the answers that are due.
    ///
    /// # Errors
    /// When no connection could be opened.
    pub async fn stop(self) -> anyhow::Result<Outcome> {
        self.stop.store(true, Ordering::Relaxed);
        self.end().await
    }
}

/// What became of a load.
#[derive(Debug)]
pub struct Outcome {
    /// How many requests were answered with each status.
    pub statuses: BTreeMap<u16, u64>,
    /// Requests whose connection broke before they were answered.
    pub broken: u64,
    /// From when a request was sent (closed loop) or due (open loop) to its answer, in nanoseconds.
    pub latencies: Histogram<u64>,
    /// From the first request to the last answer.
    pub took: Duration,
}

impl Outcome {
    /// The longest latency that is recorded; longer ones count as this.
    const LONGEST: Duration = Duration::from_secs(100);

    pub(crate) fn new() -> anyhow::Result<Outcome> {
        let latencies = Histogram::new_with_bounds(1_000, Self::LONGEST.as_nanos() as u64, 3)?;
        Ok(Outcome { statuses: BTreeMap::new(), broken: 0, latencies, took: Duration::ZERO })
    }

    /// How many requests were answered with `status`.
    #[must_use]
    pub fn of(&self, status: u16) -> u64 {
        self.statuses.get(&status).copied().unwrap_or_default()
    }

    /// How many requests were sent.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.statuses.values().sum::<u64>() + self.broken
    }

    /// The latency in ms that `percent` of the answered requests did not exceed.
    #[must_use]
    pub fn latency_ms(&self, percent: f64) -> f64 {
        self.latencies.value_at_percentile(percent) as f64 / 1e6
    }

    fn count(&mut self, reply: &anyhow::Result<Reply>, took: Duration) {
        self.count_status(reply.as_ref().ok().map(|reply| reply.status.as_u16()), took);
    }

    /// Counts a request that was answered with this status, or whose connection broke.
    pub(crate) fn count_status(&mut self, status: Option<u16>, took: Duration) {
        match status {
            Some(status) => {
                *self.statuses.entry(status).or_default() += 1;
                self.latencies.saturating_record(took.as_nanos() as u64);
            }
            None => self.broken += 1,
        }
    }

    /// Adds what happened elsewhere, at the same time.
    ///
    /// # Errors
    /// None in fact: all histograms have the same bounds.
    pub fn add(&mut self, other: &Outcome) -> anyhow::Result<()> {
        for (status, count) in &other.statuses {
            *self.statuses.entry(*status).or_default() += count;
        }
        self.broken += other.broken;
        self.latencies.add(&other.latencies)?;
        self.took = self.took.max(other.took);
        Ok(())
    }
}

async fn drive(load: Load, stop: Arc<AtomicBool>) -> anyhow::Result<Outcome> {
    let mut clients = Vec::new();
    for target in load.targets.iter().cycle().take(load.connections as usize) {
        clients.push((*target, Client::connect(*target).await?));
    }
    let tickets = Arc::new(Tickets { next: AtomicU64::new(0), start: Instant::now(), stop, load });
    let mut connections = JoinSet::new();
    for (target, client) in clients {
        connections.spawn(connection(target, client, tickets.clone()));
    }
    let mut total = Outcome::new()?;
    while let Some(outcome) = connections.join_next().await {
        total.add(&outcome??)?;
    }
    total.took = tickets.start.elapsed();
    Ok(total)
}

/// Hands out each request once.
struct Tickets {
    next: AtomicU64,
    start: Instant,
    stop: Arc<AtomicBool>,
    load: Load,
}

impl Tickets {
    /// The number of the next request, and when it is due; none when there are no more.
    fn take(&self) -> Option<(u64, Option<Instant>)> {
        if self.stop.load(Ordering::Relaxed) {
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let due = match self.load.pace {
            Pace::Closed => None,
            Pace::Open(rate) => Some(self.start + Duration::from_secs_f64(number as f64 / rate)),
        };
        (number < self.load.requests).then_some((number, due))
    }
}

async fn connection(
    target: SocketAddr,
    mut client: Client,
    tickets: Arc<Tickets>,
) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new()?;
    while let Some((number, due)) = tickets.take() {
        if let Some(due) = due {
            tokio::time::sleep_until(due.into()).await;
        }
        let begun = due.unwrap_or_else(Instant::now);
        let headers = (tickets.load.headers)(number);
        let headers: Vec<(&str, &[u8])> =
            headers.iter().map(|(name, value)| (*name, value.as_slice())).collect();
        let reply = client.get(&tickets.load.path, &headers).await;
        outcome.count(&reply, begun.elapsed());
        if reply.is_err() {
            // An Envoy that is gone gets no more; its share goes to the other connections.
            let Ok(again) = Client::connect(target).await else { break };
            client = again;
        }
    }
    Ok(outcome)
}
