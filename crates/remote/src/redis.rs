//! The driver for Redis and Valkey.
//!
//! Owns the connections: each takes flights as they become ready, so that the load spreads and no order is needed; a
//! flight compares what it sets. A connection is closed when an answer is late, makes no sense, or says that this
//! server does not serve; then it is made again, after a pause that grows. Refuses servers that are no primary, and
//! servers with another seed than this process has hashed its keys with.

mod bounded;
mod cluster;
mod dial;
mod fly;
mod link;
mod list;
mod nodes;
mod open;
mod probe;
mod script;
mod set;

use crate::engine::Cause;
use crate::image::Retention;
use crate::retry::{self, HANDSHAKE, Pauses, random};
use crate::settings::{Address, Servers, Settings};
use crate::shared::{Door, Shared, add};
use cluster::Cluster;
use dial::Dialer;
pub use link::{Link, LinkError, Links};
pub(crate) use list::List;
use script::Calls;
use set::Losses;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidegate_authority::OncePerSecond;
use tokio::runtime::Runtime;

/// The driver.
pub(crate) struct Driver(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    dialer: Dialer,
    calls: Calls,
    losses: Losses,
    timeout: Duration,
    /// The connections to a server.
    connections: usize,
    /// None for one server.
    cluster: Option<Cluster>,
    /// Hears of each connection that is up, once the seed was compared.
    up: Sender<()>,
    /// Whether a server has our seed. Not all nodes of a cluster have it.
    has_compared: AtomicBool,
    log_rate: Mutex<OncePerSecond>,
}

/// A server: the only one, or a node of a cluster.
#[derive(Clone)]
struct Node {
    inner: Arc<Inner>,
    door: Door,
    /// None for the only server, whose address may change.
    address: Option<Address>,
}

impl Driver {
    pub(crate) fn new(
        settings: Settings,
        retention: Retention,
        shared: Arc<Shared>,
        up: Sender<()>,
    ) -> Result<Driver, String> {
        let dialer = Dialer::new(&settings)?;
        let cluster = match &settings.servers {
            Servers::Cluster { nodes } => Some(Cluster::new(nodes.clone())?),
            Servers::Single(_) | Servers::Sentinel { .. } | Servers::Memcached(_) => None,
        };
        let timeout_ms = u64::try_from(settings.timeout.as_millis()).unwrap_or(u64::MAX);
        let calls = Calls {
            prefix: settings.prefix,
            has_tags: cluster.is_some(),
            retention,
            client: random().to_be_bytes(),
            // The script believes no reservation that is longer than ten seconds.
            reserved_ms: (timeout_ms / 2).clamp(1, 5_000),
            replicas: settings.replicas,
            // A pipeline that waits behind another one has to be answered in time, too.
            replicas_ms: (timeout_ms / 4).max(1),
        };
        let (timeout, log_rate) = (settings.timeout, Mutex::default());
        let connections = settings.connections.get();
        let has_compared = AtomicBool::new(false);
        let inner = Inner {
            shared,
            dialer,
            calls,
            losses: Losses::default(),
            timeout,
            connections,
            cluster,
            up,
            has_compared,
            log_rate,
        };
        Ok(Driver(Arc::new(inner)))
    }

    /// Keeps all connections, for as long as the runtime lives.
    pub(crate) fn start(&self, runtime: &Runtime) {
        let inner = &self.0;
        if inner.cluster.is_some() {
            runtime.spawn(inner.clone().scout());
            return;
        }
        let door = inner.shared.only_lane();
        for _ in 0..inner.connections {
            let node = Node { inner: inner.clone(), door: door.clone(), address: None };
            runtime.spawn(node.run());
        }
    }
}

impl Node {
    /// Keeps one connection, for ever.
    async fn run(self) {
        let (shared, door) = (&self.inner.shared, &self.door);
        let (mut pauses, mut was_up) = (Pauses::new(), false);
        loop {
            let cause = match self.opened().await {
                Ok(opened) => {
                    add(&shared.tally.reconnects, u64::from(was_up));
                    was_up = true;
                    shared.connection_is_up(door);
                    if self.inner.has_compared.load(Ordering::Relaxed) {
                        // Nobody waits for it any more if another connection was faster.
                        let _ = self.inner.up.send(());
                    }
                    let (cause, has_answered) = self.serve(opened).await;
                    if has_answered {
                        pauses.begin_anew();
                    }
                    let cause = self.named(cause);
                    shared.connection_is_down(door, cause.clone());
                    cause
                }
                Err(cause) => {
                    let cause = self.named(cause);
                    shared.connection_failed(door, cause.clone());
                    cause
                }
            };
            retry::log(&self.inner.log_rate, &cause);
            self.inner.look_again();
            pauses.pause().await;
        }
    }

    /// A new connection. What waits for it fails after the time that a command may take.
    async fn opened(&self) -> Result<open::Opened, Cause> {
        let opening = tokio::time::timeout(HANDSHAKE, self.open());
        tokio::pin!(opening);
        let opened = match tokio::time::timeout(self.inner.timeout, &mut opening).await {
            Ok(opened) => opened,
            Err(_) => {
                let cause = Cause::new("no answer to a new connection yet");
                self.inner.shared.connection_failed(&self.door, self.named(cause));
                opening.await
            }
        };
        opened.unwrap_or_else(|_| {
            let waited = HANDSHAKE.as_secs();
            Err(Cause::new(&format!("no answer within {waited} s to a new connection")))
        })
    }

    /// A cause with the address of the node.
    fn named(&self, cause: Cause) -> Cause {
        match self.address.as_ref().map(Address::to_string) {
            Some(address) if !cause.as_str().contains(&address) => {
                Cause::new(&format!("node {address}: {cause}"))
            }
            _ => cause,
        }
    }
}

impl Inner {
    /// Has the nodes of a cluster looked at soon.
    fn look_again(&self) {
        if let Some(cluster) = &self.cluster {
            cluster.look_again();
        }
    }
}
