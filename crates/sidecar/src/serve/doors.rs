//! What is served, and until when.

use super::DRAIN_MAX;
use super::sockets::Door;
use crate::address::Listener;
use crate::frs::Frs;
use crate::http::{Http, MetricsPage};
use crate::rls::Rls;
use anyhow::Context;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// What doors are made of.
pub(super) struct Parts {
    pub(super) rls: Rls,
    pub(super) frs: Frs,
}

/// How long HTTP requests may take at the end. Idle connections take a second, see `drain`.
const HTTP_END_MAX: Duration = Duration::from_secs(3);

/// Doors that end together when told, and what is under way with them. Those for HTTP are apart: they are
/// open while the others drain, so that /healthcheck can tell.
pub(super) struct Doors {
    tasks: JoinSet<()>,
    stop: watch::Sender<bool>,
}

impl Doors {
    /// None yet.
    pub(super) fn new() -> Doors {
        Doors { tasks: JoinSet::new(), stop: watch::Sender::new(false) }
    }

    /// Opens one of those that decide requests.
    pub(super) fn open(&mut self, door: Door, listener: Listener, parts: &Parts) {
        let stop = self.stop.subscribe();
        match door {
            Door::Grpc => {
                self.tasks.spawn(parts.rls.clone().serve(listener, stop));
            }
            Door::Frs => {
                self.tasks.spawn(parts.frs.clone().serve(listener, stop));
            }
            Door::Http => {}
        }
    }

    /// Opens one for HTTP.
    pub(super) fn open_http(&mut self, door: Http<impl MetricsPage>, listener: Listener) {
        self.tasks.spawn(door.serve(listener, self.stop.subscribe()));
    }

    /// Waits until one of them fails; forever if there is none.
    pub(super) async fn failed(&mut self) -> anyhow::Result<()> {
        match self.tasks.join_next().await {
            Some(door) => door.context("a door panicked"),
            None => std::future::pending().await,
        }
    }

    /// They accept no more.
    pub(super) fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Takes no more calls, and waits for those under way: not for ever, and not once `cut` ends.
    pub(super) async fn drain(self, cut: impl Future<Output = ()>) {
        tracing::info!("draining");
        self.end(DRAIN_MAX, cut).await;
    }

    /// The same of those for HTTP.
    pub(super) async fn close_http(self) {
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
