//! One HTTP/1.1 connection of a door: keep-alive and pipelining, and a client that must keep pace.
//!
//! A connection is cut when a request that has begun to come in is not there in time, when its answer is
//! not taken in time, when nothing comes for long, and when another client needs its place; see
//! [`crate::places`].

use crate::drain::{self, LastCall};
use crate::overload::Overload;
use crate::places::{NoRoom, Phase, Place, SMALL_BYTES_MAX};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;

/// The largest head, and what is read ahead of pipelined requests. An idle connection keeps one such buffer
/// at most, and a smaller one to write.
const BUFFER_BYTES_MAX: usize = 32 * 1024;
const HEADERS_MAX: usize = 64;

/// Serves until the client leaves, falls behind or must give way, or `stop` says to finish.
pub(crate) async fn serve<S, A>(
    stream: S,
    place: Place,
    overload: &Overload,
    stop: watch::Receiver<bool>,
    answer: impl Fn(Request<Incoming>, Arc<Place>) -> A,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    A: Future<Output = Response<Full<Bytes>>>,
{
    let place = Arc::new(place);
    let last_call = &LastCall::default();
    let answer = service_fn(|request| {
        // Of a request that was read ahead nothing was noticed yet.
        if place.phase() == Phase::Idle {
            place.enter(Phase::Receiving);
        }
        let (answer, place) = (answer(request, place.clone()), &place);
        async move {
            let mut response = answer.await;
            last_call.tell(&mut response);
            let bytes = response.body().size_hint().exact().unwrap_or_default();
            place.answer(usize::try_from(bytes).unwrap_or(usize::MAX));
            Ok::<_, Infallible>(response)
        }
    });
    let mut http = http1::Builder::new();
    // The pace is kept by the place, without a timer for each request. A client that has sent all, and says
    // so, still waits for the answer.
    http.header_read_timeout(None).half_close(true);
    http.max_buf_size(BUFFER_BYTES_MAX).max_headers(HEADERS_MAX);
    let io = TokioIo::new(Paced { stream, place: place.clone() });
    let connection = http.serve_connection(io, answer);
    tokio::pin!(connection);
    let leave = async {
        drain::stopped(stop).await;
        last_call.ring().await;
    };
    tokio::pin!(leave);
    let mut is_closing = false;
    loop {
        tokio::select! {
            ended = overload.watch(connection.as_mut()) => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection broke");
                }
                return;
            }
            () = place.is_wanted() => return,
            () = &mut leave, if !is_closing => {
                is_closing = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// Why a body is not there.
#[derive(Debug)]
pub(crate) enum BodyError {
    /// It is larger than it may be.
    TooLarge,
    /// There is no memory for it beside the others.
    NoRoom,
    Broken(hyper::Error),
}

/// Reads a body of at most `most` bytes, which asks for room once it is not small. What comes in many small
/// pieces is put together as it comes: a piece costs more than its bytes.
pub(crate) async fn body(
    mut body: Incoming,
    place: &Place,
    most: usize,
) -> Result<Bytes, BodyError> {
    // Most bodies are one piece, and are read where they are.
    let mut first = Bytes::new();
    let mut all: Vec<u8> = Vec::new();
    let mut room = SMALL_BYTES_MAX.min(most);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(BodyError::Broken)?.into_data() else { continue };
        let read = first.len() + all.len() + data.len();
        if read > most {
            return Err(BodyError::TooLarge);
        }
        if read > room {
            // By what comes in, not by what is announced.
            room = read.saturating_mul(2).min(most);
            place.hold(room).map_err(|NoRoom| BodyError::NoRoom)?;
        }
        if first.is_empty() && all.is_empty() {
            first = data;
            continue;
        }
        if all.is_empty() {
            all.reserve_exact(room);
            all.extend_from_slice(&std::mem::take(&mut first));
        } else if all.len() + data.len() > all.capacity() {
            all.reserve_exact(room - all.len());
        }
        all.extend_from_slice(&data);
    }
    Ok(if all.is_empty() { first } else { all.into() })
}

/// Lets a body come in that is of no use, up to so many bytes: a client that still sends when the connection
/// is closed may not hear why.
pub(crate) async fn discard(mut body: Incoming, most: usize) {
    let mut bytes = 0;
    while let Some(Ok(frame)) = body.frame().await {
        bytes += frame.data_ref().map_or(0, Bytes::len);
        if bytes > most {
            return;
        }
    }
}

/// A stream that tells when a request begins and when an answer is gone.
struct Paced<S> {
    stream: S,
    place: Arc<Place>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before && self.place.phase() == Phase::Idle {
            self.place.enter(Phase::Receiving);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if flushed.is_ready() && self.place.phase() == Phase::Answering {
            self.place.answered();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
