//! `tidegate serve`: puts the parts together, opens the doors, and handles signals.
//!
//! Nothing is served before everything is ready: limits without a mistake, the data directory
//! open, every address bound.

use crate::address::{Address, Listener};
use crate::cli::{LogFormat, ServeOptions};
use crate::engine::Engine;
use crate::metrics::Metrics;
use crate::rls::Rls;
use crate::{http, rules};
use anyhow::{Context, bail};
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;
use tidegate_store::{Options, Store};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing_subscriber::EnvFilter;

/// Longer than any call that Envoy would still wait for; after it, open calls are cut off.
const DRAIN_MAX: Duration = Duration::from_secs(10);

pub(crate) fn run(options: &ServeOptions) -> anyhow::Result<()> {
    start_logging(options)?;
    if options.grpc.iter().all(|address| *address == Address::Off) {
        bail!("--grpc off leaves nothing to serve; give it an address");
    }
    let rules = rules::load(&options.limits).context("the limits were not loaded")?;
    let store = Store::open(&options.data_dir, &Options { capacity: options.capacity })?;
    note_capacity(&store, options);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let metrics = Metrics::default();
    let engine = Arc::new(Engine::new(store, rules, metrics.clone()));
    let served = runtime.block_on(serve(options, engine.clone(), metrics));
    // Cuts off what did not drain in time, so that nothing counts after the last sync.
    runtime.shutdown_timeout(Duration::from_secs(1));
    engine.store().sync().context("the counters were not synced to disk")?;
    served
}

fn start_logging(options: &ServeOptions) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&options.log)
        .with_context(|| format!("--log {:?} is not a level or directive", options.log))?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match options.log_format {
        LogFormat::Text => {
            log.with_target(false).with_ansi(std::io::stderr().is_terminal()).init();
        }
        LogFormat::Json => log.json().init(),
    }
    Ok(())
}

fn note_capacity(store: &Store, options: &ServeOptions) {
    let capacity = store.capacity();
    if capacity < options.capacity {
        let asked = options.capacity;
        tracing::warn!(capacity, asked, "the data directory is smaller than --capacity asks");
    }
}

async fn serve(
    options: &ServeOptions,
    engine: Arc<Engine>,
    metrics: Metrics,
) -> anyhow::Result<()> {
    let (stop, stopping) = watch::channel(false);
    let mut doors: JoinSet<anyhow::Result<()>> = JoinSet::new();
    for address in &options.grpc {
        if let Some(listener) = Listener::open(address).await? {
            tracing::info!(door = "grpc", address = listener.describe(), "listening");
            let rls = Rls { engine: engine.clone(), metrics: metrics.clone() };
            doors.spawn(rls.serve(listener, stopping.clone()));
        }
    }
    if let Some(listener) = Listener::open(&options.http).await? {
        tracing::info!(door = "http", address = listener.describe(), "listening");
        let registry = metrics.registry(engine.clone());
        doors.spawn(http::serve(listener, registry, stopping.clone()));
    }
    tracing::info!("ready");
    let ended = handle_signals(options, &engine, &mut doors).await;
    tracing::info!("draining");
    stop.send_replace(true);
    let drained =
        tokio::time::timeout(DRAIN_MAX, async { while doors.join_next().await.is_some() {} });
    if drained.await.is_err() {
        tracing::warn!("calls were still under way after {DRAIN_MAX:?}; cut off");
    }
    ended
}

/// Runs until a signal says to stop, or a door fails.
async fn handle_signals(
    options: &ServeOptions,
    engine: &Engine,
    doors: &mut JoinSet<anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            _ = hangup.recv() => reload(options, engine),
            Some(door) = doors.join_next() => {
                return door.context("a door panicked")?.context("a door failed");
            }
        }
    }
}

fn reload(options: &ServeOptions, engine: &Engine) {
    match rules::load(&options.limits) {
        Ok(rules) => {
            let limits = rules.limits().len();
            engine.replace_rules(rules);
            tracing::info!(limits, "limits reloaded");
        }
        Err(errors) => {
            for error in &errors.0 {
                tracing::error!(%error, "limits not reloaded; the old ones stay in force");
            }
        }
    }
}
