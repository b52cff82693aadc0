//! The FRS door: `POST /frs`, XML in and out. docs/frs.md has the protocol, docs/frs.xsd its grammar.
//!
//! `service` makes an answer of a request, `request` and `answer` are the XML of both, `connection`
//! keeps clients in pace, `backlog` tells when there is too much to do, `srv` is the file that an FRS is set up by. What is counted, and how, the
//! engine and its rules say.
//!
//! Invariant: bounded whatever clients send: connections, the bytes of bodies and of answers, items, their
//! sizes, the work that waits.

mod answer;
mod backlog;
mod connection;
mod request;
mod service;
pub(crate) mod srv;

use crate::address::Listener;
use crate::cli::FrsOptions;
use crate::engine::Engine;
use crate::metrics::Metrics;
use backlog::Backlog;
use connection::Patience;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use service::Service;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

/// What metrics call it.
const DOOR: &str = "frs";
/// How long nothing is accepted after that failed: without descriptors or memory it fails again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How many clients that find no place are told so at a time; more are cut off without a word.
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
    /// A door that is not open yet. Wants to be made inside the runtime that will serve it.
    pub(crate) fn new(engine: Arc<Engine>, metrics: Metrics, options: &FrsOptions) -> Frs {
        let bodies = Arc::new(AtomicUsize::new(0));
        let threads = Handle::try_current().map_or(1, |handle| handle.metrics().num_workers());
        let backlog = Arc::new(Backlog::new(threads));
        Frs {
            service: Service { engine, metrics, bodies, backlog },
            patience: Patience { request: options.request_timeout.0, idle: options.idle_timeout.0 },
            places: Arc::new(Semaphore::new(options.connections as usize)),
            refusals: Arc::new(Semaphore::new(REFUSED_MAX)),
        }
    }

    /// Serves until `stop` says so, then lets requests under way finish.
    pub(crate) async fn serve(
        self,
        listener: Listener,
        stop: watch::Receiver<bool>,
    ) -> anyhow::Result<()> {
        match listener {
            Listener::Tcp(listener) => self.accept(listener, stop).await,
            Listener::Unix(listener, _file) => self.accept(listener, stop).await,
        }
        Ok(())
    }

    async fn accept(self, listener: impl Accept, mut stop: watch::Receiver<bool>) {
        let mut connections = JoinSet::new();
        let stopping = stop.clone();
        loop {
            let accepted = tokio::select! {
                _ = stop.wait_for(|stop| *stop) => break,
                Some(_) = connections.join_next() => continue,
                accepted = listener.accept_one() => accepted,
            };
            let stream = match accepted {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::warn!(%error, "the FRS door cannot accept connections for now");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Ok(place) = self.places.clone().try_acquire_owned() else {
                self.service.metrics.refused_connection(DOOR);
                if let Ok(place) = self.refusals.clone().try_acquire_owned() {
                    connections.spawn(async move {
                        refuse(stream).await;
                        drop(place);
                    });
                }
                continue;
            };
            let (service, patience) = (self.service.clone(), self.patience);
            let stopping = stopping.clone();
            connections.spawn(async move {
                connection::serve(stream, service, patience, stopping).await;
                drop(place);
            });
        }
        // It would take connections that nobody accepts any more.
        drop(listener);
        while connections.join_next().await.is_some() {}
    }
}

/// Answers the first request of a client for which there is no place, and lets it go.
async fn refuse<S: AsyncRead + AsyncWrite + Unpin>(stream: S) {
    let answer = service_fn(async |_| {
        Ok::<_, Infallible>(service::overloaded("too many connections are open; try again"))
    });
    let mut http = http1::Builder::new();
    let http = http.keep_alive(false).header_read_timeout(None);
    let refused = http.serve_connection(TokioIo::new(stream), answer);
    // A client that does not even ask is let go without an answer.
    let _ = tokio::time::timeout(REFUSED_FOR, refused).await;
}

/// What gives streams to serve.
trait Accept: Sync {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    fn accept_one(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Accept for TcpListener {
    type Stream = TcpStream;

    async fn accept_one(&self) -> io::Result<TcpStream> {
        let (stream, _) = self.accept().await?;
        // Answers are written at once, so there is nothing to gather.
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }
}

impl Accept for UnixListener {
    type Stream = UnixStream;

    async fn accept_one(&self) -> io::Result<UnixStream> {
        Ok(self.accept().await?.0)
    }
}
