//! Takes connections, as many as there may be, and gives each a task.

use super::health::State;
use super::{Door, connection, keepalive};
use crate::address::Listener;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};

/// Out of file descriptors, an accept fails at once and again: without a pause that would take a
/// whole core. A connection that ends in the meantime gives one back.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(100);

/// A peer that speaks TLS well says hello and finishes within a few round trips.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);

/// Serves until the state is [`State::Stopping`], and until all connections have ended after it.
pub(super) async fn run(door: Arc<Door>, listener: Listener, state: watch::Receiver<State>) {
    let mut connections = JoinSet::new();
    let (mut errors, mut refused) = (Sparingly::default(), Sparingly::default());
    let stopped = until_stopping(state.clone());
    tokio::pin!(stopped);
    loop {
        tokio::select! {
            accepted = accept(&listener) => match accepted {
                Ok(socket) => match Slot::take(&door) {
                    Some(slot) => {
                        connections.spawn(serve(slot, socket, state.clone()));
                    }
                    None => {
                        door.metrics.refused_connection("grpc");
                        if refused.may_be_said() {
                            let max = door.connections_max;
                            tracing::warn!(max, "a connection was closed: there are --connections-max of them");
                        }
                    }
                },
                // Its peer has gone again, which is its own affair.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    if errors.may_be_said() {
                        tracing::warn!(%error, "a connection was not accepted");
                    }
                    tokio::select! {
                        () = tokio::time::sleep(PAUSE_AFTER_ERROR) => {}
                        () = &mut stopped => break,
                    }
                }
            },
            Some(ended) = connections.join_next() => tell_of_panic(ended),
            () = &mut stopped => break,
        }
    }
    // From here on, whoever connects is told so by the system, or waits for another process that has
    // the address as well.
    drop(listener);
    while let Some(ended) = connections.join_next().await {
        tell_of_panic(ended);
    }
}

async fn until_stopping(mut state: watch::Receiver<State>) {
    // An error means that nobody will ever say so, which is a stop as well.
    let _ = state.wait_for(|state| *state == State::Stopping).await;
}

fn tell_of_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a connection ended by a mistake in the program");
    }
}

/// A connection as the system has it.
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

async fn accept(listener: &Listener) -> io::Result<Socket> {
    match listener {
        Listener::Tcp(listener) => Ok(Socket::Tcp(listener.accept().await?.0)),
        Listener::Unix(listener, _) => Ok(Socket::Unix(listener.accept().await?.0)),
    }
}

/// One of the connections that there may be.
struct Slot(Arc<Door>);

impl Slot {
    /// None when there is no room for another.
    fn take(door: &Arc<Door>) -> Option<Slot> {
        let more = |open: u32| (open < door.connections_max).then_some(open + 1);
        let taken = door.connections.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.is_ok().then(|| Slot(door.clone()))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One connection, to its end.
async fn serve(slot: Slot, socket: Socket, state: watch::Receiver<State>) {
    let door = &*slot.0;
    let socket = match socket {
        Socket::Unix(socket) => return connection::serve(door, socket, state).await,
        Socket::Tcp(socket) => socket,
    };
    if let Err(error) = keepalive::set(&socket) {
        // It is gone already.
        tracing::debug!(%error, "a connection cannot be set up");
        return;
    }
    let Some(tls) = &door.tls else {
        return connection::serve(door, socket, state).await;
    };
    match tokio::time::timeout(HANDSHAKE_MAX, tls.acceptor().accept(socket)).await {
        Ok(Ok(socket)) => connection::serve(door, socket, state).await,
        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
        Err(_) => tracing::debug!("a TLS handshake took longer than {HANDSHAKE_MAX:?}"),
    }
}

/// Says something at most once a second.
#[derive(Default)]
struct Sparingly(Option<Instant>);

impl Sparingly {
    fn may_be_said(&mut self) -> bool {
        let is_due = self.0.is_none_or(|said| said.elapsed() >= Duration::from_secs(1));
        if is_due {
            self.0 = Some(Instant::now());
        }
        is_due
    }
}
