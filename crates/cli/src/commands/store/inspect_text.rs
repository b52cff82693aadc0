//! What `tidegate store inspect` prints for people.

use super::chart::Canvas;
use super::inspect::{ClassLook, Inspection, Place};
use crate::time::bytes;
use std::io::{self, Write};
use tidegate_data_dir::process_info::{self, ProcessInfo};
use tidegate_limits::describe::grouped;
use tidegate_stats::store_help;
use tidegate_store::{LockHolder, Process, RangeStats};

pub(crate) fn print(
    out: &mut impl Write,
    canvas: &Canvas,
    inspection: &Inspection,
) -> io::Result<()> {
    let Inspection { dir, memory, files, bytes: size, classes, stats, processes, holders } =
        inspection;
    writeln!(out, "{dir}: {files} files, {}", bytes(*size))?;
    match memory {
        Place::Memory(dir) => writeln!(out, "in memory: {dir}")?,
        Place::Snapshot => writeln!(out, "at rest: a look at the snapshot")?,
        Place::Elsewhere => {
            let where_to_look = "look from the container or machine of the process that serves it";
            writeln!(out, "served elsewhere: a look at the last snapshot; {where_to_look}")?;
        }
    }
    for look in classes {
        writeln!(out)?;
        class(out, canvas, look)?;
    }
    writeln!(out, "\nSince it was made")?;
    let widest = stats.named().iter().map(|(_, count)| grouped(*count).len()).max().unwrap_or(0);
    for (name, count) in stats.named() {
        let (count, meaning) = (grouped(count), store_help(&format!("store_{name}")));
        writeln!(out, "  {name:<17}  {count:>widest$}  {meaning}")?;
    }
    writeln!(out, "\nProcesses")?;
    if processes.is_empty() {
        writeln!(out, "  none")?;
    }
    processes.iter().try_for_each(|found| process(out, found))?;
    if holders.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nStuck: these hold locks and do not move; continue or end them")?;
    holders.iter().try_for_each(|(found, neighbour)| holder(out, found, neighbour.as_ref()))
}

fn class(out: &mut impl Write, canvas: &Canvas, look: &ClassLook) -> io::Result<()> {
    let ClassLook { class, geometry, occupancy, ages, areas } = look;
    let times = canvas.glyphs.times;
    let (files, key_nodes) = (geometry.files(), grouped(geometry.key_nodes()));
    let (chain, node_bytes) = (geometry.chain(), geometry.node_bytes());
    let words = geometry.state_words();
    writeln!(out, "{} nodes, with {words} words of state", capitalized(class.name()))?;
    let product = format!(
        "{} {times} {key_nodes} key-nodes {times} {chain} nodes {times} {node_bytes} bytes",
        counted(files.into(), "file")
    );
    writeln!(out, "  geometry  {product} = {}", bytes(geometry.nodes_bytes()))?;
    let per_key = geometry.total_bytes() as f64 / (0.8 * geometry.nodes() as f64);
    let total = bytes(geometry.total_bytes());
    writeln!(out, "  size      {total} with heads, {per_key:.0} bytes a key at a load of 0.8")?;
    let (nodes, occupied) = (geometry.nodes(), ages.live + ages.expired);
    let (share, of) = (percent(occupied, nodes), grouped(nodes));
    writeln!(
        out,
        "  occupied  {} of {of} nodes ({share}): {} live, {} expired",
        grouped(occupied),
        grouped(ages.live),
        grouped(ages.expired)
    )?;
    let (crowded, looked_at) = (grouped(occupancy.crowded), grouped(occupancy.sampled));
    writeln!(
        out,
        "  crowded   {crowded} of {looked_at} key-nodes, with keys that live in another"
    )?;
    writeln!(out, "  {looked_at} key-nodes, by how many of their nodes are occupied")?;
    canvas.bars(out, &occupancy.chains)?;
    busy(out, canvas, geometry.key_nodes_total(), areas)
}

fn busy(
    out: &mut impl Write,
    canvas: &Canvas,
    key_nodes: u64,
    areas: &[RangeStats],
) -> io::Result<()> {
    let updates: Vec<u64> = areas.iter().map(|area| area.updates).collect();
    let Some(busiest) = areas.iter().max_by_key(|area| area.updates) else { return Ok(()) };
    if busiest.updates == 0 {
        return writeln!(out, "  updates   none yet");
    }
    let each = counted((key_nodes / areas.len() as u64).max(1), "key-node");
    let most = grouped(busiest.updates);
    writeln!(out, "  updates by region, each of about {each}; the busiest had {most}")?;
    canvas.map(out, &updates)
}

fn process(out: &mut impl Write, process: &Process) -> io::Result<()> {
    let slots = counted(process.writer_slots.into(), "writer slot");
    let state = if process.is_alive { "" } else { ", which is dead and not cleaned up after yet" };
    writeln!(out, "  number {}: process {}, {slots}{state}", process.number, process.pid)
}

fn holder(
    out: &mut impl Write,
    holder: &LockHolder,
    neighbour: Option<&ProcessInfo>,
) -> io::Result<()> {
    let (who, locks) =
        (process_info::describe(holder.pid, neighbour), counted(holder.locks.into(), "lock"));
    let since = holder.since.map(|since| since.elapsed().unwrap_or_default().as_secs());
    let since =
        since.map_or(", which nobody has waited for".to_owned(), |secs| format!(" for {secs} s"));
    writeln!(out, "  number {}: {who} has held {locks}{since}", holder.process)
}

fn capitalized(word: &str) -> String {
    let mut letters = word.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

fn counted(count: u64, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", grouped(count))
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.1}%", part as f64 / whole.max(1) as f64 * 100.0)
}
