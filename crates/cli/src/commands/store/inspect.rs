//! `tidegate store inspect`: geometry, use and processes of a data directory.

mod report;
mod text;

use super::check_whole;
use super::cold::{ColdRows, ShardSize};
use crate::arguments::store::InspectOptions;
use crate::commands::chart::ChartStyle;
use crate::output::Output;
use report::{ClassReport, CounterSource, Inspection};
use serde_json::{Map, Value, json};
use std::process::ExitCode;
use std::time::UNIX_EPOCH;
use tidegate_data_dir::process_info::ProcessInfo;
use tidegate_store::{LockHolder, Process, RangeStats, View};
use tidegate_tiers::{Activity, Counts, Lately, activity};

pub(crate) fn run(options: &InspectOptions, out: &mut Output) -> anyhow::Result<ExitCode> {
    let dir = &options.common.dir;
    let view = View::open(dir)?;
    let charts = ChartStyle::of_terminal();
    let rows = ColdRows::of(dir, &view, &options.cold)?;
    let cold = rows.map(|rows| rows.sizes()).unwrap_or_default();
    let activity = activity(&view)?;
    let inspection = Inspection { cold, activity, ..Inspection::of(dir, &view, &charts) };
    check_whole(&view)?;
    if options.common.json {
        out.json(&json_of(&inspection))?;
    } else {
        text::print(out, &charts, &inspection)?;
    }
    Ok(ExitCode::SUCCESS)
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
        "cold": inspection.cold.iter().map(shard_json).collect::<Vec<_>>(),
        "cold_counts": inspection.activity.as_ref().map(activity_json),
        "counts": counts,
        "processes": inspection.processes.iter().map(process).collect::<Vec<_>>(),
        "stuck": inspection.holders.iter().map(holder).collect::<Vec<_>>(),
    })
}

fn shard_json((name, size): &ShardSize) -> Value {
    match size {
        Ok(size) => json!({"database": name, "counters": size.counters, "bytes": size.bytes}),
        Err(cause) => json!({"database": name, "error": cause}),
    }
}

fn activity_json(activity: &Activity) -> Value {
    let counts = |counts: &Counts| -> Map<String, Value> {
        counts.named().into_iter().map(|(name, count)| (name.to_owned(), json!(count))).collect()
    };
    let lately = |Lately { seconds, counts: of, updates }: &Lately| {
        let counts = counts(of);
        json!({"seconds": seconds, "updates": updates, "counts": counts})
    };
    json!({"counts": counts(&activity.counts), "lately": activity.lately.as_ref().map(lately)})
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
