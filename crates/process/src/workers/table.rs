//! The workers of a supervisor: their channels, which of them serve, and their metrics.
//!
//! Owns the last metrics of each worker and the sum of workers that have ended, so that no counter
//! goes backwards when a worker is killed.

use super::messages::ToWorker;
use crate::channel::Outgoing;
use crate::service::ProcessMetrics;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidegate_servers::http::MetricsPage;
use tidegate_stats::Snapshot;
use tokio::sync::watch;

/// How long a page waits for workers. Slower workers are included with their last report, up to a second old.
const REPORT_WAIT_MAX: Duration = Duration::from_millis(250);

/// All workers, by number.
pub(crate) struct WorkerTable {
    supervisor: ProcessMetrics,
    /// Never locked before `ended_sum`.
    workers: Vec<Mutex<Worker>>,
    ended_sum: Mutex<Snapshot>,
    rounds: AtomicU64,
    /// Notified of each report and of each worker that ends.
    reported: watch::Sender<()>,
    serving: watch::Sender<usize>,
    reload_count: AtomicU64,
}

#[derive(Default)]
struct Worker {
    link: Option<Outgoing>,
    /// It runs and has got [`ToWorker::Serve`].
    is_serving: bool,
    round: u64,
    snapshot: Arc<Snapshot>,
}

impl WorkerTable {
    pub(crate) fn new(supervisor: ProcessMetrics, count: u32) -> WorkerTable {
        WorkerTable {
            supervisor,
            workers: (0..count).map(|_| Mutex::default()).collect(),
            ended_sum: Mutex::default(),
            rounds: AtomicU64::new(0),
            reported: watch::Sender::new(()),
            serving: watch::Sender::new(0),
            reload_count: AtomicU64::new(0),
        }
    }

    pub(crate) fn serving(&self) -> watch::Receiver<usize> {
        self.serving.subscribe()
    }

    fn worker(&self, index: u32) -> MutexGuard<'_, Worker> {
        lock(&self.workers[index as usize])
    }

    pub(crate) fn mark_started(&self, index: u32, link: Outgoing) {
        *self.worker(index) = Worker { link: Some(link), ..Worker::default() };
    }

    pub(crate) fn mark_serving(&self, index: u32) {
        self.worker(index).is_serving = true;
        self.serving.send_modify(|serving| *serving += 1);
    }

    /// Sends a message to a worker; a failure is logged.
    pub(crate) fn send(&self, index: u32, message: &ToWorker) {
        if let Err(error) = self.worker(index).send(message) {
            tracing::debug!(worker = index, %error, ?message, "a message to a worker was not sent");
        }
    }

    /// Sends a message to all workers that serve.
    fn send_to_serving(&self, message: &ToWorker) {
        for index in (0..).take(self.workers.len()) {
            if self.worker(index).is_serving {
                self.send(index, message);
            }
        }
    }

    /// Requests a reload of all workers that serve.
    pub(crate) fn reload_all(&self) {
        // First, so that a worker that starts to serve meanwhile either sees the count or gets the message.
        self.reload_count.fetch_add(1, Ordering::SeqCst);
        self.send_to_serving(&ToWorker::Reload);
    }

    /// The number of reload requests so far. A worker that starts to serve missed those made since it got its
    /// limits.
    pub(crate) fn reload_count(&self) -> u64 {
        self.reload_count.load(Ordering::SeqCst)
    }

    pub(crate) fn store_report(&self, index: u32, round: u64, snapshot: Snapshot) {
        let mut worker = self.worker(index);
        (worker.round, worker.snapshot) = (round, Arc::new(snapshot));
        drop(worker);
        self.reported.send_replace(());
    }

    pub(crate) fn mark_ended(&self, index: u32) {
        // Held over both steps, so that a sum has the worker's counts exactly once.
        let mut ended_sum = lock(&self.ended_sum);
        let worker = std::mem::take(&mut *self.worker(index));
        ended_sum.add_ended(&worker.snapshot);
        drop(ended_sum);
        if worker.is_serving {
            self.serving.send_modify(|serving| *serving -= 1);
        }
        self.reported.send_replace(());
    }

    /// Requests reports and waits until all workers that serve have sent one, at most [`REPORT_WAIT_MAX`].
    async fn refresh(&self) {
        let mut reported = self.reported.subscribe();
        let round = self.rounds.fetch_add(1, Ordering::Relaxed) + 1;
        self.send_to_serving(&ToWorker::Report { round });
        let is_late = |worker: &Mutex<Worker>| {
            let worker = lock(worker);
            worker.is_serving && worker.round < round
        };
        let all = reported.wait_for(|()| !self.workers.iter().any(is_late));
        let _ = tokio::time::timeout(REPORT_WAIT_MAX, all).await;
    }

    /// The sum of workers that have ended, and the last snapshot of each other.
    fn snapshots(&self) -> (Snapshot, Vec<Arc<Snapshot>>) {
        let ended_sum = lock(&self.ended_sum);
        let snapshots = self.workers.iter().map(|worker| lock(worker).snapshot.clone()).collect();
        (ended_sum.clone(), snapshots)
    }
}

impl Worker {
    fn send(&self, message: &ToWorker) -> anyhow::Result<()> {
        self.link.as_ref().map_or(Ok(()), |link| link.try_send(message))
    }
}

/// The metrics of the whole service.
pub(crate) struct SummedMetrics(pub(crate) Arc<WorkerTable>);

impl MetricsPage for SummedMetrics {
    async fn page(&self) -> anyhow::Result<String> {
        self.0.refresh().await;
        let mut sum = self.0.supervisor.snapshot().await?;
        let (ended_sum, snapshots) = self.0.snapshots();
        let summed = tokio::task::spawn_blocking(move || {
            sum.add(&ended_sum);
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
