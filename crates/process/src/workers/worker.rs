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
use crate::top::ProcessTop;
use crate::{end, runtime};
use anyhow::{Context, bail};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use tidegate_servers::{Address, Health, Listener, Overload};
use tidegate_stats::{RuleUse, Snapshot};
use tidegate_top::Summary;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};

/// A larger snapshot is not sent. JSON can need six bytes for one.
const SNAPSHOT_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How often metrics are sent unasked. Counts since the last report are lost with a worker that is killed.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// A snapshot of thousands of rules takes long to build; this keeps it to 1 % of the time.
const REPORT_PAUSE: u32 = 100;
/// Of who is limited, with the same allowance for JSON. Some 3,000 descriptors.
const SUMMARY_BYTES_MAX: usize = 1024 * 1024;
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
        let service =
            Service::open(settings, |observer| open_feed(Some(&limits), observer), |_| Ok(()))?;
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
    let cold = service.cold_health();
    let health = Health { draining: draining.subscribe(), store, workers: None, shared, cold };
    let shared = service.shared(health, Overload::start());
    let services = DecisionServices::new(&shared, settings)?;
    let mut endpoints = Endpoints::new();
    for (endpoint, listener) in listeners {
        endpoints.open(endpoint, listener, &services);
    }
    let reloading = tokio::spawn(service.feed.clone().run(service.authority.clone()));
    let (rounds, requested) = Rounds::new();
    let sources = (service.page_without_store(), service.top.clone());
    let reporter = tokio::spawn(report(sources, outgoing, requested));
    let (tending, recording) = (service.tend(), service.record());
    tracing::debug!("serving");

    let reload = || {
        service.feed.reload();
        services.rls.reload_files();
    };
    let ended = loop {
        tokio::select! {
            ended = follow_supervisor(&mut incoming, service, &reload, &rounds) => break Ok(ended),
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
    service.finish(recording).await;
    store_watch.abort();
    drop(rounds);
    let _ = tokio::time::timeout(LAST_REPORT_MAX, reporter).await;
    ended
}

/// Executes the commands of the supervisor until it says to drain, or is gone.
async fn follow_supervisor(
    incoming: &mut Incoming,
    service: &Service,
    reload: &impl Fn(),
    rounds: &Rounds,
) -> ServeEnd {
    loop {
        match incoming.receive().await {
            Ok(Some(ToWorker::Reload)) => reload(),
            Ok(Some(ToWorker::Limits)) => match incoming.file() {
                Ok(file) => service.feed.replace_by_copy(File::from(file)),
                Err(error) => tracing::error!(%error, "new limits did not arrive"),
            },
            // If an earlier request is still pending, a later snapshot answers this one too.
            Ok(Some(ToWorker::Report { round })) => {
                let _ = rounds.metrics.try_send(round);
            }
            Ok(Some(ToWorker::Brief { round })) => {
                let _ = rounds.brief.try_send(round);
            }
            Ok(Some(ToWorker::Rules { round })) => {
                let _ = rounds.rules.try_send(round);
            }
            Ok(Some(ToWorker::Top { round })) => {
                let _ = rounds.top.try_send(round);
            }
            Ok(Some(ToWorker::Decisions { round })) => {
                let _ = rounds.decisions.try_send(round);
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

/// Passes the numbers of requests for reports to the task that sends them.
struct Rounds {
    metrics: mpsc::Sender<u64>,
    brief: mpsc::Sender<u64>,
    rules: mpsc::Sender<u64>,
    top: mpsc::Sender<u64>,
    decisions: mpsc::Sender<u64>,
}

/// The other ends.
struct Requested {
    metrics: mpsc::Receiver<u64>,
    brief: mpsc::Receiver<u64>,
    rules: mpsc::Receiver<u64>,
    top: mpsc::Receiver<u64>,
    decisions: mpsc::Receiver<u64>,
}

impl Rounds {
    fn new() -> (Rounds, Requested) {
        let (metrics, from_metrics) = mpsc::channel(1);
        let (brief, from_brief) = mpsc::channel(1);
        let (rules, from_rules) = mpsc::channel(1);
        let (top, from_top) = mpsc::channel(1);
        let (decisions, from_decisions) = mpsc::channel(1);
        let requested = Requested {
            metrics: from_metrics,
            brief: from_brief,
            rules: from_rules,
            top: from_top,
            decisions: from_decisions,
        };
        (Rounds { metrics, brief, rules, top, decisions }, requested)
    }
}

/// Sends the metrics when requested, every second, and at the end. Sends parts of them, who is limited, and
/// decisions, only when that is requested.
async fn report(
    (metrics, top): (ProcessMetrics, Option<ProcessTop>),
    mut outgoing: Outgoing,
    mut requested: Requested,
) {
    let (mut round, mut sent) = (0, Snapshot::default());
    let (mut is_last, mut is_too_long) = (false, false);
    let mut due = Instant::now() + REPORT_EVERY;
    while !is_last {
        let before = round;
        tokio::select! {
            requested = requested.metrics.recv() => match requested {
                Some(requested) => round = requested,
                None => is_last = true,
            },
            Some(round) = requested.brief.recv() => {
                let Ok(snapshot) = metrics.brief().await else { continue };
                if outgoing.send(&FromWorker::Brief { round, snapshot }).await.is_err() {
                    return;
                }
            }
            Some(round) = requested.rules.recv() => {
                let Ok(mut used) = metrics.rule_use().await else { continue };
                if used.bytes() > SNAPSHOT_BYTES_MAX {
                    // As the metrics are missing then, which is logged.
                    used = RuleUse::default();
                }
                if outgoing.send(&FromWorker::Rules { round, used }).await.is_err() {
                    return;
                }
            }
            Some(round) = requested.top.recv() => {
                let mut summary = Summary::default();
                if let Some(top) = &top {
                    summary = top.summary().await;
                    summary.bound(SUMMARY_BYTES_MAX);
                }
                if outgoing.send(&FromWorker::Top { round, summary }).await.is_err() {
                    return;
                }
            }
            Some(round) = requested.decisions.recv() => {
                let decisions = top.as_ref().map(|top| top.recorder.take_decisions());
                let decisions = decisions.unwrap_or_default();
                if outgoing.send(&FromWorker::Decisions { round, decisions }).await.is_err() {
                    return;
                }
            }
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
