//! The HTTP door: `/healthcheck`, `/metrics`, `/rlconfig`, and `/json`, which decides.
//!
//! Owns its connections and what they may cost: how many there are, how long each may last, how long a
//! request may take to arrive, how large it may be. Knows no limit: it asks the engine.

mod body;
mod json;
mod proto_json;
mod requests;
mod rlconfig;

use crate::accept::{Acceptor, Connections, Socket};
use crate::address::Listener;
use crate::drain::{self, LastCall};
use crate::engine::Engine;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::overload::Overload;
use crate::replies::Replies;
use body::Page;
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
pub(crate) use requests::Requests;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};

/// What metrics and logs call it.
const DOOR: &str = "http";
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Those who may be served at once; the rest wait to be accepted. With bodies of a mebibyte, and what is
/// read from one at most some 20 times as large for the time that this takes, that is bounded well.
const CONNECTIONS_MAX: usize = 256;
/// Large bodies that are decided at once, beside all else: one takes milliseconds.
const LARGE_AT_ONCE: usize = 1;
/// How long a connection may last, so that those who read nothing give way in the end. A request under
/// way is finished, if it is finished within [`CLOSING_MAX`].
const CONNECTION_AGE_MAX: Duration = Duration::from_secs(300);
const CLOSING_MAX: Duration = Duration::from_secs(10);
/// How long the head of a request may take, and so how long a connection may be idle. Once all places are
/// taken, those that are idle are closed, which clients that keep connections expect.
const HEAD_MAX: Duration = Duration::from_secs(60);

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
        let (page, large) = (Arc::new(page), Arc::new(Semaphore::new(LARGE_AT_ONCE)));
        Http { engine, metrics, replies, page, requests, health, overload, large }
    }

    /// Serves until `stop` says so, then lets requests under way finish. `/healthcheck` fails while calls
    /// under way are drained, so that a load balancer looks elsewhere, and when no decision can be made
    /// any more.
    pub(crate) async fn serve(self, listener: Listener, stop: watch::Receiver<bool>) {
        let mut acceptor = Acceptor::new(DOOR, listener);
        let mut connections = Connections::default();
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let crowd = watch::Sender::new(());
        let stopped = drain::stopped(stop.clone());
        tokio::pin!(stopped);
        loop {
            // Before a client is accepted: whoever is not can still be served by another process.
            let next = async {
                let place = places.clone().acquire_owned().await;
                (place, acceptor.next().await)
            };
            let Some((place, socket)) = connections.until(stopped.as_mut(), next).await else {
                break;
            };
            let (http, crowded, stop) = (self.clone(), crowd.subscribe(), stop.clone());
            connections.spawn(async move {
                http.connection(socket, crowded, stop).await;
                drop(place);
            });
            if places.available_permits() == 0 {
                crowd.send_replace(());
            }
        }
        drop(acceptor);
        connections.all_ended().await;
    }

    /// Serves one connection. `crowded` changes when all places are taken.
    async fn connection(
        self,
        socket: Socket,
        mut crowded: watch::Receiver<()>,
        stop: watch::Receiver<bool>,
    ) {
        let last_call = &LastCall::default();
        let answer = service_fn(|request| {
            let http = self.clone();
            async move {
                let mut response = http.answer(request).await;
                last_call.tell(&mut response);
                Ok::<_, Infallible>(response)
            }
        });
        let leave = async {
            tokio::select! {
                () = tokio::time::sleep(CONNECTION_AGE_MAX) => {}
                _ = crowded.changed() => {}
                () = drain::stopped(stop) => {}
            }
            last_call.ring().await;
        };
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEAD_MAX);
        let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(socket), answer));
        tokio::select! {
            // A client that goes away, or is no HTTP client, is no concern of the others.
            _ = self.overload.watch(connection.as_mut()) => return,
            () = leave => connection.as_mut().graceful_shutdown(),
        }
        let _ = tokio::time::timeout(CLOSING_MAX, self.overload.watch(connection)).await;
    }

    async fn answer(&self, request: Request<Incoming>) -> hyper::Response<body::Body> {
        let path = request.uri().path();
        let known = requests::known(path);
        let page = match (path, request.method()) {
            ("/json", &Method::POST) => json::answer(self, request).await,
            ("/json", _) => not_allowed("POST"),
            ("/" | "/healthcheck" | "/metrics" | "/rlconfig", &Method::GET | &Method::HEAD) => {
                self.page(known).await
            }
            ("/" | "/healthcheck" | "/metrics" | "/rlconfig", _) => not_allowed("GET, HEAD"),
            _ => Page::text(StatusCode::NOT_FOUND, "no such page; / lists those that there are\n"),
        };
        self.requests.answered(known, page.status);
        page.into_response()
    }

    async fn page(&self, path: &'static str) -> Page {
        match path {
            "/healthcheck" => match self.health.failing() {
                None => Page::text(StatusCode::OK, "OK\n"),
                Some(cause) => Page::text(StatusCode::INTERNAL_SERVER_ERROR, format!("{cause}\n")),
            },
            "/metrics" => self.metrics_page().await,
            "/rlconfig" => self.rlconfig_page().await,
            _ => Page::text(StatusCode::OK, INDEX),
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
