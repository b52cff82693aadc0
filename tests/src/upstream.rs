//! The service behind Envoy: answers every request with 200 and a short text. With `x-cost` in the request, the
//! answer is a stream like that of a language model: its last line says what it has cost.

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// A running upstream; stops when dropped.
#[derive(Debug)]
pub struct Upstream {
    /// Where it listens.
    pub address: SocketAddr,
    counts: Arc<Counts>,
    accepting: JoinHandle<()>,
}

#[derive(Debug)]
struct Counts {
    served: AtomicU64,
    /// The streams that may end.
    released: Arc<Semaphore>,
}

impl Upstream {
    /// Starts one at `address`.
    ///
    /// # Errors
    /// When the address is taken.
    pub async fn start(address: &str) -> anyhow::Result<Upstream> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let counts = Counts { served: AtomicU64::new(0), released: Arc::new(Semaphore::new(0)) };
        let counts = Arc::new(counts);
        let accepting = tokio::spawn(accept(listener, counts.clone()));
        Ok(Upstream { address, counts, accepting })
    }

    /// How many requests came through.
    #[must_use]
    pub fn served(&self) -> u64 {
        self.counts.served.load(Ordering::Relaxed)
    }

    /// Lets so many streams end, in the order of their beginning: those of requests with `x-held`.
    pub fn release(&self, streams: usize) {
        self.counts.released.add_permits(streams);
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, counts: Arc<Counts>) {
    while let Ok((stream, _)) = listener.accept().await {
        let counts = counts.clone();
        let answer = service_fn(move |request: Request<Incoming>| {
            counts.served.fetch_add(1, Ordering::Relaxed);
            let response = answer(request.headers(), &counts);
            async { Ok::<_, Infallible>(response) }
        });
        tokio::spawn(async move {
            let connection = hyper::server::conn::http1::Builder::new();
            // A client that goes away is no concern of the upstream.
            let _ = connection.serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}

/// The answer to a request: `x-cost` is repeated in the header `x-cost` and in the last line. With `x-held`, that
/// line comes when the stream is released.
fn answer(headers: &HeaderMap, counts: &Counts) -> Response<Stream> {
    let mut stream =
        Stream { first: Some("hello from the upstream\n".into()), held: None, last: None };
    let Some(cost) = headers.get("x-cost") else { return Response::new(stream) };
    stream.last = Some(format!("cost {}\n", String::from_utf8_lossy(cost.as_bytes())).into());
    if headers.contains_key("x-held") {
        let released = counts.released.clone();
        stream.held = Some(Box::pin(async move {
            if let Ok(permit) = released.acquire().await {
                permit.forget();
            }
        }));
    }
    let mut response = Response::new(stream);
    response.headers_mut().insert("x-cost", cost.clone());
    response
}

/// A body in one part or in two.
struct Stream {
    first: Option<Bytes>,
    /// What the second part waits for.
    held: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    last: Option<Bytes>,
}

impl Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        if let Some(held) = &mut self.held {
            ready!(held.as_mut().poll(context));
            self.held = None;
        }
        Poll::Ready(self.last.take().map(|last| Ok(Frame::data(last))))
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.last.is_none()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        let parts = [&self.first, &self.last];
        let bytes = parts.iter().filter_map(|part| part.as_ref()).map(|part| part.len() as u64);
        hyper::body::SizeHint::with_exact(bytes.sum())
    }
}
