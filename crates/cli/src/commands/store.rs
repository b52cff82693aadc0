//! `tidegate store`: inspects and edits a data directory, served or not, or the counters that machines share.
//!
//! Commands that read use a view, which changes no byte and needs permission to read only. Commands that write join
//! the cluster as a serving process does. Only `import` creates a cluster.

mod bulk;
pub(crate) mod cold;
mod entry;
mod export;
mod import;
mod inspect;
pub(crate) mod key;
mod moves;
mod names;
pub(crate) mod place;
mod verify;

use crate::arguments::store::StoreCommand;
use crate::output::Output;
use anyhow::{Context, bail};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use tidegate_data_dir::ClockMonitor;
use tidegate_store::{Cluster, Options, View};

/// See docs/internals/store-format.md.
const GATE: &str = "cluster.lock";

pub(crate) fn run(command: &StoreCommand, out: &mut Output) -> anyhow::Result<ExitCode> {
    match command {
        StoreCommand::Inspect(options) => inspect::run(options, out),
        StoreCommand::Verify(options) => verify::run(options, out),
        StoreCommand::Get(options) => entry::get(options, out),
        StoreCommand::Set(options) => entry::set(options, out),
        StoreCommand::Erase(options) => entry::erase(options, out),
        StoreCommand::Sweep(options) => bulk::sweep(options, out),
        StoreCommand::Reset(options) => bulk::reset(options, out),
        StoreCommand::Move(options) => moves::run(options, out),
        StoreCommand::Export(options) => export::run(options, out),
        StoreCommand::Import(options) => import::run(options, out),
    }
}

/// Fails if a file was cut short during the reading, as the data is invalid then.
pub(crate) fn check_whole(view: &View) -> anyhow::Result<()> {
    view.check_files().context("the files changed while they were being read")
}

/// Joins the existing, intact cluster of `view` to change it.
fn join(dir: &Path, view: View) -> anyhow::Result<Cluster> {
    refuse_to_lock_out(dir, &view)?;
    // View and cluster each map every file, and a process can have only so many mappings.
    drop(view);
    // An existing cluster keeps its geometry.
    let store = Cluster::open(dir, &Options::default())?;
    // New entries reuse expired nodes by trusted time, as in any other process.
    ClockMonitor::default().check(&store);
    Ok(store)
}

/// Joining creates the lock file if it is missing, as in some copies. Only its owner can open it, so a file that
/// root creates would lock out a sidecar of another user.
fn refuse_to_lock_out(dir: &Path, view: &View) -> anyhow::Result<()> {
    let own = rustix::process::geteuid().as_raw();
    let Some(control) = view.files().into_iter().next() else { return Ok(()) };
    let owner = control.metadata().with_context(|| control.display().to_string())?.uid();
    let gate = dir.join(GATE);
    if own == owner || gate.exists() {
        return Ok(());
    }
    bail!(
        "{}: is missing, and user {own} would create it, though the files belong to user {owner}, who \
         could not open it; run this as that user, for example with `sudo -u '#{owner}'`",
        gate.display()
    );
}
