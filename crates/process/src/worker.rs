//! A worker process: serves what the supervisor hands it, by one thread, until told to drain.
//!
//! Owns the messages between the two. The supervisor is at the other end of standard input; when that
//! closes it is gone, and so is this process soon. Writes nothing to disk by itself, as long as the
//! supervisor does.

use crate::Settings;
use crate::channel::{Channel, Incoming, Outgoing};
use crate::endpoints::Endpoints;
use crate::logging::{self, Process};
use crate::service::{OpenFeed, OwnPage, Service};
use crate::signals::{Asked, Signals};
use crate::sockets::Endpoint;
use crate::{end, runtime};
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use tidegate_servers::Health;
use tidegate_servers::Overload;
use tidegate_servers::{Address, Listener};
use tidegate_stats::Snapshot;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};

/// What the supervisor says.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToWorker {
    /// Which one this is. The limits in force come along, and so many messages with a socket each follow.
    Start { index: u32, sockets: usize },
    /// All is open everywhere.
    Serve,
    /// To read the limits again.
    Reload,
    /// To tell the metrics, with this number.
    Report { round: u64 },
    /// To let calls under way finish, and to end.
    Drain,
}

/// A socket to serve, which comes along.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Given {
    pub(crate) door: Endpoint,
    pub(crate) address: String,
}

/// What a worker says.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromWorker {
    /// Everything is in order; it waits to be told to serve.
    Ready,
    /// It is at work. It says this or something else every second.
    Alive,
    /// Its metrics, as an answer to the last `Report`, or unasked.
    Metrics { round: u64, snapshot: Snapshot },
}

/// The largest message.
pub(crate) const MESSAGE_BYTES_MAX: usize = 128 * 1024 * 1024;
/// A larger snapshot is not sent. JSON makes up to six bytes of one.
const SNAPSHOT_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How often metrics are told unasked: what was counted since is lost with a worker that is killed.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// So that a page which takes long, of thousands of rules, takes 1 % of the time at most.
const REPORT_PAUSE: u32 = 100;
/// How long the last report may take.
const LAST_REPORT_MAX: Duration = Duration::from_secs(1);

/// Why a worker ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Told,
    /// The supervisor is gone.
    Alone,
}

pub(crate) fn run(settings: &Settings, open_feed: &OpenFeed<'_>) -> anyhow::Result<()> {
    let stdin = std::io::stdin().as_fd().try_clone_to_owned()?;
    let mut channel = Channel::new(UnixStream::from(stdin), MESSAGE_BYTES_MAX);
    let start = channel.receive_with().context("--as-worker is not for people; give --workers")?;
    let (ToWorker::Start { index, sockets }, limits) = start else {
        bail!("a worker was not told what to serve, but {:?}", start.0);
    };
    // It was started by a link that has another name.
    let _ = std::fs::write("/proc/self/comm", "tidegate");
    logging::start(&settings.log, Process::Worker(index))?;
    let limits = File::from(limits);
    let serve = || {
        let given = (0..sockets).map(|_| channel.receive_with()).collect::<anyhow::Result<_>>()?;
        let service = Service::open(settings, |observer| open_feed(Some(&limits), observer))?;
        serve(settings, &service, channel, given)
    };
    let served = serve();
    served.with_context(|| format!("worker {index}"))
}

fn serve(
    settings: &Settings,
    service: &Service,
    mut channel: Channel,
    given: Vec<(Given, OwnedFd)>,
) -> anyhow::Result<()> {
    let runtime = runtime().worker_threads(1).build()?;
    channel.send(&FromWorker::Ready)?;
    match channel.receive()? {
        Some(ToWorker::Serve) => {}
        Some(ToWorker::Drain) | None => return Ok(()),
        Some(other) => bail!("a worker was told {other:?} where it should serve"),
    }
    // Not sooner: a socket that is bound and does not listen yet is hung up, as epoll tells it. The runtime
    // keeps that in mind for good, and accepting from it would take the thread without end.
    let listeners = listeners(&runtime, given)?;
    match runtime.block_on(serve_all(service, settings, channel, listeners))? {
        Ended::Told => {
            runtime.shutdown_timeout(Duration::from_secs(1));
            Ok(())
        }
        Ended::Alone => end(runtime, service),
    }
}

