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
use commands::{
    EXIT_USAGE, check, exit_code, explain, manual, serve, stats, store, tail, top, translate,
    with_output,
};
use std::process::ExitCode;

/// Runs the program. Exit code 2 means a mistake on the command line or in the environment.
#[must_use]
pub fn run() -> ExitCode {
    let (cli, notices) = match defaults::parse_options() {
        Ok(parsed) => parsed,
        Err(code) => return code,
    };
    match cli.command {
        Command::Serve(options) => serve::run(&options, &notices),
        Command::Check(options) => check::run(&options),
        Command::Explain(options) => exit_code(with_output(|out| explain::run(&options, out)), 1),
        Command::Translate(options) => {
            exit_code(with_output(|out| translate::run(&options, out)), EXIT_USAGE)
        }
        Command::Stats(options) => exit_code(with_output(|out| stats::run(&options, out)), 1),
        Command::Top(options) => exit_code(with_output(|out| top::run(&options, out)), 1),
        Command::Tail(options) => exit_code(with_output(|out| tail::run(&options, out)), 1),
        Command::Store(command) => exit_code(with_output(|out| store::run(&command, out)), 1),
        Command::Load(arguments) => {
            let (options, output) = arguments.split();
            tidegate_load::run(&options, &output)
        }
        Command::Completions { shell } => {
            exit_code(with_output(|out| manual::completions(shell, out)), 1)
        }
        Command::Man { dir } => exit_code(manual::pages(&dir), 1),
    }
}
