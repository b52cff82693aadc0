//! `tidegate completions` and `tidegate man`: what a system knows of the command line, made from the command line
//! itself, so that neither says what the program does not.

use crate::arguments::Cli;
use crate::output::Output;
use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

pub(crate) fn completions(shell: Shell, out: &mut Output) -> anyhow::Result<ExitCode> {
    // It cannot fail into memory.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tidegate", &mut script);
    out.write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes `tidegate.1`, and a page for each command below it.
pub(crate) fn pages(dir: &Path) -> anyhow::Result<ExitCode> {
    let written = clap_mangen::generate_to(Cli::command().disable_help_subcommand(true), dir);
    written.with_context(|| format!("cannot write manual pages into {}", dir.display()))?;
    Ok(ExitCode::SUCCESS)
}
