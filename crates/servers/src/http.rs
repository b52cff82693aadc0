//! The HTTP endpoint: `/healthcheck`, `/metrics`, `/rlconfig`, and `/json`, which decides.
//!
//! Owns its connections and their cost: how many there are, how long a request may take to arrive, how large
//! it may be. Liveness probes come here, so no client can keep out the next one; see `crate::http1::slots`.
//! Knows no limit: it asks the authority.

mod body;
mod json;
mod proto_json;
mod rlconfig;

use crate::accept::{Acceptor, Connections};
use crate::address::Listener;
use crate::http1;
use crate::http1::drain;
use crate::http1::slots::{Bounds, NoRoom, Phase, Slot, Slots, Timeouts};
use crate::later::LaterBudget;
use crate::shared::Shared;
use body::Page;
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::{Method, Request, StatusCode};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};

/// The name in metrics and logs.
const ENDPOINT: &str = "http";
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Some 40 KiB for each idle connection are 40 MiB. At 20,000 new connections a second, more than the
/// endpoint accepts, each has 50 ms to send a request before it can be evicted.
const BOUNDS: Bounds = Bounds {
    slots: 1_024,
    // 64 of the largest bodies.
    bytes: 64 * body::BYTES_MAX,
    grace: Duration::ZERO,
    timeouts: Timeouts { request: Duration::from_secs(10), idle: Duration::from_secs(60) },
};
/// Large bodies decided at the same time, beside all else: one takes milliseconds.
const LARGE_BODIES_MAX: usize = 1;
/// Pages of metrics or limits written at the same time: with many rules one takes milliseconds.
const PAGES_MAX: usize = 1;

const PATHS: [&str; 5] = ["/", "/healthcheck", "/json", "/metrics", "/rlconfig"];

const INDEX: &str = "\
tidegate
GET  /healthcheck  200 while requests can be decided
GET  /metrics      OpenMetrics
GET  /rlconfig     the limits in force
POST /json         decides a RateLimitRequest in proto-JSON
";

/// The content of `/metrics`: the metrics of this process, or the sum of several.
pub trait MetricsPage: Send + Sync + 'static {
    fn page(&self) -> impl Future<Output = anyhow::Result<String>> + Send;
}

/// The service.
pub struct Http<M> {
    shared: Shared,
    page: M,
    large_bodies: Arc<Semaphore>,
    pages: Semaphore,
    later: LaterBudget,
}

impl<M: MetricsPage> Http<M> {
    /// An endpoint that serves the metrics of `page`.
    pub fn new(shared: Shared, page: M) -> Http<M> {
        let large_bodies = Arc::new(Semaphore::new(LARGE_BODIES_MAX));
        let pages = Semaphore::new(PAGES_MAX);
        let later = LaterBudget::for_slots(BOUNDS.slots);
        Http { shared, page, large_bodies, pages, later }
    }

    /// Serves until `stop` is true, then lets requests under way finish. `/healthcheck` fails while calls under way
    /// are drained, so that a load balancer chooses another process, and when no decision can be made.
    pub async fn serve(self, listener: Listener, stop: watch::Receiver<bool>) {
        let slots = Slots::new(BOUNDS, self.shared.observer.clone(), ENDPOINT);
        tokio::select! {
            () = Arc::new(self).accept(listener, &slots, stop) => {}
            () = slots.enforce_deadlines() => {}
        }
    }

    async fn accept(
        self: Arc<Self>,
        listener: Listener,
        slots: &Slots,
        stop: watch::Receiver<bool>,
    ) {
        let mut acceptor = Acceptor::new(ENDPOINT, listener);
        let mut connections = Connections::default();
        let stopped = drain::stopped(stop.clone());
        tokio::pin!(stopped);
        loop {
            // Another process can still serve a client that is not accepted.
            let next = async {
                slots.ready_to_accept().await;
                acceptor.next().await
            };
            let Some(socket) = connections.until(stopped.as_mut(), next).await else { break };
            let Some(slot) = slots.acquire() else {
                self.shared.observer.connection_refused(ENDPOINT);
                continue;
            };
            let (http, stop) = (self.clone(), stop.clone());
            connections.spawn(async move {
                let answer = |request, slot| http.answer(request, slot);
                http1::serve(socket, slot, &http.shared.overload, stop, answer).await;
            });
        }
        drop(acceptor);
        connections.all_ended().await;
    }

