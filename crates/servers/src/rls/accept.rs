//! Accepts connections, as many as there are slots, and starts a task for each.

use super::health::ServingState;
use super::slots::Slot;
use super::{Endpoint, connection, keepalive};
use crate::accept::{Acceptor, Connections, Socket};
use crate::address::Listener;
use std::sync::Arc;
use tidegate_authority::OncePerSecond;
use tokio::sync::watch;

/// The name in metrics and logs.
const ENDPOINT: &str = "grpc";

/// Serves until the state is [`ServingState::Stopping`] and all connections have ended.
pub(super) async fn run(
    endpoint: Arc<Endpoint>,
    listener: Listener,
    state: watch::Receiver<ServingState>,
) {
    let mut acceptor = Acceptor::new(ENDPOINT, listener);
    let mut connections = Connections::new(ENDPOINT, endpoint.shared.observer.clone());
    let mut refused = OncePerSecond::default();
    let stopped = until_stopping(state.clone());
    tokio::pin!(stopped);
    while let Some(socket) = connections.until(stopped.as_mut(), acceptor.next()).await {
        let Some(slot) = endpoint.slots.acquire() else {
            endpoint.shared.observer.connection_refused(ENDPOINT);
            if refused.is_due() {
                tracing::warn!("a connection was refused: --connections-max are open");
            }
            continue;
        };
        let (endpoint, state) = (endpoint.clone(), state.clone());
        connections.serve(async move {
            serve(&endpoint, socket, slot, state).await;
        });
    }
    // From here on the kernel refuses new clients, or another process that has the address accepts them.
    drop(acceptor);
    connections.all_ended().await;
}

async fn until_stopping(mut state: watch::Receiver<ServingState>) {
    // An error means that the sender is gone, which is a stop as well.
    let _ = state.wait_for(|state| *state == ServingState::Stopping).await;
}

async fn serve(
    endpoint: &Arc<Endpoint>,
    socket: Socket,
    slot: Slot,
    state: watch::Receiver<ServingState>,
) {
    let tls = match &socket {
        Socket::Unix(_) => None,
        Socket::Tcp(stream) => {
            if let Err(error) = keepalive::enable(stream) {
                // The peer has already gone.
                tracing::debug!(%error, "TCP keepalive cannot be set");
                return;
            }
            endpoint.tls.as_ref()
        }
    };
    match tls {
        None => connection::serve(endpoint, socket, slot, state).await,
        Some(tls) => {
            if let Some(stream) = tls.accept(socket, &*endpoint.shared.observer).await {
                connection::serve(endpoint, stream, slot, state).await;
            }
        }
    }
}
