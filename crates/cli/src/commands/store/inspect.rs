//! `tidegate store inspect`: what a data directory is like, for people and for programs.

use super::chart::Canvas;
use super::{Verdict, check_whole, inspect_text};
use crate::arguments::store::LookOptions;
use crate::output::Output;
use serde_json::{Map, Value, json};
use std::time::UNIX_EPOCH;
use tidegate_authority::clock;
use tidegate_data_dir::process_info::{self, ProcessInfo};
use tidegate_store::{
    Class, EntryCounts, Geometry, LockHolder, Occupancy, Process, RangeStats, Stats, View,
};

/// Everything that is told.
pub(crate) struct Inspection {
    pub(crate) dir: String,
    pub(crate) memory: Place,
    pub(crate) files: usize,
    pub(crate) bytes: u64,
    pub(crate) classes: Vec<ClassLook>,
    pub(crate) stats: Stats,
    pub(crate) processes: Vec<Process>,
    /// Those that hold locks and do not move, each as the system has it.
    pub(crate) holders: Vec<(LockHolder, Option<ProcessInfo>)>,
}

/// Where the counters are that are looked at.
pub(crate) enum Place {
    /// In this directory of shared memory.
    Memory(String),
    Snapshot,
    /// In the last snapshot of a process whose memory cannot be seen from here.
    Elsewhere,
}

impl Place {
    fn of(view: &View) -> Place {
        let files = view.memory_files().unwrap_or_default();
        match files.first().and_then(|file| file.parent()) {
            Some(dir) => Place::Memory(dir.display().to_string()),
            None if view.is_served_elsewhere() => Place::Elsewhere,
            None => Place::Snapshot,
        }
    }
}

/// What is told of a class of nodes.
pub(crate) struct ClassLook {
    pub(crate) class: Class,
    pub(crate) geometry: Geometry,
    pub(crate) occupancy: Occupancy,
    pub(crate) ages: EntryCounts,
    /// Runs of key-nodes of equal length, as many as the picture has cells.
    pub(crate) areas: Vec<RangeStats>,
}

pub(crate) fn run(options: &LookOptions, out: &mut Output) -> anyhow::Result<Verdict> {
    let view = View::open(&options.dir)?;
    let canvas = Canvas::of_terminal();
    let inspection = inspect(options, &view, &canvas);
    check_whole(&view)?;
    if options.json {
        out.json(&json_of(&inspection))?;
    } else {
        inspect_text::print(out, &canvas, &inspection)?;
    }
    Ok(Verdict::Good)
}

fn inspect(options: &LookOptions, view: &View, canvas: &Canvas) -> Inspection {
    let now = clock::now().as_nanos();
    let look = |class| {
        let geometry = view.geometry(class)?;
        Some(ClassLook {
            class,
            geometry,
            occupancy: view.occupancy(class)?,
            ages: view.entry_counts(class, now)?,
            areas: view.range_stats(class, canvas.map_cells(geometry.key_nodes_total()))?,
        })
    };
    let files = view.files();
    Inspection {
        dir: options.dir.display().to_string(),
        memory: Place::of(view),
        files: files.len(),
        bytes: files.iter().filter_map(|file| Some(file.metadata().ok()?.len())).sum(),
        classes: Class::ALL.into_iter().filter_map(look).collect(),
        stats: view.stats(),
        processes: view.processes(),
        holders: view.holders().into_iter().map(with_neighbour).collect(),
    }
}

fn with_neighbour(holder: LockHolder) -> (LockHolder, Option<ProcessInfo>) {
    (holder, process_info::look(holder.pid))
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
    let holder = |(holder, neighbour): &(LockHolder, Option<ProcessInfo>)| {
        let since = holder.since.and_then(|since| since.duration_since(UNIX_EPOCH).ok());
        json!({
            "number": holder.process,
            "pid": holder.pid,
            "locks": holder.locks,
            "since": since.map(|since| since.as_secs()),
            "command": neighbour.as_ref().map(|neighbour| neighbour.command.as_str()),
            "state": neighbour.as_ref().map(|neighbour| neighbour.state.name()),
        })
    };
    json!({
        "dir": inspection.dir,
        "memory": match &inspection.memory {
            Place::Memory(dir) => Some(dir),
            Place::Snapshot | Place::Elsewhere => None,
        },
        "elsewhere": matches!(inspection.memory, Place::Elsewhere),
        "files": inspection.files,
        "bytes": inspection.bytes,
        "classes": inspection.classes.iter().map(class_json).collect::<Vec<_>>(),
        "counts": counts,
        "processes": inspection.processes.iter().map(process).collect::<Vec<_>>(),
        "stuck": inspection.holders.iter().map(holder).collect::<Vec<_>>(),
    })
}

fn class_json(look: &ClassLook) -> Value {
    let ClassLook { class, geometry, occupancy, ages, areas } = look;
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
