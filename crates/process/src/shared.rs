//! Counters that machines share, as a process has them: the engine, and whether its server answers.

use anyhow::Context;
use std::sync::Arc;
use std::time::Duration;
use tidegate_authority::{Authority, Failure, Shared};
use tidegate_remote::{Health, Remote};
use tidegate_servers::SharedHealth;
use tidegate_stats::SharedCounts;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How often the state of the connections is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often unused tokens are looked for.
const TEND_EVERY: Duration = Duration::from_millis(100);
/// How long a process that leaves waits for the server to take its tokens back.
const GIVE_BACK_MAX: Duration = Duration::from_secs(1);

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

    /// For the authority. All processes of a sidecar have the same number.
    pub(crate) fn shared(&self, sidecar: u64) -> Shared {
        let (clock, spawner) = (self.remote.clone(), self.remote.clone());
        Shared {
            counters: self.remote.clone(),
            clock: Arc::new(move || clock.now()),
            spawn: Arc::new(move |task| spawner.spawn(task)),
            sidecar,
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

/// Gives back tokens of shared counters that are not used. Must be called in a runtime.
pub(crate) fn tend(authority: Arc<Authority>) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            while authority.tend_holdings() {
                tokio::task::yield_now().await;
            }
            tokio::time::sleep(TEND_EVERY).await;
        }
    })
}

/// Gives back all tokens of shared counters, before the process leaves.
pub(crate) async fn give_back(authority: &Authority) {
    if tokio::time::timeout(GIVE_BACK_MAX, authority.give_back_holdings()).await.is_err() {
        tracing::warn!(
            "the shared counters did not take all unused tokens back; they count until their windows end"
        );
    }
}
