//! A stream that reads no more than was asked for.
//!
//! Each command allows its longest answer. A server that sends more breaks its connection instead of filling memory:
//! the parser of replies above keeps what it has read of an unfinished reply, however long that gets.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What may always be read: the answers while a connection is made, and errors.
const BASE: usize = 64 * 1024;
/// What all unanswered commands of a connection may be answered with: 32 pipelines of up to 256 flights and 511 keys
/// take less than 14 MiB.
const MOST: usize = 16 * 1024 * 1024;

/// What may be read still.
#[derive(Debug, Clone)]
pub(super) struct Allowance(Arc<Mutex<Credit>>);

#[derive(Debug)]
struct Credit {
    bytes: usize,
    /// The answers that were asked for and have not arrived.
    pending: usize,
}

impl Allowance {
    pub(super) fn new() -> Allowance {
        Allowance(Arc::new(Mutex::new(Credit { bytes: BASE, pending: 0 })))
    }

    /// An answer of up to so many bytes is asked for.
    pub(super) fn ask(&self, bytes: usize) {
        self.with(|credit| {
            credit.bytes = credit.bytes.saturating_add(bytes).min(MOST);
            credit.pending += 1;
        });
    }

    /// An answer has arrived.
    pub(super) fn answered(&self) {
        self.with(|credit| {
            credit.pending = credit.pending.saturating_sub(1);
            if credit.pending == 0 {
                credit.bytes = BASE;
            }
        });
    }

    fn take(&self, bytes: usize) -> io::Result<()> {
        self.with(|credit| match credit.bytes.checked_sub(bytes) {
            Some(rest) => {
                credit.bytes = rest;
                Ok(())
            }
            None => Err(io::Error::other("the server sends more than it was asked for")),
        })
    }

    fn with<T>(&self, change: impl FnOnce(&mut Credit) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

pub(super) struct Bounded<S> {
    stream: S,
    allowance: Allowance,
}

impl<S> Bounded<S> {
    pub(super) fn new(stream: S, allowance: Allowance) -> Bounded<S> {
        Bounded { stream, allowance }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        match Pin::new(&mut this.stream).poll_read(context, buffer) {
            Poll::Ready(Ok(())) => {
                Poll::Ready(this.allowance.take(buffer.filled().len().saturating_sub(before)))
            }
            other => other,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
