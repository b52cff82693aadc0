//! The process that starts the workers, and serves HTTP for all of them.
//!
//! Owns the sockets, which outlive any worker, the order of a start (bind, start workers, then serve),
//! and the data directory's way to the disk. Decides no request but those that come by
//! HTTP.

use crate::DRAIN_MAX;
use crate::Settings;
use crate::endpoints::Endpoints;
use crate::lifecycle::Lifecycle;
use crate::service::Service;
use crate::signals::Signals;
use crate::sockets::{BoundAddress, Endpoint};
use crate::start::{open_addresses, take_over};
use crate::supervised::{Phase, SupervisedWorker};
use crate::worker_metrics::{SummedMetrics, WorkerMetrics};
use anyhow::Context;
use std::sync::Arc;
use std::time::Duration;
use tidegate_servers::Health;
use tidegate_servers::Overload;
use tidegate_servers::rls::Rls;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Workers end by themselves after `DRAIN_MAX`; this is what they may take besides.
const END_MAX: Duration = Duration::from_secs(3);

/// Serves until told to stop, or until another process has taken over.
pub(crate) async fn serve(
    settings: &Settings,
    service: &Service,
    count: u32,
) -> anyhow::Result<()> {
    let mut signals = Signals::listen()?;
    // Told once, and not by each worker.
    Rls::check(&settings.rls)?;
    let mut offer = take_over(settings).await?;
    let mut places = open_addresses(settings, offer.as_mut()).await?;
    let decides = |place: &&mut BoundAddress| place.door != Endpoint::Http;
    for place in places.iter_mut().filter(decides) {
        place.widen(count as usize)?;
    }
    let metrics = Arc::new(WorkerMetrics::new(service.page_with_store(), count));
    let mut workers = Workers::start(&places, service, &metrics, count)?;
    let Some(()) = workers.ready(&mut signals).await? else {
        return Ok(());
    };
    // The last thing that can fail. From here on connections come to sockets that the old process, if
    // there is one, does not have.
    for place in &mut places {
        place.listen()?;
    }
    let (keeper, store) =
        tidegate_data_dir::maintain(service.store().clone(), settings.data_dir.sync_interval);
    let draining = watch::Sender::new(false);
    let (mut http, overload) = (Endpoints::new(), Overload::start());
    for place in places.iter().filter(|place| place.door == Endpoint::Http) {
        for listener in place.listeners()? {
            let (draining, store) = (draining.subscribe(), store.clone());
            let health = Health { draining, store, workers: Some(metrics.serving()) };
            let door = service.http(SummedMetrics(metrics.clone()), health, overload.clone());
            http.open_http(door, listener);
        }
    }
    if workers.serving(&mut signals, &metrics).await.is_none() {
        workers.kill().await;
        return Ok(());
    }
    tracing::info!(workers = count, "ready");
    let data_dir = &settings.data_dir.dir;
    let lifecycle =
        Lifecycle::ready(data_dir, service, (places, offer), http, draining, keeper).await;
    let reload = || {
        service.feed.reload();
        metrics.reload_all();
    };
    let ended = lifecycle.until_told(&mut signals, reload, workers.lost()).await;
    lifecycle.end(ended, workers.drain(&mut signals)).await
}

/// The workers.
struct Workers {
    workers: JoinSet<anyhow::Result<()>>,
    phase: watch::Sender<Phase>,
    ready: watch::Receiver<usize>,
    count: usize,
}

impl Workers {
    fn start(
        places: &[BoundAddress],
        service: &Service,
        metrics: &Arc<WorkerMetrics>,
        count: u32,
    ) -> anyhow::Result<Workers> {
        let mut workers = JoinSet::new();
        let phase = watch::Sender::new(Phase::Starting);
        let (ready, counted) = watch::channel(0);
        let decided: Vec<&BoundAddress> =
            places.iter().filter(|place| place.door != Endpoint::Http).collect();
        for index in 0..count {
            let known = (service.feed.clone(), metrics.clone());
            let worker = SupervisedWorker::new((index, count), &decided, known, ready.clone())?;
            workers.spawn(worker.keep(phase.subscribe()));
        }
        Ok(Workers { workers, phase, ready: counted, count: count as usize })
    }

    /// Waits until all are ready to serve; none if a signal said to stop.
    async fn ready(&mut self, signals: &mut Signals) -> anyhow::Result<Option<()>> {
        let (mut ready, count) = (self.ready.clone(), self.count);
        let ended = tokio::select! {
            // First, as its cause is what matters.
            biased;
            lost = self.lost() => lost.map(|()| None),
            _ = ready.wait_for(|&ready| ready == count) => return Ok(Some(())),
            () = signals.stop() => Ok(None),
        };
        self.kill().await;
        ended
    }

    /// Lets all serve, and waits until they do; none if a signal said to stop.
    async fn serving(&mut self, signals: &mut Signals, metrics: &WorkerMetrics) -> Option<()> {
        let (mut serving, count) = (metrics.serving(), self.count);
        self.phase.send_replace(Phase::Serving);
        tokio::select! {
            _ = serving.wait_for(|&serving| serving == count) => Some(()),
            () = signals.stop() => None,
        }
    }

    /// Waits until one cannot be kept any more.
    async fn lost(&mut self) -> anyhow::Result<()> {
        match self.workers.join_next().await {
            Some(worker) => worker.context("a worker was lost")?,
            None => std::future::pending().await,
        }
    }

    /// Lets calls under way finish, and waits until all have ended; kills those that take too long, or
    /// all once `signals` has told it to stop again.
    async fn drain(&mut self, signals: &mut Signals) {
        tracing::info!("draining");
        self.phase.send_replace(Phase::Draining);
        tokio::select! {
            () = async { while self.workers.join_next().await.is_some() {} } => return,
            () = tokio::time::sleep(DRAIN_MAX + END_MAX) => {
                tracing::warn!("workers were still there after {:?}; killed", DRAIN_MAX + END_MAX);
            }
            () = signals.stop() => tracing::warn!("told to stop again; workers are killed"),
        }
        self.kill().await;
    }

    async fn kill(&mut self) {
        self.phase.send_replace(Phase::Killing);
        while self.workers.join_next().await.is_some() {}
    }
}
