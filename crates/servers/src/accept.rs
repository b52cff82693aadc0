//! Takes connections for a door, and keeps account of those that are under way.
//!
//! Owns what every door needs alike: a pause where accepting fails, words about it that are few, and the
//! end of all connections with their door. How many there may be, and what becomes of the others, the
//! doors say.

use crate::address::Listener;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tidegate_authority::OncePerSecond;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::{JoinError, JoinSet};

/// Out of file descriptors, an accept fails at once and again: without a pause that would take a
/// whole core. A connection that ends in the meantime gives one back.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(100);

/// A listener of a door.
pub(crate) struct Acceptor {
    door: &'static str,
    listener: Listener,
    failures: OncePerSecond,
}

impl Acceptor {
    /// `door` is what logs call it.
    pub(crate) fn new(door: &'static str, listener: Listener) -> Acceptor {
        Acceptor { door, listener, failures: OncePerSecond::default() }
    }

    /// The next connection. Nothing is lost when it is not waited for to the end.
    pub(crate) async fn next(&mut self) -> Socket {
        loop {
            match self.accept().await {
                Ok(socket) => return socket,
                // Its peer has gone again, which is its own affair.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    if self.failures.is_due() {
                        tracing::warn!(door = self.door, %error, "a connection was not accepted");
                    }
                    tokio::time::sleep(PAUSE_AFTER_ERROR).await;
                }
            }
        }
    }

    async fn accept(&self) -> io::Result<Socket> {
        match &self.listener {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Answers are written at once, so there is nothing to gather. A stream that cannot be
                // told is gone, which shows when it is read.
                let _ = stream.set_nodelay(true);
                Ok(Socket::Tcp(stream))
            }
            Listener::Unix(listener) => Ok(Socket::Unix(listener.accept().await?.0)),
        }
    }
}

/// A connection as the system has it.
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Socket::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Socket::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Socket::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Socket::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Socket::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Socket::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
            Socket::Unix(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Socket::Tcp(stream) => stream.is_write_vectored(),
            Socket::Unix(stream) => stream.is_write_vectored(),
        }
    }
}

/// The connections of a door; those left end with it.
#[derive(Default)]
pub(crate) struct Connections(JoinSet<()>);

impl Connections {
    /// Serves another one.
    pub(crate) fn spawn(&mut self, connection: impl Future<Output = ()> + Send + 'static) {
        // Where one comes after the other without a break, nobody waits for those that have ended.
        while let Some(ended) = self.0.try_join_next() {
            tell_of_panic(ended);
        }
        self.0.spawn(connection);
    }

    /// What `next` gives, or none once `stopped` ends. Takes leave of those that end meanwhile.
    pub(crate) async fn until<T>(
        &mut self,
        mut stopped: Pin<&mut impl Future<Output = ()>>,
        next: impl Future<Output = T>,
    ) -> Option<T> {
        tokio::pin!(next);
        loop {
            tokio::select! {
                next = &mut next => return Some(next),
                Some(ended) = self.0.join_next() => tell_of_panic(ended),
                () = &mut stopped => return None,
            }
        }
    }

    /// Waits until all have ended.
    pub(crate) async fn all_ended(mut self) {
        while let Some(ended) = self.0.join_next().await {
            tell_of_panic(ended);
        }
    }
}

fn tell_of_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a connection ended by a mistake in the program");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Address;

    #[tokio::test]
    async fn a_tcp_connection_gathers_nothing() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let bound = listener.local_addr().unwrap();
        let address = Address::Tcp(bound.to_string());
        let mut acceptor = Acceptor::new("test", Listener::of(listener.into(), &address).unwrap());
        let _client = TcpStream::connect(bound).await.unwrap();
        let Socket::Tcp(accepted) = acceptor.next().await else { panic!("by a Unix socket") };
        assert!(accepted.nodelay().unwrap());
    }
}
