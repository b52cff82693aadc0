//! The data directory under a serving process: opening it, writing it to disk, watching over it.
//!
//! Owns the choice of size and policy from the command line (`size`), and the tasks that sync, look whether
//! the files are still there and whether a process stands still with a counter in its hands, and say how far
//! the system clock is trusted (`clock`, `trust`). Decides nothing about requests.

#![allow(missing_docs, reason = "used in this workspace alone; a good name is not explained again")]

mod clock;
mod memory_limit;
pub mod process_info;
mod settings;
mod size;
mod trust;

pub use clock::{ClockWatch, ahead, trust as trust_clock};
use process_info::ProcessInfo;
pub use settings::{NodeCounts, Settings};
use size::Room;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tidegate_store::{Class, Cluster, Options, StuckProcess, SyncReport};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

/// See docs/internals/store-format.md.
const CLUSTER: &str = "cluster";
/// How often the files and the clock are looked after: a few system calls.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How often it is looked whether a holder of locks does not move: a look at the seats, some microseconds.
const STUCK_INTERVAL: Duration = Duration::from_millis(250);

/// Only a holder that has stood still for so long is told of. A busy machine lets one that is ready wait for some
/// milliseconds. With the time between two looks, it is known within a second.
const STUCK_MIN: Duration = Duration::from_millis(500);

/// How the store is. Each part is looked after by itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreHealth {
    pub files: Files,
    /// The processes that hold counters and do not move.
    pub stuck: Vec<StalledProcess>,
    /// Whether the last snapshot could not be written.
    pub is_unsaved: bool,
}

/// How the files of the store are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Files {
    #[default]
    Whole,
    /// Deleted or replaced: this process counts on, but no later one will know.
    Moved,
    /// Cut short: no update can be made any more.
    Lost,
}

/// A process that holds counters and does not move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StalledProcess {
    pub pid: u64,
    /// None where this process does not see it, as from another container.
    pub info: Option<ProcessInfo>,
    pub since: SystemTime,
}

impl StalledProcess {
    fn of(stuck: &StuckProcess) -> StalledProcess {
        StalledProcess { pid: stuck.pid, info: process_info::look(stuck.pid), since: stuck.since }
    }

    /// In words, at `now`.
    pub fn told(&self, now: SystemTime) -> String {
        let seconds = now.duration_since(self.since).unwrap_or_default().as_secs();
        let who = process_info::describe(self.pid, self.info.as_ref());
        format!("{who} has held a counter's lock for {seconds} s")
    }
}

/// The processes that have stood still with a counter for longer than a machine lets them wait.
pub fn stuck(store: &Cluster) -> Vec<StuckProcess> {
    let now = SystemTime::now();
    let mut stuck = store.stuck();
    stuck.retain(|stuck| now.duration_since(stuck.since).is_ok_and(|still| still >= STUCK_MIN));
    stuck
}

/// Opens the data directory, and makes it if it is missing, and memory for it if that fits. The process starts so many others.
pub fn open(options: &Settings, workers: u32) -> anyhow::Result<Cluster> {
    let is_new = !options.dir.join(CLUSTER).exists();
    let room = Room::look(&options.memory_dir, workers);
    let default = room.default(options);
    let asked = store_options(options, default.capacity)?;
    let needed = || Cluster::memory_needed(&options.dir, &asked);
    if let Err(error) = room.check(needed()?, options) {
        // What another process has made meanwhile is used as it is.
        if needed()? > 0 {
            return Err(error.context(options.dir.display().to_string()));
        }
    }
    let store = Cluster::open(&options.dir, &asked)?;
    // Before the first request, as requests would wait while a page is moved.
    store.use_large_pages();
    ClockWatch::default().look(&store);
    if is_new && is_default(options) {
        let (capacity, bytes, reason) = (default.capacity, asked.total_bytes(), default.reason);
        tracing::info!(
            capacity,
            bytes,
            reason,
            "the data directory is new, and of the default size"
        );
    }
    for (class, asked) in [(Class::Narrow, Some(asked.narrow)), (Class::Wide, asked.wide)] {
        let [found, asked] = [store.geometry(class), asked]
            .map(|geometry| geometry.map_or(0, |geometry| geometry.nodes()));
        // A default asks for nothing.
        if found < asked && !(class == Class::Narrow && is_default(options)) {
            let class = class.name();
            tracing::warn!(
                class,
                found,
                asked,
                "the data directory has fewer nodes than asked for"
            );
        }
    }
    warn_of_shape(options, &store);
    Ok(store)
}

/// Whether nobody said how many counters there should be room for.
fn is_default(options: &Settings) -> bool {
    options.capacity.is_none() && options.geometry.is_none()
}

