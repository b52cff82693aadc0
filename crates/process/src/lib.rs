//! Processes that serve: one, or a supervisor with workers.
//!
//! Owns the order of a start and of an end, sockets and how they change hands, worker processes, signals and the
//! log. Nothing is served before everything is ready: limits without a mistake, the data directory open, every
//! address bound, every worker process started. Refuses to know command lines and the sources of limits.

#![allow(missing_docs, reason = "used in this workspace alone; a good name is not explained again")]

mod backoff;
mod channel;
mod endpoints;
mod lifecycle;
mod logging;
mod open_files;
mod service;
mod settings;
mod signals;
mod single;
mod sockets;
mod start;
mod supervised;
mod supervisor;
mod takeover;
mod worker;
mod worker_metrics;

pub use logging::{LogFormat, LogSettings};
pub use service::OpenFeed;
pub use settings::{Settings, WORKERS_MAX};
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use takeover::fuzzing;

use anyhow::{Context, bail};
use logging::Process;
use service::Service;
use sockets::Endpoint;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// Longer than any call that Envoy would still wait for; after it, open calls are cut off.
const DRAIN_MAX: Duration = Duration::from_secs(10);

/// Starts the log of a process that a user started.
pub fn start_log(settings: &LogSettings) -> anyhow::Result<()> {
    logging::start(settings, Process::Started)
}

/// Serves until a signal says to stop, or another process has taken over. The log is started.
pub fn serve(settings: &Settings, open_feed: &OpenFeed<'_>) -> anyhow::Result<()> {
    open_files::allow_all();
    if !sockets::wanted(settings)?.iter().any(|(endpoint, _)| *endpoint != Endpoint::Http) {
        bail!("--grpc off leaves nothing to serve; give it an address");
    }
    let service = Service::open(settings, |observer| open_feed(None, observer))?;
    let runtime = runtime().build()?;
    let served = match settings.workers {
        0 => runtime.block_on(single::serve(settings, &service)),
        count => runtime.block_on(supervisor::serve(settings, &service, count)),
    };
    end(runtime, &service).and(served)
}

/// Serves as a worker of the process at the other end of standard input.
pub fn serve_as_worker(settings: &Settings, open_feed: &OpenFeed<'_>) -> anyhow::Result<()> {
    worker::run(settings, open_feed)
}

/// The threads that serve.
fn runtime() -> Builder {
    let mut builder = Builder::new_multi_thread();
    // A thread's own queue has room for 256 tasks; what comes beyond goes to one for all threads. Which of
    // the two is looked at first starves the other while many connections are busy: by turns, none waits
    // for more than two rounds through all.
    builder.enable_all().global_queue_interval(2);
    builder
}

/// Cuts off what did not drain in time, so that nothing counts after the last sync.
fn end(runtime: Runtime, service: &Service) -> anyhow::Result<()> {
    runtime.shutdown_timeout(Duration::from_secs(1));
    service.store().sync().context("the last snapshot was not written")?;
    Ok(())
}

/// Why serving ended.
enum Ended {
    /// A signal, or an endpoint that failed.
    Asked,
    /// Another process has the addresses at these positions now.
    TakenOver(Vec<usize>),
}
