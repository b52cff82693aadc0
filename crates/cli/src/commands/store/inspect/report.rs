//! What `tidegate store inspect` reports.

use crate::commands::chart::ChartStyle;
use crate::commands::store::cold::ShardSize;
use std::path::Path;
use tidegate_authority::clock;
use tidegate_data_dir::process_info::{self, ProcessInfo};
use tidegate_store::{
    Class, EntryCounts, Geometry, LockHolder, Occupancy, Process, RangeStats, Stats, View,
};
use tidegate_tiers::Activity;

pub(super) struct Inspection {
    pub(super) dir: String,
    pub(super) source: CounterSource,
    pub(super) files: usize,
    pub(super) bytes: u64,
    pub(super) classes: Vec<ClassReport>,
    /// Of each database of cold counters.
    pub(super) cold: Vec<ShardSize>,
    /// What is done with cold counters, if a process does.
    pub(super) activity: Option<Activity>,
    pub(super) stats: Stats,
    pub(super) processes: Vec<Process>,
    /// Stuck lock holders, each with its command and state if visible.
    pub(super) holders: Vec<(LockHolder, Option<ProcessInfo>)>,
}

/// The source of the inspected counters.
pub(super) enum CounterSource {
    /// This directory of shared memory.
    Memory(String),
    /// The snapshot of a directory that no process serves.
    Snapshot,
    /// The last snapshot of a process whose memory is not visible from here.
    RemoteSnapshot,
}

impl CounterSource {
    fn of(view: &View) -> CounterSource {
        let files = view.memory_files().unwrap_or_default();
        match files.first().and_then(|file| file.parent()) {
            Some(dir) => CounterSource::Memory(dir.display().to_string()),
            None if view.is_served_elsewhere() => CounterSource::RemoteSnapshot,
            None => CounterSource::Snapshot,
        }
    }
}

/// The report on a class of nodes.
pub(super) struct ClassReport {
    pub(super) class: Class,
    pub(super) geometry: Geometry,
    pub(super) occupancy: Occupancy,
    pub(super) ages: EntryCounts,
    /// Equal runs of key-nodes, one for each cell of the map.
    pub(super) areas: Vec<RangeStats>,
}

impl Inspection {
    pub(super) fn of(dir: &Path, view: &View, charts: &ChartStyle) -> Inspection {
        let now = clock::now().as_nanos();
        let report = |class| {
            let geometry = view.geometry(class)?;
            Some(ClassReport {
                class,
                geometry,
                occupancy: view.occupancy(class)?,
                ages: view.entry_counts(class, now)?,
                areas: view.range_stats(class, charts.map_cells(geometry.key_nodes_total()))?,
            })
        };
        let files = view.files();
        Inspection {
            dir: dir.display().to_string(),
            source: CounterSource::of(view),
            files: files.len(),
            bytes: files.iter().filter_map(|file| Some(file.metadata().ok()?.len())).sum(),
            classes: Class::ALL.into_iter().filter_map(report).collect(),
            cold: Vec::new(),
            activity: None,
            stats: view.stats(),
            processes: view.processes(),
            holders: view.holders().into_iter().map(with_process_info).collect(),
        }
    }
}

fn with_process_info(holder: LockHolder) -> (LockHolder, Option<ProcessInfo>) {
    (holder, process_info::read(holder.pid))
}
