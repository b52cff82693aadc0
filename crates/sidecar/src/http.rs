//! The HTTP door: `/healthcheck`, `/metrics`, `/rlconfig`, and `/json`, which decides.
//!
//! Owns its connections and what they may cost: how many there are, how long a request may take to arrive,
//! how large it may be. A liveness probe asks here, so nothing that clients do keeps out the next one: see
//! [`crate::places`]. Knows no limit: it asks the engine.

mod body;
mod json;
mod proto_json;
mod requests;
mod rlconfig;

use crate::accept::{Acceptor, Connections};
use crate::address::Listener;
use crate::drain;
use crate::engine::Engine;
use crate::health::Health;
use crate::http1;
use crate::metrics::Metrics;
use crate::overload::Overload;
use crate::places::{Bounds, NoRoom, Patience, Phase, Place, Places};
use crate::replies::Replies;
use body::Page;
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::{Method, Request, StatusCode};
pub(crate) use requests::Requests;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};

/// What metrics and logs call it.
const DOOR: &str = "http";
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Some 40 KiB each, while it is idle, are 40 MiB. At 20,000 new connections a second, more than the door
/// accepts, each has 50 ms to ask before it gives way.
const BOUNDS: Bounds = Bounds {
    places: 1_024,
    // 64 of the largest bodies.
    bytes: 64 * body::BYTES_MAX,
    grace: Duration::ZERO,
    patience: Patience { request: Duration::from_secs(10), idle: Duration::from_secs(60) },
};
/// Large bodies that are decided at once, beside all else: one takes milliseconds.
const LARGE_AT_ONCE: usize = 1;
/// Pages of metrics or limits that are written at once: with many rules one takes milliseconds.
const PAGES_AT_ONCE: usize = 1;

const INDEX: &str = "\
tidegate
GET  /healthcheck  200 while requests can be decided
GET  /metrics      OpenMetrics
GET  /rlconfig     the limits in force
POST /json         decides a RateLimitRequest in proto-JSON
";

/// What `/metrics` says: of this process, or of several added up.
pub(crate) trait MetricsPage: Send + Sync + 'static {
    /// The page, as it is now.
    fn page(&self) -> impl Future<Output = anyhow::Result<String>> + Send;
}

/// The service; clones share everything.
pub(crate) struct Http<M> {
    engine: Arc<Engine>,
    metrics: Metrics,
    replies: Arc<Replies>,
    page: Arc<M>,
    requests: Requests,
    health: Health,
    overload: Arc<Overload>,
    /// Large bodies that may be decided.
    large: Arc<Semaphore>,
    /// Pages that may be written.
    pages: Arc<Semaphore>,
}

impl<M> Clone for Http<M> {
    fn clone(&self) -> Self {
        Http {
            engine: self.engine.clone(),
            metrics: self.metrics.clone(),
            replies: self.replies.clone(),
            page: self.page.clone(),
            requests: self.requests.clone(),
            health: self.health.clone(),
            overload: self.overload.clone(),
            large: self.large.clone(),
            pages: self.pages.clone(),
        }
    }
}

impl<M: MetricsPage> Http<M> {
    /// A door to `engine` that tells the metrics of `page`, and counts its own `requests`.
    pub(crate) fn new(
        engine: Arc<Engine>,
        metrics: Metrics,
        replies: Arc<Replies>,
        page: M,
        requests: Requests,
        health: Health,
        overload: Arc<Overload>,
    ) -> Http<M> {
        let page = Arc::new(page);
        let [large, pages] =
            [LARGE_AT_ONCE, PAGES_AT_ONCE].map(|most| Arc::new(Semaphore::new(most)));
        Http { engine, metrics, replies, page, requests, health, overload, large, pages }
    }

    /// Serves until `stop` says so, then lets requests under way finish. `/healthcheck` fails while calls
    /// under way are drained, so that a load balancer looks elsewhere, and when no decision can be made
    /// any more.
    pub(crate) async fn serve(self, listener: Listener, stop: watch::Receiver<bool>) {
        let places = Places::new(BOUNDS, self.metrics.gave_way(DOOR));
        tokio::select! {
            () = self.accept(listener, &places, stop) => {}
            () = places.keep_pace() => {}
        }
    }

