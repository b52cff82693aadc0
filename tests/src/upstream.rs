//! The service behind Envoy: answers every request with 200 and a short text.

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A running upstream; stops when dropped.
#[derive(Debug)]
pub struct Upstream {
    /// Where it listens.
    pub address: SocketAddr,
    served: Arc<AtomicU64>,
    accepting: JoinHandle<()>,
}

impl Upstream {
    /// Starts one at `address`.
    ///
    /// # Errors
    /// When the address is taken.
    pub async fn start(address: &str) -> anyhow::Result<Upstream> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let served = Arc::new(AtomicU64::new(0));
        let accepting = tokio::spawn(accept(listener, served.clone()));
        Ok(Upstream { address, served, accepting })
    }

    /// How many requests came through.
    #[must_use]
    pub fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, served: Arc<AtomicU64>) {
    while let Ok((stream, _)) = listener.accept().await {
        let served = served.clone();
        let answer = service_fn(move |_: Request<Incoming>| {
            served.fetch_add(1, Ordering::Relaxed);
            let body = Full::new(Bytes::from_static(b"hello from the upstream\n"));
            async { Ok::<_, Infallible>(Response::new(body)) }
        });
        tokio::spawn(async move {
            let connection = hyper::server::conn::http1::Builder::new();
            // A client that goes away is no concern of the upstream.
            let _ = connection.serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}
