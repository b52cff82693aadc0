//! The HTTP endpoint: `/healthcheck`, `/metrics`, `/rlconfig`, the console and what it asks below `/v1`, and `/json`,
//! which decides.
//!
//! Owns its connections and their cost: how many there are, how long a request may take to arrive, how large
//! it may be. Liveness probes come here, so no client can keep out the next one; see `crate::http1::slots`.
//! Knows no limit: it asks the authority.

mod access;
mod body;
mod console;
mod json;
mod proto_json;
mod rlconfig;
mod statistics;
mod top;

pub use access::{Access, Token};
pub use console::{Change, ConsolePage, File, Question};
pub use statistics::StatisticsPage;
pub use top::TopPage;

use crate::accept::{Acceptor, Connections, Socket};
use crate::address::Listener;
use crate::http1;
use crate::http1::drain;
use crate::http1::slots::{Bounds, NoRoom, Phase, Slot, Slots, Timeouts};
use crate::later::LaterBudget;
use crate::shared::Shared;
use crate::tls::Tls;
use access::Peer;
use body::Page;
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::{Method, Request, StatusCode};
use std::sync::Arc;
use std::time::{Duration, Instant};
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
/// Questions about statistics at the same time, about who is limited, about keys, and others of the console: a slow
/// database delays its own alone, and so do counters that machines share.
const QUESTIONS_MAX: usize = 2;

const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

const PATHS: [&str; 15] = [
    "/",
    console::FILES,
    "/healthcheck",
    "/json",
    "/metrics",
    "/rlconfig",
    statistics::PATH,
    top::PATH,
    top::DECISIONS,
    "/v1/overview",
    "/v1/rules",
    "/v1/key",
    "/v1/limits",
    "/v1/key/erase",
    "/v1/key/set",
];

const INDEX: &str = "\
tidegate
GET  /                      the console, in a browser
GET  /healthcheck           200 while requests can be decided
GET  /metrics               OpenMetrics
GET  /rlconfig              the limits in force
GET  /v1/statistics         all statistics
GET  /v1/statistics/{name}  one of them, such as ?app=web&last=7d&step=auto&top=10
GET  /v1/top                who is limited now, such as ?domain=shop&order=denied&n=20
GET  /v1/decisions          single decisions, such as ?denied&rule=shop/user&match=user=17
GET  /v1/overview           counts by domain, counters, processes, limits
GET  /v1/rules              the rules with their counts, such as ?domain=shop&find=user&order=denied&n=20
GET  /v1/key                what a descriptor meets, such as ?domain=shop&entry=app=web&entry=user=17
GET  /v1/limits             where the limits are from, the last changes, mistakes
POST /v1/key/erase          erases the counters of a descriptor
POST /v1/key/set            sets what is left under one of its limits
POST /json                  decides a RateLimitRequest in proto-JSON
";

/// The form of a page of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageForm {
    OpenMetrics,
    /// Prometheus' own, with the names of envoyproxy/ratelimit beside ours.
    Prometheus,
}

/// The content of `/metrics`: the metrics of this process, or the sum of several.
pub trait MetricsPage: Send + Sync + 'static {
    fn page(&self, form: PageForm) -> impl Future<Output = anyhow::Result<String>> + Send;
}

/// The service.
pub struct Http<M> {
    shared: Shared,
    page: M,
    pages_served: Pages,
    large_bodies: Arc<Semaphore>,
    pages: Semaphore,
    questions: Semaphore,
    top_questions: Semaphore,
    console_questions: Semaphore,
    key_questions: Semaphore,
    changes: Semaphore,
    /// Of TCP connections; without it they are plain.
    tls: Option<Arc<Tls>>,
    /// Who has access to all of the next three.
    access: Access,
    statistics: Option<Arc<dyn StatisticsPage>>,
    top: Option<Arc<dyn TopPage>>,
    console: Option<Arc<dyn ConsolePage>>,
    later: LaterBudget,
}

/// The pages of an endpoint.
#[derive(Debug)]
enum Pages {
    All,
    /// Metrics at this path in the form of Prometheus, and `/healthcheck`.
    Metrics(String),
}

impl<M: MetricsPage> Http<M> {
    /// An endpoint that serves the metrics of `page` beside all else.
    pub fn new(shared: Shared, page: M) -> Http<M> {
        Http::with(shared, page, Pages::All)
    }

    /// An endpoint that decides nothing: it serves the metrics of `page` at `path`, and `/healthcheck`.
    pub fn of_metrics(shared: Shared, page: M, path: String) -> Http<M> {
        Http::with(shared, page, Pages::Metrics(path))
    }

    fn with(shared: Shared, page: M, pages_served: Pages) -> Http<M> {
        Http {
            shared,
            page,
            pages_served,
            large_bodies: Arc::new(Semaphore::new(LARGE_BODIES_MAX)),
            pages: Semaphore::new(PAGES_MAX),
            questions: Semaphore::new(QUESTIONS_MAX),
            top_questions: Semaphore::new(QUESTIONS_MAX),
            console_questions: Semaphore::new(QUESTIONS_MAX),
            key_questions: Semaphore::new(QUESTIONS_MAX),
            changes: Semaphore::new(console::CHANGES_MAX),
            tls: None,
            access: Access::closed(),
            statistics: None,
            top: None,
            console: None,
            later: LaterBudget::for_slots(BOUNDS.slots),
        }
    }

