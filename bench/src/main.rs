//! `make bench`: every benchmark of Tidegate, one suite each, with peers in the same run.
//!
//! On a shared machine only ratios within a run count. The compared subjects take turns, round after round,
//! and the figure is the median of the rounds.

mod charts;
mod core;
mod counter;
mod envoy;
mod figures;
mod generator;
mod instructions;
mod neighbours;
mod progress;
mod redis;
mod report;
mod rls;
mod server;
mod statistics;
mod store;
mod tiers;

use anyhow::Context;
use clap::{Parser, Subcommand, ValueEnum};
use report::Row;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidegate_tests::artifacts;

/// Runs the benchmarks of Tidegate, all suites by default
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Cli {
    /// The suites to run
    #[arg(value_enum)]
    suites: Vec<Suite>,
    /// Small sizes and few rounds, as a test of the benchmarks; has a results file of its own
    #[arg(long)]
    quick: bool,
    /// Directory for the store's files, which are removed afterwards [default: target/bench/store]
    #[arg(long)]
    dir: Option<PathBuf>,
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Suite {
    /// Algorithms and rule matching, without store and transport
    Core,
    /// CPU time of Envoy and sidecar per request; needs both and the filter
    Envoy,
    /// Counters that machines share in Redis, beside other ways to count there (and Limitador, if LIMITADOR is its
    /// server's path)
    Redis,
    /// Calls of the rate limit service (beside Limitador if LIMITADOR is its server's path), and FRS
    Rls,
    /// A day and a year of statistics at the size of an open platform, and the time of answers about them (half
    /// an hour)
    Statistics,
    /// The counter store beside in-memory rate limiters
    Store,
    /// Idle counters in a database, beside the same sidecar without one
    Tiers,
}

/// Parts of a suite that need a process of their own, such as those that print one figure; and the charts, which
/// measure nothing.
#[derive(Subcommand)]
enum Part {
    #[command(hide = true)]
    Memory(store::memory::Part),
    #[command(hide = true)]
    Decisions(store::instructions::Part),
    #[command(hide = true)]
    CoreDecisions(core::Part),
    #[command(hide = true)]
    Counting(redis::counting::Part),
    /// Draws the charts of docs/reference/algorithms.md
    #[command(hide = true)]
    Charts(charts::Part),
}

/// The extent of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// For publication.
    Full,
    /// A test of the benchmarks.
    Quick,
}

impl Extent {
    /// The sizes of this extent.
    pub(crate) fn of<T>(self, full: T, quick: T) -> T {
        match self {
            Extent::Full => full,
            Extent::Quick => quick,
        }
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match &cli.part {
        Some(Part::Memory(part)) => part.run(),
        Some(Part::Decisions(part)) => part.run(),
        Some(Part::CoreDecisions(part)) => part.run(),
        Some(Part::Counting(part)) => part.run(),
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
    if cfg!(debug_assertions) {
        println!(
            "This build has debug checks: it shows that the benchmarks run, and its figures mean nothing."
        );
    }
    let bench = artifacts::root().join("target/bench");
    let extent = if cli.quick { Extent::Quick } else { Extent::Full };
    let results = bench.join(extent.of("results.json", "results.quick.json"));
    let own_dir = bench.join("store");
    let dir = cli.dir.as_deref().unwrap_or(&own_dir);
    std::fs::create_dir_all(&bench).with_context(|| format!("cannot make {}", bench.display()))?;
    let _alone = alone(&bench)?;
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    for &suite in Suite::value_variants() {
        if cli.suites.is_empty() || cli.suites.contains(&suite) {
            let files = tempfile::tempdir_in(dir)?;
            let rows = suite.run(extent, files.path())?;
            report::merge(&results, &rows)?;
        }
    }
    if own_dir.exists() {
        // Includes files of interrupted runs.
        std::fs::remove_dir_all(&own_dir)?;
    }
    println!("Figures: {}", results.display());
    Ok(())
}

/// Keeps other runs away as long as it is held: two at once would measure each other.
fn alone(bench: &Path) -> anyhow::Result<File> {
    let path = bench.join("lock");
    let lock = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => {
            anyhow::bail!("another benchmark is running; its process has locked {}", path.display())
        }
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", path.display()))
        }
    }
}

impl Suite {
    fn run(self, extent: Extent, dir: &Path) -> anyhow::Result<Vec<Row>> {
        match self {
            Suite::Core => core::run(extent, dir),
            Suite::Envoy => envoy::run(extent),
            Suite::Redis => redis::run(extent),
            Suite::Rls => rls::run(extent),
            Suite::Statistics => statistics::run(extent, dir),
            Suite::Store => store::run(extent, dir),
            Suite::Tiers => tiers::run(extent, dir),
        }
    }
}
