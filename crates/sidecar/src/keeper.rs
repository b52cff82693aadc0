//! The data directory under a serving process: opening it, writing it to disk, watching over it.
//!
//! Owns the choice of geometry and policy from the command line, and the task that syncs, and looks
//! whether the files are still there and whether a process stands still with a counter in its hands. Decides
//! nothing about requests.

use crate::cli::{EvictionPolicy, StoreOptions, SyncInterval};
use crate::engine::Engine;
use crate::neighbour::{self, Neighbour};
use anyhow::Context;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tidegate_store::{
    Class, Cluster, Eviction, Geometry, Options, STATE_WORDS_NARROW, STATE_WORDS_WIDE, Stuck,
};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

/// How often the files are looked after: a few system calls.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How often it is looked whether a holder of locks does not move: a look at the seats, some microseconds.
const STUCK_INTERVAL: Duration = Duration::from_millis(250);

/// Only a holder that has stood still for so long is told of. A busy machine lets one that is ready wait for some
/// milliseconds. With the time between two looks, it is known within a second.
const STUCK_MIN: Duration = Duration::from_millis(500);

/// How the store is. Each part is looked after by itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StoreHealth {
    pub(crate) files: Files,
    /// The processes that hold counters and do not move.
    pub(crate) stuck: Vec<Holder>,
}

/// How the files of the store are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Files {
    #[default]
    Whole,
    /// Deleted or replaced: this process counts on, but no later one will know.
    Moved,
    /// Cut short: no update can be made any more.
    Lost,
}

/// A process that holds counters and does not move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) pid: u64,
    /// None where this process does not see it, as from another container.
    pub(crate) neighbour: Option<Neighbour>,
    pub(crate) since: SystemTime,
}

impl Holder {
    fn of(stuck: &Stuck) -> Holder {
        Holder { pid: stuck.pid, neighbour: neighbour::look(stuck.pid), since: stuck.since }
    }

    /// In words, at `now`.
    pub(crate) fn told(&self, now: SystemTime) -> String {
        let seconds = now.duration_since(self.since).unwrap_or_default().as_secs();
        let who = neighbour::told(self.pid, self.neighbour.as_ref());
        format!("{who} has held a counter's lock for {seconds} s")
    }
}

/// The processes that have stood still with a counter for longer than a machine lets them wait.
pub(crate) fn stuck(engine: &Engine) -> Vec<Stuck> {
    let now = SystemTime::now();
    let mut stuck = engine.store().stuck();
    stuck.retain(|stuck| now.duration_since(stuck.since).is_ok_and(|still| still >= STUCK_MIN));
    stuck
}

/// Opens the data directory.
pub(crate) fn open(options: &StoreOptions) -> anyhow::Result<Cluster> {
    let asked = store_options(options)?;
    let store = Cluster::open(&options.data_dir, &asked)?;
    for (class, asked) in [(Class::Narrow, Some(asked.narrow)), (Class::Wide, asked.wide)] {
        let [found, asked] = [store.geometry(class), asked]
            .map(|geometry| geometry.map_or(0, |geometry| geometry.nodes()));
        if found < asked {
            let class = class.name();
            tracing::warn!(
                class,
                found,
                asked,
                "the data directory has fewer nodes than asked for"
            );
        }
    }
    Ok(store)
}

fn store_options(options: &StoreOptions) -> anyhow::Result<Options> {
    let narrow = match options.geometry {
        Some(count) => {
            Geometry::by_count(count.files, count.key_nodes, count.chain, STATE_WORDS_NARROW)
                .context("--geometry")?
        }
        None => Geometry::by_capacity(options.capacity, options.load)
            .context("--capacity and --load")?,
    };
    let wide = match options.wide_capacity {
        0 => None,
        capacity => Some(
            Geometry::wide_by_capacity(capacity, options.load, STATE_WORDS_WIDE)
                .context("--wide-capacity and --load")?,
        ),
    };
    let eviction = match options.eviction {
        EvictionPolicy::Refuse => Eviction::Refuse,
        EvictionPolicy::EvictOldest => Eviction::EvictOldest,
    };
    Ok(Options { narrow, wide, eviction })
}

