//! `tidegate serve`: puts the parts together, opens the doors, and handles signals.
//!
//! Nothing is served before everything is ready: limits without a mistake, the data directory
//! open, every address bound.

use crate::address::{Address, Listener};
use crate::cli::{LogFormat, ServeOptions};
use crate::engine::Engine;
use crate::http::Health;
use crate::metrics::Metrics;
use crate::reload::Reload;
use crate::rls::Rls;
use crate::{http, keeper};
use anyhow::{Context, anyhow, bail};
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Longer than any call that Envoy would still wait for; after it, open calls are cut off.
const DRAIN_MAX: Duration = Duration::from_secs(10);

pub(crate) fn run(options: &ServeOptions) -> anyhow::Result<()> {
    start_logging(options)?;
    if options.grpc.iter().all(|address| *address == Address::Off) {
        bail!("--grpc off leaves nothing to serve; give it an address");
    }
    let (reload, rules) = Reload::first(options)?;
    let store = keeper::open(&options.store)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let metrics = Metrics::default();
    let engine = Engine::new(store, rules, options.modes(), metrics.clone())?;
    let engine = Arc::new(engine);
    let served = runtime.block_on(serve(options, engine.clone(), metrics, Arc::new(reload)));
    // Cuts off what did not drain in time, so that nothing counts after the last sync.
    runtime.shutdown_timeout(Duration::from_secs(1));
    engine.store().sync().context("the counters were not synced to disk")?;
    served
}

fn start_logging(options: &ServeOptions) -> anyhow::Result<()> {
    let filter = log_filter(&options.log)?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match options.log_format {
        LogFormat::Text => {
            log.with_target(false).with_ansi(std::io::stderr().is_terminal()).init();
        }
        LogFormat::Json => log.json().init(),
    }
    Ok(())
}

/// A level, or directives. An unknown word would be taken for a target of that name, and so
/// silence everything; it is refused here.
fn log_filter(text: &str) -> anyhow::Result<EnvFilter> {
    let is_word = |directive: &&str| !directive.contains(['=', '[']);
    let mut level = LevelFilter::OFF;
    for word in text.split(',').filter(is_word) {
        level = word.trim().parse().map_err(|_| {
            anyhow!(
                "--log {word:?}: expected off, error, warn, info, debug, trace, or target=level"
            )
        })?;
    }
    // It warns of each directory whose watch went with it, as with every change of a ConfigMap.
    let is_noisy = level > LevelFilter::ERROR
        && !text.split(',').any(|directive| directive.trim().starts_with("notify"));
    let quiet = if is_noisy { ",notify=error" } else { "" };
    EnvFilter::try_new(format!("{text}{quiet}"))
        .with_context(|| format!("--log {text:?} is not understood"))
}

async fn serve(
    options: &ServeOptions,
    engine: Arc<Engine>,
    metrics: Metrics,
    reload: Arc<Reload>,
) -> anyhow::Result<()> {
    let mut signals = Signals::listen()?;
    // All addresses first: a door that cannot be opened must not be found out while another one
    // already answers.
    let mut listeners = Vec::new();
    for address in &options.grpc {
        listeners.extend(open("grpc", address).await?);
    }
    let http = open("http", &options.http).await?;

    let (stop, stopping) = watch::channel(false);
    let mut doors: JoinSet<anyhow::Result<()>> = JoinSet::new();
    for listener in listeners {
        let rls = Rls { engine: engine.clone(), metrics: metrics.clone() };
        doors.spawn(rls.serve(listener, stopping.clone()));
    }
    let (keeper, store) = keeper::keep(engine.clone(), options.store.sync_interval);
    // Outlives the others, so that /healthcheck can tell that they are draining.
    let health = http.map(|listener| {
        let health = Health { draining: stopping, store };
        let mut registry = metrics.registry(engine.clone());
        reload.metrics().register(&mut registry);
        tokio::spawn(http::serve(listener, registry, health))
    });
    let reloading = tokio::spawn(reload.clone().run(engine));
    tracing::info!("ready");
    let ended = signals.run_until_stop(&reload, &mut doors).await;
    tracing::info!("draining");
    reloading.abort();
    stop.send_replace(true);
    tokio::select! {
        () = async { while doors.join_next().await.is_some() {} } => {}
        () = tokio::time::sleep(DRAIN_MAX) => {
            tracing::warn!("calls were still under way after {DRAIN_MAX:?}; cut off");
        }
        () = signals.stop() => tracing::warn!("told to stop again; calls under way are cut off"),
    }
    keeper.abort();
    if let Some(health) = health {
        health.abort();
        // Its end removes its socket file.
        let _ = health.await;
    }
    ended
}

async fn open(door: &str, address: &Address) -> anyhow::Result<Option<Listener>> {
    let listener = Listener::open(address).await?;
    if let Some(listener) = &listener {
        tracing::info!(door, address = listener.describe(), "listening");
    }
    Ok(listener)
}

/// The signals that a daemon answers, heard from before the first door opens.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn listen() -> anyhow::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Runs until a signal says to stop, or a door fails.
    async fn run_until_stop(
        &mut self,
        reload: &Reload,
        doors: &mut JoinSet<anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return Ok(()),
                _ = self.interrupt.recv() => return Ok(()),
                _ = self.hangup.recv() => reload.ask(),
                Some(door) = doors.join_next() => {
                    return door.context("a door panicked")?.context("a door failed");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With every change of a ConfigMap the log had a warning of the notify crate that nobody could
    /// do anything about.
    #[test]
    fn the_watcher_is_quiet_unless_asked_for() {
        let check = |text: &str, expected: &[&str]| {
            let filter = log_filter(text).unwrap().to_string();
            let mut found: Vec<&str> = filter.split(',').collect();
            found.sort_unstable();
            assert_eq!(found, expected, "for {text}");
        };
        check("info", &["info", "notify=error"]);
        check("debug,h2=info", &["debug", "h2=info", "notify=error"]);
        check("info,notify=debug", &["info", "notify=debug"]);
        check("info,notify::inotify=warn", &["info", "notify::inotify=warn"]);
        // Nothing is made louder.
        check("off", &["off"]);
        check("error", &["error"]);
        check("h2=info", &["h2=info"]);
        assert!(log_filter("inof").is_err());
    }
}
