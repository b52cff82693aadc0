//! The running endpoints of a process, and how they end.

use crate::sockets::Endpoint;
use crate::{DRAIN_MAX, Settings};
use anyhow::Context;
use std::time::Duration;
use tidegate_servers::frs::Frs;
use tidegate_servers::http::{Http, MetricsPage};
use tidegate_servers::rls::Rls;
use tidegate_servers::{Listener, Shared};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The services that decide requests.
pub(crate) struct DecisionServices {
    pub(crate) rls: Rls,
    pub(crate) frs: Frs,
}

impl DecisionServices {
    pub(crate) fn new(shared: &Shared, settings: &Settings) -> anyhow::Result<DecisionServices> {
        let rls = Rls::new(shared.clone(), &settings.rls)?;
        Ok(DecisionServices { rls, frs: Frs::new(shared.clone(), &settings.frs) })
    }
}

/// The time limit for HTTP requests at the end. Idle connections close within a second, see `drain`.
const HTTP_END_MAX: Duration = Duration::from_secs(3);

/// Endpoints that end together, with their connections. HTTP endpoints are a set of their own: they stay open
/// while the others drain, so that /healthcheck can report it.
pub(crate) struct Endpoints {
    tasks: JoinSet<()>,
    stop: watch::Sender<bool>,
}

impl Endpoints {
    pub(crate) fn new() -> Endpoints {
        Endpoints { tasks: JoinSet::new(), stop: watch::Sender::new(false) }
    }

    /// Starts an endpoint that decides requests.
    pub(crate) fn open(&mut self, kind: Endpoint, listener: Listener, services: &DecisionServices) {
        let stop = self.stop.subscribe();
        match kind {
            Endpoint::Grpc => {
                self.tasks.spawn(services.rls.clone().serve(listener, stop));
            }
            Endpoint::Frs => {
                self.tasks.spawn(services.frs.clone().serve(listener, stop));
            }
            Endpoint::Http => {}
        }
    }

    pub(crate) fn open_http(&mut self, http: Http<impl MetricsPage>, listener: Listener) {
        self.tasks.spawn(http.serve(listener, self.stop.subscribe()));
    }

    /// Waits until an endpoint fails; forever if there is none.
    pub(crate) async fn failed(&mut self) -> anyhow::Result<()> {
        match self.tasks.join_next().await {
            Some(ended) => ended.context("an endpoint panicked"),
            None => std::future::pending().await,
        }
    }

    /// Stops accepting connections.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Stops accepting calls and waits for those under way, at limit until [`DRAIN_MAX`] is over or `cut` is ready.
    pub(crate) async fn drain(self, cut: impl Future<Output = ()>) {
        tracing::info!("draining");
        self.end(DRAIN_MAX, cut).await;
    }

    /// The same for HTTP endpoints, with a shorter limit.
    pub(crate) async fn close_http(self) {
        self.end(HTTP_END_MAX, std::future::pending()).await;
    }

    async fn end(mut self, limit: Duration, cut: impl Future<Output = ()>) {
        self.stop();
        tokio::select! {
            () = async { while self.tasks.join_next().await.is_some() {} } => {}
            () = tokio::time::sleep(limit) => {
                tracing::warn!("calls were still under way after {limit:?}; cut off");
            }
            () = cut => tracing::warn!("a second signal to stop; calls under way are cut off"),
        }
    }
}
