//! The gRPC door: `envoy.service.ratelimit.v3.RateLimitService`, gRPC's health service and reflection.
//!
//! One task a connection ([`connection`]) around `tidegate-grpc`, which answers each message as it
//! arrives; nothing waits inside a call. [`accept`] takes connections, [`slots`] bounds how many there are,
//! [`held`] how much memory they hold together, [`tls`] keeps the certificates. When there is too much to do, calls are refused instead of decided.

mod accept;
mod connection;
mod health;
mod held;
mod keepalive;
mod messages;
mod reflection;
mod service;
mod slots;
mod tls;

use crate::address::Listener;
use crate::health::Health;
use crate::overload::Overload;
use crate::replies::Replies;
use health::State;
use held::Held;
use slots::Slots;
use std::sync::Arc;
use std::time::Duration;
use tidegate_authority::{Authority, Observer};
use tls::Tls;
pub use tls::TlsFiles;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The connections of the endpoint.
#[derive(Debug, Clone)]
pub struct Settings {
    /// For TCP; without, connections are plain.
    pub tls: Option<TlsFiles>,
    /// How long a connection lives, if there is an end to it.
    pub connection_age: Option<Duration>,
    /// How long calls under way may still take then.
    pub connection_age_grace: Duration,
    /// Connections at once, of each process.
    pub connections_max: usize,
}

/// The door; clones share everything.
#[derive(Clone)]
pub struct Rls(Arc<Door>);

/// What all listeners and connections of the door share.
struct Door {
    authority: Arc<Authority>,
    observer: Arc<dyn Observer>,
    replies: Arc<Replies>,
    health: Health,
    tls: Option<Arc<Tls>>,
    overload: Arc<Overload>,
    held: Held,
    /// How long a connection lives, if there is an end to it, and how long its calls may go on then.
    age: Option<Duration>,
    age_grace: Duration,
    /// As many as there may be connections.
    slots: Slots,
    /// What goes on beside the connections; ends with the door.
    _tasks: JoinSet<()>,
}

impl Rls {
    /// A door that is not open yet. Wants to be made inside the runtime that will serve it.
    ///
    /// # Errors
    /// When the files of TLS cannot be read, or make no sense.
    pub fn new(
        authority: Arc<Authority>,
        observer: Arc<dyn Observer>,
        replies: Arc<Replies>,
        health: Health,
        overload: Arc<Overload>,
        settings: &Settings,
    ) -> anyhow::Result<Rls> {
        let tls = Tls::open(settings.tls.as_ref())?.map(Arc::new);
        let mut tasks = JoinSet::new();
        if let Some(tls) = &tls {
            tasks.spawn(tls.clone().follow_files());
        }
        Ok(Rls(Arc::new(Door {
            authority,
            observer,
            replies,
            health,
            tls,
            overload,
            held: Held::default(),
            age: settings.connection_age,
            age_grace: settings.connection_age_grace,
            slots: Slots::new(settings.connections_max),
            _tasks: tasks,
        })))
    }

    /// Whether a door could be made of these options, for who leaves that to other processes.
    ///
    /// # Errors
    /// As [`Rls::new`].
    pub fn check(settings: &Settings) -> anyhow::Result<()> {
        Tls::open(settings.tls.as_ref()).map(|_| ())
    }

    /// Looks at the files of TLS now.
    pub fn reload_files(&self) {
        if let Some(tls) = &self.0.tls {
            tls.look();
        }
    }

    /// Serves until `stop` says so, then lets calls under way finish.
    pub async fn serve(self, listener: Listener, stop: watch::Receiver<bool>) {
        let (states, state) = watch::channel(State::Serving);
        let following = health::follow(self.0.health.clone(), stop, states);
        tokio::join!(following, accept::run(self.0, listener, state));
    }
}
