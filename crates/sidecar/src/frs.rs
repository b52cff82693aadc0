//! The FRS door: `POST /frs`, XML in and out. docs/frs.md has the protocol, docs/frs.xsd its grammar.
//!
//! `service` makes an answer of a request, `request` and `answer` are the XML of both, `connection`
//! keeps clients in pace, `srv` is the file that an FRS is set up by. What is counted, and how, the
//! engine and its rules say.
//!
//! Invariant: bounded whatever clients send: connections, the bytes of bodies and of answers, items, their
//! sizes, the work that waits.

mod answer;
mod connection;
pub(crate) mod request;
mod service;
pub(crate) mod srv;

use crate::accept::{Acceptor, Connections, Socket};
use crate::address::Listener;
use crate::cli::FrsOptions;
use crate::drain;
use crate::engine::Engine;
use crate::metrics::Metrics;
use crate::overload::Overload;
use connection::Patience;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use service::Service;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};

/// What metrics and logs call it.
const DOOR: &str = "frs";
/// How many clients that find no place are told so at a time; more wait to be accepted.
const REFUSED_MAX: usize = 64;
/// How long one of them may take to hear it.
const REFUSED_FOR: Duration = Duration::from_secs(1);

/// The service; clones share the engine.
#[derive(Clone)]
pub(crate) struct Frs {
    service: Service,
    patience: Patience,
    places: Arc<Semaphore>,
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
        let bodies = Arc::new(AtomicUsize::new(0));
        Frs {
            service: Service { engine, metrics, bodies, overload },
            patience: Patience { request: options.request_timeout.0, idle: options.idle_timeout.0 },
            places: Arc::new(Semaphore::new(options.connections as usize)),
            refusals: Arc::new(Semaphore::new(REFUSED_MAX)),
        }
    }

    /// Serves until `stop` says so, then lets requests under way finish.
    pub(crate) async fn serve(self, listener: Listener, stop: watch::Receiver<bool>) {
        let mut acceptor = Acceptor::new(DOOR, listener);
        let mut connections = Connections::default();
        let stopped = drain::stopped(stop.clone());
        tokio::pin!(stopped);
        loop {
            // Before a client is accepted: whoever is not can still be served by another process.
            let next = async {
                let refusal = self.refusals.clone().acquire_owned().await;
                (refusal, acceptor.next().await)
            };
            let Some((refusal, socket)) = connections.until(stopped.as_mut(), next).await else {
                break;
            };
            if let Ok(place) = self.places.clone().try_acquire_owned() {
                let (service, patience) = (self.service.clone(), self.patience);
                let stop = stop.clone();
                connections.spawn(async move {
                    connection::serve(socket, service, patience, stop).await;
                    drop(place);
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
    let mut http = http1::Builder::new();
    let http = http.keep_alive(false).header_read_timeout(None);
    let refused = http.serve_connection(TokioIo::new(socket), answer);
    // A client that does not even ask is let go without an answer.
    let _ = tokio::time::timeout(REFUSED_FOR, refused).await;
}
