//! Takes connections, as many as there may be, and gives each a task.

use super::health::State;
use super::slots::Slot;
use super::{Door, connection, keepalive};
use crate::accept::{Acceptor, Connections, Socket};
use crate::address::Listener;
use std::sync::Arc;
use std::time::Duration;
use tidegate_authority::OncePerSecond;
use tokio::sync::watch;

/// What metrics and logs call it.
const DOOR: &str = "grpc";

/// A peer that speaks TLS well says hello and finishes within a few round trips.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);

/// Serves until the state is [`State::Stopping`], and until all connections have ended after it.
pub(super) async fn run(door: Arc<Door>, listener: Listener, state: watch::Receiver<State>) {
    let mut acceptor = Acceptor::new(DOOR, listener);
    let mut connections = Connections::default();
    let mut refused = OncePerSecond::default();
    let stopped = until_stopping(state.clone());
    tokio::pin!(stopped);
    while let Some(socket) = connections.until(stopped.as_mut(), acceptor.next()).await {
        let Some(slot) = door.slots.take() else {
            door.observer.connection_refused(DOOR);
            if refused.is_due() {
                tracing::warn!("a connection was closed: there are --connections-max of them");
            }
            continue;
        };
        let (door, state) = (door.clone(), state.clone());
        connections.spawn(async move {
            serve(&door, socket, slot, state).await;
        });
    }
    // From here on, whoever connects is told so by the system, or waits for another process that has
    // the address as well.
    drop(acceptor);
    connections.all_ended().await;
}

async fn until_stopping(mut state: watch::Receiver<State>) {
    // An error means that nobody will ever say so, which is a stop as well.
    let _ = state.wait_for(|state| *state == State::Stopping).await;
}

/// One connection, to its end.
async fn serve(door: &Door, socket: Socket, slot: Slot, state: watch::Receiver<State>) {
    let tls = match &socket {
        Socket::Unix(_) => None,
        Socket::Tcp(stream) => {
            if let Err(error) = keepalive::set(stream) {
                // It is gone already.
                tracing::debug!(%error, "a connection cannot be set up");
                return;
            }
            door.tls.as_ref()
        }
    };
    let Some(tls) = tls else {
        return connection::serve(door, socket, slot, state).await;
    };
    match tokio::time::timeout(HANDSHAKE_MAX, tls.acceptor().accept(socket)).await {
        Ok(Ok(socket)) => connection::serve(door, socket, slot, state).await,
        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
        Err(_) => tracing::debug!("a TLS handshake took longer than {HANDSHAKE_MAX:?}"),
    }
}
