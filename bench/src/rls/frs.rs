//! FRS alone: pairs of Query and Update, in a closed loop and at a fixed rate.

use super::pace::{line, medians, rows_alone};
use super::{Plan, SUITE, load, server};
use crate::figures::median;
use crate::generator::{Ask, From, Pace, Report};
use crate::progress;
use crate::report::{Row, print_table};
use crate::server::{Cores, Server};

/// A pace, and its rounds.
struct Case {
    name: String,
    cores: Cores,
    pace: Pace,
    /// The start of its latency.
    from: From,
    /// µs of the server's CPU per pair.
    micros: Vec<f64>,
    /// Pairs per second.
    rate: Vec<f64>,
    reports: Vec<Report>,
}

impl Case {
    /// A closed loop and a fixed rate.
    fn both(plan: &Plan, cores: Cores) -> [Case; 2] {
        let rate = plan.pairs;
        [
            ("as fast as they go".to_owned(), Pace::Closed { streams: 1 }, From::Written),
            (format!("{rate} pairs a second"), Pace::Open { rate }, From::Due),
        ]
        .map(|(name, pace, from)| {
            let name = format!("FRS, {}, {name}", cores.name());
            Case { name, cores, pace, from, micros: vec![], rate: vec![], reports: vec![] }
        })
    }

    async fn measure(&mut self, server: &Server, round: usize, plan: &Plan) -> anyhow::Result<()> {
        let before = server.cpu_micros()?;
        let report = load(server, Ask::FrsPairs, self.pace, plan, self.cores).run().await?;
        let used = server.cpu_micros()? - before;
        // The first round is the warm-up.
        if round > 0 {
            self.micros.push(used / report.pairs());
            self.rate.push(report.pairs() / report.seconds());
            self.reports.push(report);
        }
        Ok(())
    }

    fn line(&self) -> Vec<String> {
        let mut line = line(&self.name, &medians(&self.reports, self.from), &self.reports);
        let [micros, rate] = [median(&self.micros), median(&self.rate)];
        line.splice(1..1, [format!("{rate:.0}"), format!("{micros:.1}")]);
        line
    }

    fn rows(&self) -> Vec<Row> {
        let mut rows = rows_alone(&self.name, &medians(&self.reports, self.from));
        rows.push(Row::new(SUITE, &self.name, ("cpu", "us/pair"), median(&self.micros)));
        rows.push(Row::new(SUITE, &self.name, ("pairs", "1/s"), median(&self.rate)));
        rows
    }
}

pub(super) async fn measure(plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let mut cases = Vec::new();
    for &cores in plan.cores {
        let server = server::start_frs(cores).await?;
        let mut both = Case::both(plan, cores);
        for round in 0..=plan.rounds {
            for case in &mut both {
                progress::show(&format!("{}, round {round} of {}", case.name, plan.rounds));
                case.measure(&server, round, plan).await?;
            }
        }
        cases.extend(both);
    }
    progress::clear();
    let title = format!(
        "FRS, Query then Update, medians of {} rounds of {:?}; CPU of the server alone; latency of a request \
         in µs since it was due at a fixed rate, since it was written else",
        plan.rounds, plan.duration
    );
    let header = [
        "case",
        "pairs a second",
        "µs of CPU a pair",
        "p50",
        "p99",
        "p99.9",
        "p99.99",
        "not decided",
    ];
    print_table(&title, &header, &cases.iter().map(Case::line).collect::<Vec<_>>());
    Ok(cases.iter().flat_map(Case::rows).collect())
}
