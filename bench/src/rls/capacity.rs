//! Closed loop: calls per second, CPU time per call, and latency of the slowest calls.

use super::server::{self, Software};
use super::{Plan, SUITE, calls};
use crate::figures::median;
use crate::generator::{From, Pace};
use crate::progress;
use crate::report::{Row, print_table};
use crate::server::{Cores, Server};

/// Concurrent calls on each connection: enough to keep a server busy, about those of a busy Envoy.
const STREAMS: u32 = 20;

/// The figures of a server.
struct Figures {
    /// µs of the server's CPU per answer.
    micros: f64,
    /// Answers per second.
    rate: f64,
    /// In µs from when a call was written to its answer, if measured.
    p99: Option<f64>,
}

impl Figures {
    fn per_cpu_second(&self) -> f64 {
        1e6 / self.micros
    }
}

/// Shown for a Limitador that is not run: 1 rule, 1 core.
const LIMITADOR_BEFORE: (&str, Figures) = (
    "limitador, measured before on another machine",
    Figures { micros: 12.0, rate: 75_000.0, p99: None },
);

/// Measured last, and beside ours alone.
const WITH_STATISTICS: Software = Software::TidegateWithStatistics;

/// A server and its rounds.
struct Peer {
    kind: Software,
    cores: Cores,
    server: Server,
    micros: Vec<f64>,
    rate: Vec<f64>,
    p99: Vec<f64>,
}

impl Peer {
    async fn start(kind: Software, rules: u32, cores: Cores) -> anyhow::Result<Peer> {
        let server = server::start(kind, rules, cores).await?;
        Ok(Peer { kind, cores, server, micros: Vec::new(), rate: Vec::new(), p99: Vec::new() })
    }

    async fn measure(&mut self, round: usize, plan: &Plan) -> anyhow::Result<()> {
        let before = self.server.cpu_micros()?;
        let pace = Pace::Closed { streams: STREAMS };
        let report = calls(&self.server, pace, plan, self.cores).run().await?;
        let used = self.server.cpu_micros()? - before;
        // The first round is the warm-up.
        if round > 0 {
            self.micros.push(used / report.decided());
            self.rate.push(report.decided() / report.seconds());
            self.p99.push(report.served_micros(From::Written, "p99"));
        }
        Ok(())
    }

    fn figures(&self) -> Figures {
        let p99 = Some(median(&self.p99));
        Figures { micros: median(&self.micros), rate: median(&self.rate), p99 }
    }
}

pub(super) async fn measure(plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    let mut lines = Vec::new();
    for &cores in plan.cores {
        for &rules in plan.rules {
            let case = name(rules, cores);
            let mut peers = measured(plan, rules, cores).await?;
            let with_statistics = peers.pop_if(|(name, _)| *name == WITH_STATISTICS.name());
            let mut extra = Vec::new();
            if let (Some((name, with)), Some((_, without))) = (with_statistics, peers.first()) {
                println!(
                    "{case}: three statistics take {:+.1} % of CPU a call (target: at most 5)",
                    100.0 * (with.micros / without.micros - 1.0)
                );
                lines.push(line(format!("{case}: {name}"), &with));
                let metric = ("cpu_with_statistics", "us");
                let row = Row::new(SUITE, &case, metric, with.micros);
                extra.push(row.beside(Some(("tidegate", without.micros))));
            }
            if peers.len() == 1 && rules == 1 && cores == Cores::One {
                peers.push(LIMITADOR_BEFORE);
            }
            lines.extend(peers.iter().map(|(who, of)| line(format!("{case}: {who}"), of)));
            rows.extend(rows_of(&case, &peers));
            rows.extend(extra);
        }
    }
    progress::clear();
    let title = format!(
        "RLS calls as fast as they are answered, median of {} rounds of {:?}; CPU of the server alone; p99 \
         in µs of what is decided, since it was written",
        plan.rounds, plan.duration
    );
    let header = ["case", "calls per CPU second", "µs of CPU a call", "calls a second", "p99"];
    print_table(&title, &header, &lines);
    // The first row is that of calls per CPU second.
    let compared = rows.iter().find(|row| row.ratio.is_some());
    if let Some(Row { case, peer: Some(peer), ratio: Some(ratio), .. }) = compared {
        println!(
            "Calls per CPU second, {case}, beside {peer}: {ratio:.1} times (target: at least 2)\n"
        );
    }
    Ok(rows)
}

/// The figures of Tidegate, then those of available peers.
async fn measured(
    plan: &Plan,
    rules: u32,
    cores: Cores,
) -> anyhow::Result<Vec<(&'static str, Figures)>> {
    let mut peers = Vec::new();
    let mut kinds = Software::all();
    if rules == 1 {
        kinds.push(WITH_STATISTICS);
    }
    for kind in kinds {
        progress::show(&format!("starting {} with {rules} rules", kind.name()));
        peers.push(Peer::start(kind, rules, cores).await?);
    }
    for round in 0..=plan.rounds {
        for peer in &mut peers {
            let (case, who) = (name(rules, cores), peer.kind.name());
            progress::show(&format!("{case}, round {round} of {}: {who}", plan.rounds));
            peer.measure(round, plan).await?;
        }
    }
    Ok(peers.iter().map(|peer| (peer.kind.name(), peer.figures())).collect())
}

fn name(rules: u32, cores: Cores) -> String {
    match rules {
        1 => format!("1 rule, {}", cores.name()),
        _ => format!("{rules} rules, {}", cores.name()),
    }
}

fn line(name: String, figures: &Figures) -> Vec<String> {
    vec![
        name,
        format!("{:.0}", figures.per_cpu_second()),
        format!("{:.2}", figures.micros),
        format!("{:.0}", figures.rate),
        figures.p99.map_or_else(|| "-".to_owned(), |p99| format!("{p99:.0}")),
    ]
}

/// A row for each figure of the first server, beside that of the second if there is one.
fn rows_of(case: &str, peers: &[(&str, Figures)]) -> Vec<Row> {
    let Some((_, ours)) = peers.first() else {
        return Vec::new();
    };
    let row = |metric, of: fn(&Figures) -> Option<f64>| {
        let peer = peers.get(1).and_then(|(who, theirs)| Some((*who, of(theirs)?)));
        Some(Row::new(SUITE, case, metric, of(ours)?).beside(peer))
    };
    let rows = [
        row(("calls_per_cpu_second", "1/s"), |of| Some(of.per_cpu_second())),
        row(("calls", "1/s"), |of| Some(of.rate)),
        row(("latency_p99", "us"), |of| of.p99),
    ];
    rows.into_iter().flatten().collect()
}
