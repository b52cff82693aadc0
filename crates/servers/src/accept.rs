//! Accepts connections for an endpoint and tracks their tasks.
//!
//! Owns what every endpoint needs: a pause after a failed accept, one log line a second about it, and the end
//! of all connections with their endpoint. Each endpoint decides how many connections it serves.

use crate::address::Listener;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tidegate_authority::{Observer, OncePerSecond};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};

/// Without free file descriptors an accept fails immediately, again and again; without a pause that would use
/// a whole core. A connection that ends meanwhile frees one.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(100);

pub(crate) struct Acceptor {
    endpoint: &'static str,
    listener: Listener,
    failures: OncePerSecond,
}

impl Acceptor {
    /// `endpoint` is its name in logs.
    pub(crate) fn new(endpoint: &'static str, listener: Listener) -> Acceptor {
        Acceptor { endpoint, listener, failures: OncePerSecond::default() }
    }

    /// The next connection. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Socket {
        loop {
            match self.accept().await {
                Ok(socket) => return socket,
                // The peer has already gone.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    if self.failures.is_due() {
                        tracing::warn!(door = self.endpoint, %error, "a connection was not accepted");
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
                // Answers are written whole, so delaying small writes gains nothing. If the option cannot be
                // set, the stream is gone, which the next read finds.
                let _ = stream.set_nodelay(true);
                Ok(Socket::Tcp(stream))
            }
            Listener::Unix(listener) => Ok(Socket::Unix(listener.accept().await?.0)),
        }
    }
}

/// A stream accepted from a TCP or Unix socket.
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// The address of the peer, if it has one and is still there.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        match self {
            Socket::Tcp(stream) => stream.peer_addr().ok(),
            Socket::Unix(_) => None,
        }
    }
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

/// The connections of an endpoint; any left end with it.
pub(crate) struct Connections {
    endpoint: &'static str,
    observer: Arc<dyn Observer>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

/// Reports the end of a connection when its task is gone, in whatever way.
struct Open(&'static str, Arc<dyn Observer>);

impl Drop for Open {
    fn drop(&mut self) {
        self.1.connection_closed(self.0);
    }
}

impl Connections {
    pub(crate) fn new(endpoint: &'static str, observer: Arc<dyn Observer>) -> Connections {
        let (stop, tasks) = (watch::Sender::new(false), JoinSet::new());
        Connections { endpoint, observer, stop, tasks }
    }

    /// Becomes true once the endpoint accepts no more, when its connections are to end.
    pub(crate) fn stop(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }

    /// Runs a connection that was accepted to be served.
    pub(crate) fn serve(&mut self, connection: impl Future<Output = ()> + Send + 'static) {
        self.observer.connection_opened(self.endpoint);
        let open = Open(self.endpoint, self.observer.clone());
        self.spawn(async move {
            let _open = open;
            connection.await;
        });
    }

    pub(crate) fn spawn(&mut self, connection: impl Future<Output = ()> + Send + 'static) {
        // Remove ended tasks here too: under a steady stream of connections `until` may never do it.
        while let Some(ended) = self.tasks.try_join_next() {
            log_panic(ended);
        }
        self.tasks.spawn(connection);
    }

    /// The output of `next`, or none once `stopped` ends. Meanwhile it removes tasks that have ended.
    pub(crate) async fn until<T>(
        &mut self,
        mut stopped: Pin<&mut impl Future<Output = ()>>,
        next: impl Future<Output = T>,
    ) -> Option<T> {
        tokio::pin!(next);
        loop {
            tokio::select! {
                next = &mut next => return Some(next),
                Some(ended) = self.tasks.join_next() => log_panic(ended),
                () = &mut stopped => return None,
            }
        }
    }

    /// Closes the listener, then ends the connections and waits for them. In this order, since a client whose connection
    /// ends connects again: an open listener would queue the new connection, and nothing would accept it.
    pub(crate) async fn end(mut self, acceptor: Acceptor) {
        drop(acceptor);
        self.stop.send_replace(true);
        while let Some(ended) = self.tasks.join_next().await {
            log_panic(ended);
        }
    }
}

fn log_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "the task of a connection panicked");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Address;

    #[tokio::test]
    async fn a_tcp_connection_does_not_delay_small_writes() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let bound = listener.local_addr().unwrap();
        let address = Address::Tcp(bound.to_string());
        let mut acceptor =
            Acceptor::new("test", Listener::from_socket(listener.into(), &address).unwrap());
        let _client = TcpStream::connect(bound).await.unwrap();
        let Socket::Tcp(accepted) = acceptor.next().await else {
            panic!("accepted on a Unix socket")
        };
        assert!(accepted.nodelay().unwrap());
    }
}
