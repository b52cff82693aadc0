//! `tidegate`, the sidecar: owns the true counters and answers Envoy's rate limit calls.
//!
//! A library only so that the simulator can run the real engine ([`Authority`]). The program is
//! [`run`]: it maps the command line to an exit code.

mod address;
mod authority;
mod check;
mod cli;
mod clock;
mod diff;
mod engine;
mod explain;
mod http;
mod keeper;
mod metrics;
mod reload;
mod rls;
mod rules;
mod serve;
mod store_commands;
mod words;

pub use authority::Authority;
use clap::Parser;
use cli::{Cli, Command};
use std::process::ExitCode;

/// Runs the program.
#[must_use]
pub fn run() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(options) => serve::run(&options),
        Command::Check(options) => return check::run(&options),
        Command::Explain(options) => return explain::run(&options),
        Command::Store(command) => return store_commands::run(&command),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tidegate: {error:#}");
            ExitCode::FAILURE
        }
    }
}