    async fn accept(&self, listener: Listener, places: &Places, stop: watch::Receiver<bool>) {
        let mut acceptor = Acceptor::new(DOOR, listener);
        let mut connections = Connections::default();
        let stopped = drain::stopped(stop.clone());
        tokio::pin!(stopped);
        loop {
            // A client that is not accepted can still be served by another process.
            let next = async {
                places.may_accept().await;
                acceptor.next().await
            };
            let Some(socket) = connections.until(stopped.as_mut(), next).await else { break };
            let Some(place) = places.enter() else {
                self.metrics.refused_connection(DOOR);
                continue;
            };
            let (http, stop) = (self.clone(), stop.clone());
            connections.spawn(async move {
                let answer = |request, place| http.answer(request, place);
                http1::serve(socket, place, &http.overload, stop, answer).await;
            });
        }
        drop(acceptor);
        connections.all_ended().await;
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        place: Arc<Place>,
    ) -> hyper::Response<body::Body> {
        let path = request.uri().path();
        let known = requests::known(path);
        let page = match (path, request.method()) {
            ("/json", &Method::POST) => json::answer(self, request, &place).await,
            ("/json", _) => not_allowed("POST"),
            ("/" | "/healthcheck" | "/metrics" | "/rlconfig", &Method::GET | &Method::HEAD) => {
                self.page(known, &place).await
            }
            ("/" | "/healthcheck" | "/metrics" | "/rlconfig", _) => not_allowed("GET, HEAD"),
            _ => Page::text(StatusCode::NOT_FOUND, "no such page; / lists those that there are\n"),
        };
        self.requests.answered(known, page.status);
        page.into_response()
    }

    async fn page(&self, path: &'static str, place: &Place) -> Page {
        match path {
            "/healthcheck" => match self.health.failing() {
                None => match self.health.degraded() {
                    None => Page::text(StatusCode::OK, "OK\n"),
                    // Other requests are decided, so nobody should be sent elsewhere.
                    Some(cause) => Page::text(StatusCode::OK, format!("degraded: {cause}\n")),
                },
                Some(cause) => Page::text(StatusCode::INTERNAL_SERVER_ERROR, format!("{cause}\n")),
            },
            "/metrics" | "/rlconfig" => self.long_page(path, place).await,
            _ => Page::text(StatusCode::OK, INDEX),
        }
    }

    /// A page that takes a while to write, and may be long.
    async fn long_page(&self, path: &'static str, place: &Place) -> Page {
        // Until it is its turn, the connection may give way. The semaphore is never closed.
        let _turn = self.pages.acquire().await;
        place.enter(Phase::Deciding);
        let page = match path {
            "/metrics" => self.metrics_page().await,
            _ => self.rlconfig_page().await,
        };
        match page.reserve(place) {
            Ok(()) => page,
            Err(NoRoom) => {
                let text = "too many clients do not take their answers; try again\n";
                let page = Page::text(StatusCode::SERVICE_UNAVAILABLE, text);
                page.with(header::RETRY_AFTER, HeaderValue::from_static("1"))
            }
        }
    }

    async fn metrics_page(&self) -> Page {
        match self.page.page().await {
            Ok(text) => Page::new(StatusCode::OK, OPENMETRICS, text),
            Err(error) => {
                tracing::error!(%error, "the metrics could not be told");
                Page::text(StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be told\n")
            }
        }
    }

    async fn rlconfig_page(&self) -> Page {
        let engine = self.engine.clone();
        // Ten thousand rules take milliseconds.
        let written = tokio::task::spawn_blocking(move || engine.with_rules(rlconfig::text));
        match written.await {
            Ok(text) => Page::text(StatusCode::OK, text),
            Err(_) => Page::text(StatusCode::INTERNAL_SERVER_ERROR, "the limits cannot be told\n"),
        }
    }
}

fn not_allowed(allowed: &'static str) -> Page {
    let text = format!("the method must be {}\n", allowed.replace(", ", " or "));
    let page = Page::text(StatusCode::METHOD_NOT_ALLOWED, text);
    page.with(header::ALLOW, HeaderValue::from_static(allowed))
}
