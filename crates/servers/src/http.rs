//! The HTTP door: `/healthcheck`, `/metrics`, `/rlconfig`, and `/json`, which decides.
//!
//! Owns its connections and what they may cost: how many there are, how long a request may take to arrive,
//! how large it may be. A liveness probe asks here, so nothing that clients do keeps out the next one: see
//! [`crate::slots`]. Knows no limit: it asks the authority.

mod body;
mod json;
mod proto_json;
mod rlconfig;

use crate::accept::{Acceptor, Connections};
use crate::address::Listener;
use crate::drain;
use crate::health::Health;
use crate::http1;
use crate::overload::Overload;
use crate::replies::Replies;
use crate::slots::{Bounds, NoRoom, Patience, Phase, Slot, Slots};
use body::Page;
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::{Method, Request, StatusCode};
use std::sync::Arc;
use std::time::Duration;
use tidegate_authority::{Authority, Observer};
use tokio::sync::{Semaphore, watch};

/// What metrics and logs call it.
const DOOR: &str = "http";
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Some 40 KiB each, while it is idle, are 40 MiB. At 20,000 new connections a second, more than the door
/// accepts, each has 50 ms to ask before it gives way.
const BOUNDS: Bounds = Bounds {
    slots: 1_024,
    // 64 of the largest bodies.
    bytes: 64 * body::BYTES_MAX,
    grace: Duration::ZERO,
    patience: Patience { request: Duration::from_secs(10), idle: Duration::from_secs(60) },
};
/// Large bodies that are decided at once, beside all else: one takes milliseconds.
const LARGE_AT_ONCE: usize = 1;
/// Pages of metrics or limits that are written at once: with many rules one takes milliseconds.
const PAGES_AT_ONCE: usize = 1;

const PATHS: [&str; 5] = ["/", "/healthcheck", "/json", "/metrics", "/rlconfig"];

const INDEX: &str = "\
tidegate
GET  /healthcheck  200 while requests can be decided
GET  /metrics      OpenMetrics
GET  /rlconfig     the limits in force
POST /json         decides a RateLimitRequest in proto-JSON
";

/// What `/metrics` says: of this process, or of several added up.
pub trait MetricsPage: Send + Sync + 'static {
    /// The page, as it is now.
    fn page(&self) -> impl Future<Output = anyhow::Result<String>> + Send;
}

/// The service; clones share everything.
pub struct Http<M> {
    authority: Arc<Authority>,
    observer: Arc<dyn Observer>,
    replies: Arc<Replies>,
    page: Arc<M>,
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
            authority: self.authority.clone(),
            observer: self.observer.clone(),
            replies: self.replies.clone(),
            page: self.page.clone(),
            health: self.health.clone(),
            overload: self.overload.clone(),
            large: self.large.clone(),
            pages: self.pages.clone(),
        }
    }
}

impl<M: MetricsPage> Http<M> {
    /// A door to `authority` that tells the metrics of `page`, and reports to `observer`.
    pub fn new(
        authority: Arc<Authority>,
        observer: Arc<dyn Observer>,
        replies: Arc<Replies>,
        page: M,
        health: Health,
        overload: Arc<Overload>,
    ) -> Http<M> {
        let page = Arc::new(page);
        let [large, pages] =
            [LARGE_AT_ONCE, PAGES_AT_ONCE].map(|most| Arc::new(Semaphore::new(most)));
        Http { authority, observer, replies, page, health, overload, large, pages }
    }

    /// Serves until `stop` says so, then lets requests under way finish. `/healthcheck` fails while calls
    /// under way are drained, so that a load balancer looks elsewhere, and when no decision can be made
    /// any more.
    pub async fn serve(self, listener: Listener, stop: watch::Receiver<bool>) {
        let slots = Slots::new(BOUNDS, self.observer.clone(), DOOR);
        tokio::select! {
            () = self.accept(listener, &slots, stop) => {}
            () = slots.keep_pace() => {}
        }
    }

    async fn accept(&self, listener: Listener, slots: &Slots, stop: watch::Receiver<bool>) {
        let mut acceptor = Acceptor::new(DOOR, listener);
        let mut connections = Connections::default();
        let stopped = drain::stopped(stop.clone());
        tokio::pin!(stopped);
        loop {
            // A client that is not accepted can still be served by another process.
            let next = async {
                slots.may_accept().await;
                acceptor.next().await
            };
            let Some(socket) = connections.until(stopped.as_mut(), next).await else { break };
            let Some(slot) = slots.enter() else {
                self.observer.connection_refused(DOOR);
                continue;
            };
            let (http, stop) = (self.clone(), stop.clone());
            connections.spawn(async move {
                let answer = |request, slot| http.answer(request, slot);
                http1::serve(socket, slot, &http.overload, stop, answer).await;
            });
        }
        drop(acceptor);
        connections.all_ended().await;
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        slot: Arc<Slot>,
    ) -> hyper::Response<body::Body> {
        let path = request.uri().path();
        let known = known_path(path);
        let page = match (path, request.method()) {
            ("/json", &Method::POST) => json::answer(self, request, &slot).await,
            ("/json", _) => not_allowed("POST"),
            ("/" | "/healthcheck" | "/metrics" | "/rlconfig", &Method::GET | &Method::HEAD) => {
                self.page(known, &slot).await
            }
            ("/" | "/healthcheck" | "/metrics" | "/rlconfig", _) => not_allowed("GET, HEAD"),
            _ => Page::text(StatusCode::NOT_FOUND, "no such page; / lists those that there are\n"),
        };
        self.observer.http_answered(known, page.status.as_u16());
        page.into_response()
    }

    async fn page(&self, path: &'static str, slot: &Slot) -> Page {
        match path {
            "/healthcheck" => match self.health.failing() {
                None => match self.health.degraded() {
                    None => Page::text(StatusCode::OK, "OK\n"),
                    // Other requests are decided, so nobody should be sent elsewhere.
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
        // Until it is its turn, the connection may give way. The semaphore is never closed.
        let _turn = self.pages.acquire().await;
        slot.enter(Phase::Deciding);
        let page = match path {
            "/metrics" => self.metrics_page().await,
            _ => self.rlconfig_page().await,
        };
        match page.reserve(slot) {
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
        let authority = self.authority.clone();
        // Ten thousand rules take milliseconds.
        let written = tokio::task::spawn_blocking(move || authority.with_limits(rlconfig::text));
        match written.await {
            Ok(text) => Page::text(StatusCode::OK, text),
            Err(_) => Page::text(StatusCode::INTERNAL_SERVER_ERROR, "the limits cannot be told\n"),
        }
    }
}

/// A path of this endpoint, or `other`, so that clients cannot make series of metrics.
fn known_path(path: &str) -> &'static str {
    PATHS.into_iter().find(|known| *known == path).unwrap_or("other")
}

fn not_allowed(allowed: &'static str) -> Page {
    let text = format!("the method must be {}\n", allowed.replace(", ", " or "));
    let page = Page::text(StatusCode::METHOD_NOT_ALLOWED, text);
    page.with(header::ALLOW, HeaderValue::from_static(allowed))
}