    async fn answer(
        self: &Arc<Self>,
        request: Request<Incoming>,
        slot: Arc<Slot>,
    ) -> hyper::Response<body::Body> {
        let path = request.uri().path();
        let path_label = path_label(path);
        let page = match (path, request.method()) {
            ("/json", &Method::POST) => json::answer(self, request, &slot).await,
            ("/json", _) => not_allowed("POST"),
            ("/" | "/healthcheck" | "/metrics" | "/rlconfig", &Method::GET | &Method::HEAD) => {
                self.page(path_label, &slot).await
            }
            ("/" | "/healthcheck" | "/metrics" | "/rlconfig", _) => not_allowed("GET, HEAD"),
            _ => Page::text(StatusCode::NOT_FOUND, "no such page; GET / lists all pages\n"),
        };
        self.shared.observer.http_answered(path_label, page.status.as_u16());
        page.into_response()
    }

    async fn page(&self, path: &'static str, slot: &Slot) -> Page {
        match path {
            "/healthcheck" => match self.shared.health.failing() {
                None => match self.shared.health.degraded() {
                    None => Page::text(StatusCode::OK, "OK\n"),
                    // Other requests are decided, so load balancers should not avoid this process.
                    Some(cause) => Page::text(StatusCode::OK, format!("degraded: {cause}\n")),
                },
                Some(cause) => Page::text(StatusCode::INTERNAL_SERVER_ERROR, format!("{cause}\n")),
            },
            "/metrics" | "/rlconfig" => self.long_page(path, slot).await,
            _ => Page::text(StatusCode::OK, INDEX),
        }
    }

    /// A page that takes a while to write, and may be long.
    async fn long_page(&self, path: &'static str, slot: &Slot) -> Page {
        // While it waits for a permit, the connection can be evicted. The semaphore is never closed.
        let _permit = self.pages.acquire().await;
        slot.set_phase(Phase::Deciding);
        let page = match path {
            "/metrics" => self.metrics_page().await,
            _ => self.rlconfig_page().await,
        };
        match page.reserve(slot) {
            Ok(()) => page,
            Err(NoRoom) => {
                let text = "too many clients do not read their answers; try again\n";
                let page = Page::text(StatusCode::SERVICE_UNAVAILABLE, text);
                page.with_header(header::RETRY_AFTER, HeaderValue::from_static("1"))
            }
        }
    }

    async fn metrics_page(&self) -> Page {
        match self.page.page().await {
            Ok(text) => Page::new(StatusCode::OK, OPENMETRICS, text),
            Err(error) => {
                tracing::error!(%error, "the metrics could not be written");
                Page::text(StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be written\n")
            }
        }
    }

    async fn rlconfig_page(&self) -> Page {
        let authority = self.shared.authority.clone();
        // Ten thousand rules take milliseconds.
        let written = tokio::task::spawn_blocking(move || authority.with_limits(rlconfig::text));
        match written.await {
            Ok(text) => Page::text(StatusCode::OK, text),
            Err(_) => {
                Page::text(StatusCode::INTERNAL_SERVER_ERROR, "the limits cannot be written\n")
            }
        }
    }
}

/// The path as a metric label. Unknown paths are `other`, so that clients cannot create time series.
fn path_label(path: &str) -> &'static str {
    PATHS.into_iter().find(|known| *known == path).unwrap_or("other")
}

fn not_allowed(allowed: &'static str) -> Page {
    let text = format!("the method must be {}\n", allowed.replace(", ", " or "));
    let page = Page::text(StatusCode::METHOD_NOT_ALLOWED, text);
    page.with_header(header::ALLOW, HeaderValue::from_static(allowed))
}