    /// The same with pages that show values of requests, for those who have access.
    #[must_use]
    pub fn with_access(self, access: Access) -> Http<M> {
        Http { access, ..self }
    }

    #[must_use]
    pub fn with_tls(self, tls: Option<Arc<Tls>>) -> Http<M> {
        Http { tls, ..self }
    }

    #[must_use]
    pub fn with_statistics(self, statistics: Option<Arc<dyn StatisticsPage>>) -> Http<M> {
        Http { statistics, ..self }
    }

    #[must_use]
    pub fn with_top(self, top: Option<Arc<dyn TopPage>>) -> Http<M> {
        Http { top, ..self }
    }

    #[must_use]
    pub fn with_console(self, console: Option<Arc<dyn ConsolePage>>) -> Http<M> {
        Http { console, ..self }
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
        let mut connections = Connections::new(ENDPOINT, self.shared.observer.clone());
        let stopped = drain::stopped(stop);
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
            let (http, stop) = (self.clone(), connections.stop());
            connections.serve(async move { http.connection(socket, slot, stop).await });
        }
        connections.end(acceptor).await;
    }

    async fn connection(self: &Arc<Self>, socket: Socket, slot: Slot, stop: watch::Receiver<bool>) {
        let tls = self.tls.as_ref().filter(|_| matches!(socket, Socket::Tcp(_)));
        let Some(tls) = tls else {
            let answer = |request, slot| self.answer(Peer::Unknown, request, slot);
            return http1::serve(socket, slot, &self.shared.overload, stop, answer).await;
        };
        slot.set_phase(Phase::Receiving);
        let accepted = tokio::select! {
            accepted = tls.accept(socket, &*self.shared.observer) => accepted,
            () = slot.evicted() => return,
        };
        let Some(stream) = accepted else { return };
        let peer = match stream.get_ref().1.peer_certificates() {
            Some(_) => Peer::Certified,
            None => Peer::Unknown,
        };
        slot.set_phase(Phase::Idle);
        let answer = |request, slot| self.answer(peer, request, slot);
        http1::serve(stream, slot, &self.shared.overload, stop, answer).await;
    }

    async fn answer(
        self: &Arc<Self>,
        peer: Peer,
        request: Request<Incoming>,
        slot: Arc<Slot>,
    ) -> hyper::Response<body::Body> {
        let path = match &self.pages_served {
            Pages::All if statistics::name_in(request.uri().path()).is_some() => statistics::PATH,
            Pages::All if request.uri().path().starts_with(console::FILES) => console::FILES,
            Pages::All => request.uri().path(),
            Pages::Metrics(path) if request.uri().path() == path => "/metrics",
            Pages::Metrics(_) if request.uri().path() == "/healthcheck" => "/healthcheck",
            Pages::Metrics(_) => "other",
        };
        let path_label = path_label(path);
        let page = match (path, request.method()) {
            ("/json", &Method::POST) => {
                let start = Instant::now();
                let answer = json::answer(self, request, &slot).await;
                self.shared.observer.answered_within(ENDPOINT, 1, start.elapsed());
                answer
            }
            ("/json", _) => not_allowed("POST"),
            ("/" | "/healthcheck" | "/metrics" | "/rlconfig", &Method::GET | &Method::HEAD) => {
                let is_page = path == "/" && console::wants_page(request.headers());
                match is_page.then(|| console::file(self, "/", request.headers())).flatten() {
                    Some(page) => page,
                    None => self.page(path_label, &slot).await,
                }
            }
            (_, &Method::GET | &Method::HEAD) => self.read(path, peer, &request, &slot).await,
            _ => match Change::at(path) {
                Some(change) => console::change(self, change, request, &slot).await,
                None if PATHS.contains(&path) => not_allowed("GET, HEAD"),
                None => no_page(),
            },
        };
        self.shared.observer.http_answered(path_label, page.status.as_u16());
        page.into_response()
    }

    /// A page for those who have access, or a file of the console.
    async fn read(&self, path: &str, peer: Peer, request: &Request<Incoming>, slot: &Slot) -> Page {
        match path {
            console::FILES => {
                let file = console::file(self, request.uri().path(), request.headers());
                file.unwrap_or_else(no_page)
            }
            statistics::PATH => statistics::answer(self, peer, request, slot).await,
            top::PATH | top::DECISIONS => top::answer(self, peer, request, slot).await,
            _ => match Question::at(path) {
                Some(question) => console::answer(self, (question, peer), request, slot).await,
                None if Change::at(path).is_some() => not_allowed("POST"),
                None => no_page(),
            },
        }
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
        self.reserved(page, slot)
    }

    /// A page that may be long, if there is room for it.
    fn reserved(&self, page: Page, slot: &Slot) -> Page {
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
        let (form, content_type) = match &self.pages_served {
            Pages::All => (PageForm::OpenMetrics, OPENMETRICS),
            Pages::Metrics(_) => (PageForm::Prometheus, PROMETHEUS),
        };
        match self.page.page(form).await {
            Ok(text) => Page::new(StatusCode::OK, content_type, text),
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

fn no_page() -> Page {
    Page::text(StatusCode::NOT_FOUND, "no such page; GET / lists all pages\n")
}

fn not_allowed(allowed: &'static str) -> Page {
    let text = format!("the method must be {}\n", allowed.replace(", ", " or "));
    let page = Page::text(StatusCode::METHOD_NOT_ALLOWED, text);
    page.with_header(header::ALLOW, HeaderValue::from_static(allowed))
}
