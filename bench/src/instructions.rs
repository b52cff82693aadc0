//! Instructions per decision, counted by callgrind, which is reproducible where times are not.
//!
//! A child makes a number of decisions, another one twice as many. The difference belongs to decisions alone.

use anyhow::{Context, ensure};
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

/// Whether valgrind is installed. Says so if it is not.
pub(crate) fn can_be_counted() -> bool {
    let version = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    let is_installed = version.is_ok_and(|status| status.success());
    if !is_installed {
        println!("Instructions per decision: left out, since valgrind is not installed\n");
    }
    is_installed
}

/// Runs this program with `arguments` and a number of decisions. `dir` takes the file of callgrind.
pub(crate) fn per_decision<A: AsRef<OsStr>>(
    arguments: &[A],
    decisions: u32,
    dir: &Path,
) -> anyhow::Result<f64> {
    let file = dir.join("callgrind");
    let count = |decisions: u32| -> anyhow::Result<u64> {
        let mut child = Command::new("valgrind");
        child.args(["--quiet", "--tool=callgrind", "--toggle-collect=*::decide_each"]);
        child.arg(format!("--callgrind-out-file={}", file.display()));
        child.arg(std::env::current_exe()?).args(arguments);
        let output = child.args(["--decisions", &decisions.to_string()]).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "counting instructions failed: {said}");
        let counts = std::fs::read_to_string(&file)?;
        let total = counts.lines().find_map(|line| line.strip_prefix("totals: "));
        Ok(total.context("no totals in callgrind's output")?.trim().parse()?)
    };
    Ok(count(decisions * 2)?.saturating_sub(count(decisions)?) as f64 / f64::from(decisions))
}
