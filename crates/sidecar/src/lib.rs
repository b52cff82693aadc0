//! `tidegate`, the sidecar: owns the true counters and answers Envoy's rate limit calls.
//!
//! A library only so that the simulator can run the real engine ([`Authority`]), and the fuzzer what reads
//! bytes of others. The program is
//! [`run`]: it maps the command line to an exit code.

mod accept;
mod address;
mod authority;
mod check;
mod cli;
mod clock;
mod drain;
mod engine;
mod explain;
mod frs;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod health;
mod http;
mod http1;
mod keeper;
mod memory_limit;
mod metrics;
mod migration;
mod neighbour;
mod overload;
mod places;
mod reload;
mod replies;
mod rls;
mod serve;
mod store_commands;

pub use authority::Authority;
use clap::{CommandFactory, FromArgMatches};
use cli::{Cli, Command};
use migration::Inherited;
use std::process::ExitCode;

/// Runs the program. Exit code 2 is for a mistake on the command line or in the environment.
#[must_use]
pub fn run() -> ExitCode {
    let mut command = Cli::command();
    // What it says are defaults, which must be known before the command line is read.
    if let Some(path) = frs::srv::path(std::env::args_os(), std::env::var_os("TIDEGATE_SRV")) {
        match frs::srv::read(&path) {
            Ok(srv) => command = frs::srv::apply(command, &srv),
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
                frs::srv::yield_to_flags(serve, &mut options);
            }
            options.inherited =
                matches.subcommand_matches("serve").map(|serve| inherited.notices(serve));
            serve::run(&options)
        }
        Command::Check(options) => return check::run(&options),
        Command::Explain(options) => return explain::run(&options),
        Command::Store(command) => return store_commands::run(&command),
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
