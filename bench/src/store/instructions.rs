//! Instructions per decision, counted by callgrind, which is reproducible where times are not.
//!
//! A child makes a number of decisions, another one twice as many. The difference belongs to decisions alone.
//! Reading the clock counts almost nothing, as it is a system call under callgrind.

use super::comparison::Comparison;
use super::keys::{Keys, random_picks};
use super::peer::{self, ALL};
use super::{Plan, short};
use crate::progress;
use crate::report::Row;
use anyhow::{Context, ensure};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const KEYS: u32 = 1_000;
const BATCHES: [usize; 2] = [1, 16];

/// No rows without valgrind.
pub(super) fn measure(plan: &Plan, dir: &Path) -> anyhow::Result<Vec<Row>> {
    let version = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    if !version.is_ok_and(|status| status.success()) {
        println!("Instructions per decision: left out, since valgrind is not installed\n");
        return Ok(Vec::new());
    }
    let title = "Instructions per decision";
    let mut instructions = Comparison::new(title, "instructions", "instructions/decision");
    for batch in BATCHES {
        let case = format!("{} keys, hit, 1 thread, batch {batch}", short(KEYS));
        let mut peers = Vec::new();
        for kind in ALL {
            progress::show(&format!("instructions: {}, {case}", kind.name));
            let part = |decisions| Part {
                peer: kind.name.to_owned(),
                decisions,
                batch,
                dir: dir.to_owned(),
            };
            let (once, twice) = (part(plan.counted).count()?, part(plan.counted * 2).count()?);
            peers.push(twice.saturating_sub(once) as f64 / f64::from(plan.counted));
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
    /// The instructions of a child that does this work.
    fn count(&self) -> anyhow::Result<u64> {
        let counts = self.dir.join("callgrind");
        let mut child = Command::new("valgrind");
        child.args(["--quiet", "--tool=callgrind", "--toggle-collect=*::decide_each"]);
        child.arg(format!("--callgrind-out-file={}", counts.display()));
        child.arg(std::env::current_exe()?).args(["decisions", "--peer", &self.peer]);
        child.args(["--decisions", &self.decisions.to_string()]);
        child.args(["--batch", &self.batch.to_string()]).arg("--dir").arg(&self.dir);
        let output = child.stdout(Stdio::null()).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "counting for {} failed: {said}", self.peer);
        let counts = std::fs::read_to_string(&counts)?;
        let total = counts.lines().find_map(|line| line.strip_prefix("totals: "));
        Ok(total.context("no totals in callgrind's output")?.trim().parse()?)
    }

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
