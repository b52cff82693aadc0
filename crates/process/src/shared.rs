//! Counters that machines share, as a process has them: the engine, whether its server answers, and what a later
//! process needs to start while none does.

mod known;

use known::{Place, Remembered};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_authority::{Authority, Failure, Shared};
use tidegate_remote::{Engines, Health};
use tidegate_servers::SharedHealth;
use tidegate_stats::SharedCounts;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How often the state of the connections is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often the copy of what is known is written. Its time is behind by a thousandth of its age.
const COPY_EVERY: Duration = Duration::from_secs(10);
/// How often unused tokens are looked for.
const TEND_EVERY: Duration = Duration::from_millis(100);
/// How long a process that leaves waits for the server to take its tokens back.
const GIVE_BACK_MAX: Duration = Duration::from_secs(1);

/// Where shared counters are, and what happens while they cannot be reached.
#[derive(Debug, Clone)]
pub struct SharedSettings {
    pub servers: tidegate_remote::Settings,
    /// Those of limits per second, if they are others.
    pub per_second: Option<tidegate_remote::Settings>,
    pub failure: Failure,
    /// Whether the process is unhealthy meanwhile.
    pub fails_health: bool,
}

/// The engine of this process.
#[derive(Debug, Clone)]
pub(crate) struct SharedCounters {
    remote: Arc<Engines>,
    failure: Failure,
    fails_health: bool,
    /// Of both sets of servers. None without a data directory.
    places: [Option<Place>; 2],
    remembered: Option<Remembered>,
}

impl SharedCounters {
    /// Connects. Goes on without a server, with what an earlier process has left in the data directory.
    pub(crate) fn open(
        settings: &SharedSettings,
        dir: Option<&Path>,
    ) -> anyhow::Result<SharedCounters> {
        let SharedSettings { servers, per_second, failure, fails_health } = settings.clone();
        let place = dir.map(|dir| Place::new(dir, &servers));
        let second = dir.zip(per_second.as_ref());
        let second = second.map(|(dir, servers)| Place::of_seconds(dir, servers));
        let places = [place, second];
        let [remembered, of_seconds] = places.each_ref().map(|place| place.as_ref()?.read());
        let known = [remembered, of_seconds].map(|of| of.map(|remembered| remembered.known));
        let remote = Arc::new(Engines::start(servers, per_second, known)?);
        let shared = SharedCounters { remote, failure, fails_health, places, remembered };
        if let Some(cause) = shared.cause() {
            tracing::warn!(%cause, rule = ?failure, "no server of the shared counters answers at the start");
        }
        Ok(shared)
    }

    /// Tells the authority what is remembered of other sidecars.
    pub(crate) fn remind(&self, authority: &Authority) {
        if let Some((sidecars, at)) = self.remembered.and_then(|remembered| remembered.sidecars) {
            authority.remember_sidecars(sidecars, at);
        }
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
            per_second_is_up: self.remote.seconds().map(|health| health == Health::Up),
        }
    }

    /// Watches the connections, and logs when they are lost and made again. Must be called in a runtime.
    pub(crate) fn watch(&self, authority: Arc<Authority>) -> SharedHealth {
        let sender = watch::Sender::new(self.cause());
        let warnings = watch::Sender::new(self.remote.warning());
        let health = SharedHealth {
            cause: sender.subscribe(),
            warning: warnings.subscribe(),
            fails: self.fails_health,
        };
        let (shared, mut copied) = (self.clone(), None::<Instant>);
        tokio::spawn(async move {
            loop {
                if copied.is_none_or(|copied| copied.elapsed() >= COPY_EVERY)
                    && shared.cause().is_none()
                {
                    copied = Some(Instant::now());
                    shared.copy(authority.sidecars_seen()).await;
                }
                tokio::select! {
                    () = tokio::time::sleep(LOOK_EVERY) => {}
                    () = sender.closed() => return,
                }
                let cause = shared.cause();
                let was_up = sender.borrow().is_none();
                match &cause {
                    Some(cause) if was_up => {
                        tracing::warn!(%cause, rule = ?shared.failure, "a server of the shared counters does not answer");
                    }
                    None if !was_up => tracing::info!("the shared counters answer again"),
                    _ => {}
                }
                set(&sender, cause);
                // The engine has logged it.
                set(&warnings, shared.remote.warning());
            }
        });
        health
    }

    /// Leaves what is known to a later process.
    async fn copy(&self, sidecars: Option<u32>) {
        for (place, known) in self.places.iter().zip(self.remote.known()) {
            let Some((place, known)) = place.clone().zip(known) else { continue };
            let written = tokio::task::spawn_blocking(move || {
                place.write(known, sidecars).map_err(|error| (place, error))
            });
            if let Ok(Err((place, error))) = written.await {
                let path = place.path().display();
                tracing::warn!(%error, %path, "what is known of the shared counters cannot be written");
            }
        }
    }

    fn cause(&self) -> Option<String> {
        let [known, _] = self.remote.known();
        match (self.remote.health(), known) {
            (Health::Up, _) => None,
            (Health::Down { cause }, Some(_)) => Some(cause),
            (Health::Down { cause }, None) => Some(format!(
                "{cause}; none has answered yet, so --authority-failure decides every request"
            )),
        }
    }
}

fn set(sender: &watch::Sender<Option<String>>, value: Option<String>) {
    sender.send_if_modified(|last| {
        let is_new = *last != value;
        *last = value;
        is_new
    });
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
