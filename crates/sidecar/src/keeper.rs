//! The data directory under a serving process: opening it, writing it to disk, watching over it.
//!
//! Owns the choice of geometry and policy from the command line, and the task that syncs and looks
//! whether the files are still there. Decides nothing about requests.

use crate::cli::{EvictionPolicy, StoreOptions, SyncInterval};
use crate::engine::Engine;
use anyhow::Context;
use std::sync::Arc;
use std::time::Duration;
use tidegate_store::{Class, Cluster, Eviction, Geometry, Options, STATE_WORDS_WIDE};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

/// How often the files are looked after: a few system calls.
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
    warn_of_shape(options, &store);
    Ok(store)
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

fn store_options(options: &StoreOptions) -> anyhow::Result<Options> {
    let narrow = match options.geometry {
        Some(count) => count.geometry().context("--geometry, or files, key-nodes and chain")?,
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