/// Starts to look after the store. Returns the task, which ends when aborted, and what it found last.
pub(crate) fn keep(
    engine: Arc<Engine>,
    SyncInterval(every): SyncInterval,
) -> (JoinHandle<()>, watch::Receiver<StoreHealth>) {
    let (found, health) = watch::channel(StoreHealth::default());
    let task = tokio::spawn(async move {
        tokio::select! {
            () = check(&engine, &found) => {}
            () = sync(&engine, every) => {}
            () = look_for_stuck(&engine, &found) => {}
        }
    });
    (task, health)
}

async fn sync(engine: &Arc<Engine>, every: Option<Duration>) {
    let Some(every) = every else { return std::future::pending().await };
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let engine = engine.clone();
        let synced = tokio::task::spawn_blocking(move || engine.store().sync()).await;
        if let Ok(Err(error)) = synced {
            tracing::error!(%error, "the counters were not written to disk");
        }
    }
}

async fn check(engine: &Arc<Engine>, found: &watch::Sender<StoreHealth>) {
    let mut ticks = tokio::time::interval(CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let (now, error) = match engine.store().check_files() {
            Ok(()) => (Files::Whole, String::new()),
            Err(error) if engine.store().is_lost() => (Files::Lost, error.to_string()),
            Err(error) => (Files::Moved, error.to_string()),
        };
        // Once for each change: a log is read by people.
        let changed =
            found.send_if_modified(|health| std::mem::replace(&mut health.files, now) != now);
        if changed {
            match now {
                Files::Whole => tracing::info!("the data directory is whole again"),
                Files::Moved => {
                    tracing::error!(error, "counters live on in this process alone; restart it");
                }
                Files::Lost => tracing::error!(error, "no request can be decided"),
            }
        }
    }
}

async fn look_for_stuck(engine: &Arc<Engine>, found: &watch::Sender<StoreHealth>) {
    let mut ticks = tokio::time::interval(STUCK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut before: Vec<Stuck> = Vec::new();
    let mut known: Vec<Holder> = Vec::new();
    loop {
        ticks.tick().await;
        let seen = stuck(engine);
        // Seen twice in the same step: a machine that stood still as a whole makes one look wrong.
        let is_again = |now: &&Stuck| {
            before.iter().any(|then| (then.process, then.since) == (now.process, now.since))
        };
        let holders: Vec<Holder> = seen.iter().filter(is_again).map(Holder::of).collect();
        before.clone_from(&seen);
        if holders == known {
            continue;
        }
        tell(&known, &holders);
        known.clone_from(&holders);
        found.send_modify(|health| health.stuck = holders);
    }
}

/// One line for a process that stands still, and one when it does not any more.
fn tell(before: &[Holder], now: &[Holder]) {
    let is_in = |holders: &[Holder], pid| holders.iter().any(|holder| holder.pid == pid);
    for holder in now.iter().filter(|holder| !is_in(before, holder.pid)) {
        let pid = holder.pid;
        let (command, state) = match &holder.neighbour {
            Some(neighbour) => (neighbour.command.as_str(), neighbour.state.name()),
            None => ("", "not seen from here"),
        };
        tracing::warn!(
            pid,
            command,
            state,
            "a process holds a counter's lock and does not move; its counters are not decided"
        );
    }
    for holder in before.iter().filter(|holder| !is_in(now, holder.pid)) {
        let pid = holder.pid;
        if neighbour::look(pid).is_some() {
            tracing::info!(pid, "the process that held a counter's lock moves again");
        } else {
            tracing::info!(pid, "the process that held a counter's lock has ended");
        }
    }
}
