//! The workers of a supervisor: their channels, which of them serve, and their metrics.
//!
//! Owns the last metrics of each worker and the sum of workers that have ended, so that no counter
//! goes backwards when a worker is killed.

use super::messages::ToWorker;
use crate::channel::Outgoing;
use crate::console::Counts;
use crate::service::{ProcessMetrics, written};
use crate::top::{self, ProcessTop};
use std::fmt;
use std::fs::File;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidegate_servers::http::{MetricsPage, PageForm, TopPage};
use tidegate_stats::{RuleUse, Snapshot};
use tidegate_top::{Decision, Summary};
use tokio::sync::watch;

/// How long a page waits for workers. Slower workers are included with their last report, up to a second old.
const REPORT_WAIT_MAX: Duration = Duration::from_millis(250);

/// The most decisions that a worker sends at once. The page that asks for them reads them at once.
const DECISIONS_MAX: usize = 1_024;

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
    brief_round: u64,
    brief: Arc<Snapshot>,
    rules_round: u64,
    rules: Arc<RuleUse>,
    top_round: u64,
    top: Arc<Summary>,
    decisions_round: u64,
    /// Those that nobody has read yet.
    decisions: Vec<Decision>,
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

    /// A worker has ended and is started again.
    pub(crate) fn count_restart(&self) {
        self.supervisor.worker_restarted();
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

    /// Sends the file of new limits to a worker. False if it has to be sent again.
    pub(crate) fn send_limits(&self, index: u32, limits: &File) -> bool {
        let worker = self.worker(index);
        let Some(link) = &worker.link else { return true };
        let sent = link.try_send_with(&ToWorker::Limits, limits.as_fd());
        if let Err(error) = &sent {
            tracing::debug!(worker = index, %error, "new limits were not sent to a worker");
        }
        sent.is_ok()
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

    pub(crate) fn store_brief(&self, index: u32, round: u64, snapshot: Snapshot) {
        let mut worker = self.worker(index);
        (worker.brief_round, worker.brief) = (round, Arc::new(snapshot));
        drop(worker);
        self.reported.send_replace(());
    }

    pub(crate) fn store_rules(&self, index: u32, round: u64, used: RuleUse) {
        let mut worker = self.worker(index);
        (worker.rules_round, worker.rules) = (round, Arc::new(used));
        drop(worker);
        self.reported.send_replace(());
    }

    pub(crate) fn store_top(&self, index: u32, round: u64, summary: Summary) {
        let mut worker = self.worker(index);
        (worker.top_round, worker.top) = (round, Arc::new(summary));
        drop(worker);
        self.reported.send_replace(());
    }

    pub(crate) fn store_decisions(&self, index: u32, round: u64, decisions: Vec<Decision>) {
        let mut worker = self.worker(index);
        worker.decisions_round = round;
        worker.decisions.extend(decisions);
        let excess = worker.decisions.len().saturating_sub(DECISIONS_MAX);
        worker.decisions.drain(..excess);
        drop(worker);
        self.reported.send_replace(());
    }

    /// Requests reports and waits until all workers that serve have sent one, at most [`REPORT_WAIT_MAX`].
    async fn refresh(&self) {
        self.request(|round| ToWorker::Report { round }, |worker| worker.round).await;
    }

    async fn request(&self, message: fn(u64) -> ToWorker, answered: fn(&Worker) -> u64) {
        let mut reported = self.reported.subscribe();
        let round = self.rounds.fetch_add(1, Ordering::Relaxed) + 1;
        self.send_to_serving(&message(round));
        let is_late = |worker: &Mutex<Worker>| {
            let worker = lock(worker);
            worker.is_serving && answered(&worker) < round
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
#[derive(Clone)]
pub(crate) struct SummedMetrics(pub(crate) Arc<WorkerTable>);

impl Counts for SummedMetrics {
    async fn brief(&self) -> anyhow::Result<Snapshot> {
        let table = &self.0;
        table.request(|round| ToWorker::Brief { round }, |worker| worker.brief_round).await;
        let mut sum = table.supervisor.brief().await?;
        // Both at once, so that a worker that ends counts exactly once.
        let ended_sum = lock(&table.ended_sum);
        let each: Vec<_> = table.workers.iter().map(|worker| lock(worker).brief.clone()).collect();
        sum.add_ended_of_same(&ended_sum);
        drop(ended_sum);
        each.iter().for_each(|snapshot| sum.add(snapshot));
        Ok(sum)
    }

    async fn rule_use(&self) -> anyhow::Result<RuleUse> {
        let table = self.0.clone();
        table.request(|round| ToWorker::Rules { round }, |worker| worker.rules_round).await;
        let mut sum = table.supervisor.rule_use().await?;
        let summed = tokio::task::spawn_blocking(move || {
            let ended_sum = lock(&table.ended_sum);
            let workers = table.workers.iter();
            let each: Vec<_> = workers.map(|worker| lock(worker).rules.clone()).collect();
            sum.add(&RuleUse::of(&ended_sum));
            drop(ended_sum);
            each.iter().for_each(|used| sum.add(used));
            sum
        });
        Ok(summed.await?)
    }
}

impl MetricsPage for SummedMetrics {
    async fn page(&self, form: PageForm) -> anyhow::Result<String> {
        self.0.refresh().await;
        let mut sum = self.0.supervisor.snapshot().await?;
        let (ended_sum, snapshots) = self.0.snapshots();
        let summed = tokio::task::spawn_blocking(move || {
            sum.add(&ended_sum);
            for snapshot in snapshots {
                sum.add(&snapshot);
            }
            written(&sum, form)
        });
        Ok(summed.await?)
    }
}

/// Who is limited in any of the processes.
pub(crate) struct SummedTop {
    pub(crate) table: Arc<WorkerTable>,
    /// Of the supervisor, which decides what comes over HTTP.
    pub(crate) own: ProcessTop,
}

impl fmt::Debug for SummedTop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SummedTop").finish_non_exhaustive()
    }
}

impl SummedTop {
    /// Brings the decisions of the workers to those of the supervisor.
    async fn collect(&self) {
        let round = |worker: &Worker| worker.decisions_round;
        self.table.request(|round| ToWorker::Decisions { round }, round).await;
        for worker in &self.table.workers {
            self.own.recorder.add_decisions(std::mem::take(&mut lock(worker).decisions));
        }
    }

    async fn summary(&self) -> Summary {
        self.table.request(|round| ToWorker::Top { round }, |worker| worker.top_round).await;
        let workers = self.table.workers.iter().map(|worker| lock(worker).top.clone());
        let (workers, own): (Vec<Arc<Summary>>, _) = (workers.collect(), self.own.clone());
        let merged = tokio::task::spawn_blocking(move || {
            let mut sum = own.read();
            for worker in workers {
                sum.merge(Arc::unwrap_or_clone(worker));
            }
            sum
        });
        merged.await.unwrap_or_default()
    }
}

impl TopPage for SummedTop {
    fn answer<'a>(
        &'a self,
        query: &'a str,
    ) -> Pin<Box<dyn Future<Output = (u16, String)> + Send + 'a>> {
        Box::pin(top::answer(query, async || self.summary().await))
    }

    fn decisions<'a>(
        &'a self,
        query: &'a str,
        last: Option<u64>,
    ) -> Pin<Box<dyn Future<Output = (u16, String)> + Send + 'a>> {
        Box::pin(top::decisions((query, last), &self.own.recorder, async || self.collect().await))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
