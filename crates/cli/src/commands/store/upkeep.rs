//! `tidegate store sweep` and `reset`: what is done to all entries.

use super::{Usage, Verdict, join};
use crate::arguments::store::{LookOptions, ResetOptions, SweepOptions};
use crate::output::Output;
use serde_json::json;
use std::io::Write;
use tidegate_authority::clock;
use tidegate_data_dir::{self as data_dir, ClockWatch};
use tidegate_limits::describe::grouped;
use tidegate_store::{Class, View};

pub(crate) fn sweep(options: &SweepOptions, out: &mut Output) -> anyhow::Result<Verdict> {
    let LookOptions { dir, json } = &options.look;
    let view = View::open(dir)?;
    let store = join(dir, view)?;
    if options.trust_clock {
        data_dir::trust_clock(&store);
    }
    let ahead = ClockWatch::default().look(&store);
    let freed = store.sweep(clock::now().as_nanos())?;
    if *json {
        out.json(&json!({"freed": freed, "clock_ahead_seconds": ahead}))?;
        return Ok(Verdict::Good);
    }
    let nodes = if freed == 1 { "node" } else { "nodes" };
    writeln!(out, "freed {} {nodes} of expired entries", grouped(freed))?;
    if ahead > 0 {
        let seconds = if ahead == 1 { "second" } else { "seconds" };
        writeln!(
            out,
            "the system clock is {} {seconds} ahead of the time that is known to have passed; what expires by \
             it alone was kept; if the clock is right, add --trust-clock",
            grouped(ahead)
        )?;
    }
    Ok(Verdict::Good)
}

pub(crate) fn reset(options: &ResetOptions, out: &mut Output) -> anyhow::Result<Verdict> {
    let dir = &options.look.dir;
    let view = View::open(dir)?;
    if !options.yes {
        let entries = Class::ALL.into_iter().filter_map(|class| view.occupancy(class));
        let entries = grouped(entries.map(|occupancy| occupancy.occupied).sum());
        return Err(Usage(format!(
            "{}: this erases all entries, about {entries}, also those that running sidecars go by; \
             add --yes if you mean it",
            dir.display()
        ))
        .into());
    }
    let erased = join(dir, view)?.reset_all()?;
    if options.look.json {
        out.json(&json!({"erased": erased}))?;
    } else {
        let entries = if erased == 1 { "entry" } else { "entries" };
        writeln!(out, "erased {} {entries}", grouped(erased))?;
    }
    Ok(Verdict::Good)
}
