//! The FRS endpoint: `POST /frs` with XML. docs/reference/frs.md describes the protocol, docs/reference/frs.xsd its grammar.
//!
//! `service` answers a request; `request` and `answer` are the XML of both. The authority and its rules
//! decide what is counted; `crate::http1::slots` decides which connections there are.
//!
//! Invariant: whatever clients send, these are bounded: connections, the bytes of bodies and of answers,
//! items, their sizes, and queued work.

mod answer;
pub(crate) mod request;
mod service;

use crate::accept::{Acceptor, Connections, Socket};
use crate::address::Listener;
use crate::http1;
use crate::http1::drain;
use crate::http1::slots::{Bounds, Slots, Timeouts};
use crate::later::LaterBudget;
use crate::shared::Shared;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use service::Service;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};

/// The name in metrics and logs.
const ENDPOINT: &str = "frs";
/// The number of clients without a slot that are refused with an answer at a time; more wait to be accepted.
const REFUSALS_MAX: usize = 64;
/// How long a client has to send a request before it can be evicted, so that clients that arrive all at once
/// are answered, or refused with a time to retry.
const GRACE: Duration = Duration::from_millis(100);
/// How long a client without a slot may take to read the refusal.
const REFUSAL_TIME_MAX: Duration = Duration::from_secs(1);

/// Bounds and time limits of connections.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Connections at a time, for each process.
    pub connections_max: usize,
    /// How long a request may take to arrive, and its answer to be read.
    pub request_timeout: Duration,
    /// How long a connection may be idle between requests.
    pub idle_timeout: Duration,
}

/// The service; clones share the authority.
#[derive(Clone)]
pub struct Frs {
    service: Service,
    bounds: Bounds,
    refusals: Arc<Semaphore>,
}

impl Frs {
    /// An endpoint that does not listen yet.
    pub fn new(shared: Shared, settings: &Settings) -> Frs {
        let timeouts = Timeouts { request: settings.request_timeout, idle: settings.idle_timeout };
        let slots = settings.connections_max;
        Frs {
            service: Service { shared, later: LaterBudget::for_slots(slots) },
            bounds: Bounds { slots, bytes: service::BODIES_BYTES_MAX, grace: GRACE, timeouts },
            refusals: Arc::new(Semaphore::new(REFUSALS_MAX)),
        }
    }

    /// Serves until `stop` is true, then lets requests under way finish.
    pub async fn serve(self, listener: Listener, stop: watch::Receiver<bool>) {
        let slots = Slots::new(self.bounds, self.service.shared.observer.clone(), ENDPOINT);
        tokio::select! {
            () = self.accept(listener, &slots, stop) => {}
            () = slots.enforce_deadlines() => {}
        }
    }

    async fn accept(&self, listener: Listener, slots: &Slots, stop: watch::Receiver<bool>) {
        let mut acceptor = Acceptor::new(ENDPOINT, listener);
        let mut connections = Connections::new(ENDPOINT, self.service.shared.observer.clone());
        let stopped = drain::stopped(stop);
        tokio::pin!(stopped);
        loop {
            // Another process can still serve a client that is not accepted.
            let next = async {
                slots.ready_to_accept().await;
                let refusal = self.refusals.clone().acquire_owned().await;
                (refusal, acceptor.next().await)
            };
            let Some((refusal, socket)) = connections.until(stopped.as_mut(), next).await else {
                break;
            };
            if let Some(slot) = slots.acquire() {
                let (service, stop) = (self.service.clone(), connections.stop());
                connections.serve(async move {
                    let answer = |request, slot| service.answer(request, slot);
                    http1::serve(socket, slot, &service.shared.overload, stop, answer).await;
                });
            } else {
                self.service.shared.observer.connection_refused(ENDPOINT);
                let overload = self.service.shared.overload.clone();
                connections.spawn(async move {
                    overload.watch(refuse(socket)).await;
                    drop(refusal);
                });
            }
        }
        connections.end(acceptor).await;
    }
}

/// Refuses the first request of a client for which there is no slot, and closes the connection.
async fn refuse(socket: Socket) {
    let answer = service_fn(|_| {
        let response = service::overloaded("too many connections are open; try again");
        std::future::ready(Ok::<_, Infallible>(response))
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    let http = http.keep_alive(false).header_read_timeout(None);
    let refused = http.serve_connection(TokioIo::new(socket), answer);
    // A client that sends no request gets no answer.
    let _ = tokio::time::timeout(REFUSAL_TIME_MAX, refused).await;
}
