//! Open-loop load on a rate limit service. Every request is counted in exactly one class.
//!
//! Owns the schedule, the connections and the account. Depends on the protocols of services, and on no
//! part of the sidecar. [`measure`] is for programs, [`run()`] is the command.

mod chart;
mod connection;
mod ending;
mod frs;
mod generator;
mod keys;
mod options;
mod progress;
mod random;
mod report;
mod rls;
mod run;
mod schedule;
mod socket;
pub mod svg;
mod tally;
mod template;
mod text;

pub use connection::ConnectionCounts;
pub use keys::Distribution;
pub use options::{Descriptor, FrsCommand, LoadOptions, Protocol, Target};
pub use report::{Account, Classes, Config, Latency, LatencyReport, Quantiles, Report};
pub use tally::Latencies;

use anyhow::Context;
use progress::Progress;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::signal::unix::{SignalKind, signal};

/// The exit status of a program that a second Ctrl-C ended.
const INTERRUPTED: i32 = 130;

/// Runs a load without output.
///
/// # Errors
/// When the options are invalid or no connection can be opened.
pub fn measure(options: &LoadOptions) -> anyhow::Result<Report> {
    run::measure(options, &AtomicBool::new(false), None)
}

/// Where a report goes.
#[derive(Debug, Clone)]
pub struct Output {
    /// The report as JSON: a file, or standard output (-) instead of the table.
    pub json: Option<PathBuf>,
    /// Latency by percentile, drawn as SVG.
    pub svg: Option<PathBuf>,
    /// A line of progress on a terminal.
    pub shows_progress: bool,
}

/// `tidegate load`: runs a load and prints its report.
#[must_use]
pub fn run(options: &LoadOptions, output: &Output) -> ExitCode {
    match try_run(options, output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn try_run(options: &LoadOptions, output: &Output) -> anyhow::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    stop_on_interrupt(stop.clone())?;
    let progress = Progress::to_terminal().filter(|_| output.shows_progress);
    let report = run::measure(options, &stop, progress)?;
    match output.json.as_deref() {
        Some(path) if path == Path::new("-") => println!("{}", report.json()?),
        Some(path) => {
            write(path, &(report.json()? + "\n"))?;
            print!("{}", text::table(&report));
        }
        None => print!("{}", text::table(&report)),
    }
    if let Some(path) = &output.svg {
        write(path, &chart::latency(&report))?;
    }
    report.check()
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// From now on, the first Ctrl-C ends the load early, with its report; the second ends the program.
fn stop_on_interrupt(stop: Arc<AtomicBool>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let mut interrupts = {
        let _context = runtime.enter();
        signal(SignalKind::interrupt())?
    };
    let wait = async move {
        while interrupts.recv().await.is_some() {
            if stop.swap(true, Ordering::Relaxed) {
                std::process::exit(INTERRUPTED);
            }
        }
    };
    let watch = move || runtime.block_on(wait);
    std::thread::Builder::new().name("signals".to_owned()).spawn(watch)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Signal, getpid, kill_process};
    use std::time::{Duration, Instant};

    /// The thread that hears of interrupts asked for them itself. Until it ran, an interrupt ended the program without a
    /// report.
    #[test]
    fn an_interrupt_counts_from_the_begin() {
        let stop = Arc::new(AtomicBool::new(false));
        stop_on_interrupt(stop.clone()).unwrap();
        kill_process(getpid(), Signal::INT).unwrap();
        let since = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            assert!(since.elapsed() < Duration::from_secs(30), "the interrupt was not heard");
            std::thread::yield_now();
        }
    }
}
