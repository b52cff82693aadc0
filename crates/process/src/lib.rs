//! Serving processes: one, or a supervisor with workers.
//!
//! Owns startup and shutdown, the listening sockets and their takeover, worker processes, signals and the
//! log. Nothing is served before everything is ready: valid limits, an open data directory, every address
//! bound, every worker started. Knows neither command lines nor where limits come from.

#![allow(missing_docs, reason = "used in this workspace alone; a good name is not explained again")]

mod channel;
mod endpoints;
mod lifecycle;
mod logging;
mod open_files;
mod service;
mod settings;
mod shared;
mod signals;
mod single;
mod sockets;
mod workers;

pub use logging::{LogFormat, LogSettings};
pub use service::OpenFeed;
pub use settings::{Settings, WORKERS_MAX};
pub use shared::SharedSettings;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use sockets::takeover::fuzzing;

use anyhow::{Context, bail};
use logging::Process;
use service::Service;
use sockets::Endpoint;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// Longer than Envoy waits for any call. Then open calls are cut off.
const DRAIN_MAX: Duration = Duration::from_secs(10);

pub fn start_log(settings: &LogSettings) -> anyhow::Result<()> {
    logging::start(settings, Process::Main)
}

/// Serves until a signal to stop, or until another process has taken over. The caller has started the log.
pub fn serve(settings: &Settings, open_feed: &OpenFeed<'_>) -> anyhow::Result<()> {
    open_files::raise_limit();
    if !sockets::configured(settings)?.iter().any(|(endpoint, _)| *endpoint != Endpoint::Http) {
        bail!("--grpc off leaves nothing to serve; give it an address");
    }
    let service = Service::open(settings, |observer| open_feed(None, observer))?;
    let runtime = runtime().build()?;
    let served = match settings.workers {
        0 => runtime.block_on(single::serve(settings, &service)),
        count => runtime.block_on(workers::supervise(settings, &service, count)),
    };
    end(runtime, &service).and(served)
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
