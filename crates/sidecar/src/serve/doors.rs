//! What is served, and until when.

use super::DRAIN_MAX;
use super::sockets::Door;
use crate::address::Listener;
use crate::frs::Frs;
use crate::rls::Rls;
use anyhow::Context;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// What doors are made of.
pub(super) struct Parts {
    pub(super) rls: Rls,
    pub(super) frs: Frs,
}

/// The doors that decide requests. They end when told, and calls under way with them.
pub(super) struct Doors {
    tasks: JoinSet<()>,
    stop: watch::Sender<bool>,
}

impl Doors {
    /// None yet.
    pub(super) fn new() -> Doors {
        Doors { tasks: JoinSet::new(), stop: watch::Sender::new(false) }
    }

    /// Opens one. That for HTTP is not among them: it is open while they drain, so that /healthcheck can
    /// tell.
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

    /// Waits until one of them fails; forever if there is none.
    pub(super) async fn failed(&mut self) -> anyhow::Result<()> {
        match self.tasks.join_next().await {
            Some(door) => door.context("a door panicked"),
            None => std::future::pending().await,
        }
    }

    /// Takes no more calls, and waits for those under way: not for ever, and not once `cut` ends.
    pub(super) async fn drain(mut self, cut: impl Future<Output = ()>) {
        tracing::info!("draining");
        self.stop.send_replace(true);
        tokio::select! {
            () = async { while self.tasks.join_next().await.is_some() {} } => {}
            () = tokio::time::sleep(DRAIN_MAX) => {
                tracing::warn!("calls were still under way after {DRAIN_MAX:?}; cut off");
            }
            () = cut => tracing::warn!("told to stop again; calls under way are cut off"),
        }
    }
}
