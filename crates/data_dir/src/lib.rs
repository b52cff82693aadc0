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

pub use clock::{ClockMonitor, ClockSteps, clock_ahead_secs, clock_steps, trust_clock};
pub use maintenance::{FileState, StalledProcess, StoreHealth, maintain, stuck};
pub use settings::{NodeCounts, Settings};
use size::MemoryBudget;
use tidegate_store::{Class, Cluster, Options};

/// See docs/internals/store-format.md.
const CLUSTER_DIR: &str = "cluster";

/// Opens the data directory for this process and `workers` more. Creates what is missing of the directory and
/// of its shared memory, if that fits.
pub fn open(settings: &Settings, workers: u32) -> anyhow::Result<Cluster> {
    let Some(dir) = &settings.dir else { return open_in_memory(settings) };
    let is_new = !dir.join(CLUSTER_DIR).exists();
    let budget = MemoryBudget::read(&settings.memory_dir, workers);
    let default = budget.default_size(settings);
    let options = store_options(settings, default.capacity)?;
    let needed = || Cluster::memory_needed(dir, &options);
    if let Err(error) = budget.check(needed()?, settings) {
        // Another process may have created the cluster meanwhile; then it is used as it is.
        if needed()? > 0 {
            return Err(error.context(dir.display().to_string()));
        }
    }
    let store = Cluster::open(dir, &options)?;
    if store.was_emptied() {
        tracing::warn!(
            "the memory of the last process is gone, and with it what it held of the shared counters; they count that as \
             used until their windows end"
        );
    }
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

/// Counters in the memory of this process alone.
fn open_in_memory(settings: &Settings) -> anyhow::Result<Cluster> {
    let budget = MemoryBudget::of_process();
    let default = budget.default_size(settings);
    let options = store_options(settings, default.capacity)?;
    budget.check(options.total_bytes(), settings)?;
    let store = new_in_memory(&options)?;
    ClockMonitor::default().check(&store);
    let (capacity, bytes) = (settings.capacity.unwrap_or(default.capacity), options.total_bytes());
    tracing::warn!(
        capacity,
        bytes,
        "counters are in the memory of this process and end with it; set --data-dir to keep them"
    );
    Ok(store)
}

#[cfg(target_os = "linux")]
fn new_in_memory(options: &Options) -> anyhow::Result<Cluster> {
    Ok(Cluster::in_memory(options)?)
}

#[cfg(not(target_os = "linux"))]
fn new_in_memory(_: &Options) -> anyhow::Result<Cluster> {
    anyhow::bail!("counters without a data directory need Linux; set --data-dir")
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
    let (eviction, after_loss) = (settings.eviction, settings.after_loss);
    Ok(Options { narrow, wide, eviction, after_loss, memory_dir, seed: None })
}
