//! Accepts connections, as many as there are slots, and starts a task for each.

use super::health::{self, ServingState};
use super::slots::Slot;
use super::{Endpoint, connection, keepalive};
use crate::accept::{Acceptor, Connections, Socket};
use crate::address::Listener;
use crate::http1::drain;
use std::sync::Arc;
use tidegate_authority::OncePerSecond;
use tokio::sync::watch;

/// The name in metrics and logs.
const ENDPOINT: &str = "grpc";

/// Serves until `stop` is true and all connections have ended.
pub(super) async fn run(endpoint: Arc<Endpoint>, listener: Listener, stop: watch::Receiver<bool>) {
    let connections = Connections::new(ENDPOINT, endpoint.shared.observer.clone());
    let (sender, state) = watch::channel(ServingState::Serving);
    let health = endpoint.shared.health.clone();
    let publishing = health::publish_state(health, connections.stop(), sender);
    tokio::join!(publishing, accept(endpoint, (listener, connections), stop, state));
}

async fn accept(
    endpoint: Arc<Endpoint>,
    (listener, mut connections): (Listener, Connections),
    stop: watch::Receiver<bool>,
    state: watch::Receiver<ServingState>,
) {
    let mut acceptor = Acceptor::new(ENDPOINT, listener);
    let mut refused = OncePerSecond::default();
    let stopped = drain::stopped(stop);
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
    connections.end(acceptor).await;
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
