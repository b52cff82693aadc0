//! `tidegate store`: an operator's hands in a data directory, live or at rest.
//!
//! What only looks does so through a view that changes no byte and needs no more than permission to
//! read; what changes something joins the cluster as a serving process does. Never makes a cluster.

mod chart;
mod entry;
mod export;
mod inspect;
mod inspect_text;
pub(crate) mod key;
mod upkeep;
mod verify;

use crate::arguments::store::StoreCommand;

use crate::output::Output;
use anyhow::{Context, bail};
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use tidegate_data_dir::ClockWatch;
use tidegate_store::{Cluster, Options, View};

/// How a command came out, when nothing went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// As hoped for.
    Good,
    /// Flaws were found, or there is no such entry.
    Bad,
}

/// What is wrong with the command line, where clap cannot know.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// See docs/internals/store-format.md.
const GATE: &str = "cluster.lock";

/// As clap has it.
pub(crate) const EXIT_USAGE: u8 = 2;

pub(crate) fn run(command: &StoreCommand) -> ExitCode {
    let mut out = Output::new();
    let result = dispatch(command, &mut out);
    // What was printed before an error is printed all the same.
    let flushed = out.finish();
    match result.and_then(|verdict| flushed.map(|()| verdict).map_err(Into::into)) {
        Ok(Verdict::Good) => ExitCode::SUCCESS,
        Ok(Verdict::Bad) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("tidegate: {error:#}");
            if error.is::<Usage>() { ExitCode::from(EXIT_USAGE) } else { ExitCode::FAILURE }
        }
    }
}

fn dispatch(command: &StoreCommand, out: &mut Output) -> anyhow::Result<Verdict> {
    match command {
        StoreCommand::Inspect(options) => inspect::run(options, out),
        StoreCommand::Verify(options) => verify::run(options, out),
        StoreCommand::Get(options) => entry::get(options, out),
        StoreCommand::Set(options) => entry::set(options, out),
        StoreCommand::Erase(options) => entry::erase(options, out),
        StoreCommand::Sweep(options) => upkeep::sweep(options, out),
        StoreCommand::Reset(options) => upkeep::reset(options, out),
        StoreCommand::Export(options) => export::run(options, out),
    }
}

/// Fails if a file was cut short while it was being looked at: what was read means nothing then.
pub(crate) fn check_whole(view: &View) -> anyhow::Result<()> {
    view.check_files().context("the files changed while they were being read")
}

/// Joins the cluster that `view` looks at, which is there and whole, to change it.
fn join(dir: &Path, view: View) -> anyhow::Result<Cluster> {
    refuse_to_shut_out(dir, &view)?;
    // Each of them maps every file, and a process can have only so many.
    drop(view);
    // There is a cluster, and it keeps the geometry that it has.
    let store = Cluster::open(dir, &Options::default())?;
    // A new entry takes the node of one that has expired, as with any other process.
    ClockWatch::default().look(&store);
    Ok(store)
}

/// Joining makes the file that is locked meanwhile, if it is missing as in some copies. Only its owner
/// can open it, so one that root makes would keep out a sidecar that runs as another user.
fn refuse_to_shut_out(dir: &Path, view: &View) -> anyhow::Result<()> {
    let own = rustix::process::geteuid().as_raw();
    let Some(control) = view.files().into_iter().next() else { return Ok(()) };
    let owner = control.metadata().with_context(|| control.display().to_string())?.uid();
    let gate = dir.join(GATE);
    if own == owner || gate.exists() {
        return Ok(());
    }
    bail!(
        "{}: is missing, and user {own} would make it, though the files belong to user {owner}, who \
         could not open it; run this as that user, for example with `sudo -u '#{owner}'`",
        gate.display()
    );
}