/// Warns where files, key-nodes and chain were asked for, and the directory was made with others.
fn warn_of_shape(options: &Settings, store: &Cluster) {
    let (Some(asked), Some(found)) = (options.geometry, store.geometry(Class::Narrow)) else {
        return;
    };
    let [files, key_nodes, chain] = [found.files().into(), found.key_nodes(), found.chain().into()];
    if [files, key_nodes, chain] != [asked.files.into(), asked.key_nodes, asked.chain.into()] {
        tracing::warn!(
            found = format!("{files}x{key_nodes}x{chain}"),
            asked = %asked,
            "the data directory keeps the geometry that it was made with"
        );
    }
}

fn store_options(options: &Settings, capacity_default: u64) -> anyhow::Result<Options> {
    let (narrow, wide) = (size::narrow(options, capacity_default)?, size::wide(options)?);
    let memory_dir = Some(options.memory_dir.clone());
    Ok(Options { narrow, wide, eviction: options.eviction, memory_dir })
}

/// Starts to look after the store. Returns the task, which ends when aborted, and what it found last.
pub fn watch_over(
    store: Arc<Cluster>,
    sync_interval: Option<Duration>,
) -> (JoinHandle<()>, watch::Receiver<StoreHealth>) {
    let (found, health) = watch::channel(StoreHealth::default());
    let task = tokio::spawn(async move {
        tokio::select! {
            () = check(&store, &found) => {}
            () = sync(&store, sync_interval, &found) => {}
            () = look_for_stuck(&store, &found) => {}
        }
    });
    (task, health)
}

async fn sync(store: &Arc<Cluster>, every: Option<Duration>, found: &watch::Sender<StoreHealth>) {
    let Some(every) = every else { return std::future::pending().await };
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let store = store.clone();
        let Ok(synced) = tokio::task::spawn_blocking(move || store.sync()).await else {
            continue;
        };
        let is_unsaved = synced.is_err();
        let changed = found.send_if_modified(|health| {
            std::mem::replace(&mut health.is_unsaved, is_unsaved) != is_unsaved
        });
        match synced {
            Ok(Some(SyncReport { locked, .. })) if locked > 0 => {
                tracing::warn!(
                    key_nodes = locked,
                    "held by a process that does not move, and not saved"
                );
            }
            Ok(_) if changed => tracing::info!("snapshots are written again"),
            // Once for each change: a disk that is full stays so.
            Err(error) if changed => {
                tracing::error!(%error, "the snapshot was not written; it is tried again and again");
            }
            Ok(_) | Err(_) => {}
        }
    }
}

async fn check(store: &Arc<Cluster>, found: &watch::Sender<StoreHealth>) {
    let mut ticks = tokio::time::interval(CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut clock = ClockWatch::default();
    loop {
        ticks.tick().await;
        clock.look_and_tell(store);
        // A file system may take its time even to say how long a file is.
        let looking = store.clone();
        let looked = tokio::task::spawn_blocking(move || looking.check_files()).await;
        let Ok(looked) = looked else { continue };
        let (now, error) = match looked {
            Ok(()) => (Files::Whole, String::new()),
            Err(error) if store.is_lost() => (Files::Lost, error.to_string()),
            Err(error) => (Files::Moved, error.to_string()),
        };
        // Once for each change: a log is read by people.
        let changed =
            found.send_if_modified(|health| std::mem::replace(&mut health.files, now) != now);
        if changed {
            match now {
                Files::Whole => tracing::info!("the data directory is whole again"),
                Files::Moved => {
                    tracing::error!(
                        error,
                        "counters live on in memory alone: put the files back, or restart on the right directory"
                    );
                }
                Files::Lost => tracing::error!(error, "no request can be decided"),
            }
        }
    }
}

async fn look_for_stuck(store: &Arc<Cluster>, found: &watch::Sender<StoreHealth>) {
    let mut ticks = tokio::time::interval(STUCK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut before: Vec<StuckProcess> = Vec::new();
    let mut known: Vec<StalledProcess> = Vec::new();
    loop {
        ticks.tick().await;
        let seen = stuck(store);
        // Seen twice in the same step: a machine that stood still as a whole makes one look wrong.
        let is_again = |now: &&StuckProcess| {
            before.iter().any(|then| (then.process, then.since) == (now.process, now.since))
        };
        let holders: Vec<StalledProcess> =
            seen.iter().filter(is_again).map(StalledProcess::of).collect();
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
fn tell(before: &[StalledProcess], now: &[StalledProcess]) {
    let is_in = |holders: &[StalledProcess], pid| holders.iter().any(|holder| holder.pid == pid);
    for holder in now.iter().filter(|holder| !is_in(before, holder.pid)) {
        let pid = holder.pid;
        let (command, state) = match &holder.info {
            Some(info) => (info.command.as_str(), info.state.name()),
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
        if process_info::look(pid).is_some() {
            tracing::info!(pid, "the process that held a counter's lock moves again");
        } else {
            tracing::info!(pid, "the process that held a counter's lock has ended");
        }
    }
}
