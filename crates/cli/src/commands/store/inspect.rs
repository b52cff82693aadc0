//! `tidegate store inspect`: geometry, use and processes of a data directory. The text is in `inspect_text`.

use super::chart::ChartStyle;
use super::{check_whole, inspect_text};
use crate::arguments::store::CommonOptions;
use crate::output::Output;
use serde_json::{Map, Value, json};
use std::process::ExitCode;
use std::time::UNIX_EPOCH;
use tidegate_authority::clock;
use tidegate_data_dir::process_info::{self, ProcessInfo};
use tidegate_store::{
    Class, EntryCounts, Geometry, LockHolder, Occupancy, Process, RangeStats, Stats, View,
};

/// The whole report.
pub(crate) struct Inspection {
    pub(crate) dir: String,
    pub(crate) source: CounterSource,
    pub(crate) files: usize,
    pub(crate) bytes: u64,
    pub(crate) classes: Vec<ClassReport>,
    pub(crate) stats: Stats,
    pub(crate) processes: Vec<Process>,
    /// Stuck lock holders, each with its command and state if visible.
    pub(crate) holders: Vec<(LockHolder, Option<ProcessInfo>)>,
}

/// The source of the inspected counters.
pub(crate) enum CounterSource {
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
pub(crate) struct ClassReport {
    pub(crate) class: Class,
    pub(crate) geometry: Geometry,
    pub(crate) occupancy: Occupancy,
    pub(crate) ages: EntryCounts,
    /// Equal runs of key-nodes, one for each cell of the map.
    pub(crate) areas: Vec<RangeStats>,
}

pub(crate) fn run(options: &CommonOptions, out: &mut Output) -> anyhow::Result<ExitCode> {
    let view = View::open(&options.dir)?;
    let charts = ChartStyle::of_terminal();
    let inspection = inspect(options, &view, &charts);
    check_whole(&view)?;
    if options.json {
        out.json(&json_of(&inspection))?;
    } else {
        inspect_text::print(out, &charts, &inspection)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn inspect(options: &CommonOptions, view: &View, charts: &ChartStyle) -> Inspection {
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
        dir: options.dir.display().to_string(),
        source: CounterSource::of(view),
        files: files.len(),
        bytes: files.iter().filter_map(|file| Some(file.metadata().ok()?.len())).sum(),
        classes: Class::ALL.into_iter().filter_map(report).collect(),
        stats: view.stats(),
        processes: view.processes(),
        holders: view.holders().into_iter().map(with_process_info).collect(),
    }
}

fn with_process_info(holder: LockHolder) -> (LockHolder, Option<ProcessInfo>) {
    (holder, process_info::read(holder.pid))
}

fn json_of(inspection: &Inspection) -> Value {
    let counts: Map<String, Value> = inspection
        .stats
        .named()
        .into_iter()
        .map(|(name, count)| (name.to_owned(), json!(count)))
        .collect();
    let process = |process: &Process| {
        json!({
            "number": process.number,
            "pid": process.pid,
            "writer_slots": process.writer_slots,
            "alive": process.is_alive,
        })
    };
    let holder = |(holder, info): &(LockHolder, Option<ProcessInfo>)| {
        let since = holder.since.and_then(|since| since.duration_since(UNIX_EPOCH).ok());
        json!({
            "number": holder.process,
            "pid": holder.pid,
            "locks": holder.locks,
            "since": since.map(|since| since.as_secs()),
            "command": info.as_ref().map(|info| info.command.as_str()),
            "state": info.as_ref().map(|info| info.state.name()),
        })
    };
    json!({
        "dir": inspection.dir,
        "memory": match &inspection.source {
            CounterSource::Memory(dir) => Some(dir),
            CounterSource::Snapshot | CounterSource::RemoteSnapshot => None,
        },
        "elsewhere": matches!(inspection.source, CounterSource::RemoteSnapshot),
        "files": inspection.files,
        "bytes": inspection.bytes,
        "classes": inspection.classes.iter().map(class_json).collect::<Vec<_>>(),
        "counts": counts,
        "processes": inspection.processes.iter().map(process).collect::<Vec<_>>(),
        "stuck": inspection.holders.iter().map(holder).collect::<Vec<_>>(),
    })
}

fn class_json(report: &ClassReport) -> Value {
    let ClassReport { class, geometry, occupancy, ages, areas } = report;
    let region = |area: &RangeStats| {
        let RangeStats { nodes, occupied, updates } = area;
        json!({"nodes": nodes, "occupied": occupied, "updates": updates})
    };
    json!({
        "class": class.name(),
        "files": geometry.files(),
        "key_nodes_per_file": geometry.key_nodes(),
        "chain": geometry.chain(),
        "state_words": geometry.state_words(),
        "node_bytes": geometry.node_bytes(),
        "nodes": geometry.nodes(),
        "nodes_bytes": geometry.nodes_bytes(),
        "total_bytes": geometry.total_bytes(),
        "occupied": occupancy.occupied,
        "live": ages.live,
        "expired": ages.expired,
        "key_nodes_looked_at": occupancy.sampled,
        "key_nodes_crowded": occupancy.crowded,
        "key_nodes_by_occupied": occupancy.chains,
        "regions": areas.iter().map(region).collect::<Vec<_>>(),
    })
}
