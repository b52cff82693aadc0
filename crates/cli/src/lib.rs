//! `tidegate`, the program: arguments, where their defaults come from, and subcommands.
//!
//! Owns the command line, and picks the implementations that a service is made of. Only this crate knows clap. A
//! library so that the fuzzer reaches the readers of files; the program is [`run`].

mod arguments;
mod commands;
mod defaults;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod output;
mod time;

use arguments::{Cli, Command};
use clap::{CommandFactory, FromArgMatches};
use commands::{check, explain, serve, store};
use defaults::env::Inherited;
use defaults::srv;
use std::process::ExitCode;

/// Runs the program. Exit code 2 is for a mistake on the command line or in the environment.
#[must_use]
pub fn run() -> ExitCode {
    let mut command = Cli::command();
    // What it says are defaults, which must be known before the command line is read.
    if let Some(path) = srv::path(std::env::args_os(), std::env::var_os("TIDEGATE_SRV")) {
        match srv::read(&path) {
            Ok(srv) => command = srv::apply(command, &srv),
            Err(mistakes) => {
                eprintln!("tidegate: {mistakes}");
                return ExitCode::FAILURE;
            }
        }
    }
    // The environment wins over a file.
    let inherited = Inherited::of(std::env::var_os);
    let matches = inherited.defaults(command).get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let result = match cli.command {
        Command::Serve(mut options) => {
            for mistake in inherited.mistakes() {
                eprintln!("tidegate: {mistake}");
            }
            if !inherited.mistakes().is_empty() {
                return ExitCode::from(2);
            }
            if let Some(serve) = matches.subcommand_matches("serve") {
                srv::yield_to_flags(serve, &mut options);
            }
            let serve = matches.subcommand_matches("serve");
            let notices = serve.map(|serve| inherited.notices(serve)).unwrap_or_default();
            serve::run(&options, &notices)
        }
        Command::Check(options) => return check::run(&options),
        Command::Explain(options) => return explain::run(&options),
        Command::Store(command) => return store::run(&command),
        Command::Load(options) => return tidegate_load::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tidegate: {error:#}");
            ExitCode::FAILURE
        }
    }
}
