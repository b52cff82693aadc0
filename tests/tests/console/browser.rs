//! Runs a case of tests/console, which drives a Chromium.

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use std::path::PathBuf;
use tidegate_tests::command::run;
use tidegate_tests::{artifacts, not_run, wait};
use tokio::process::Command;

/// A Chromium, and where its screenshots go.
#[derive(Debug)]
pub(crate) struct Browser {
    chromium: PathBuf,
    shots: PathBuf,
}

impl Browser {
    /// The one that `CHROMIUM` names, or Debian's. None where there is none, which is said.
    pub(crate) fn find() -> anyhow::Result<Option<Browser>> {
        let found = artifacts::chromium();
        let found = not_run::or_named("Chromium (Debian's chromium, or CHROMIUM=path)", found)?;
        let Some(chromium) = found else { return Ok(None) };
        let shots = artifacts::root().join("target/tests/console");
        std::fs::create_dir_all(&shots)?;
        Ok(Some(Browser { chromium, shots }))
    }

    /// Runs a case to its end, on a console at `base`.
    pub(crate) async fn run(&self, case: &str, base: &str, mut given: Value) -> anyhow::Result<()> {
        let more = json!({ "base": base, "chromium": self.chromium, "shots": self.shots });
        let (all, more) = (given.as_object_mut().context("no object")?, more);
        all.extend(more.as_object().cloned().unwrap_or_default());
        let mut command = Command::new("node");
        command
            .arg(artifacts::root().join(format!("tests/console/{case}.mjs")))
            .arg(given.to_string())
            .env("NODE_PATH", artifacts::playwright()?);
        let ran = wait::within(case, wait::COMMAND, run(command)).await??;
        ensure!(ran.code == Some(0), "{case}:\n{}\n{}", ran.out, ran.err);
        Ok(())
    }
}
