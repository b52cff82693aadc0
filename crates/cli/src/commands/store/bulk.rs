//! `tidegate store sweep` and `reset`: changes to all entries.

use super::cold::ColdRows;
use super::join;
use crate::arguments::store::{CommonOptions, ResetOptions, SweepOptions};
use crate::commands::UsageError;
use crate::output::Output;
use serde_json::json;
use std::io::Write;
use std::process::ExitCode;
use tidegate_authority::clock;
use tidegate_data_dir::{self as data_dir, ClockMonitor};
use tidegate_limits::describe::{count, grouped};
use tidegate_store::{Class, View};

pub(crate) fn sweep(options: &SweepOptions, out: &mut Output) -> anyhow::Result<ExitCode> {
    let CommonOptions { dir, json } = &options.common;
    let view = View::open(dir)?;
    let store = join(dir, view)?;
    if options.trust_clock {
        data_dir::trust_clock(&store);
    }
    let ahead = ClockMonitor::default().check(&store);
    let freed = store.sweep(clock::now().as_nanos())?;
    if *json {
        out.json(&json!({"freed": freed, "clock_ahead_seconds": ahead}))?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(out, "freed {} of expired entries", count(freed, "node"))?;
    if ahead > 0 {
        writeln!(
            out,
            "the system clock is {} ahead of the time known to have passed; entries that expire by \
             it alone were kept; if the clock is right, add --trust-clock",
            count(ahead, "second")
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn reset(options: &ResetOptions, out: &mut Output) -> anyhow::Result<ExitCode> {
    let dir = &options.common.dir;
    let view = View::open(dir)?;
    if !options.yes {
        let entries = Class::ALL.into_iter().filter_map(|class| view.occupancy(class));
        let entries = grouped(entries.map(|occupancy| occupancy.occupied).sum());
        return Err(UsageError(format!(
            "{}: this erases all entries, about {entries}, including those in use by running sidecars; \
             add --yes to confirm",
            dir.display()
        ))
        .into());
    }
    let rows = ColdRows::of(dir, &view, &options.cold)?;
    let erase_rows = || rows.as_ref().map_or(Ok(0), ColdRows::erase);
    // Rows first: without their nodes, stale ones would count. And again, for what has moved down meanwhile.
    let cold = erase_rows()?;
    let erased = join(dir, view)?.reset_all()? + cold + erase_rows()?;
    if options.common.json {
        out.json(&json!({"erased": erased}))?;
    } else {
        let entries = if erased == 1 { "entry" } else { "entries" };
        writeln!(out, "erased {} {entries}", grouped(erased))?;
    }
    Ok(ExitCode::SUCCESS)
}
