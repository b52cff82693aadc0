//! The gRPC endpoint: `envoy.service.ratelimit.v3.RateLimitService`, gRPC's health service and reflection.
//!
//! One task for each connection (`connection`) drives `tidegate-grpc`, which answers each message as it
//! arrives (`service`, `outcome`), or hands it to a task if the counters answer later (`later`). `accept`
//! accepts connections, `slots` bounds their number, `memory` the memory that they hold together. Under
//! overload, calls are refused instead of decided.

mod accept;
mod connection;
mod health;
mod keepalive;
mod later;
mod memory;
mod messages;
mod outcome;
mod reflection;
mod service;
mod slots;

use crate::address::Listener;
use crate::later::LaterBudget;
use crate::shared::Shared;
use crate::tls::{Protocol, Tls, TlsFiles};
use memory::MemoryBudget;
use slots::Slots;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// TLS, and bounds and time limits of connections.
#[derive(Debug, Clone)]
pub struct Settings {
    /// TLS of TCP connections; without it they are plain.
    pub tls: Option<TlsFiles>,
    /// The maximum age of a connection, if there is one.
    pub connection_age: Option<Duration>,
    /// How long calls under way may continue after that.
    pub connection_age_grace: Duration,
    /// Connections at a time, for each process.
    pub connections_max: usize,
}

/// The endpoint; clones share everything.
#[derive(Clone)]
pub struct Rls(Arc<Endpoint>);

/// The state that all listeners and connections share.
struct Endpoint {
    shared: Shared,
    tls: Option<Arc<Tls>>,
    memory: MemoryBudget,
    /// Calls that wait for counters.
    later: LaterBudget,
    /// The maximum age of a connection, if there is one, and how long its calls may continue after that.
    connection_age: Option<Duration>,
    connection_age_grace: Duration,
    /// One for each connection.
    slots: Slots,
    /// Background tasks; they end with the endpoint.
    _tasks: JoinSet<()>,
}

impl Rls {
    /// An endpoint that does not listen yet. Must be called in the runtime that will serve it.
    ///
    /// # Errors
    /// If a TLS file cannot be read or is not valid.
    pub fn new(shared: Shared, settings: &Settings) -> anyhow::Result<Rls> {
        let tls = Tls::open(settings.tls.as_ref(), Protocol::Grpc)?.map(Arc::new);
        let mut tasks = JoinSet::new();
        if let Some(tls) = &tls {
            tasks.spawn(tls.clone().watch_files());
        }
        Ok(Rls(Arc::new(Endpoint {
            shared,
            tls,
            memory: MemoryBudget::default(),
            later: LaterBudget::new(later::ENDPOINT_CALLS_MAX),
            connection_age: settings.connection_age,
            connection_age_grace: settings.connection_age_grace,
            slots: Slots::new(settings.connections_max),
            _tasks: tasks,
        })))
    }

    /// Checks the settings, for a process that leaves serving to others.
    ///
    /// # Errors
    /// As [`Rls::new`].
    pub fn check(settings: &Settings) -> anyhow::Result<()> {
        Tls::open(settings.tls.as_ref(), Protocol::Grpc).map(|_| ())
    }

    /// Reads the TLS files now.
    pub fn reload_files(&self) {
        if let Some(tls) = &self.0.tls {
            tls.reload();
        }
    }

    /// Serves until `stop` is true, then lets calls under way finish.
    pub async fn serve(self, listener: Listener, stop: watch::Receiver<bool>) {
        accept::run(self.0, listener, stop).await;
    }
}
