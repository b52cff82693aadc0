//! One HTTP/1.1 connection of a door: keep-alive and pipelining, and a client that must keep pace.
//!
//! A connection is cut when a request that has begun to come in is not there in time, when its answer is
//! not taken in time, when nothing comes for long, and when another client needs its place; see
//! [`crate::slots`]. What comes in small pieces is read seldom: a read costs as much as thousands of bytes.

use crate::drain::{self, LastCall};
use crate::overload::Overload;
use crate::slots::{NoRoom, Phase, SMALL_BYTES_MAX, Slot};
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
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::Sleep;

/// The largest head, and what is read ahead of pipelined requests. An idle connection keeps one such buffer
/// at most, and a smaller one to write; with its task and what the allocator cannot use, that is below 64 KiB.
const BUFFER_BYTES_MAX: usize = 16 * 1024;
const HEADERS_MAX: usize = 64;

/// Serves until the client leaves, falls behind or must give way, or `stop` says to finish.
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
    let last_call = &LastCall::default();
    let answer = service_fn(|request| {
        // Of a request that was read ahead nothing was noticed yet.
        if slot.phase() == Phase::Idle {
            slot.enter(Phase::Receiving);
        }
        let (answer, slot) = (answer(request, slot.clone()), &slot);
        async move {
            let mut response = answer.await;
            last_call.tell(&mut response);
            let bytes = response.body().size_hint().exact().unwrap_or_default();
            slot.answer(usize::try_from(bytes).unwrap_or(usize::MAX));
            Ok::<_, Infallible>(response)
        }
    });
    let mut http = http1::Builder::new();
    // The pace is kept by the slot, without a timer for each request. A client that has sent all, and says
    // so, still waits for the answer.
    http.header_read_timeout(None).half_close(true);
    http.max_buf_size(BUFFER_BYTES_MAX).max_headers(HEADERS_MAX);
    let io = TokioIo::new(Paced::new(stream, slot.clone()));
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
            () = slot.is_wanted() => return,
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
    /// There is no memory for it beside the others. It was let in and thrown away.
    NoRoom,
    /// It comes in chunks of a few bytes each.
    InCrumbs,
    Broken(hyper::Error),
}

/// So many chunks a body may have, and one more for each 64 bytes: a chunk costs as much as they do.
const CHUNKS_FREE: usize = 1_024;
const CHUNK_BYTES_MIN: usize = 64;

/// Reads a body of at most `most` bytes, which asks for room once it is not small. What comes in many small
/// pieces is put together as it comes: a piece costs more than its bytes.
pub(crate) async fn body(mut body: Incoming, slot: &Slot, most: usize) -> Result<Bytes, BodyError> {
    // Most bodies are one piece, and are read where they are.
    let mut first = Bytes::new();
    let mut all: Vec<u8> = Vec::new();
    let mut room = SMALL_BYTES_MAX.min(most);
    let mut chunks = 0;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(BodyError::Broken)?.into_data() else { continue };
        let read = first.len() + all.len() + data.len();
        if read > most {
            return Err(BodyError::TooLarge);
        }
        chunks += 1;
        if chunks > CHUNKS_FREE + read / CHUNK_BYTES_MIN {
            return Err(BodyError::InCrumbs);
        }
        if read > room {
            // Room grows with the bytes received, not with the announced length.
            room = read.saturating_mul(2).min(most);
            if let Err(NoRoom) = slot.hold(room) {
                drop((first, all));
                let _ = slot.hold(0);
                discard(body, most - read).await;
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

/// A read of less is a small one. A segment of a client that sends what it has is larger.
const SMALL_READ_BYTES: usize = 512;
/// So many small reads of a request are done as they come; beyond them each waits for twice as long as the
/// one before, so that a request that comes byte by byte takes some twenty reads, and not one for each byte.
const SMALL_READS_FREE: u32 = 8;
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(640);

/// A stream that tells when a request begins and when an answer is gone, and reads seldom what comes in
/// small pieces.
struct Paced<S> {
    stream: S,
    slot: Arc<Slot>,
    small_reads: u32,
    pause: Option<Pin<Box<Sleep>>>,
}

impl<S> Paced<S> {
    fn new(stream: S, slot: Arc<Slot>) -> Paced<S> {
        Paced { stream, slot, small_reads: 0, pause: None }
    }

    /// So many bytes came.
    fn came(&mut self, bytes: usize) {
        if self.slot.phase() == Phase::Idle {
            self.slot.enter(Phase::Receiving);
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
            self.came(bytes);
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
        if flushed.is_ready() && self.slot.phase() == Phase::Answering {
            self.slot.answered();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::{Bounds, Patience, Slots};
    use std::pin::pin;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// A head that comes byte by byte cost a read for each of its bytes.
    #[tokio::test]
    async fn bytes_that_come_one_by_one_are_read_together() {
        let patience = Patience { request: Duration::from_secs(10), idle: Duration::from_secs(60) };
        let bounds = Bounds { slots: 1, bytes: 0, grace: Duration::ZERO, patience };
        let slot = Slots::new(bounds, Arc::new(()), "test").enter().expect("a slot");
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
}
