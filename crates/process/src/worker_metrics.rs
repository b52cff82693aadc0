//! What the workers of a supervisor have counted, and the ways to speak to them.
//!
//! Owns the last page of metrics of each worker, and the sum of those that are no more, so that no
//! count goes backwards when a worker is killed.

use crate::channel::Outgoing;
use crate::service::OwnPage;
use crate::worker::ToWorker;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidegate_servers::http::MetricsPage;
use tidegate_stats::Snapshot;
use tokio::sync::watch;

/// How long a page waits for workers. One that is later is told of as it was up to a second before.
const FRESH_MAX: Duration = Duration::from_millis(250);

/// All workers.
pub(crate) struct WorkerMetrics {
    own: OwnPage,
    /// Never locked before `past` is.
    workers: Vec<Mutex<Worker>>,
    past: Mutex<Snapshot>,
    /// How many reports were asked for.
    rounds: AtomicU64,
    /// Changes with each report.
    reported: watch::Sender<()>,
    serving: watch::Sender<usize>,
    /// How many times all were told to read the limits again.
    reloads: AtomicU64,
}

#[derive(Default)]
struct Worker {
    link: Option<Outgoing>,
    /// Whether it has been told to serve, and lives.
    serves: bool,
    round: u64,
    snapshot: Arc<Snapshot>,
}

impl WorkerMetrics {
    /// That of `count` workers, none of which serves.
    pub(crate) fn new(own: OwnPage, count: u32) -> WorkerMetrics {
        WorkerMetrics {
            own,
            workers: (0..count).map(|_| Mutex::default()).collect(),
            past: Mutex::default(),
            rounds: AtomicU64::new(0),
            reported: watch::Sender::new(()),
            serving: watch::Sender::new(0),
            reloads: AtomicU64::new(0),
        }
    }

    /// How many serve.
    pub(crate) fn serving(&self) -> watch::Receiver<usize> {
        self.serving.subscribe()
    }

    fn worker(&self, index: u32) -> MutexGuard<'_, Worker> {
        lock(&self.workers[index as usize])
    }

    /// A worker was started that can be spoken to by `link`.
    pub(crate) fn started(&self, index: u32, link: Outgoing) {
        *self.worker(index) = Worker { link: Some(link), ..Worker::default() };
    }

    /// A worker is about to be told to serve.
    pub(crate) fn serves(&self, index: u32) {
        self.worker(index).serves = true;
        self.serving.send_modify(|serving| *serving += 1);
    }

    /// Tells a worker something.
    pub(crate) fn say(&self, index: u32, message: &ToWorker) {
        if let Err(error) = self.worker(index).say(message) {
            tracing::debug!(worker = index, %error, ?message, "a worker does not listen");
        }
    }

    /// Tells all that serve.
    fn say_to_all(&self, message: &ToWorker) {
        for index in (0..).take(self.workers.len()) {
            if self.worker(index).serves {
                self.say(index, message);
            }
        }
    }

    /// Tells all that serve to read the limits again.
    pub(crate) fn reload_all(&self) {
        // First, so that a worker that begins to serve meanwhile sees it, or is told.
        self.reloads.fetch_add(1, Ordering::SeqCst);
        self.say_to_all(&ToWorker::Reload);
    }

    /// How many times that was. A worker that begins to serve missed those since it was given its limits.
    pub(crate) fn reloads(&self) -> u64 {
        self.reloads.load(Ordering::SeqCst)
    }

    /// A worker has told its metrics.
    pub(crate) fn reported(&self, index: u32, round: u64, snapshot: Snapshot) {
        let mut worker = self.worker(index);
        (worker.round, worker.snapshot) = (round, Arc::new(snapshot));
        drop(worker);
        self.reported.send_replace(());
    }

    /// A worker has ended.
    pub(crate) fn ended(&self, index: u32) {
        // Held over both, so that its counts are at one of them whenever they are added up.
        let mut past = lock(&self.past);
        let worker = std::mem::take(&mut *self.worker(index));
        past.add_ended(&worker.snapshot);
        drop(past);
        if worker.serves {
            self.serving.send_modify(|serving| *serving -= 1);
        }
        self.reported.send_replace(());
    }

    /// Waits until all that serve have told their metrics since now, or long enough.
    async fn refresh(&self) {
        let mut reported = self.reported.subscribe();
        let round = self.rounds.fetch_add(1, Ordering::Relaxed) + 1;
        self.say_to_all(&ToWorker::Report { round });
        let is_late = |worker: &Mutex<Worker>| {
            let worker = lock(worker);
            worker.serves && worker.round < round
        };
        let all = reported.wait_for(|()| !self.workers.iter().any(is_late));
        let _ = tokio::time::timeout(FRESH_MAX, all).await;
    }

    /// Those that are no more, and the last of each worker.
    fn snapshots(&self) -> (Snapshot, Vec<Arc<Snapshot>>) {
        let past = lock(&self.past);
        let snapshots = self.workers.iter().map(|worker| lock(worker).snapshot.clone()).collect();
        (past.clone(), snapshots)
    }
}

impl Worker {
    fn say(&self, message: &ToWorker) -> anyhow::Result<()> {
        self.link.as_ref().map_or(Ok(()), |link| link.say(message))
    }
}

/// The page of the whole service.
pub(crate) struct SummedMetrics(pub(crate) Arc<WorkerMetrics>);

impl MetricsPage for SummedMetrics {
    async fn page(&self) -> anyhow::Result<String> {
        self.0.refresh().await;
        let mut sum = self.0.own.snapshot().await?;
        let (past, snapshots) = self.0.snapshots();
        let summed = tokio::task::spawn_blocking(move || {
            sum.add(&past);
            for snapshot in snapshots {
                sum.add(&snapshot);
            }
            sum.text()
        });
        Ok(summed.await?)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
