//! `tidegate serve`: puts the parts together, and serves by one process or by several.
//!
//! Nothing is served before everything is ready: limits without a mistake, the data directory
//! open, every address bound, every worker process started.

mod backoff;
mod child;
mod control;
mod doors;
mod files;
mod logging;
mod owner;
mod signals;
mod single;
mod sockets;
mod supervisor;
mod takeover;
mod tally;
mod worker;

use crate::cli::ServeOptions;
use crate::engine::Engine;
use crate::frs::Frs;
use crate::health::Health;
use crate::http::{Http, MetricsPage, Requests};
use crate::keeper;
use crate::metrics::{self, BlockedCollector, Metrics};
use crate::overload::Overload;
use crate::reload::Reload;
use crate::replies::Replies;
use crate::rls::Rls;
use anyhow::{Context, bail};
use doors::Parts;
use logging::Process;
use prometheus_client::registry::Registry;
use sockets::{Door, Place};
use std::sync::Arc;
use std::time::Duration;
use takeover::Offer;
#[cfg(feature = "fuzzing")]
pub use takeover::fuzzing as takeover_fuzzing;
use tidegate_limits::Rules;
use tokio::runtime::{Builder, Runtime};

/// Longer than any call that Envoy would still wait for; after it, open calls are cut off.
const DRAIN_MAX: Duration = Duration::from_secs(10);

pub(crate) fn run(options: &ServeOptions) -> anyhow::Result<()> {
    if options.workers.as_worker {
        return worker::run(options);
    }
    logging::start(options, Process::Started)?;
    files::allow_all();
    if let Some(inherited) = &options.inherited {
        inherited.log();
    }
    if !sockets::wanted(options)?.iter().any(|(door, _)| *door != Door::Http) {
        bail!("--grpc off leaves nothing to serve; give it an address");
    }
    let core = Core::open(options, Reload::first(options)?)?;
    let runtime = runtime().build()?;
    let served = match options.workers.count {
        0 => runtime.block_on(single::serve(options, &core)),
        count => runtime.block_on(supervisor::serve(options, &core, count)),
    };
    end(runtime, &core).and(served)
}

/// What serves.
fn runtime() -> Builder {
    let mut builder = Builder::new_multi_thread();
    // A thread's own queue has room for 256 tasks; what comes beyond goes to one for all threads. Which of
    // the two is looked at first starves the other while many connections are busy: by turns, none waits
    // for more than two rounds through all.
    builder.enable_all().global_queue_interval(2);
    builder
}

/// Cuts off what did not drain in time, so that nothing counts after the last sync.
fn end(runtime: Runtime, core: &Core) -> anyhow::Result<()> {
    runtime.shutdown_timeout(Duration::from_secs(1));
    core.engine.store().sync().context("the last snapshot was not written")?;
    Ok(())
}

/// What decides, in each process.
struct Core {
    engine: Arc<Engine>,
    metrics: Metrics,
    reload: Arc<Reload>,
    replies: Arc<Replies>,
    requests: Requests,
}

impl Core {
    /// Opens the data directory, on limits that are free of mistakes.
    fn open(options: &ServeOptions, (reload, rules): (Reload, Rules)) -> anyhow::Result<Core> {
        let store = keeper::open(&options.store, options.workers.count)?;
        let metrics = Metrics::default();
        let engine = Engine::new(store, rules, options.modes(), metrics.clone())?;
        Ok(Core {
            engine: Arc::new(engine),
            metrics,
            reload: Arc::new(reload),
            replies: Arc::new(options.replies.replies()),
            requests: Requests::default(),
        })
    }

    /// The HTTP door.
    fn http<M: MetricsPage>(&self, page: M, health: Health, overload: Arc<Overload>) -> Http<M> {
        let (engine, metrics) = (self.engine.clone(), self.metrics.clone());
        let (replies, requests) = (self.replies.clone(), self.requests.clone());
        Http::new(engine, metrics, replies, page, requests, health, overload)
    }

    /// The doors that decide requests.
    fn parts(
        &self,
        health: Health,
        overload: Arc<Overload>,
        options: &ServeOptions,
    ) -> anyhow::Result<Parts> {
        let (engine, metrics) = (self.engine.clone(), self.metrics.clone());
        let frs = Frs::new(engine, metrics, overload.clone(), &options.frs);
        let (engine, metrics, replies) =
            (self.engine.clone(), self.metrics.clone(), self.replies.clone());
        let rls = Rls::new(engine, metrics, replies, health, overload, &options.connections)?;
        Ok(Parts { rls, frs })
    }
}

/// Why serving ended.
enum Ended {
    /// A signal, or a door that failed.
    Told,
    /// By a process that has these places now.
    TakenOver(Vec<usize>),
}

/// What this process counts itself.
#[derive(Clone)]
struct OwnMetrics(Arc<Registry>);

impl OwnMetrics {
    /// With what the store counts, for all processes.
    fn with_store(core: &Core) -> OwnMetrics {
        OwnMetrics::of(core.metrics.registry(core.engine.clone()), core)
    }

    fn without_store(core: &Core) -> OwnMetrics {
        OwnMetrics::of(core.metrics.registry_without_store(), core)
    }

    fn of(mut registry: Registry, core: &Core) -> OwnMetrics {
        core.reload.metrics().register(&mut registry);
        core.requests.register(&mut registry);
        registry.register_collector(Box::new(BlockedCollector(core.engine.clone())));
        OwnMetrics(Arc::new(registry))
    }
}

impl MetricsPage for OwnMetrics {
    async fn page(&self) -> anyhow::Result<String> {
        metrics::page(self.0.clone()).await
    }
}

/// Asks whoever serves for the sockets, if told to.
async fn take_over(options: &ServeOptions) -> anyhow::Result<Option<Offer>> {
    if !options.workers.takeover {
        return Ok(None);
    }
    let data_dir = options.store.data_dir.clone();
    let asked = tokio::task::spawn_blocking(move || takeover::ask(&data_dir)).await?;
    let offer =
        asked.context("cannot take over from the process that serves this data directory")?;
    if offer.is_none() {
        tracing::info!("nobody serves this data directory, so there is nothing to take over");
    }
    Ok(offer)
}

/// Opens every address, or takes it from `offer`.
async fn open_places(
    options: &ServeOptions,
    mut offer: Option<&mut Offer>,
) -> anyhow::Result<Vec<Place>> {
    let mut places = Vec::new();
    for (door, address) in sockets::wanted(options)? {
        let inherited = match &mut offer {
            Some(offer) => offer.take(door, &address).await,
            None => None,
        };
        let place = match inherited {
            Some(place) => place,
            None => Place::open(door, &address).await?,
        };
        tracing::info!(door = door.name(), address = place.describe(), "listening");
        places.push(place);
    }
    Ok(places)
}

/// Tells the process that served until now that this one does.
async fn tell_old(offer: Option<Offer>, places: &mut [Place]) {
    let Some(offer) = offer else { return };
    places.iter_mut().for_each(Place::own);
    match tokio::task::spawn_blocking(move || offer.serving()).await {
        Ok(Ok(())) => tracing::info!("took over; the old process drains"),
        Ok(Err(error)) => {
            let error = format!("{error:#}");
            tracing::warn!(error, "the old process went away before it was told to");
        }
        Err(error) => tracing::error!(%error, "the old process could not be told"),
    }
}
