//! Bytes per key: the growth of a process that holds nothing but one filled peer. Of the store it is the size
//! of its files, resident or not.

use super::comparison::Comparison;
use super::keys::Keys;
use super::peer::{self, ALL};
use super::{Plan, short};
use crate::progress;
use crate::report::Row;
use anyhow::{Context, ensure};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(super) fn measure(plan: &Plan, dir: &Path) -> anyhow::Result<Vec<Row>> {
    let mut bytes = Vec::new();
    for kind in ALL {
        progress::show(&format!("memory: {}, {} keys", kind.name, short(plan.keys)));
        bytes.push(in_child(kind.name, plan.keys, dir)?);
    }
    progress::clear();
    let mut memory = Comparison::new("Bytes per key", "memory", "B/key");
    memory.add(format!("{} keys", short(plan.keys)), bytes);
    memory.print();
    Ok(memory.rows())
}

/// Another peer, or an earlier measurement, would leave a heap with gaps.
fn in_child(peer: &str, keys: u32, dir: &Path) -> anyhow::Result<f64> {
    let mut child = Command::new(std::env::current_exe()?);
    child.args(["memory", "--peer", peer, "--keys", &keys.to_string()]).arg("--dir").arg(dir);
    let output = child.stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "measuring the memory of {peer} failed");
    let printed = String::from_utf8(output.stdout)?;
    printed.trim().parse().with_context(|| format!("{printed:?} are no bytes per key"))
}

/// The work of a child.
#[derive(Debug, Args)]
pub(crate) struct Part {
    #[arg(long)]
    peer: String,
    #[arg(long)]
    keys: u32,
    #[arg(long)]
    dir: PathBuf,
}

impl Part {
    /// Keys per step, so that their texts are a small part of the growth: 3.5 MB.
    const AT_A_TIME: usize = 100_000;

    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let before = resident_bytes()?;
        let peer = (peer::find(&self.peer)?.build)(self.keys, &self.dir)?;
        for first in (0..self.keys).step_by(Self::AT_A_TIME) {
            let end = self.keys.min(first + Self::AT_A_TIME as u32);
            let keys = Keys::new(first..end);
            let picks: Vec<u32> = (0..end - first).collect();
            let allowed = peer.decide_each(&keys, &picks);
            ensure!(allowed == picks.len() as u64, "not every key was taken in");
        }
        let bytes = match peer.file_bytes()? {
            Some(bytes) => bytes,
            None => resident_bytes()?.saturating_sub(before),
        };
        println!("{}", bytes as f64 / f64::from(self.keys));
        Ok(())
    }
}

/// Resident bytes of this process.
fn resident_bytes() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kib: u64 = kib.context("no VmRSS in /proc/self/status")?.parse()?;
    Ok(kib * 1_024)
}
