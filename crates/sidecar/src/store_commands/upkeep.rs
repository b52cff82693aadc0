//! `tidegate store sweep` and `reset`: what is done to all entries.

use super::args::{LookOptions, ResetOptions};
use super::output::Output;
use super::time::grouped;
use super::{Usage, Verdict, join};
use crate::clock;
use serde_json::json;
use std::io::Write;
use tidegate_store::{Class, View};

pub(crate) fn sweep(options: &LookOptions, out: &mut Output) -> anyhow::Result<Verdict> {
    let view = View::open(&options.dir)?;
    let freed = join(&options.dir, view)?.sweep(clock::now().as_nanos())?;
    if options.json {
        out.json(&json!({"freed": freed}))?;
    } else {
        let nodes = if freed == 1 { "node" } else { "nodes" };
        writeln!(out, "freed {} {nodes} of expired entries", grouped(freed))?;
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
