//! Decisions per second and latency of a decision for every peer, by number of live keys, threads and batch
//! size, on existing keys (hits) and new ones (misses).

use super::comparison::Comparison;
use super::keys::{Keys, random_picks};
use super::peer::ALL;
use super::stage::{Ask, Case, Stage};
use super::{Plan, short};
use crate::figures::{Latencies, PERCENTILES, median};
use crate::progress;
use crate::report::Row;
use std::path::Path;
use std::time::Duration;

const THREADS: [usize; 2] = [1, 2];
const BATCHES: [usize; 2] = [1, 16];
/// Each run takes the next part, so that no run finds keys of the last one in caches.
const HIT_PICKS: usize = 8_000_000;

/// Decisions of a run on misses.
#[derive(Debug, Clone, Copy)]
struct Misses {
    /// One decision for this many live keys.
    of_keys: u32,
    min: u32,
}

// 20 runs in 5 rounds, and two for latency: 12 % of the keys, out of the reserved 12.5 %.
const MISSES_IN_RUN: Misses = Misses { of_keys: 200, min: 2_000 };
const MISSES_FOR_LATENCY: Misses = Misses { of_keys: 100, min: 10_000 };

/// The figures of a case, one per peer.
type Measured<T> = Vec<(Case, Vec<T>)>;

/// The figures of all cases.
#[derive(Debug, Default)]
pub(crate) struct Speeds {
    /// Decisions per second.
    rates: Measured<f64>,
    latencies: Measured<Latencies>,
}

/// Measures every size.
pub(crate) fn measure(plan: &Plan, keys: &Keys, dir: &Path) -> anyhow::Result<Speeds> {
    let mut speeds = Speeds::default();
    for &live in plan.sizes {
        let picks = random_picks(live, HIT_PICKS.max(plan.hits as usize * 2));
        let mut stages = Vec::new();
        for kind in ALL {
            stages.push(Stage::new(kind, live, keys, &picks, dir));
        }
        // Misses fill the peers, so that hits find exactly this many keys.
        for ask in [Ask::Miss, Ask::Hit] {
            if ask == Ask::Hit {
                progress::show(&format!("filling up to {} keys", short(live)));
                stages.iter_mut().try_for_each(Stage::fill)?;
            }
            measure_rates(plan, live, ask, &mut stages, &mut speeds.rates)?;
            measure_latencies(plan, live, ask, &mut stages, &mut speeds.latencies)?;
        }
    }
    progress::clear();
    Ok(speeds)
}

fn measure_rates(
    plan: &Plan,
    keys: u32,
    ask: Ask,
    stages: &mut [Stage<'_>],
    rates: &mut Measured<f64>,
) -> anyhow::Result<()> {
    let cases = THREADS.into_iter().flat_map(|threads| BATCHES.map(|batch| (threads, batch)));
    let cases: Vec<Case> =
        cases.map(|(threads, batch)| Case { keys, ask, threads, batch }).collect();
    let mut rounds = vec![vec![Vec::new(); stages.len()]; cases.len()];
    for round in 1..=plan.rounds {
        for (case, rounds) in cases.iter().zip(&mut rounds) {
            progress::show(&format!("round {round} of {}: {case}", plan.rounds));
            let count = decisions(plan, case, MISSES_IN_RUN);
            for (stage, rates) in stages.iter_mut().zip(rounds) {
                let mut took = Duration::ZERO;
                stage.ask(case, count, |work| {
                    took += work.run_allowed(case.batch)?;
                    Ok(())
                })?;
                rates.push(f64::from(count) / took.as_secs_f64());
            }
        }
    }
    let medians = rounds.iter().map(|peers| peers.iter().map(|rates| median(rates)).collect());
    rates.extend(cases.into_iter().zip(medians));
    Ok(())
}

fn measure_latencies(
    plan: &Plan,
    keys: u32,
    ask: Ask,
    stages: &mut [Stage<'_>],
    measured: &mut Measured<Latencies>,
) -> anyhow::Result<()> {
    for threads in THREADS {
        let case = Case { keys, ask, threads, batch: 1 };
        progress::show(&format!("latency: {case}"));
        let count = decisions(plan, &case, MISSES_FOR_LATENCY);
        let mut peers = Vec::new();
        for stage in &mut *stages {
            let mut all = Latencies::new()?;
            stage.ask(&case, count, |work| all.add(&work.latencies()?))?;
            peers.push(all);
        }
        measured.push((case, peers));
    }
    Ok(())
}

/// Decisions of a run in a case.
fn decisions(plan: &Plan, case: &Case, misses: Misses) -> u32 {
    match case.ask {
        Ask::Hit => plan.hits * case.threads as u32,
        Ask::Miss => (case.keys / misses.of_keys).max(misses.min),
    }
}

impl Speeds {
    /// Decisions per second of the measured store in a case.
    pub(crate) fn rate(&self, case: &Case) -> Option<f64> {
        let (_, rates) = self.rates.iter().find(|(measured, _)| measured == case)?;
        rates.first().copied()
    }

    /// Prints all figures, and makes rows of them.
    pub(crate) fn report(&self) -> Vec<Row> {
        let mut decisions =
            Comparison::new("Decisions per second, in millions", "decisions", "1/s");
        decisions.shown_in = 1e6;
        for (case, rates) in &self.rates {
            decisions.add(case, rates.clone());
        }
        decisions.print();
        let mut rows = decisions.rows();
        for (metric, percent) in PERCENTILES {
            let title = format!("Latency of a decision in µs, p{percent}");
            let mut latency = Comparison::new(&title, metric, "us");
            for (case, peers) in &self.latencies {
                let micros = peers.iter().map(|all| all.percentile_micros(percent));
                latency.add(case, micros.collect());
            }
            latency.print();
            rows.extend(latency.rows());
        }
        rows
    }
}
