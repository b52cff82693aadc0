//! The subcommands: what each does and prints, and their exit codes.

pub(crate) mod chart;
pub(crate) mod check;
pub(crate) mod explain;
pub(crate) mod manual;
pub(crate) mod serve;
pub(crate) mod stats;
pub(crate) mod store;
pub(crate) mod tail;
pub(crate) mod top;
pub(crate) mod translate;

use crate::output::Output;
use std::fmt;
use std::io::Write;
use std::process::ExitCode;

/// The exit code of clap for a mistake on the command line, and of diff(1) for an error.
pub(crate) const EXIT_USAGE: u8 = 2;

/// A mistake on the command line that clap cannot detect.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// Runs a command that prints. Output before an error is printed, too.
pub(crate) fn with_output(
    command: impl FnOnce(&mut Output) -> anyhow::Result<ExitCode>,
) -> anyhow::Result<ExitCode> {
    let mut out = Output::new();
    let result = command(&mut out);
    let flushed = out.flush();
    let code = result?;
    flushed?;
    Ok(code)
}

/// The exit code of a command, `failure` after an error. Prints the error.
pub(crate) fn exit_code(result: anyhow::Result<ExitCode>, failure: u8) -> ExitCode {
    result.unwrap_or_else(|error| {
        eprintln!("tidegate: {error:#}");
        exit_code_of(&error, failure)
    })
}

/// The exit code of a command that ended with this error.
pub(crate) fn exit_code_of(error: &anyhow::Error, failure: u8) -> ExitCode {
    ExitCode::from(if error.is::<UsageError>() { EXIT_USAGE } else { failure })
}
