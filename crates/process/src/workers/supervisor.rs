//! The supervisor: starts the workers, and serves HTTP for all of them.
//!
//! Owns the sockets, which outlive any worker, the order of startup (bind, start workers, then serve), and
//! snapshots of the data directory. Decides only the requests that arrive over HTTP.

use super::supervised::{Phase, SupervisedWorker};
use super::table::{SummedMetrics, SummedTop, WorkerTable};
use crate::endpoints::Endpoints;
use crate::lifecycle::Lifecycle;
use crate::service::Service;
use crate::signals::Signals;
use crate::sockets::BoundAddress;
use crate::sockets::start::open_or_take_over;
use crate::{DRAIN_MAX, Settings};
use anyhow::Context;
use std::sync::Arc;
use std::time::Duration;
use tidegate_servers::http::TopPage;
use tidegate_servers::rls::Rls;
use tidegate_servers::{Health, Overload};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Extra time for workers to exit after `DRAIN_MAX`.
const EXIT_MAX: Duration = Duration::from_secs(3);

/// Serves until a signal to stop, or until another process has taken over.
pub(crate) async fn serve(
    settings: &Settings,
    service: &Service,
    (count, bound): (u32, Option<Vec<BoundAddress>>),
) -> anyhow::Result<()> {
    let mut signals = Signals::subscribe()?;
    // Checked here once, so that a mistake is reported once and not by each worker.
    Rls::check(&settings.rls)?;
    let mut http = Endpoints::of_http(settings)?;
    let http_tls = http.tls();
    let (mut addresses, offer) = open_or_take_over(settings, bound).await?;
    let decides_requests = |address: &&mut BoundAddress| address.endpoint.decides();
    for address in addresses.iter_mut().filter(decides_requests) {
        address.add_sockets(count as usize)?;
    }
    let table = Arc::new(WorkerTable::new(service.page_with_store(), count));
    let mut workers = Workers::start(&addresses, service, &table, count)?;
    let Some(()) = workers.ready(&mut signals).await? else {
        return Ok(());
    };
    // The last step that can fail. From here on connections reach sockets that an old process does not have.
    for address in &mut addresses {
        address.listen()?;
    }
    let (store_watch, store) =
        tidegate_data_dir::maintain(service.store.clone(), settings.data_dir.sync_interval);
    let draining = watch::Sender::new(false);
    let (shared, cold) = (service.shared_health(), service.cold_health());
    let overload = Overload::start();
    for address in addresses.iter().filter(|address| !address.endpoint.decides()) {
        for listener in address.listeners()? {
            let (draining, store) = (draining.subscribe(), store.clone());
            let workers = Some(table.serving());
            let (shared, cold) = (shared.clone(), cold.clone());
            let health = Health { draining, store, workers, shared, cold };
            let parts = service.shared(health, overload.clone());
            let top = service
                .top
                .clone()
                .map(|own| Arc::new(SummedTop { table: table.clone(), own }) as Arc<dyn TopPage>);
            let pages = (SummedMetrics(table.clone()), top);
            http.open_pages(address.endpoint, listener, (&parts, service, settings), pages);
        }
    }
    if workers.serving(&mut signals, &table).await.is_none() {
        workers.kill().await;
        return Ok(());
    }
    tracing::info!(workers = count, "ready");
    let data_dir = settings.data_dir.dir.as_deref();
    let lifecycle =
        Lifecycle::start(data_dir, service, (addresses, offer), http, draining, store_watch).await;
    service.start_moves()?;
    let recording = service.record();
    let reload = || {
        service.feed.reload();
        table.reload_all();
        http_tls.iter().for_each(|tls| tls.reload());
    };
    let ended = lifecycle.until_stopped(&mut signals, reload, workers.lost()).await;
    let ended = lifecycle.shut_down(ended, workers.drain(&mut signals)).await;
    // Requests that came over HTTP are in its own.
    service.finish(recording).await;
    ended
}

struct Workers {
    workers: JoinSet<anyhow::Result<()>>,
    phase: watch::Sender<Phase>,
    ready: watch::Receiver<usize>,
    count: usize,
}

impl Workers {
    fn start(
        addresses: &[BoundAddress],
        service: &Service,
        table: &Arc<WorkerTable>,
        count: u32,
    ) -> anyhow::Result<Workers> {
        let mut workers = JoinSet::new();
        let phase = watch::Sender::new(Phase::Starting);
        let (ready, ready_count) = watch::channel(0);
        let served: Vec<&BoundAddress> =
            addresses.iter().filter(|address| address.endpoint.decides()).collect();
        for index in 0..count {
            let shared = (service.feed.clone(), table.clone());
            let worker = SupervisedWorker::new((index, count), &served, shared, ready.clone())?;
            workers.spawn(worker.keep_running(phase.subscribe()));
        }
        Ok(Workers { workers, phase, ready: ready_count, count: count as usize })
    }

    /// Waits until all are ready; none after a signal to stop.
    async fn ready(&mut self, signals: &mut Signals) -> anyhow::Result<Option<()>> {
        let (mut ready, count) = (self.ready.clone(), self.count);
        let ended = tokio::select! {
            // First: the error of a lost worker must be reported.
            biased;
            lost = self.lost() => lost.map(|()| None),
            _ = ready.wait_for(|&ready| ready == count) => return Ok(Some(())),
            () = signals.stop() => Ok(None),
        };
        self.kill().await;
        ended
    }

    /// Has all workers serve, and waits until they do; none after a signal to stop.
    async fn serving(&mut self, signals: &mut Signals, table: &WorkerTable) -> Option<()> {
        let (mut serving, count) = (table.serving(), self.count);
        self.phase.send_replace(Phase::Serving);
        tokio::select! {
            _ = serving.wait_for(|&serving| serving == count) => Some(()),
            () = signals.stop() => None,
        }
    }

    /// Waits until a worker cannot be kept running.
    async fn lost(&mut self) -> anyhow::Result<()> {
        match self.workers.join_next().await {
            Some(worker) => worker.context("a worker was lost")?,
            None => std::future::pending().await,
        }
    }

    /// Lets calls under way finish and waits until all workers have ended. Kills those that take too long, or
    /// all of them at a second signal to stop.
    async fn drain(&mut self, signals: &mut Signals) {
        tracing::info!("draining");
        self.phase.send_replace(Phase::Draining);
        tokio::select! {
            () = async { while self.workers.join_next().await.is_some() {} } => return,
            () = tokio::time::sleep(DRAIN_MAX + EXIT_MAX) => {
                tracing::warn!("workers still ran after {:?}; they are killed", DRAIN_MAX + EXIT_MAX);
            }
            () = signals.stop() => tracing::warn!("a second signal to stop; workers are killed"),
        }
        self.kill().await;
    }

    async fn kill(&mut self) {
        self.phase.send_replace(Phase::Killing);
        while self.workers.join_next().await.is_some() {}
    }
}
