//! A command that runs to its end: what it printed, and how it ended.

use crate::{memory, wait};
use anyhow::{Context, ensure};
use serde_json::Value;
use std::process::{ExitStatus, Output, Stdio};
use tokio::io::AsyncReadExt;
use tokio::process::Command;

/// What a command printed, and how it ended.
#[derive(Debug)]
pub struct Ran {
    /// The exit code; none when a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Ran {
    /// Standard output as one JSON document.
    ///
    /// # Errors
    /// When it is none; the error has all that was printed.
    pub fn json(&self) -> anyhow::Result<Value> {
        serde_json::from_str(&self.out).with_context(|| format!("{self:?}"))
    }
}

/// Runs a command to its end.
///
/// # Errors
/// When it cannot be started, does not end, or prints what is not UTF-8.
pub async fn run(mut command: Command) -> anyhow::Result<Ran> {
    let what = format!("{:?} to end", command.as_std());
    keep_memory_here(&mut command);
    let running = command.kill_on_drop(true).output();
    let Output { status, stdout, stderr } = wait::within(&what, wait::COMMAND, running).await??;
    let text = |bytes| String::from_utf8(bytes);
    Ok(Ran { code: status.code(), out: text(stdout)?, err: text(stderr)? })
}

/// Runs a command whose output is closed after its first bytes, as `head` closes it: how it ended. It has to print
/// more than a pipe holds.
///
/// # Errors
/// When it cannot be started or does not end, and when it writes to standard error.
pub async fn run_with_output_closed(mut command: Command) -> anyhow::Result<ExitStatus> {
    let what = format!("{:?} to end", command.as_std());
    keep_memory_here(&mut command);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let running = async {
        let mut child = command.spawn()?;
        let mut first = [0; 16];
        child.stdout.take().context("its output")?.read_exact(&mut first).await?;
        // Its output is closed by now.
        anyhow::Ok(child.wait_with_output().await?)
    };
    let ended = wait::within(&what, wait::COMMAND, running).await??;
    ensure!(ended.stderr.is_empty(), "{}", String::from_utf8_lossy(&ended.stderr));
    Ok(ended.status)
}

/// Commands of `tidegate` that open counters keep them where the next process of tests removes what is left.
fn keep_memory_here(command: &mut Command) {
    const VARIABLE: &str = "TIDEGATE_MEMORY_DIR";
    if !command.as_std().get_envs().any(|(name, _)| name == VARIABLE) {
        command.env(VARIABLE, memory::dir());
    }
}
