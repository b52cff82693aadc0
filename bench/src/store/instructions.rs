//! Instructions per decision of each peer. Reading the clock counts almost nothing, as it is a system call under
//! callgrind.

use super::comparison::Comparison;
use super::keys::{Keys, random_picks};
use super::peer::{self, ALL};
use super::{Plan, short};
use crate::instructions::{can_be_counted, per_decision};
use crate::progress;
use crate::report::Row;
use anyhow::ensure;
use clap::Args;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

const KEYS: u32 = 1_000;
const BATCHES: [usize; 2] = [1, 16];

/// No rows without valgrind.
pub(super) fn measure(plan: &Plan, dir: &Path) -> anyhow::Result<Vec<Row>> {
    if !can_be_counted() {
        return Ok(Vec::new());
    }
    let title = "Instructions per decision";
    let mut instructions = Comparison::new(title, "instructions", "instructions/decision");
    for batch in BATCHES {
        let case = format!("{} keys, hit, 1 thread, batch {batch}", short(KEYS));
        let mut peers = Vec::new();
        for kind in ALL {
            progress::show(&format!("instructions: {}, {case}", kind.name));
            let batch = batch.to_string();
            let mut arguments = ["decisions", "--peer", kind.name, "--batch", &batch, "--dir"]
                .map(OsStr::new)
                .to_vec();
            arguments.push(dir.as_os_str());
            peers.push(per_decision(&arguments, plan.counted, dir)?);
        }
        instructions.add(case, peers);
    }
    progress::clear();
    instructions.print();
    Ok(instructions.rows())
}

/// The work of a child.
#[derive(Debug, Args)]
pub(crate) struct Part {
    #[arg(long)]
    peer: String,
    #[arg(long)]
    decisions: u32,
    #[arg(long)]
    batch: usize,
    #[arg(long)]
    dir: PathBuf,
}

impl Part {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let keys = Keys::new(0..KEYS);
        let peer = (peer::find(&self.peer)?.build)(KEYS, &self.dir)?;
        let live: Vec<u32> = (0..KEYS).collect();
        let picks = random_picks(KEYS, self.decisions as usize);
        let all = live.chunks(self.batch).chain(picks.chunks(self.batch));
        let allowed: u64 = all.map(|picks| peer.decide_each(&keys, picks)).sum();
        ensure!(allowed == (live.len() + picks.len()) as u64, "not every decision was to allow");
        Ok(())
    }
}
