//! Instructions per decision of each subject.

use super::subject::Subject;
use super::{KEYS, Plan, subjects};
use crate::instructions::{can_be_counted, per_decision};
use crate::progress;
use crate::store::random_picks;
use anyhow::Context;
use clap::Args;
use std::path::Path;
use std::time::Instant;

/// A figure for each subject, or None for those that are too large. None at all without valgrind.
pub(super) fn measure(
    plan: &Plan,
    subjects: &[Subject],
    dir: &Path,
) -> anyhow::Result<Option<Vec<Option<f64>>>> {
    if !can_be_counted() {
        return Ok(None);
    }
    let mut counts = Vec::new();
    for Subject { name, rules, .. } in subjects {
        if *rules > plan.counted_rules {
            counts.push(None);
            continue;
        }
        progress::show(&format!("instructions: {name}"));
        let rules = rules.to_string();
        let arguments = ["core-decisions", "--subject", name, "--rules", &rules];
        counts.push(Some(per_decision(&arguments, plan.counted, dir)?));
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
}

impl Part {
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
