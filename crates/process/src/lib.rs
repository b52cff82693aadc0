//! Serving processes: one, or a supervisor with workers.
//!
//! Owns startup and shutdown, the listening sockets and their takeover, worker processes, signals and the
//! log. Nothing is served before everything is ready: valid limits, an open data directory, every address
//! bound, every worker started. Knows neither command lines nor where limits come from.

#![allow(missing_docs, reason = "used in this workspace alone; a good name is not explained again")]

mod channel;
mod cold;
mod console;
mod endpoints;
mod lifecycle;
mod logging;
mod neighbours;
mod open_files;
mod service;
mod settings;
mod shared;
mod signals;
mod single;
mod sockets;
mod statistics;
mod top;
mod workers;

pub use cold::{COLD_FILE, ColdLevels, ColdSettings, cold_databases};
pub use logging::{LogFormat, LogSettings};
pub use service::OpenFeed;
pub use settings::{Settings, WORKERS_MAX};
pub use shared::SharedSettings;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use sockets::takeover::fuzzing;
pub use statistics::{STATISTICS_FILE, StatisticsSettings};

use anyhow::{Context, bail};
use logging::Process;
use service::Service;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;
use tidegate_limits::diff::Snapshot;
use tokio::runtime::{Builder, Runtime};

/// Longer than Envoy waits for any call. Then open calls are cut off.
const DRAIN_MAX: Duration = Duration::from_secs(10);

pub fn start_log(settings: &LogSettings) -> anyhow::Result<()> {
    logging::start(settings, Process::Main)
}

/// Serves until a signal to stop, or until another process has taken over. The caller has started the log.
pub fn serve(settings: &Settings, open_feed: &OpenFeed<'_>) -> anyhow::Result<()> {
    open_files::raise_limit();
    if !sockets::configured(settings)?.iter().any(|(endpoint, _)| endpoint.decides()) {
        bail!("--grpc off leaves nothing to serve; give it an address");
    }
    if settings.data_dir.dir.is_none() {
        if settings.workers > 0 {
            bail!("--data-dir off keeps counters in one process; --workers needs a directory");
        }
        if settings.takeover {
            bail!("--data-dir off leaves nothing to take over; --takeover needs a directory");
        }
    }
    let runtime = runtime().build()?;
    let mut bound = None;
    let open_feed = |observer| open_feed(None, observer);
    let service = Service::open(settings, open_feed, |rules| {
        let limits = Snapshot::of(rules).limits();
        let data_dir = settings.data_dir.dir.as_deref().unwrap_or(Path::new("off"));
        tracing::info!(version = version(), data_dir = %data_dir.display(), limits, "starting");
        // An address that another process serves must not leave a new data directory behind.
        if !settings.takeover {
            bound = Some(runtime.block_on(sockets::start::open_addresses(settings, None))?);
        }
        Ok(())
    })?;
    let served = match settings.workers {
        0 => runtime.block_on(single::serve(settings, &service, bound)),
        count => runtime.block_on(workers::supervise(settings, &service, (count, bound))),
    };
    let ended = end(runtime, &service).and(served);
    if ended.is_ok() {
        tracing::info!("stopped");
    }
    ended
}

/// The version, and the commit of a build that names it by `TIDEGATE_COMMIT`.
#[must_use]
pub fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        let version = env!("CARGO_PKG_VERSION");
        match option_env!("TIDEGATE_COMMIT").filter(|commit| !commit.is_empty()) {
            Some(commit) => format!("{version} ({commit})"),
            None => version.to_owned(),
        }
    });
    &VERSION
}

/// Serves as a worker of the supervisor at the other end of standard input.
pub fn serve_as_worker(settings: &Settings, open_feed: &OpenFeed<'_>) -> anyhow::Result<()> {
    workers::run_worker(settings, open_feed)
}

/// The builder of the runtime that serves.
fn runtime() -> Builder {
    let mut builder = Builder::new_multi_thread();
    // A thread has a queue of 256 tasks; the rest go to a queue shared by all threads. Whichever is polled
    // first starves the other while many connections are busy. With alternating turns no task waits for more
    // than two rounds through all of them.
    builder.enable_all().global_queue_interval(2);
    builder
}

/// Cuts off tasks that did not drain in time, so that nothing is counted after the last sync.
fn end(runtime: Runtime, service: &Service) -> anyhow::Result<()> {
    runtime.shutdown_timeout(Duration::from_secs(1));
    service.store.sync().context("the last snapshot was not written")?;
    Ok(())
}

enum StopCause {
    /// A signal, or the failure of an endpoint.
    Requested,
    /// A new process has the addresses at these indexes.
    TakenOver(Vec<usize>),
}
