//! One connection: HTTP/1.1 with keep-alive and pipelining, and a client that must keep pace.
//!
//! A connection is cut when a request that has begun to come in is not there in time, when its
//! answer is not taken in time, and when nothing comes for long.

use super::service::Service;
use crate::drain::{self, LastCall};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

/// The largest head, and what is read ahead of pipelined requests.
const BUFFER_BYTES_MAX: usize = 32 * 1024;
const HEADERS_MAX: usize = 64;

/// How long a client may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// For a request to come in, or an answer to be taken.
    pub(super) request: Duration,
    /// Between requests.
    pub(super) idle: Duration,
}

impl Patience {
    /// How often it is looked at.
    fn tick(self) -> Duration {
        (self.request.min(self.idle) / 4).clamp(Duration::from_millis(10), Duration::from_secs(1))
    }
}

/// Serves until the client leaves, falls behind, or `stop` says to finish.
pub(super) async fn serve<S>(
    stream: S,
    service: Service,
    patience: Patience,
    stop: watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let pace = Arc::new(Pace::new());
    let paced = pace.clone();
    let last_call = &LastCall::default();
    let overload = service.overload.clone();
    let answer = service_fn(move |request| {
        let (service, pace) = (service.clone(), paced.clone());
        async move {
            let mut response = service.answer(request, || pace.enter(Phase::Deciding)).await;
            last_call.tell(&mut response);
            pace.enter(Phase::Answering);
            Ok::<_, Infallible>(response)
        }
    });
    let io = TokioIo::new(Paced { stream, pace: pace.clone() });
    let mut http = http1::Builder::new();
    // The pace is kept here, without a timer for each request.
    // Who has sent all, and says so, still waits for the answer.
    http.header_read_timeout(None).half_close(true);
    http.max_buf_size(BUFFER_BYTES_MAX).max_headers(HEADERS_MAX);
    let connection = http.serve_connection(io, answer);
    tokio::pin!(connection);
    let mut ticks = tokio::time::interval(patience.tick());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
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
                    tracing::debug!(%error, "an FRS connection broke");
                }
                return;
            }
            _ = ticks.tick() => {
                if let Some(phase) = pace.overdue(patience) {
                    tracing::debug!(?phase, "an FRS client fell behind; cut off");
                    return;
                }
            }
            () = &mut leave, if !is_closing => {
                is_closing = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// What a connection is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing has come since the last answer.
    Idle,
    /// A request is coming in.
    Receiving,
    /// It is there.
    Deciding,
    /// Its answer is on its way.
    Answering,
}

impl Phase {
    const ALL: [Phase; 4] = [Phase::Idle, Phase::Receiving, Phase::Deciding, Phase::Answering];
}

/// What a connection is at, and since when.
struct Pace {
    opened: Instant,
    /// The milliseconds from `opened` on, times four, and the phase.
    state: AtomicU64,
}

impl Pace {
    fn new() -> Pace {
        Pace { opened: Instant::now(), state: AtomicU64::new(0) }
    }

    /// One task reads, writes and decides, so loads and stores are in its order.
    fn enter(&self, phase: Phase) {
        let millis = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.state.store(millis << 2 | phase as u64, Ordering::Relaxed);
    }

    fn phase(&self) -> Phase {
        Phase::ALL[(self.state.load(Ordering::Relaxed) & 3) as usize]
    }

    /// The phase that has lasted too long, if so.
    fn overdue(&self, patience: Patience) -> Option<Phase> {
        let since = Duration::from_millis(self.state.load(Ordering::Relaxed) >> 2);
        let lasted = self.opened.elapsed().saturating_sub(since);
        let phase = self.phase();
        let most = match phase {
            Phase::Idle => patience.idle,
            Phase::Receiving | Phase::Answering => patience.request,
            Phase::Deciding => return None,
        };
        (lasted > most).then_some(phase)
    }
}

/// A stream that tells when a request begins and when an answer is gone.
struct Paced<S> {
    stream: S,
    pace: Arc<Pace>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before && self.pace.phase() == Phase::Idle {
            self.pace.enter(Phase::Receiving);
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
        if flushed.is_ready() && self.pace.phase() == Phase::Answering {
            self.pace.enter(Phase::Idle);
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
