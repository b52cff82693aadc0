//! The running endpoints of a process, and how they end.

use crate::console::{Console, Counts};
use crate::service::Service;
use crate::sockets::Endpoint;
use crate::{DRAIN_MAX, Settings};
use anyhow::Context;
use std::sync::Arc;
use std::time::Duration;
use tidegate_servers::frs::Frs;
use tidegate_servers::http::{Access, ConsolePage, Http, MetricsPage, StatisticsPage, TopPage};
use tidegate_servers::rls::Rls;
use tidegate_servers::{Listener, Protocol, Shared, Tls};
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
    /// Of HTTP.
    tls: Option<Arc<Tls>>,
    /// Background tasks; they end with the endpoints.
    watching: JoinSet<()>,
}

impl Endpoints {
    pub(crate) fn new() -> Endpoints {
        let (tasks, stop) = (JoinSet::new(), watch::Sender::new(false));
        Endpoints { tasks, stop, tls: None, watching: JoinSet::new() }
    }

    /// For HTTP. Fails if a file of TLS cannot be read or is not valid. Must be called in a runtime.
    pub(crate) fn of_http(settings: &Settings) -> anyhow::Result<Endpoints> {
        let tls = Tls::open(settings.http_tls.as_ref(), Protocol::Http)?.map(Arc::new);
        let mut endpoints = Endpoints { tls, ..Endpoints::new() };
        if let Some(tls) = &endpoints.tls {
            endpoints.watching.spawn(tls.clone().watch_files());
        }
        Ok(endpoints)
    }

    /// The TLS of HTTP, whose files can be read anew.
    pub(crate) fn tls(&self) -> Option<Arc<Tls>> {
        self.tls.clone()
    }

    /// Starts an endpoint that serves `page`, and over HTTP more, with `top` among it.
    pub(crate) fn open_pages(
        &mut self,
        kind: Endpoint,
        listener: Listener,
        (shared, service, settings): (&Shared, &Service, &Settings),
        (page, top): (impl MetricsPage + Counts, Option<Arc<dyn TopPage>>),
    ) {
        let http = match kind {
            Endpoint::Prometheus => {
                Http::of_metrics(shared.clone(), page, settings.prometheus_path.clone())
            }
            _ => {
                let access = Access::at(&listener, settings.http_token.clone());
                let statistics = service.statistics.clone();
                let statistics = statistics.map(|statistics| statistics as Arc<dyn StatisticsPage>);
                let console = settings.console.then(|| {
                    let console = Console::new((shared, service, settings), page.clone());
                    Arc::new(console) as Arc<dyn ConsolePage>
                });
                Http::new(shared.clone(), page)
                    .with_access(access)
                    .with_tls(self.tls.clone())
                    .with_statistics(statistics)
                    .with_top(top)
                    .with_console(console)
            }
        };
        self.tasks.spawn(http.serve(listener, self.stop.subscribe()));
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
            Endpoint::Http | Endpoint::Prometheus => {}
        }
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
