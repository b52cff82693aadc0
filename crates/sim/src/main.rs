//! `tidegate-sim`: runs scenarios and reports those that break a promise.

use clap::Parser;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use tidegate_sim::limits::Algorithm;
use tidegate_sim::{Failure, Outcome, Plan, Tally, Tiers, run};

/// Runs the real filter and the real sidecar in a simulated world, and checks their promises.
///
/// A run is one scenario: some Envoy processes with workers, one sidecar, limits, traffic, a
/// network that loses, delays and duplicates messages, crashes, and wrong clocks. The algorithm and
/// the seed determine all of it. A broken promise prints the last events, the scenario, and the
/// command that replays the run, and sets exit code 1. See docs/internals/simulator.md.
#[derive(Debug, Parser)]
#[command(
    name = "tidegate-sim",
    after_help = "\
Examples:
  tidegate-sim                                          a million events of each algorithm
  tidegate-sim --algorithm token_bucket --runs 500      ten million of one
  tidegate-sim --shared                                 the same with sidecars that share counters
  tidegate-sim --algorithm exact --seed 17 --runs 1     replays a run"
)]
struct Cli {
    /// Algorithm of the first limit in each run, or all.
    #[arg(long, default_value = "all", value_parser = algorithms)]
    algorithm: Algorithms,
    /// Several sidecars that share their counters, instead of one.
    #[arg(long)]
    shared: bool,
    /// Events per run.
    #[arg(long, default_value_t = 20_000)]
    steps: u64,
    /// Seed of the first run; the others use the following seeds.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Runs per algorithm.
    #[arg(long, default_value_t = 50)]
    runs: u64,
    /// Parallel runs; the default is the number of processors.
    #[arg(long)]
    jobs: Option<usize>,
}

#[derive(Debug, Clone)]
struct Algorithms(Vec<Algorithm>);

fn algorithms(name: &str) -> Result<Algorithms, String> {
    if name == "all" {
        return Ok(Algorithms(Algorithm::ALL.to_vec()));
    }
    let found = Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name);
    found.map(|algorithm| Algorithms(vec![algorithm])).ok_or_else(|| {
        let names = Algorithm::ALL.map(Algorithm::name).join(", ");
        format!("expected all, or one of {names}")
    })
}

/// The results of the runs so far.
type Results = Vec<(Plan, Result<Outcome, Box<Failure>>)>;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let tiers = if cli.shared { Tiers::Three } else { Tiers::Two };
    let mut plans = Vec::new();
    for algorithm in &cli.algorithm.0 {
        for seed in cli.seed..cli.seed.saturating_add(cli.runs) {
            let (algorithm, steps) = (*algorithm, cli.steps);
            plans.push(Plan { tiers, algorithm, seed, steps, mutation: None });
        }
    }
    let started = Instant::now();
    let results = run_all(&plans, cli.jobs);
    eprintln!();
    print_table(&cli.algorithm.0, &results, started);
    let failures: Vec<_> = results.iter().filter_map(|(_, result)| result.as_ref().err()).collect();
    let Some(first) = failures.first() else { return ExitCode::SUCCESS };
    println!("\n{first}");
    for other in &failures[1..] {
        let Plan { algorithm, seed, .. } = other.plan;
        println!("also: {} seed {seed}: {}", algorithm.name(), other.broken);
    }
    ExitCode::FAILURE
}

/// Runs all plans in parallel; returns the results in the order of the plans.
fn run_all(plans: &[Plan], jobs: Option<usize>) -> Results {
    let jobs = jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, Into::into));
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(plans.len()));
    let work = || {
        // Relaxed: only the number matters; the mutex orders the results.
        while let Some(plan) = plans.get(next.fetch_add(1, Ordering::Relaxed)) {
            let result = run(*plan);
            let mut results = results.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            results.push((*plan, result));
            let broken = results.iter().filter(|(_, result)| result.is_err()).count();
            let (done, name, seed) = (results.len(), plan.algorithm.name(), plan.seed);
            let all = plans.len();
            eprint!("\r{done:>5} of {all} runs, {broken} broken; last {name} seed {seed}        ");
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(work);
        }
    });
    let mut results: Results =
        results.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    results.sort_by_key(|(plan, _)| (plan.algorithm, plan.seed));
    results
}

fn print_table(algorithms: &[Algorithm], results: &Results, started: Instant) {
    println!(
        "{:<17}{:>6}{:>11}{:>10}{:>10}{:>8}{:>9}{:>9}{:>8}{:>8}{:>8}",
        "algorithm",
        "runs",
        "steps",
        "requests",
        "admitted",
        "local",
        "asks",
        "leases",
        "faults",
        "used",
        "broken"
    );
    let mut steps = 0;
    for algorithm in algorithms {
        let (mut tally, mut used, mut broken, mut runs) = (Tally::default(), None::<u64>, 0, 0);
        for (_, result) in results.iter().filter(|(plan, _)| plan.algorithm == *algorithm) {
            runs += 1;
            match result {
                Ok(outcome) => {
                    tally += outcome.tally;
                    used = used.into_iter().chain(outcome.used).min();
                }
                Err(_) => broken += 1,
            }
        }
        steps += tally.steps;
        let local = 100 * tally.local / tally.requests.max(1);
        let used = used.map_or("-".to_owned(), |used| format!("{}.{}%", used / 10, used % 10));
        println!(
            "{:<17}{runs:>6}{:>11}{:>10}{:>10}{local:>7}%{:>9}{:>9}{:>8}{used:>8}{broken:>8}",
            algorithm.name(),
            tally.steps,
            tally.requests,
            tally.admitted,
            tally.asks,
            tally.leases,
            tally.faults,
        );
    }
    let rate = steps as f64 / started.elapsed().as_secs_f64();
    println!("{steps} steps, {rate:.0} a second");
}