fn listeners(
    runtime: &Runtime,
    given: Vec<(Given, OwnedFd)>,
) -> anyhow::Result<Vec<(Endpoint, Listener)>> {
    let _entered = runtime.enter();
    let listener = |(Given { door, address }, socket)| {
        let address: Address = address.parse().map_err(anyhow::Error::msg)?;
        Ok((door, Listener::of(socket, &address)?))
    };
    given.into_iter().map(listener).collect()
}

async fn serve_all(
    service: &Service,
    settings: &Settings,
    channel: Channel,
    listeners: Vec<(Endpoint, Listener)>,
) -> anyhow::Result<Ended> {
    let mut signals = Signals::listen()?;
    let (mut incoming, outgoing) = channel.split()?;
    let (keeper, store) = tidegate_data_dir::maintain(service.store().clone(), None);
    let draining = watch::Sender::new(false);
    let health = Health { draining: draining.subscribe(), store, workers: None };
    let parts = service.parts(health, Overload::start(), settings)?;
    let mut doors = Endpoints::new();
    for (door, listener) in listeners {
        doors.open(door, listener, &parts);
    }
    let reloading = tokio::spawn(service.feed.clone().run(service.authority.clone()));
    let (rounds, asked) = mpsc::channel(1);
    let reporter = tokio::spawn(report(service.page_without_store(), outgoing, asked));
    tracing::debug!("serving");

    let reload = || {
        service.feed.reload();
        parts.rls.reload_files();
    };
    let ended = loop {
        tokio::select! {
            ended = obey(&mut incoming, &reload, &rounds) => break Ok(ended),
            asked = signals.next() => match asked {
                Asked::Stop => break Ok(Ended::Told),
                Asked::Reload => reload(),
            },
            failed = doors.failed() => break failed.map(|()| Ended::Told),
        }
    };
    reloading.abort();
    draining.send_replace(true);
    // It is the supervisor that is told to stop again. Who signals all processes at once, as systemd
    // does, does not mean to cut anything short.
    doors.drain(std::future::pending()).await;
    keeper.abort();
    drop(rounds);
    let _ = tokio::time::timeout(LAST_REPORT_MAX, reporter).await;
    ended
}

/// Does what the supervisor says, until it says to stop, or is gone.
async fn obey(incoming: &mut Incoming, reload: &impl Fn(), rounds: &mpsc::Sender<u64>) -> Ended {
    loop {
        match incoming.next().await {
            Ok(Some(ToWorker::Reload)) => reload(),
            // One that has not been answered yet will be by a later page.
            Ok(Some(ToWorker::Report { round })) => {
                let _ = rounds.try_send(round);
            }
            Ok(Some(ToWorker::Drain)) => return Ended::Told,
            Ok(Some(other @ (ToWorker::Start { .. } | ToWorker::Serve))) => {
                tracing::warn!(?other, "the supervisor says what makes no sense now");
            }
            Ok(None) => {
                tracing::error!("the supervisor is gone; draining");
                return Ended::Alone;
            }
            Err(error) => {
                tracing::error!(%error, "the supervisor is not understood; draining");
                return Ended::Alone;
            }
        }
    }
}

/// Tells the metrics when asked, every second, and at the end.
async fn report(metrics: OwnPage, mut outgoing: Outgoing, mut asked: mpsc::Receiver<u64>) {
    let (mut round, mut said) = (0, Snapshot::default());
    let (mut is_last, mut is_too_long) = (false, false);
    let mut due = Instant::now() + REPORT_EVERY;
    while !is_last {
        let before = round;
        tokio::select! {
            asked = asked.recv() => match asked {
                Some(asked) => round = asked,
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
                    tracing::warn!(bytes, "the metrics are too long to be told, and are missing");
                }
            } else if snapshot != said || round != before {
                said.clone_from(&snapshot);
                message = FromWorker::Metrics { round, snapshot };
            }
        }
        if outgoing.send(&message).await.is_err() {
            return;
        }
    }
}
