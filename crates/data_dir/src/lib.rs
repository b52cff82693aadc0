//! The data directory of a serving process: opening it, saving it and monitoring it.
//!
//! Owns the size of a new directory (`size`, `memory_limits`), the tasks that save and monitor an open one
//! (`maintenance`), and the trust in the system clock (`clock`, `trusted_time`). Decides nothing about requests.

#![allow(missing_docs, reason = "used in this workspace alone; a good name is not explained again")]

mod clock;
mod maintenance;
mod memory_limits;
pub mod process_info;
mod settings;
mod size;
mod trusted_time;

pub use clock::{ClockMonitor, clock_ahead_secs, trust_clock};
pub use maintenance::{FileState, StalledProcess, StoreHealth, maintain, stuck};
pub use settings::{NodeCounts, Settings};
use size::MemoryBudget;
use tidegate_store::{Class, Cluster, Options};

/// See docs/internals/store-format.md.
const CLUSTER_DIR: &str = "cluster";

/// Opens the data directory for this process and `workers` more. Creates what is missing of the directory and
/// of its shared memory, if that fits.
pub fn open(settings: &Settings, workers: u32) -> anyhow::Result<Cluster> {
    let is_new = !settings.dir.join(CLUSTER_DIR).exists();
    let budget = MemoryBudget::read(&settings.memory_dir, workers);
    let default = budget.default_size(settings);
    let options = store_options(settings, default.capacity)?;
    let needed = || Cluster::memory_needed(&settings.dir, &options);
    if let Err(error) = budget.check(needed()?, settings) {
        // Another process may have created the cluster meanwhile; then it is used as it is.
        if needed()? > 0 {
            return Err(error.context(settings.dir.display().to_string()));
        }
    }
    let store = Cluster::open(&settings.dir, &options)?;
    // Before the first request, as requests would wait while a page is moved.
    store.use_large_pages();
    ClockMonitor::default().check(&store);
    if is_new && has_default_size(settings) {
        let (capacity, bytes, reason) = (default.capacity, options.total_bytes(), default.reason);
        tracing::info!(capacity, bytes, reason, "created the data directory with the default size");
    }
    for (class, asked) in [(Class::Narrow, Some(options.narrow)), (Class::Wide, options.wide)] {
        let [found, asked] = [store.geometry(class), asked]
            .map(|geometry| geometry.map_or(0, |geometry| geometry.nodes()));
        // The default size is no setting.
        if found < asked && !(class == Class::Narrow && has_default_size(settings)) {
            let class = class.name();
            tracing::warn!(
                class,
                found,
                asked,
                "the data directory has fewer nodes than configured"
            );
        }
    }
    warn_of_geometry(settings, &store);
    Ok(store)
}

/// Whether no setting gives the number of counters.
fn has_default_size(settings: &Settings) -> bool {
    settings.capacity.is_none() && settings.geometry.is_none()
}

/// Warns if the directory has other counts of files, key-nodes and chain than configured.
fn warn_of_geometry(settings: &Settings, store: &Cluster) {
    let (Some(asked), Some(found)) = (settings.geometry, store.geometry(Class::Narrow)) else {
        return;
    };
    let [files, key_nodes, chain] = [found.files().into(), found.key_nodes(), found.chain().into()];
    if [files, key_nodes, chain] != [asked.files.into(), asked.key_nodes, asked.chain.into()] {
        tracing::warn!(
            found = format!("{files}x{key_nodes}x{chain}"),
            asked = %asked,
            "the data directory keeps the geometry that it was created with"
        );
    }
}

fn store_options(settings: &Settings, capacity_default: u64) -> anyhow::Result<Options> {
    let (narrow, wide) = (size::narrow(settings, capacity_default)?, size::wide(settings)?);
    let memory_dir = Some(settings.memory_dir.clone());
    Ok(Options { narrow, wide, eviction: settings.eviction, memory_dir })
}
