//! How long calls take at a fixed rate, counted from when each was due.

use super::generator::{Ask, From, Pace, Report, load};
use super::server::{Kind, Server};
use super::{Cores, Plan, SUITE};
use crate::figures::median;
use crate::progress;
use crate::report::{Row, print_table};

/// As the generator names them.
pub(super) const PERCENTILES: [&str; 4] = ["p50", "p99", "p99.9", "p99.99"];
const METRICS: [&str; 4] = ["latency_p50", "latency_p99", "latency_p99.9", "latency_p99.99"];

pub(super) async fn measure(plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    let mut lines = Vec::new();
    for &rate in plan.rates {
        let mut peers = Vec::new();
        for (kind, reports) in measured(plan, rate).await? {
            let figures = medians(&reports, From::Due);
            lines.push(line(&format!("{rate}/s: {}", kind.name()), &figures, &reports));
            peers.push((kind, figures));
        }
        rows.extend(rows_of(&format!("{rate} calls a second"), &peers));
    }
    progress::clear();
    let title = format!(
        "RLS calls at a fixed rate, 1 rule, 2 cores shared with the generator: latency in µs since they \
         were due, medians of {} rounds of {:?}",
        plan.rounds, plan.duration
    );
    print_table(&title, &["rate", "p50", "p99", "p99.9", "p99.99", "not decided"], &lines);
    Ok(rows)
}

/// What the rounds gave, of each server that can be run.
async fn measured(plan: &Plan, rate: u64) -> anyhow::Result<Vec<(Kind, Vec<Report>)>> {
    let mut peers = Vec::new();
    for kind in Kind::all() {
        peers.push((kind, Server::start(kind, 1, Cores::Two).await?, Vec::new()));
    }
    for round in 0..=plan.rounds {
        for (kind, server, reports) in &mut peers {
            let (rounds, who) = (plan.rounds, kind.name());
            progress::show(&format!("{rate} calls a second, round {round} of {rounds}: {who}"));
            let pace = Pace::Open { rate };
            let report = load(server.address, Ask::Rls, pace, plan.duration, Cores::Two).await?;
            // The first was the warm-up.
            if round > 0 {
                reports.push(report);
            }
        }
    }
    Ok(peers.into_iter().map(|(kind, _, reports)| (kind, reports)).collect())
}

/// The median of each percentile over the rounds.
pub(super) fn medians(reports: &[Report], from: From) -> [f64; 4] {
    PERCENTILES.map(|percentile| {
        let of = reports.iter().map(|report| report.served_micros(from, percentile));
        median(&of.collect::<Vec<f64>>())
    })
}

/// A line of a table of latencies.
pub(super) fn line(name: &str, figures: &[f64; 4], reports: &[Report]) -> Vec<String> {
    let mut line = vec![name.to_owned()];
    line.extend(figures.iter().map(|figure| format!("{figure:.0}")));
    let missing: f64 = reports.iter().map(|report| report.due() - report.decided()).sum();
    line.push(format!("{missing:.0}"));
    line
}

fn rows_of(case: &str, peers: &[(Kind, [f64; 4])]) -> Vec<Row> {
    let of = |wanted: Kind| peers.iter().find(|(kind, _)| *kind == wanted).map(|(_, of)| of);
    let Some(ours) = of(Kind::Tidegate) else {
        return Vec::new();
    };
    let figures = METRICS.into_iter().zip(ours).enumerate();
    let row = |(index, (metric, value)): (usize, (&'static str, &f64))| {
        let row = Row::new(SUITE, case, (metric, "us"), *value);
        match of(Kind::Limitador) {
            Some(peer) => row.beside(Kind::Limitador.name(), peer[index]),
            None => row,
        }
    };
    figures.map(row).collect()
}

/// Rows of latencies that stand alone.
pub(super) fn rows_alone(case: &str, figures: &[f64; 4]) -> Vec<Row> {
    rows_of(case, &[(Kind::Tidegate, *figures)])
}
