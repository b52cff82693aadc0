//! The FRS door: `POST /frs`, XML in and out. See docs/reference/frs.md and its grammar, frs.xsd.
//!
//! `service` makes an answer of a request, `request` and `answer` are the XML of both, `srv` is the file
//! that an FRS is set up by. What is counted, and how, the engine and its rules say; which connections
//! there are, [`crate::places`].
//!
//! Invariant: bounded whatever clients send: connections, the bytes of bodies and of answers, items, their
//! sizes, the work that waits.

mod answer;
pub(crate) mod request;
mod service;
pub(crate) mod srv;

use crate::accept::{Acceptor, Connections, Socket};
use crate::address::Listener;
use crate::cli::FrsOptions;
use crate::drain;
use crate::engine::Engine;
use crate::http1;
use crate::metrics::Metrics;
use crate::overload::Overload;
use crate::places::{Bounds, Patience, Places};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use service::Service;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};

/// What metrics and logs call it.
const DOOR: &str = "frs";
/// How many clients that find no place are told so at a time; more wait to be accepted.
const REFUSED_MAX: usize = 64;
/// How long a client has to ask before it gives way to another: those that come all at once are answered, or
/// told to try again.
const GRACE: Duration = Duration::from_millis(100);
/// How long a client that finds no place may take to hear it.
const REFUSED_FOR: Duration = Duration::from_secs(1);

/// The service; clones share the engine.
#[derive(Clone)]
pub(crate) struct Frs {
    service: Service,
    bounds: Bounds,
    refusals: Arc<Semaphore>,
}

impl Frs {
    /// A door that is not open yet.
    pub(crate) fn new(
        engine: Arc<Engine>,
        metrics: Metrics,
        overload: Arc<Overload>,
        options: &FrsOptions,
    ) -> Frs {
        let patience =
            Patience { request: options.request_timeout.0, idle: options.idle_timeout.0 };
        let places = options.connections as usize;
        Frs {
            service: Service { engine, metrics, overload },
            bounds: Bounds { places, bytes: service::BODIES_BYTES_MAX, grace: GRACE, patience },
            refusals: Arc::new(Semaphore::new(REFUSED_MAX)),
        }
    }

    /// Serves until `stop` says so, then lets requests under way finish.
    pub(crate) async fn serve(self, listener: Listener, stop: watch::Receiver<bool>) {
        let places = Places::new(self.bounds, self.service.metrics.gave_way(DOOR));
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
                let refusal = self.refusals.clone().acquire_owned().await;
                (refusal, acceptor.next().await)
            };
            let Some((refusal, socket)) = connections.until(stopped.as_mut(), next).await else {
                break;
            };
            if let Some(place) = places.enter() {
                let (service, stop) = (self.service.clone(), stop.clone());
                connections.spawn(async move {
                    let answer = |request, place| service.answer(request, place);
                    http1::serve(socket, place, &service.overload, stop, answer).await;
                });
            } else {
                self.service.metrics.refused_connection(DOOR);
                let overload = self.service.overload.clone();
                connections.spawn(async move {
                    overload.watch(refuse(socket)).await;
                    drop(refusal);
                });
            }
        }
        // It would take connections that nobody accepts any more.
        drop(acceptor);
        connections.all_ended().await;
    }
}

/// Answers the first request of a client for which there is no place, and lets it go.
async fn refuse(socket: Socket) {
    let answer = service_fn(|_| {
        let told = service::overloaded("too many connections are open; try again");
        std::future::ready(Ok::<_, Infallible>(told))
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    let http = http.keep_alive(false).header_read_timeout(None);
    let refused = http.serve_connection(TokioIo::new(socket), answer);
    // A client that does not even ask is let go without an answer.
    let _ = tokio::time::timeout(REFUSED_FOR, refused).await;
}
