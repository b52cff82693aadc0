//! The FRS door: `POST /frs`, XML in and out. See docs/reference/frs.md and its grammar, frs.xsd.
//!
//! `service` makes an answer of a request, `request` and `answer` are the XML of both, `srv` is the file
//! that an FRS is set up by. What is counted, and how, the authority and its rules say; which connections
//! there are, [`crate::slots`].
//!
//! Invariant: bounded whatever clients send: connections, the bytes of bodies and of answers, items, their
//! sizes, the work that waits.

mod answer;
pub(crate) mod request;
mod service;

use crate::accept::{Acceptor, Connections, Socket};
use crate::address::Listener;
use crate::drain;
use crate::http1;
use crate::overload::Overload;
use crate::slots::{Bounds, Patience, Slots};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use service::Service;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tidegate_authority::{Authority, Observer};
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

/// The connections of the endpoint.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Connections at once, of each process.
    pub connections_max: usize,
    /// How long a request may take to come in, and its answer to be taken.
    pub request_timeout: Duration,
    /// How long a connection may rest between requests.
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
    /// A door that is not open yet.
    pub fn new(
        authority: Arc<Authority>,
        observer: Arc<dyn Observer>,
        overload: Arc<Overload>,
        settings: &Settings,
    ) -> Frs {
        let patience = Patience { request: settings.request_timeout, idle: settings.idle_timeout };
        let slots = settings.connections_max;
        Frs {
            service: Service { authority, observer, overload },
            bounds: Bounds { slots, bytes: service::BODIES_BYTES_MAX, grace: GRACE, patience },
            refusals: Arc::new(Semaphore::new(REFUSED_MAX)),
        }
    }

    /// Serves until `stop` says so, then lets requests under way finish.
    pub async fn serve(self, listener: Listener, stop: watch::Receiver<bool>) {
        let slots = Slots::new(self.bounds, self.service.observer.clone(), DOOR);
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
                let refusal = self.refusals.clone().acquire_owned().await;
                (refusal, acceptor.next().await)
            };
            let Some((refusal, socket)) = connections.until(stopped.as_mut(), next).await else {
                break;
            };
            if let Some(slot) = slots.enter() {
                let (service, stop) = (self.service.clone(), stop.clone());
                connections.spawn(async move {
                    let answer = |request, slot| service.answer(request, slot);
                    http1::serve(socket, slot, &service.overload, stop, answer).await;
                });
            } else {
                self.service.observer.connection_refused(DOOR);
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

/// Answers the first request of a client for which there is no slot, and lets it go.
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
