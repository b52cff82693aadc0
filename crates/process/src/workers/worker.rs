//! A worker process: serves the sockets that the supervisor assigns, with one thread, until the command to drain.
//!
//! The supervisor is at the other end of standard input; if that closes, the supervisor is gone and the
//! worker drains. Leaves snapshots to the supervisor as long as it runs.

use super::messages::{AssignedSocket, FromWorker, MESSAGE_BYTES_MAX, ToWorker};
use crate::Settings;
use crate::channel::{Channel, Incoming, Outgoing};
use crate::endpoints::{DecisionServices, Endpoints};
use crate::logging::{self, Process};
use crate::service::{OpenFeed, ProcessMetrics, Service};
use crate::signals::{Action, Signals};
use crate::sockets::Endpoint;
use crate::{end, runtime};
use anyhow::{Context, bail};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use tidegate_servers::{Address, Health, Listener, Overload};
use tidegate_stats::Snapshot;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};

/// A larger snapshot is not sent. JSON can need six bytes for one.
const SNAPSHOT_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How often metrics are sent unasked. Counts since the last report are lost with a worker that is killed.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// A snapshot of thousands of rules takes long to build; this keeps it to 1 % of the time.
const REPORT_PAUSE: u32 = 100;
const LAST_REPORT_MAX: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServeEnd {
    Stopped,
    /// The channel closed or failed.
    SupervisorGone,
}

pub(crate) fn run(settings: &Settings, open_feed: &OpenFeed<'_>) -> anyhow::Result<()> {
    let stdin = std::io::stdin().as_fd().try_clone_to_owned()?;
    let mut channel = Channel::new(UnixStream::from(stdin), MESSAGE_BYTES_MAX);
    let start =
        channel.receive_with().context("--as-worker is only for the supervisor; use --workers")?;
    let (ToWorker::Start { index, sockets }, limits) = start else {
        bail!("the first message is not Start: {:?}", start.0);
    };
    // The program was started through /proc/self/exe, so the kernel named it "exe".
    let _ = std::fs::write("/proc/self/comm", "tidegate");
    logging::start(&settings.log, Process::Worker(index))?;
    let limits = File::from(limits);
    let serve = || {
        let assigned =
            (0..sockets).map(|_| channel.receive_with()).collect::<anyhow::Result<_>>()?;
        let service = Service::open(settings, |observer| open_feed(Some(&limits), observer))?;
        serve(settings, &service, channel, assigned)
    };
    let served = serve();
    served.with_context(|| format!("worker {index}"))
}

fn serve(
    settings: &Settings,
    service: &Service,
    mut channel: Channel,
    assigned: Vec<(AssignedSocket, OwnedFd)>,
) -> anyhow::Result<()> {
    let runtime = runtime().worker_threads(1).build()?;
    channel.send(&FromWorker::Ready)?;
    match channel.receive()? {
        Some(ToWorker::Serve) => {}
        Some(ToWorker::Drain) | None => return Ok(()),
        Some(other) => bail!("received {other:?} instead of Serve"),
    }
    // Not sooner: epoll reports a bound socket that does not listen yet as hung up. The runtime remembers
    // that for good, and accepting from it would spin without end.
    let listeners = listeners(&runtime, assigned)?;
    match runtime.block_on(serve_all(service, settings, channel, listeners))? {
        ServeEnd::Stopped => {
            runtime.shutdown_timeout(Duration::from_secs(1));
            Ok(())
        }
        ServeEnd::SupervisorGone => end(runtime, service),
    }
}

fn listeners(
    runtime: &Runtime,
    assigned: Vec<(AssignedSocket, OwnedFd)>,
) -> anyhow::Result<Vec<(Endpoint, Listener)>> {
    let _entered = runtime.enter();
    let listener = |(AssignedSocket { endpoint, address }, socket)| {
        let address: Address = address.parse().map_err(anyhow::Error::msg)?;
        Ok((endpoint, Listener::from_socket(socket, &address)?))
    };
    assigned.into_iter().map(listener).collect()
}

