//! Limits from a server of the discovery protocol (xDS), such as Envoy Gateway's: the state of the world, over one
//! stream of `AggregatedDiscoveryService`, as envoyproxy/ratelimit asks for it.
//!
//! Each response has all limits of the server. They replace the last ones as a whole, or are refused with every
//! mistake while the last ones stay in force, also while the server is gone.

mod backoff;
mod client;
mod connect;
mod document;
mod messages;
mod session;

pub use backoff::BackoffSettings;
pub use connect::{ServerAddress, TlsSettings};

use crate::in_force::{InForce, Part};
use anyhow::anyhow;
use client::{Report, Update};
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tidegate_authority::{Authority, Observer};
use tidegate_limits::{LoadErrors, Origin, Source, SourceFile};
use tokio::sync::mpsc::{self, error::TryRecvError};

/// The largest message by default, as in gRPC.
pub const MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How long a start without limits waits for them all the same: a server that is there answers sooner.
const GRACE: Duration = Duration::from_secs(2);
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// Mistakes logged for one response.
const LOGGED_MAX: usize = 20;

#[derive(Debug, Clone, PartialEq)]
pub struct XdsSettings {
    pub server: ServerAddress,
    pub tls: TlsSettings,
    /// The name of this client, by which a server chooses the limits.
    pub node_id: String,
    pub node_metadata: Vec<(String, String)>,
    /// Metadata of the call.
    pub headers: Vec<(String, String)>,
    pub backoff: BackoffSettings,
    pub message_bytes_max: usize,
    pub start: Start,
}

/// When a process may serve that has no limits yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Once the server has sent limits without a mistake.
    WithLimits,
    /// Soon. Requests of domains that are unknown until then have no decision.
    WithoutLimits,
}

/// Limits of one server.
pub(crate) struct XdsPart {
    index: usize,
    observer: Arc<dyn Observer>,
    reports: Mutex<Option<mpsc::Receiver<Report>>>,
}

impl XdsPart {
    pub(crate) fn open(
        settings: &XdsSettings,
        index: usize,
        observer: Arc<dyn Observer>,
    ) -> anyhow::Result<XdsPart> {
        let reports = Mutex::new(Some(client::start(settings.clone())?));
        Ok(XdsPart { index, observer, reports })
    }

    /// The limits that the server sends first, if `judge` accepts them. Blocks for as long as a start needs limits.
    pub(crate) fn first(
        &self,
        start: Start,
        mut judge: impl FnMut(Source) -> Result<(), LoadErrors>,
    ) -> anyhow::Result<bool> {
        let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        let reports = reports.as_mut().ok_or_else(|| anyhow!("the limits are followed already"))?;
        let begun = Instant::now();
        let mut is_logged = false;
        loop {
            match reports.try_recv() {
                Ok(Report::Update(Update { files, verdict })) => {
                    let judged = judge(brought(files));
                    let is_accepted = judged.is_ok();
                    let _ = verdict.send(judged);
                    if is_accepted {
                        return Ok(true);
                    }
                    self.observer.limits_failed();
                }
                Ok(Report::Unreadable) => self.observer.limits_failed(),
                Err(TryRecvError::Empty) => std::thread::sleep(LOOK_INTERVAL),
                Err(TryRecvError::Disconnected) => {
                    return Err(anyhow!("the client of xDS has ended"));
                }
            }
            if begun.elapsed() > GRACE && !is_logged {
                is_logged = true;
                match start {
                    Start::WithoutLimits => {
                        tracing::warn!(
                            "serving without the limits of xDS, which have not arrived yet"
                        );
                        return Ok(false);
                    }
                    Start::WithLimits => {
                        tracing::warn!(
                            "waiting for the limits of xDS; nothing is served until they arrive"
                        );
                    }
                }
            }
        }
    }

    async fn follow(self: Arc<Self>, in_force: Arc<InForce>, authority: Arc<Authority>) {
        let reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut reports) = reports else { return };
        while let Some(report) = reports.recv().await {
            let Report::Update(Update { files, verdict }) = report else {
                in_force.refused(self.index, "a message of the server cannot be read; see the log");
                continue;
            };
            let (in_force, authority, index) = (in_force.clone(), authority.clone(), self.index);
            let replaced = tokio::task::spawn_blocking(move || {
                let replaced = in_force.replace(index, brought(files), &authority);
                let _ = verdict.send(replaced);
            });
            if replaced.await.is_err() {
                tracing::error!("reading limits failed; the old ones stay in force");
            }
        }
    }
}

impl Part for XdsPart {
    /// The server sends changes unasked.
    fn reload(&self) {}

    /// A service is one client of its server, however many processes it has.
    fn is_followed_by_each(&self) -> bool {
        false
    }

    fn follow(
        self: Arc<Self>,
        in_force: Arc<InForce>,
        authority: Arc<Authority>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(XdsPart::follow(self, in_force, authority))
    }
}

fn brought(files: Vec<SourceFile>) -> Source {
    Source::brought(Path::new("xDS"), files, Origin::Feeds)
}

fn log_mistakes(mistakes: &[String]) {
    for mistake in mistakes.iter().take(LOGGED_MAX) {
        tracing::error!(mistake, "limits refused; the old ones stay in force");
    }
    if let Some(more) = mistakes.len().checked_sub(LOGGED_MAX).filter(|&more| more > 0) {
        tracing::error!("and {more} more");
    }
}
