//! The text of `tidegate store inspect`.

use super::report::{ClassReport, CounterSource, Inspection};
use crate::commands::chart::ChartStyle;
use crate::commands::store::cold::ShardSize;
use crate::time::bytes;
use std::io::{self, Write};
use tidegate_data_dir::process_info::{self, ProcessInfo};
use tidegate_limits::describe::{count, grouped};
use tidegate_stats::{cold_help, store_help};
use tidegate_store::{LockHolder, Process, RangeStats};
use tidegate_tiers::{Activity, Lately};

pub(crate) fn print(
    out: &mut impl Write,
    charts: &ChartStyle,
    inspection: &Inspection,
) -> io::Result<()> {
    let Inspection {
        dir,
        source,
        files,
        bytes: size,
        classes,
        cold,
        activity: cold_activity,
        stats,
        processes,
        holders,
    } = inspection;
    writeln!(out, "{dir}: {files} files, {}", bytes(*size))?;
    match source {
        CounterSource::Memory(dir) => writeln!(out, "in memory: {dir}")?,
        CounterSource::Snapshot => writeln!(out, "not served: this is the snapshot")?,
        CounterSource::RemoteSnapshot => {
            let advice = "run this in the container or on the machine of the serving process";
            writeln!(out, "served elsewhere: this is the last snapshot; {advice}")?;
        }
    }
    for report in classes {
        writeln!(out)?;
        class(out, charts, report)?;
    }
    if !cold.is_empty() {
        writeln!(out, "\nCold counters, in databases")?;
        cold.iter().try_for_each(|shard| database(out, shard))?;
    }
    if let Some(found) = cold_activity {
        activity(out, found)?;
    }
    writeln!(out, "\nSince it was created")?;
    let widest = stats.named().iter().map(|(_, number)| grouped(*number).len()).max().unwrap_or(0);
    for (name, number) in stats.named() {
        let (number, meaning) = (grouped(number), store_help(&format!("store_{name}")));
        writeln!(out, "  {name:<17}  {number:>widest$}  {meaning}")?;
    }
    writeln!(out, "\nProcesses")?;
    if processes.is_empty() {
        writeln!(out, "  none")?;
    }
    processes.iter().try_for_each(|found| process(out, found))?;
    if holders.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nStuck: these hold locks and do not run; continue or end them")?;
    holders.iter().try_for_each(|(found, info)| holder(out, found, info.as_ref()))
}

fn database(out: &mut impl Write, (name, size): &ShardSize) -> io::Result<()> {
    match size {
        Ok(size) if size.counters > 0 => {
            let (counters, each) = (count(size.counters, "counter"), size.bytes / size.counters);
            let all = bytes(size.bytes);
            writeln!(out, "  {name}: {counters}, {all}, {each} bytes each")
        }
        Ok(_) => writeln!(out, "  {name}: no counters"),
        Err(cause) => writeln!(out, "  {name}: {cause}"),
    }
}

fn activity(out: &mut impl Write, Activity { counts, lately }: &Activity) -> io::Result<()> {
    let all = counts.named();
    let widest = all.iter().map(|(_, number)| grouped(*number).len()).max().unwrap_or(0);
    let widest = widest.max("in all".len());
    writeln!(out, "\n  {:<15}  {:>widest$}  {:>9}", "", "in all", "a second")?;
    for (index, (name, number)) in all.into_iter().enumerate() {
        let of_second = lately.as_ref().map_or("-".to_owned(), |lately| {
            let (_, number) = lately.counts.named()[index];
            format!("{:.1}", number as f64 / lately.seconds as f64)
        });
        let (number, meaning) = (grouped(number), cold_help(&format!("cold_{name}")));
        let name = name.replace('_', " ");
        writeln!(out, "  {name:<15}  {number:>widest$}  {of_second:>9}  {meaning}")?;
    }
    let Some(Lately { seconds, counts, updates }) = lately else { return Ok(()) };
    let looked_up = counts.fetched + counts.fetched_in_vain;
    let new = counts.fetched_in_vain + counts.spared;
    // A look-up writes the record of the counter twice, and the counter.
    let of_requests = updates.saturating_sub(3 * looked_up);
    for (name, part, of, what) in [
        (
            "in memory",
            of_requests.saturating_sub(looked_up),
            of_requests,
            "updates met their counter there",
        ),
        ("found", counts.fetched, looked_up, "look-ups found a row"),
        ("filters", counts.spared, new, "new counters needed no look-up"),
    ] {
        if of > 0 {
            let (share, of) = (percent(part, of), grouped(of));
            writeln!(out, "  {name:<15}  {share} of {of} {what}, in the last {seconds} s")?;
        }
    }
    Ok(())
}

fn class(out: &mut impl Write, charts: &ChartStyle, report: &ClassReport) -> io::Result<()> {
    let ClassReport { class, geometry, occupancy, ages, areas } = report;
    let times = charts.glyphs.times;
    let (files, key_nodes) = (geometry.files(), grouped(geometry.key_nodes()));
    let (chain, node_bytes) = (geometry.chain(), geometry.node_bytes());
    let words = geometry.state_words();
    writeln!(out, "{} nodes, with {words} words of state", capitalized(class.name()))?;
    let product = format!(
        "{} {times} {key_nodes} key-nodes {times} {chain} nodes {times} {node_bytes} bytes",
        count(files.into(), "file")
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
    writeln!(out, "  crowded   {crowded} of {looked_at} key-nodes, with keys stored in another")?;
    writeln!(out, "  {looked_at} key-nodes by number of occupied nodes")?;
    charts.bars(out, &occupancy.chains)?;
    busy(out, charts, geometry.key_nodes_total(), areas)
}

fn busy(
    out: &mut impl Write,
    charts: &ChartStyle,
    key_nodes: u64,
    areas: &[RangeStats],
) -> io::Result<()> {
    let updates: Vec<u64> = areas.iter().map(|area| area.updates).collect();
    let Some(busiest) = areas.iter().max_by_key(|area| area.updates) else { return Ok(()) };
    if busiest.updates == 0 {
        return writeln!(out, "  updates   none yet");
    }
    let each = count((key_nodes / areas.len() as u64).max(1), "key-node");
    let most = grouped(busiest.updates);
    writeln!(out, "  updates by region, each of about {each}; the busiest had {most}")?;
    charts.map(out, &updates)
}

fn process(out: &mut impl Write, process: &Process) -> io::Result<()> {
    let slots = count(process.writer_slots.into(), "writer slot");
    let state = if process.is_alive { "" } else { ", dead and not yet cleaned up" };
    writeln!(out, "  number {}: process {}, {slots}{state}", process.number, process.pid)
}

fn holder(out: &mut impl Write, holder: &LockHolder, info: Option<&ProcessInfo>) -> io::Result<()> {
    let (process, locks) =
        (process_info::describe(holder.pid, info), count(holder.locks.into(), "lock"));
    let since = holder.since.map(|since| since.elapsed().unwrap_or_default().as_secs());
    let since = since.map_or(", without a waiter".to_owned(), |secs| format!(" for {secs} s"));
    writeln!(out, "  number {}: {process} has held {locks}{since}", holder.process)
}

fn capitalized(word: &str) -> String {
    let mut letters = word.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.1}%", part as f64 / whole.max(1) as f64 * 100.0)
}
