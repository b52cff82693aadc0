//! The latency of calls at a fixed rate, from when each was due.

use super::server::{self, Software};
use super::{Plan, SUITE, calls};
use crate::figures::median;
use crate::generator::{From, Pace, Report};
use crate::progress;
use crate::report::{Row, print_table};
use crate::server::{Cores, Server};

/// The generator's names of them.
pub(super) const PERCENTILES: [&str; 4] = ["p50", "p99", "p99.9", "p99.99"];
const METRICS: [&str; 4] = ["latency_p50", "latency_p99", "latency_p99.9", "latency_p99.99"];

pub(super) async fn measure(plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    let mut lines = Vec::new();
    for &rate in plan.rates {
        let (mut peers, mut costs) = (Vec::new(), Vec::new());
        for Measured { kind, reports, micros, .. } in measured(plan, rate).await? {
            let (figures, cost) = (medians(&reports, From::Due), median(&micros));
            let mut line = line(&format!("{rate}/s: {}", kind.name()), &figures, &reports);
            line.insert(1, format!("{cost:.1}"));
            lines.push(line);
            peers.push((kind, figures));
            costs.push((kind, cost));
        }
        let case = format!("{rate} calls a second");
        rows.extend(row_of(&case, ("cpu", "us/call"), &costs));
        rows.extend(rows_of(&case, &peers));
    }
    progress::clear();
    let title = format!(
        "RLS calls at a fixed rate, 1 rule, 2 cores shared with the generator: latency in µs since they \
         were due, medians of {} rounds of {:?}",
        plan.rounds, plan.duration
    );
    let header = ["rate", "µs of CPU a call", "p50", "p99", "p99.9", "p99.99", "not decided"];
    print_table(&title, &header, &lines);
    Ok(rows)
}

/// The rounds of a server.
struct Measured {
    kind: Software,
    server: Server,
    reports: Vec<Report>,
    /// µs of its CPU per call.
    micros: Vec<f64>,
}

/// The rounds of each available server.
async fn measured(plan: &Plan, rate: u64) -> anyhow::Result<Vec<Measured>> {
    let mut peers = Vec::new();
    for kind in Software::all() {
        let server = server::start(kind, 1, Cores::Two).await?;
        peers.push(Measured { kind, server, reports: Vec::new(), micros: Vec::new() });
    }
    for round in 0..=plan.rounds {
        for Measured { kind, server, reports, micros } in &mut peers {
            let (rounds, who) = (plan.rounds, kind.name());
            progress::show(&format!("{rate} calls a second, round {round} of {rounds}: {who}"));
            let pace = Pace::Open { rate };
            let before = server.cpu_micros()?;
            let report = calls(server, pace, plan, Cores::Two).run().await?;
            // The first round is the warm-up.
            if round > 0 {
                micros.push((server.cpu_micros()? - before) / report.decided());
                reports.push(report);
            }
        }
    }
    Ok(peers)
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

fn rows_of(case: &str, peers: &[(Software, [f64; 4])]) -> Vec<Row> {
    let row = |(index, metric)| {
        let figures: Vec<_> = peers.iter().map(|(kind, figures)| (*kind, figures[index])).collect();
        row_of(case, (metric, "us"), &figures)
    };
    METRICS.into_iter().enumerate().filter_map(row).collect()
}

/// Tidegate's figure, beside Limitador's if it was run.
fn row_of(
    case: &str,
    what: (&'static str, &'static str),
    peers: &[(Software, f64)],
) -> Option<Row> {
    let of = |wanted: Software| peers.iter().find(|(kind, _)| *kind == wanted).map(|(_, of)| *of);
    let peer = of(Software::Limitador).map(|peer| (Software::Limitador.name(), peer));
    Some(Row::new(SUITE, case, what, of(Software::Tidegate)?).beside(peer))
}

/// Rows of latencies without a peer.
pub(super) fn rows_alone(case: &str, figures: &[f64; 4]) -> Vec<Row> {
    rows_of(case, &[(Software::Tidegate, *figures)])
}
