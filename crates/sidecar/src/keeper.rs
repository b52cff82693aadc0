//! The data directory under a serving process: opening it, writing it to disk, watching over it.
//!
//! Owns the choice of size and policy from the command line (`size`), and the tasks that sync, look whether
//! the files are still there, and say how far the system clock is trusted (`clock`, `trust`). Decides
//! nothing about requests.

mod clock;
mod size;
mod trust;

use crate::cli::{EvictionPolicy, StoreOptions, SyncInterval};
use crate::engine::Engine;
pub(crate) use clock::{ClockWatch, ahead, trust as trust_clock};
use size::Room;
use std::sync::Arc;
use std::time::Duration;
use tidegate_store::{Class, Cluster, Eviction, Options, Synced};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

/// See docs/store-format.md.
const CLUSTER: &str = "cluster";
/// How often the files and the clock are looked after: a few system calls.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How the files of the store are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreHealth {
    Whole,
    /// Deleted or replaced: this process counts on, but no later one will know.
    Moved,
    /// Cut short: no update can be made any more.
    Lost,
}

/// Opens the data directory, and makes it if it is missing, and memory for it if that fits. The process starts so many others.
pub(crate) fn open(options: &StoreOptions, workers: u32) -> anyhow::Result<Cluster> {
    let is_new = !options.data_dir.join(CLUSTER).exists();
    let room = Room::look(&options.memory_dir, workers);
    let default = room.default(options);
    let asked = store_options(options, default.capacity)?;
    let needed = || Cluster::memory_needed(&options.data_dir, &asked);
    if let Err(error) = room.check(needed()?, options) {
        // What another process has made meanwhile is used as it is.
        if needed()? > 0 {
            return Err(error.context(options.data_dir.display().to_string()));
        }
    }
    let store = Cluster::open(&options.data_dir, &asked)?;
    // Before the first request.
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
fn is_default(options: &StoreOptions) -> bool {
    options.capacity.is_none() && options.geometry.is_none()
}

/// Warns where files, key-nodes and chain were asked for, and the directory was made with others.
fn warn_of_shape(options: &StoreOptions, store: &Cluster) {
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

fn store_options(options: &StoreOptions, capacity_default: u64) -> anyhow::Result<Options> {
    let eviction = match options.eviction {
        EvictionPolicy::Refuse => Eviction::Refuse,
        EvictionPolicy::EvictSoonestExpiry => Eviction::EvictSoonestExpiry,
    };
    let (narrow, wide) = (size::narrow(options, capacity_default)?, size::wide(options)?);
    Ok(Options { narrow, wide, eviction, memory_dir: Some(options.memory_dir.clone()) })
}

/// Starts to look after the store. Returns the task, which ends when aborted, and what it found last.
pub(crate) fn keep(
    engine: Arc<Engine>,
    SyncInterval(every): SyncInterval,
) -> (JoinHandle<()>, watch::Receiver<StoreHealth>) {
    let (found, health) = watch::channel(StoreHealth::Whole);
    let task = tokio::spawn(async move {
        tokio::select! {
            () = check(&engine, &found) => {}
            () = sync(&engine, every) => {}
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
        match tokio::task::spawn_blocking(move || engine.store().sync()).await {
            Ok(Ok(Some(Synced { held, .. }))) if held > 0 => {
                tracing::warn!(
                    key_nodes = held,
                    "held by a process that does not move, and not saved"
                );
            }
            Ok(Err(error)) => tracing::error!(%error, "the snapshot was not written"),
            Ok(Ok(_)) | Err(_) => {}
        }
    }
}

async fn check(engine: &Arc<Engine>, found: &watch::Sender<StoreHealth>) {
    let mut ticks = tokio::time::interval(CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut clock = ClockWatch::default();
    loop {
        ticks.tick().await;
        clock.look_and_tell(engine.store());
        // A file system may take its time even to say how long a file is.
        let looking = engine.clone();
        let looked = tokio::task::spawn_blocking(move || looking.store().check_files()).await;
        let Ok(looked) = looked else { continue };
        let (now, error) = match looked {
            Ok(()) => (StoreHealth::Whole, String::new()),
            Err(error) if engine.store().is_lost() => (StoreHealth::Lost, error.to_string()),
            Err(error) => (StoreHealth::Moved, error.to_string()),
        };
        // Once for each change: a log is read by people.
        let changed = found.send_if_modified(|before| std::mem::replace(before, now) != now);
        if changed {
            match now {
                StoreHealth::Whole => tracing::info!("the data directory is whole again"),
                StoreHealth::Moved => {
                    tracing::error!(error, "counters live on in this process alone; restart it");
                }
                StoreHealth::Lost => tracing::error!(error, "no request can be decided"),
            }
        }
    }
}
