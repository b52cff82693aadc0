//! The gRPC door: `envoy.service.ratelimit.v3.RateLimitService`, gRPC's health service and reflection.
//!
//! One task a connection ([`connection`]) around `tidegate-grpc`, which answers each message as it
//! arrives; nothing waits inside a call. [`accept`] takes connections, [`places`] bounds how many there are,
//! [`held`] how much memory they hold together, [`tls`] keeps the certificates. When there is too much to do, calls are refused instead of decided.

mod accept;
mod connection;
mod health;
mod held;
mod keepalive;
mod messages;
mod places;
mod reflection;
mod service;
mod tls;

use crate::address::Listener;
use crate::cli::ConnectionOptions;
use crate::engine::Engine;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::overload::Overload;
use crate::replies::Replies;
use health::State;
use held::Held;
use places::Places;
use std::sync::Arc;
use std::time::Duration;
use tls::Tls;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The door; clones share everything.
#[derive(Clone)]
pub(crate) struct Rls(Arc<Door>);

/// What all listeners and connections of the door share.
struct Door {
    engine: Arc<Engine>,
    metrics: Metrics,
    replies: Arc<Replies>,
    health: Health,
    tls: Option<Arc<Tls>>,
    overload: Arc<Overload>,
    held: Held,
    /// How long a connection lives, if there is an end to it, and how long its calls may go on then.
    age: Option<Duration>,
    age_grace: Duration,
    /// As many as there may be connections.
    places: Places,
    /// What goes on beside the connections; ends with the door.
    _tasks: JoinSet<()>,
}

impl Rls {
    /// A door that is not open yet. Wants to be made inside the runtime that will serve it.
    ///
    /// # Errors
    /// When the files of TLS cannot be read, or make no sense.
    pub(crate) fn new(
        engine: Arc<Engine>,
        metrics: Metrics,
        replies: Arc<Replies>,
        health: Health,
        overload: Arc<Overload>,
        options: &ConnectionOptions,
    ) -> anyhow::Result<Rls> {
        let tls = Tls::open(options)?.map(Arc::new);
        let mut tasks = JoinSet::new();
        if let Some(tls) = &tls {
            tasks.spawn(tls.clone().follow_files());
        }
        Ok(Rls(Arc::new(Door {
            engine,
            metrics,
            replies,
            health,
            tls,
            overload,
            held: Held::default(),
            age: options.connection_age.0,
            age_grace: options.connection_age_grace,
            places: Places::new(options.connections_max as usize),
            _tasks: tasks,
        })))
    }

    /// Whether a door could be made of these options, for who leaves that to other processes.
    ///
    /// # Errors
    /// As [`Rls::new`].
    pub(crate) fn check(options: &ConnectionOptions) -> anyhow::Result<()> {
        Tls::open(options).map(|_| ())
    }

    /// Looks at the files of TLS now.
    pub(crate) fn reload_files(&self) {
        if let Some(tls) = &self.0.tls {
            tls.look();
        }
    }

    /// Serves until `stop` says so, then lets calls under way finish.
    pub(crate) async fn serve(self, listener: Listener, stop: watch::Receiver<bool>) {
        let (states, state) = watch::channel(State::Serving);
        let following = health::follow(self.0.health.clone(), stop, states);
        tokio::join!(following, accept::run(self.0, listener, state));
    }
}
