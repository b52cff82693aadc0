//! `tidegate store move`: counters between the memory, and the databases and the warm server of idle counters.

use super::cold::ColdRows;
use super::join;
use super::key::KeyArgument;
use crate::arguments::authority::ServerOptions;
use crate::arguments::store::{MoveOptions, Tier};
use crate::commands::UsageError;
use crate::output::Output;
use anyhow::{Context, bail};
use serde_json::json;
use std::collections::HashSet;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use tidegate_authority::{Counters, Hashing, clock, wait};
use tidegate_limits::describe::count;
use tidegate_store::{Class, Entries, Hashed, View};
use tidegate_tiers::Tiered;

/// The counters of one update. Each brings its record along.
const KEYS: usize = 64;

pub(crate) fn run(options: &MoveOptions, out: &mut Output) -> anyhow::Result<ExitCode> {
    let (dir, words) = options.key.split(&ServerOptions::default());
    let dir = dir.unwrap_or(Path::new(""));
    if options.all != words.is_empty() {
        let text = "name the key of a counter, or --all";
        return Err(UsageError(text.to_owned()).into());
    }
    let argument = match options.all {
        true => None,
        false => Some(KeyArgument::parse(&options.key, words)?),
    };
    let view = View::open(dir)?;
    let (seed, now) = (view.seed(), clock::now());
    let rows = ColdRows::of(dir, &view, &options.cold)?;
    let Some(rows) = rows else {
        bail!(
            "{}: no counters of it are in databases; name them in --cold or --warm",
            dir.display()
        );
    };
    let keys = match argument {
        None => None,
        Some(argument) => {
            let key = argument.resolve(Hashing::undivided(seed))?;
            let classes = Class::ALL.into_iter().filter(|class| view.geometry(*class).is_some());
            let parts = classes.flat_map(|class| key.every_part(class, seed, now));
            Some(parts.collect::<Vec<_>>())
        }
    };
    let moved = match options.to {
        Tier::Hot => {
            let mut wanted = keys.unwrap_or_default();
            if options.all {
                rows.for_each(&view, now, |key, _| {
                    wanted.push(*key);
                    Ok(())
                })?;
            }
            to_hot(
                &Tiered::new(Arc::new(join(dir, view)?), rows.rows, Default::default())?,
                &wanted,
            )?
        }
        Tier::Cold => {
            let tiered = Tiered::new(Arc::new(join(dir, view)?), rows.rows, Default::default())?;
            let keys: Option<HashSet<Hashed>> = keys.map(|keys| keys.into_iter().collect());
            let moved =
                tiered.move_now(dir, |key| keys.as_ref().is_none_or(|keys| keys.contains(key)));
            let Some(moved) = moved.context("--cold, --warm")? else {
                bail!(
                    "{}: a sidecar moves its counters, and --to cold needs the data directory while none does; it moves \
                     them sooner with a smaller --cold-idle",
                    dir.display()
                );
            };
            moved
        }
    };
    if options.json {
        out.json(&json!({"moved": moved}))?;
    } else {
        writeln!(out, "moved {}", count(moved, "counter"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Brings counters into memory, as requests for them would.
fn to_hot(tiered: &Tiered, keys: &[Hashed]) -> anyhow::Result<u64> {
    let before = tiered.counts().fetched;
    for keys in keys.chunks(KEYS) {
        let mut look = |_: &mut Entries<'_>| {};
        wait(tiered.update(keys, clock::now(), &mut look))?;
    }
    Ok(tiered.counts().fetched - before)
}
