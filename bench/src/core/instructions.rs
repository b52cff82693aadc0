//! Instructions per decision, counted by callgrind, which is reproducible where times are not.
//!
//! A child makes a number of decisions, another one twice as many. The difference belongs to decisions alone.

use super::subject::Subject;
use super::{KEYS, Plan, subjects};
use crate::progress;
use crate::store::random_picks;
use anyhow::{Context, ensure};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// A figure for each subject, or None for those that are too large. None at all without valgrind.
pub(super) fn measure(
    plan: &Plan,
    subjects: &[Subject],
    dir: &Path,
) -> anyhow::Result<Option<Vec<Option<f64>>>> {
    let version = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    if !version.is_ok_and(|status| status.success()) {
        println!("Instructions per decision: left out, since valgrind is not installed\n");
        return Ok(None);
    }
    let mut counts = Vec::new();
    for Subject { name, rules, .. } in subjects {
        if *rules > plan.counted_rules {
            counts.push(None);
            continue;
        }
        progress::show(&format!("instructions: {name}"));
        let part = |decisions| Part {
            subject: name.clone(),
            decisions,
            rules: *rules,
            counts: dir.join("callgrind"),
        };
        let (once, twice) = (part(plan.counted).count()?, part(plan.counted * 2).count()?);
        counts.push(Some(twice.saturating_sub(once) as f64 / f64::from(plan.counted)));
    }
    progress::clear();
    Ok(Some(counts))
}

/// The work of a child.
#[derive(Debug, Args)]
pub(crate) struct Part {
    #[arg(long)]
    subject: String,
    #[arg(long)]
    decisions: u32,
    #[arg(long)]
    rules: u32,
    /// The output file of callgrind.
    #[arg(long)]
    counts: PathBuf,
}

impl Part {
    /// The instructions of a child that does this work.
    fn count(&self) -> anyhow::Result<u64> {
        let mut child = Command::new("valgrind");
        child.args(["--quiet", "--tool=callgrind", "--toggle-collect=*::decide_each"]);
        child.arg(format!("--callgrind-out-file={}", self.counts.display()));
        child.arg(std::env::current_exe()?).args(["core-decisions", "--subject", &self.subject]);
        child.args(["--decisions", &self.decisions.to_string()]);
        child.args(["--rules", &self.rules.to_string()]).arg("--counts").arg(&self.counts);
        let output = child.stdout(Stdio::null()).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "counting for {} failed: {said}", self.subject);
        let counts = std::fs::read_to_string(&self.counts)?;
        let total = counts.lines().find_map(|line| line.strip_prefix("totals: "));
        Ok(total.context("no totals in callgrind's output")?.trim().parse()?)
    }

    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let subjects = subjects(&[self.rules])?;
        let subject = subjects.iter().find(|subject| subject.name == self.subject);
        let subject = subject.with_context(|| format!("no subject is called {}", self.subject))?;
        let picks = random_picks(KEYS, self.decisions as usize);
        let mut work = subject.prepare()?;
        let start = Instant::now();
        let yes = work.decide_each(&picks);
        let nanos = start.elapsed().as_nanos() as f64 / f64::from(self.decisions);
        println!("{}: {nanos:.1} ns/decision", self.subject);
        subject.check(yes, picks.len())
    }
}
