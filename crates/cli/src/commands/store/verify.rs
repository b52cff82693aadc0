//! `tidegate store verify`: checks every node, lock and writer slot.

use super::check_whole;
use crate::arguments::store::CommonOptions;
use crate::output::Output;
use serde_json::{Value, json};
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tidegate_authority::clock;
use tidegate_limits::describe::{count, grouped};
use tidegate_store::{Findings, Flaw, FlawKind, View};

/// A longer check shows its progress.
const PROGRESS_AFTER: Duration = Duration::from_secs(1);
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

pub(crate) fn run(options: &CommonOptions, out: &mut Output) -> anyhow::Result<ExitCode> {
    let view = View::open(&options.dir)?;
    let mut progress = Progress::new();
    let findings =
        view.verify(clock::now().as_nanos(), |checked, total| progress.show(checked, total));
    progress.clear();
    check_whole(&view)?;
    if options.json {
        out.json(&json_of(options, &findings))?;
    } else {
        print(out, options, &findings)?;
    }
    Ok(if findings.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(out: &mut Output, options: &CommonOptions, findings: &Findings) -> io::Result<()> {
    for flaw in &findings.flaws {
        writeln!(out, "{flaw}")?;
    }
    let total = findings.flaws_total();
    let kept = findings.flaws.len() as u64;
    if total > kept {
        writeln!(out, "and {} more", grouped(total - kept))?;
    }
    writeln!(
        out,
        "{}: checked {} nodes in {} key-nodes: {} live, {} expired",
        options.dir.display(),
        grouped(findings.nodes),
        grouped(findings.key_nodes),
        grouped(findings.live),
        grouped(findings.expired),
    )?;
    for (count, what) in [
        (findings.updates_pending, "updates are committed but not completed"),
        (findings.pending, "nodes are half written, to be completed with the updates"),
        (findings.locks_left, "key-nodes are locked by dead processes"),
        (findings.writer_slots_left, "writer slots belong to dead processes"),
    ] {
        if count > 0 {
            writeln!(out, "  {} {what}; their next user cleans up", grouped(count))?;
        }
    }
    if findings.is_being_restored {
        writeln!(
            out,
            "  a process restores it, or was killed meanwhile: verify again once one is ready"
        )?;
    }
    if findings.is_sound() {
        return writeln!(out, "sound");
    }
    let kinds: Vec<String> = counts(findings)
        .map(|(kind, count)| format!("{} {}", grouped(count), kind.name()))
        .collect();
    writeln!(out, "{}: {}", count(total, "flaw"), kinds.join(", "))?;
    writeln!(
        out,
        "to repair: stop every sidecar that uses it, then start one, which drops the flawed nodes"
    )
}

fn counts(findings: &Findings) -> impl Iterator<Item = (FlawKind, u64)> {
    FlawKind::ALL
        .into_iter()
        .map(|kind| (kind, findings.flaws_of(kind)))
        .filter(|(_, count)| *count > 0)
}

fn json_of(options: &CommonOptions, findings: &Findings) -> Value {
    let counts: serde_json::Map<String, Value> = FlawKind::ALL
        .into_iter()
        .map(|kind| (kind.name().to_owned(), json!(findings.flaws_of(kind))))
        .collect();
    json!({
        "dir": options.dir.display().to_string(),
        "sound": findings.is_sound(),
        "key_nodes": findings.key_nodes,
        "nodes": findings.nodes,
        "nodes_sound": findings.sound,
        "live": findings.live,
        "expired": findings.expired,
        "updates_pending": findings.updates_pending,
        "nodes_pending": findings.pending,
        "locks_left": findings.locks_left,
        "writer_slots_left": findings.writer_slots_left,
        "being_restored": findings.is_being_restored,
        "flaws_by_kind": counts,
        "flaws_total": findings.flaws_total(),
        "flaws": findings.flaws.iter().map(flaw_json).collect::<Vec<_>>(),
    })
}

fn flaw_json(flaw: &Flaw) -> Value {
    json!({
        "kind": flaw.kind.name(),
        "meaning": flaw.kind.meaning(),
        "file": flaw.file.display().to_string(),
        "offset": flaw.offset,
        "key_node": flaw.key_node,
        "slot": flaw.slot,
        "key": flaw.key.map(|key| key.to_string()),
    })
}

/// A progress line on standard error, for a long check on a terminal.
struct Progress {
    is_wanted: bool,
    next: Instant,
    /// The length of the current line.
    len: usize,
}

impl Progress {
    fn new() -> Progress {
        let is_wanted = io::stderr().is_terminal();
        Progress { is_wanted, next: Instant::now() + PROGRESS_AFTER, len: 0 }
    }

    fn show(&mut self, checked: u64, total: u64) {
        if !self.is_wanted || Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + PROGRESS_EVERY;
        let line = format!("checked {} of {} key-nodes", grouped(checked), grouped(total));
        self.len = line.len();
        eprint!("\r{line}");
    }

    fn clear(&self) {
        if self.len > 0 {
            eprint!("\r{:1$}\r", "", self.len);
        }
    }
}