async fn serve_all(
    service: &Service,
    settings: &Settings,
    channel: Channel,
    listeners: Vec<(Endpoint, Listener)>,
) -> anyhow::Result<ServeEnd> {
    let mut signals = Signals::subscribe()?;
    let (mut incoming, outgoing) = channel.split()?;
    let (store_watch, store) = tidegate_data_dir::maintain(service.store.clone(), None);
    let draining = watch::Sender::new(false);
    let shared = service.shared_health();
    let health = Health { draining: draining.subscribe(), store, workers: None, shared };
    let shared = service.shared(health, Overload::start());
    let services = DecisionServices::new(&shared, settings)?;
    let mut endpoints = Endpoints::new();
    for (endpoint, listener) in listeners {
        endpoints.open(endpoint, listener, &services);
    }
    let reloading = tokio::spawn(service.feed.clone().run(service.authority.clone()));
    let (rounds, requested) = mpsc::channel(1);
    let reporter = tokio::spawn(report(service.page_without_store(), outgoing, requested));
    let tending = service.tend();
    tracing::debug!("serving");

    let reload = || {
        service.feed.reload();
        services.rls.reload_files();
    };
    let ended = loop {
        tokio::select! {
            ended = follow_supervisor(&mut incoming, &reload, &rounds) => break Ok(ended),
            requested = signals.next() => match requested {
                Action::Stop => break Ok(ServeEnd::Stopped),
                Action::Reload => reload(),
            },
            failed = endpoints.failed() => break failed.map(|()| ServeEnd::Stopped),
        }
    };
    reloading.abort();
    draining.send_replace(true);
    // The supervisor handles a second signal to stop. A service manager that signals all processes at once,
    // as systemd does, does not mean to cut calls short.
    endpoints.drain(std::future::pending()).await;
    service.leave(tending).await;
    store_watch.abort();
    drop(rounds);
    let _ = tokio::time::timeout(LAST_REPORT_MAX, reporter).await;
    ended
}

/// Executes the commands of the supervisor until it says to drain, or is gone.
async fn follow_supervisor(
    incoming: &mut Incoming,
    reload: &impl Fn(),
    rounds: &mpsc::Sender<u64>,
) -> ServeEnd {
    loop {
        match incoming.receive().await {
            Ok(Some(ToWorker::Reload)) => reload(),
            // If an earlier request is still pending, a later snapshot answers this one too.
            Ok(Some(ToWorker::Report { round })) => {
                let _ = rounds.try_send(round);
            }
            Ok(Some(ToWorker::Drain)) => return ServeEnd::Stopped,
            Ok(Some(other @ (ToWorker::Start { .. } | ToWorker::Serve))) => {
                tracing::warn!(?other, "an unexpected message of the supervisor");
            }
            Ok(None) => {
                tracing::error!("the supervisor is gone; draining");
                return ServeEnd::SupervisorGone;
            }
            Err(error) => {
                tracing::error!(%error, "a message of the supervisor is not valid; draining");
                return ServeEnd::SupervisorGone;
            }
        }
    }
}

/// Sends the metrics when requested, every second, and at the end.
async fn report(
    metrics: ProcessMetrics,
    mut outgoing: Outgoing,
    mut requested: mpsc::Receiver<u64>,
) {
    let (mut round, mut sent) = (0, Snapshot::default());
    let (mut is_last, mut is_too_long) = (false, false);
    let mut due = Instant::now() + REPORT_EVERY;
    while !is_last {
        let before = round;
        tokio::select! {
            requested = requested.recv() => match requested {
                Some(requested) => round = requested,
                None => is_last = true,
            },
            () = tokio::time::sleep(REPORT_EVERY) => {}
        }
        let mut message = FromWorker::Alive;
        let start = Instant::now();
        if is_last || round != before || start >= due {
            let Ok(snapshot) = metrics.snapshot().await else { continue };
            due = Instant::now() + REPORT_EVERY.max(start.elapsed() * REPORT_PAUSE);
            let bytes = snapshot.bytes();
            if bytes > SNAPSHOT_BYTES_MAX {
                if !std::mem::replace(&mut is_too_long, true) {
                    tracing::warn!(bytes, "the metrics are too long to be sent, and are missing");
                }
            } else if snapshot != sent || round != before {
                sent.clone_from(&snapshot);
                message = FromWorker::Metrics { round, snapshot };
            }
        }
        if outgoing.send(&message).await.is_err() {
            return;
        }
    }
}
