//! A command that runs to its end: what it said, and how it ended.

use anyhow::Context;
use serde_json::Value;
use tokio::process::Command;

/// What a command said, and how it ended.
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
    /// When it is none; the error has all that was said.
    pub fn json(&self) -> anyhow::Result<Value> {
        serde_json::from_str(&self.out).with_context(|| format!("{self:?}"))
    }
}

/// Runs a command to its end.
///
/// # Errors
/// When it cannot be started, or says what is not UTF-8.
pub async fn run(mut command: Command) -> anyhow::Result<Ran> {
    let output = command.output().await?;
    let text = |bytes| String::from_utf8(bytes);
    Ok(Ran { code: output.status.code(), out: text(output.stdout)?, err: text(output.stderr)? })
}
