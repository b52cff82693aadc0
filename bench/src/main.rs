//! `make bench`: every benchmark of Tidegate, a suite each, beside peers in the same run.
//!
//! Machines are shared, so that ratios within a run are what counts. Everything compared runs in
//! turn, round after round, and the median of the rounds is the figure.

mod charts;
mod core;
mod counter;
mod envoy;
mod figures;
mod neighbours;
mod progress;
mod report;
mod rls;
mod store;

use clap::{Parser, Subcommand, ValueEnum};
use report::Row;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidegate_tests::artifacts;

/// Runs the benchmarks of Tidegate; without a suite's name, all of them.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Cli {
    /// What to run
    #[arg(value_enum)]
    suites: Vec<Suite>,
    /// Small sizes and few rounds, to see that everything runs; figures go to a file of their own
    #[arg(long)]
    quick: bool,
    /// Where the store's files are made, and removed afterwards [default: target/bench/store]
    #[arg(long)]
    dir: Option<PathBuf>,
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Suite {
    /// Algorithms and the matching of rules, without store and transport
    Core,
    /// CPU time of Envoy and of the sidecar per request; needs both, and the filter, built
    Envoy,
    /// Calls of the rate limit service, beside Limitador where LIMITADOR names its server; and FRS
    Rls,
    /// The counter store beside in-memory rate limiters
    Store,
}

/// Parts of a suite that need a process to themselves, each of which prints its figure alone; and
/// what is drawn, not measured.
#[derive(Subcommand)]
enum Part {
    #[command(hide = true)]
    Memory(store::memory::Part),
    #[command(hide = true)]
    Decisions(store::instructions::Part),
    #[command(hide = true)]
    CoreDecisions(core::Part),
    /// Draws the charts of docs/reference/algorithms.md
    #[command(hide = true)]
    Charts(charts::Part),
}

/// How much of a suite runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Figures to be quoted.
    Full,
    /// Enough to see that it works.
    Quick,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match &cli.part {
        Some(Part::Memory(part)) => part.run(),
        Some(Part::Decisions(part)) => part.run(),
        Some(Part::CoreDecisions(part)) => part.run(),
        Some(Part::Charts(part)) => part.run(),
        None => run(&cli),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nfailed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> anyhow::Result<()> {
    let bench = artifacts::root().join("target/bench");
    let (extent, results) = match cli.quick {
        false => (Extent::Full, bench.join("results.json")),
        true => (Extent::Quick, bench.join("results.quick.json")),
    };
    let own_dir = bench.join("store");
    let dir = cli.dir.as_deref().unwrap_or(&own_dir);
    for &suite in Suite::value_variants() {
        if cli.suites.is_empty() || cli.suites.contains(&suite) {
            let rows = suite.run(extent, dir)?;
            report::merge(&results, &rows)?;
        }
    }
    if own_dir.exists() {
        // With what an interrupted run has left, too.
        std::fs::remove_dir_all(&own_dir)?;
    }
    println!("Figures: {}", results.display());
    Ok(())
}

impl Suite {
    fn run(self, extent: Extent, dir: &Path) -> anyhow::Result<Vec<Row>> {
        match self {
            Suite::Core => core::run(extent, dir),
            Suite::Envoy => envoy::run(extent),
            Suite::Rls => rls::run(extent),
            Suite::Store => store::run(extent, dir),
        }
    }
}
