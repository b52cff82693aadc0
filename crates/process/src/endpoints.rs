//! What is served, and until when.

use crate::DRAIN_MAX;
use crate::sockets::Endpoint;
use anyhow::Context;
use std::time::Duration;
use tidegate_servers::Listener;
use tidegate_servers::frs::Frs;
use tidegate_servers::http::{Http, MetricsPage};
use tidegate_servers::rls::Rls;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// What doors are made of.
pub(crate) struct Parts {
    pub(crate) rls: Rls,
    pub(crate) frs: Frs,
}

/// How long HTTP requests may take at the end. Idle connections take a second, see `drain`.
const HTTP_END_MAX: Duration = Duration::from_secs(3);

/// Endpoints that end together when told, and what is under way with them. Those for HTTP are apart: they are
/// open while the others drain, so that /healthcheck can tell.
pub(crate) struct Endpoints {
    tasks: JoinSet<()>,
    stop: watch::Sender<bool>,
}

impl Endpoints {
    /// None yet.
    pub(crate) fn new() -> Endpoints {
        Endpoints { tasks: JoinSet::new(), stop: watch::Sender::new(false) }
    }

    /// Opens one of those that decide requests.
    pub(crate) fn open(&mut self, door: Endpoint, listener: Listener, parts: &Parts) {
        let stop = self.stop.subscribe();
        match door {
            Endpoint::Grpc => {
                self.tasks.spawn(parts.rls.clone().serve(listener, stop));
            }
            Endpoint::Frs => {
                self.tasks.spawn(parts.frs.clone().serve(listener, stop));
            }
            Endpoint::Http => {}
        }
    }

    /// Opens one for HTTP.
    pub(crate) fn open_http(&mut self, door: Http<impl MetricsPage>, listener: Listener) {
        self.tasks.spawn(door.serve(listener, self.stop.subscribe()));
    }

    /// Waits until one of them fails; forever if there is none.
    pub(crate) async fn failed(&mut self) -> anyhow::Result<()> {
        match self.tasks.join_next().await {
            Some(door) => door.context("a door panicked"),
            None => std::future::pending().await,
        }
    }

    /// They accept no more.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Takes no more calls, and waits for those under way: not for ever, and not once `cut` ends.
    pub(crate) async fn drain(self, cut: impl Future<Output = ()>) {
        tracing::info!("draining");
        self.end(DRAIN_MAX, cut).await;
    }

    /// The same of those for HTTP.
    pub(crate) async fn close_http(self) {
        self.end(HTTP_END_MAX, std::future::pending()).await;
    }

    async fn end(mut self, most: Duration, cut: impl Future<Output = ()>) {
        self.stop();
        tokio::select! {
            () = async { while self.tasks.join_next().await.is_some() {} } => {}
            () = tokio::time::sleep(most) => {
                tracing::warn!("calls were still under way after {most:?}; cut off");
            }
            () = cut => tracing::warn!("told to stop again; calls under way are cut off"),
        }
    }
}
