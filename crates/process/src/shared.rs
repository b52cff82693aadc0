//! Counters that machines share, as a process has them: the engine, and whether its server answers.

use anyhow::Context;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;
use tidegate_authority::{Failure, Shared};
use tidegate_remote::{Health, Remote};
use tidegate_servers::SharedHealth;
use tidegate_stats::SharedCounts;
use tokio::sync::watch;

/// How often the state of the connections is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Where shared counters are, and what happens while they cannot be reached.
#[derive(Debug, Clone)]
pub struct SharedSettings {
    pub servers: tidegate_remote::Settings,
    pub failure: Failure,
    /// Whether the process is unhealthy meanwhile.
    pub fails_health: bool,
}

/// The engine of this process.
#[derive(Debug, Clone)]
pub(crate) struct SharedCounters {
    remote: Arc<Remote>,
    failure: Failure,
    fails_health: bool,
}

impl SharedCounters {
    /// Connects, and waits until the server has told the seed of the keys.
    pub(crate) fn open(settings: &SharedSettings) -> anyhow::Result<SharedCounters> {
        let remote = tidegate_remote::connect(settings.servers.clone()).context("--authority")?;
        let SharedSettings { failure, fails_health, .. } = *settings;
        Ok(SharedCounters { remote: Arc::new(remote), failure, fails_health })
    }

    /// For the authority.
    pub(crate) fn shared(&self) -> Shared {
        let (clock, spawner) = (self.remote.clone(), self.remote.clone());
        Shared {
            counters: self.remote.clone(),
            clock: Arc::new(move || clock.now()),
            spawn: Arc::new(move |task| spawner.spawn(task)),
            sidecar: RandomState::new().hash_one(0),
            failure: self.failure,
        }
    }

    pub(crate) fn counts(&self) -> SharedCounts {
        let counts = self.remote.counts();
        SharedCounts {
            is_up: self.cause().is_none(),
            committed: counts.committed,
            commands: counts.commands,
            lost: counts.lost,
            failed: counts.failed,
            reconnects: counts.reconnects,
        }
    }

    /// Watches the connections, and logs when they are lost and made again. Must be called in a runtime.
    pub(crate) fn watch(&self) -> SharedHealth {
        let sender = watch::Sender::new(self.cause());
        let health = SharedHealth { cause: sender.subscribe(), fails: self.fails_health };
        let shared = self.clone();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = tokio::time::sleep(LOOK_EVERY) => {}
                    () = sender.closed() => return,
                }
                let cause = shared.cause();
                let was_up = sender.borrow().is_none();
                match &cause {
                    Some(cause) if was_up => {
                        tracing::warn!(%cause, rule = ?shared.failure, "no server of the shared counters answers");
                    }
                    None if !was_up => tracing::info!("the shared counters answer again"),
                    _ => {}
                }
                sender.send_if_modified(|last| {
                    let is_new = *last != cause;
                    *last = cause;
                    is_new
                });
            }
        });
        health
    }

    fn cause(&self) -> Option<String> {
        match self.remote.health() {
            Health::Up => None,
            Health::Down { cause } => Some(cause),
        }
    }
}
