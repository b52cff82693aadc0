//! One HTTP/1.1 connection: keep-alive, pipelining, and time limits for slow clients.
//!
//! A connection is closed if a request that has begun does not arrive in time, if its answer is not read in
//! time, if nothing arrives for long, or if another client needs its slot; see [`slots`]. Small pieces are
//! read rarely: a read costs as much as thousands of bytes.

pub(crate) mod drain;
pub(crate) mod slots;

use crate::overload::Overload;
use drain::GracefulClose;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use slots::{NoRoom, Phase, SMALL_BYTES_MAX, Slot};
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::Sleep;

/// The largest head, and the read-ahead of pipelined requests. An idle connection keeps at most one such buffer and
/// a smaller one for writing; with its task and what the allocator cannot use, that is below 64 KiB.
const BUFFER_BYTES_MAX: usize = 16 * 1024;
const HEADERS_MAX: usize = 64;

/// Serves until the client leaves, exceeds a time limit or is evicted, or until `stop` is true.
pub(crate) async fn serve<S, A>(
    stream: S,
    slot: Slot,
    overload: &Overload,
    stop: watch::Receiver<bool>,
    answer: impl Fn(Request<Incoming>, Arc<Slot>) -> A,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    A: Future<Output = Response<Full<Bytes>>>,
{
    let slot = Arc::new(slot);
    let graceful_close = &GracefulClose::default();
    let answer = service_fn(|request| {
        // A request that was read ahead has not changed the phase yet.
        if slot.phase() == Phase::Idle {
            slot.set_phase(Phase::Receiving);
        }
        let (answer, slot) = (answer(request, slot.clone()), &slot);
        async move {
            let mut response = answer.await;
            graceful_close.mark(&mut response);
            let bytes = response.body().size_hint().exact().unwrap_or_default();
            slot.begin_answer(usize::try_from(bytes).unwrap_or(usize::MAX));
            Ok::<_, Infallible>(response)
        }
    });
    let mut http = http1::Builder::new();
    // The slot enforces time limits, without a timer for each request. A client that has sent everything and
    // shuts down its side still gets its answer.
    http.header_read_timeout(None).half_close(true);
    http.max_buf_size(BUFFER_BYTES_MAX).max_headers(HEADERS_MAX);
    let io = TokioIo::new(Paced::new(stream, slot.clone()));
    let connection = http.serve_connection(io, answer);
    tokio::pin!(connection);
    let close = async {
        drain::stopped(stop).await;
        graceful_close.announce().await;
    };
    tokio::pin!(close);
    let mut may_close = false;
    loop {
        tokio::select! {
            ended = overload.watch(connection.as_mut()) => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection broke");
                }
                return;
            }
            () = slot.evicted() => return,
            () = &mut close, if !may_close => {
                may_close = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

#[derive(Debug)]
pub(crate) enum BodyError {
    /// It exceeds the maximum.
    TooLarge,
    /// All bodies together exceed their memory. This one was read and discarded.
    NoRoom,
    /// It arrives in chunks of a few bytes each.
    TooManyChunks,
    Broken(hyper::Error),
}

/// A body may have this many chunks, and one more for each 64 bytes: a chunk costs as much as they do.
const CHUNKS_FREE: usize = 1_024;
const CHUNK_BYTES_MIN: usize = 64;

/// Reads a body of at most `bytes_max` bytes, and reserves memory for it unless it is small. Small pieces are
/// copied together as they arrive: a piece costs more than its bytes.
pub(crate) async fn body(
    mut body: Incoming,
    slot: &Slot,
    bytes_max: usize,
) -> Result<Bytes, BodyError> {
    // Most bodies are one piece, which is used without copying.
    let mut first = Bytes::new();
    let mut all: Vec<u8> = Vec::new();
    let mut room = SMALL_BYTES_MAX.min(bytes_max);
    let mut chunks = 0;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(BodyError::Broken)?.into_data() else { continue };
        let read = first.len() + all.len() + data.len();
        if read > bytes_max {
            return Err(BodyError::TooLarge);
        }
        chunks += 1;
        if chunks > CHUNKS_FREE + read / CHUNK_BYTES_MIN {
            return Err(BodyError::TooManyChunks);
        }
        if read > room {
            // The reservation grows with the bytes received, not with the announced length.
            room = read.saturating_mul(2).min(bytes_max);
            if let Err(NoRoom) = slot.reserve(room) {
                drop((first, all));
                let _ = slot.reserve(0);
                discard(body, bytes_max - read).await;
                return Err(BodyError::NoRoom);
            }
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

/// Reads and discards a body, up to `bytes_max` bytes: a client that still sends when the connection closes
/// may not receive the answer.
pub(crate) async fn discard(mut body: Incoming, bytes_max: usize) {
    let mut bytes = 0;
    while let Some(Ok(frame)) = body.frame().await {
        bytes += frame.data_ref().map_or(0, Bytes::len);
        if bytes > bytes_max {
            return;
        }
    }
}

/// A smaller read is a small one. A client that sends what it has fills larger segments.
const SMALL_READ_BYTES: usize = 512;
/// The small reads of a request that are free. After them each read waits for twice as long as the one
/// before, so that a request sent byte by byte takes some twenty reads instead of one for each byte.
const SMALL_READS_FREE: u32 = 8;
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(640);

/// A stream that updates the phase of its slot at the start of a request and at the end of an answer, and
/// delays small reads.
struct Paced<S> {
    stream: S,
    slot: Arc<Slot>,
    small_reads: u32,
    pause: Option<Pin<Box<Sleep>>>,
    /// When the last write began.
    written: u64,
}

impl<S> Paced<S> {
    fn new(stream: S, slot: Arc<Slot>) -> Paced<S> {
        Paced { stream, slot, small_reads: 0, pause: None, written: 0 }
    }

    fn received(&mut self, bytes: usize) {
        if self.slot.phase() == Phase::Idle {
            self.slot.set_phase(Phase::Receiving);
            self.small_reads = 0;
        }
        if bytes >= SMALL_READ_BYTES || self.slot.phase() != Phase::Receiving {
            return;
        }
        self.small_reads += 1;
        if let Some(beyond) = self.small_reads.checked_sub(SMALL_READS_FREE) {
            let pause = PAUSE_MIN.saturating_mul(1 << beyond.min(10)).min(PAUSE_MAX);
            self.pause = Some(Box::pin(tokio::time::sleep(pause)));
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(context));
            self.pause = None;
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let bytes = buffer.filled().len() - before;
        if bytes > 0 {
            self.received(bytes);
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
        self.written = self.slot.now();
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if flushed.is_ready() && self.slot.phase() == Phase::Answering {
            self.slot.end_answer(self.written);
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
        self.written = self.slot.now();
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::slots::{Bounds, Slots, Timeouts};
    use super::*;
    use std::pin::pin;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Regression: a head sent byte by byte cost a read for each byte.
    #[tokio::test]
    async fn bytes_that_arrive_one_by_one_are_read_together() {
        let timeouts = Timeouts { request: Duration::from_secs(10), idle: Duration::from_secs(60) };
        let bounds = Bounds { slots: 1, bytes: 0, grace: Duration::ZERO, timeouts };
        let slot = Slots::new(bounds, Arc::new(()), "test").acquire().expect("a slot");
        let (mut client, server) = tokio::io::duplex(4_096);
        let mut paced = pin!(Paced::new(server, Arc::new(slot)));
        let sending = tokio::spawn(async move {
            for _ in 0..2_000 {
                client.write_all(b"x").await.expect("an open stream");
                tokio::task::yield_now().await;
            }
        });
        let (mut reads, mut bytes, mut buffer) = (0, 0, [0; 4_096]);
        loop {
            match paced.read(&mut buffer).await.expect("an open stream") {
                0 => break,
                read => (reads, bytes) = (reads + 1, bytes + read),
            }
        }
        sending.await.expect("no panic");
        assert_eq!(bytes, 2_000);
        assert!(reads <= 20, "{reads} reads");
    }

    /// A stream whose thread goes on two milliseconds after the client has read what it wrote.
    struct Interrupted(Arc<Slot>, u64);

    impl AsyncWrite for Interrupted {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.1 = self.0.now();
            while self.0.now() < self.1 + 2 {
                std::hint::spin_loop();
            }
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// Regression: on a busy machine the wait of a client could begin after that of another one, which had asked later. It
    /// then kept its place instead of the other.
    #[tokio::test]
    async fn a_client_waits_from_when_its_answer_was_written() {
        let timeouts = Timeouts { request: Duration::from_secs(10), idle: Duration::from_secs(60) };
        let bounds = Bounds { slots: 1, bytes: 0, grace: Duration::ZERO, timeouts };
        let slot = Arc::new(Slots::new(bounds, Arc::new(()), "test").acquire().expect("a slot"));
        let mut paced = pin!(Paced::new(Interrupted(slot.clone(), 0), slot.clone()));
        slot.begin_answer(4);
        paced.write_all(b"Good").await.expect("an open stream");
        paced.flush().await.expect("an open stream");
        assert_eq!(slot.phase(), Phase::Idle);
        assert!(slot.since() <= paced.stream.1, "{} {}", slot.since(), paced.stream.1);
    }
}
