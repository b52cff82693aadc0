//! The process that starts the workers, and serves HTTP for all of them.
//!
//! Owns the sockets, which outlive any worker, the order of a start (bind, start workers, then serve),
//! and the data directory's way to the disk. Decides no request but those that come by
//! HTTP.

use super::child::{Berth, Phase};
use super::doors::Doors;
use super::owner::Owner;
use super::signals::Signals;
use super::sockets::{Door, Place};
use super::tally::{SummedMetrics, Tally};
use super::{Core, DRAIN_MAX, OwnMetrics, open_places, take_over};
use crate::cli::ServeOptions;
use crate::health::Health;
use crate::keeper;
use crate::overload::Overload;
use crate::rls::Rls;
use anyhow::Context;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Workers end by themselves after `DRAIN_MAX`; this is what they may take besides.
const END_MAX: Duration = Duration::from_secs(3);

/// Serves until told to stop, or until another process has taken over.
pub(super) async fn serve(options: &ServeOptions, core: &Core, count: u32) -> anyhow::Result<()> {
    let mut signals = Signals::listen()?;
    // Told once, and not by each worker.
    Rls::check(&options.connections)?;
    let mut offer = take_over(options).await?;
    let mut places = open_places(options, offer.as_mut()).await?;
    let decides = |place: &&mut Place| place.door != Door::Http;
    for place in places.iter_mut().filter(decides) {
        place.widen(count as usize)?;
    }
    let tally = Arc::new(Tally::new(OwnMetrics::with_store(core), count));
    let mut crew = Crew::start(&places, core, &tally, count)?;
    let Some(()) = crew.ready(&mut signals).await? else {
        return Ok(());
    };
    // The last thing that can fail. From here on connections come to sockets that the old process, if
    // there is one, does not have.
    for place in &mut places {
        place.listen()?;
    }
    let (keeper, store) = keeper::keep(core.engine.clone(), options.store.sync_interval);
    let draining = watch::Sender::new(false);
    let (mut http, overload) = (Doors::new(), Overload::start());
    for place in places.iter().filter(|place| place.door == Door::Http) {
        for listener in place.listeners()? {
            let (draining, store) = (draining.subscribe(), store.clone());
            let health = Health { draining, store, workers: Some(tally.serving()) };
            let door = core.http(SummedMetrics(tally.clone()), health, overload.clone());
            http.open_http(door, listener);
        }
    }
    if crew.serving(&mut signals, &tally).await.is_none() {
        crew.kill().await;
        return Ok(());
    }
    tracing::info!(workers = count, "ready");
    let data_dir = &options.store.data_dir;
    let owner = Owner::ready(data_dir, core, (places, offer), http, draining, keeper).await;
    let reload = || {
        core.reload.ask();
        tally.reload_all();
    };
    let ended = owner.until_told(&mut signals, reload, crew.lost()).await;
    owner.end(ended, crew.drain(&mut signals)).await
}

/// The workers.
struct Crew {
    berths: JoinSet<anyhow::Result<()>>,
    phase: watch::Sender<Phase>,
    ready: watch::Receiver<usize>,
    count: usize,
}

impl Crew {
    fn start(
        places: &[Place],
        core: &Core,
        tally: &Arc<Tally>,
        count: u32,
    ) -> anyhow::Result<Crew> {
        let mut berths = JoinSet::new();
        let phase = watch::Sender::new(Phase::Starting);
        let (ready, counted) = watch::channel(0);
        let decided: Vec<&Place> = places.iter().filter(|place| place.door != Door::Http).collect();
        for index in 0..count {
            let known = (core.reload.clone(), tally.clone());
            let berth = Berth::new((index, count), &decided, known, ready.clone())?;
            berths.spawn(berth.keep(phase.subscribe()));
        }
        Ok(Crew { berths, phase, ready: counted, count: count as usize })
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
    async fn serving(&mut self, signals: &mut Signals, tally: &Tally) -> Option<()> {
        let (mut serving, count) = (tally.serving(), self.count);
        self.phase.send_replace(Phase::Serving);
        tokio::select! {
            _ = serving.wait_for(|&serving| serving == count) => Some(()),
            () = signals.stop() => None,
        }
    }

    /// Waits until one cannot be kept any more.
    async fn lost(&mut self) -> anyhow::Result<()> {
        match self.berths.join_next().await {
            Some(berth) => berth.context("a worker was lost")?,
            None => std::future::pending().await,
        }
    }

    /// Lets calls under way finish, and waits until all have ended; kills those that take too long, or
    /// all once `signals` has told it to stop again.
    async fn drain(&mut self, signals: &mut Signals) {
        tracing::info!("draining");
        self.phase.send_replace(Phase::Draining);
        tokio::select! {
            () = async { while self.berths.join_next().await.is_some() {} } => return,
            () = tokio::time::sleep(DRAIN_MAX + END_MAX) => {
                tracing::warn!("workers were still there after {:?}; killed", DRAIN_MAX + END_MAX);
            }
            () = signals.stop() => tracing::warn!("told to stop again; workers are killed"),
        }
        self.kill().await;
    }

    async fn kill(&mut self) {
        self.phase.send_replace(Phase::Killing);
        while self.berths.join_next().await.is_some() {}
    }
}
