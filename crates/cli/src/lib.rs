//! `tidegate`, the program: its command line, the sources of its options, and its subcommands.
//!
//! Owns the command line, and picks the implementations that make up a service. Of the service, only this crate
//! knows clap. A library so that the fuzzer reaches the file readers; the program is [`run`].

mod arguments;
mod commands;
mod defaults;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod output;
mod time;

use arguments::Command;
use commands::{check, explain, serve, store};
use std::process::ExitCode;

/// Runs the program. Exit code 2 means a mistake on the command line or in the environment.
#[must_use]
pub fn run() -> ExitCode {
    let (cli, notices) = match defaults::parse_options() {
        Ok(parsed) => parsed,
        Err(code) => return code,
    };
    let result = match cli.command {
        Command::Serve(options) => serve::run(&options, &notices),
        Command::Check(options) => return check::run(&options),
        Command::Explain(options) => return explain::run(&options),
        Command::Store(command) => return store::run(&command),
        Command::Load(arguments) => {
            let (options, output) = arguments.split();
            return tidegate_load::run(&options, &output);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tidegate: {error:#}");
            ExitCode::FAILURE
        }
    }
}
