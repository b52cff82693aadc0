//! How many calls a second a server answers, and how much CPU time each takes it, as fast as they go.

use super::generator::{Ask, Pace, load};
use super::server::{Kind, Server};
use super::{Cores, Plan, SUITE};
use crate::figures::median;
use crate::progress;
use crate::report::{Row, print_table};

/// Calls under way on each connection: enough to keep a server busy, about what a busy Envoy has.
const STREAMS: u32 = 20;

/// What was published of Limitador before, of 1 rule: µs of CPU a call, and calls a second.
const LIMITADOR_BEFORE: (f64, f64) = (12.0, 75_000.0);

struct Case {
    rules: u32,
    cores: Cores,
    kind: Kind,
    server: Server,
    /// µs of the server's CPU for each answer.
    micros: Vec<f64>,
    /// Answers a second.
    rate: Vec<f64>,
}

impl Case {
    fn name(&self) -> String {
        let rules = match self.rules {
            1 => "1 rule".to_owned(),
            rules => format!("{rules} rules"),
        };
        format!("{rules}, {}", self.cores.name())
    }

    fn per_cpu_second(&self) -> f64 {
        1e6 / median(&self.micros)
    }

    async fn measure(&mut self, plan: &Plan) -> anyhow::Result<()> {
        let before = self.server.cpu_micros()?;
        let pace = Pace::Closed { streams: STREAMS };
        let report = load(self.server.address, Ask::Rls, pace, plan.duration, self.cores).await?;
        let used = self.server.cpu_micros()? - before;
        self.micros.push(used / report.decided());
        self.rate.push(report.decided() / report.seconds());
        Ok(())
    }
}

pub(super) async fn measure(plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    let mut lines = Vec::new();
    for &cores in plan.cores {
        for &rules in plan.rules {
            let cases = measured(plan, rules, cores).await?;
            lines.extend(cases.iter().map(line));
            rows.extend(rows_of(&cases));
        }
    }
    progress::clear();
    let title = format!(
        "RLS calls as fast as they are answered, median of {} rounds of {:?}; CPU of the server alone",
        plan.rounds, plan.duration
    );
    let header = ["case", "calls per CPU second", "µs of CPU a call", "calls a second"];
    print_table(&title, &header, &lines);
    if let Some(ratio) = rows.iter().find_map(|row| row.ratio) {
        println!(
            "Calls per CPU second beside Limitador, 1 rule: {ratio:.1} times (target: at least 2)\n"
        );
    }
    Ok(rows)
}

async fn measured(plan: &Plan, rules: u32, cores: Cores) -> anyhow::Result<Vec<Case>> {
    let mut cases = Vec::new();
    for kind in Kind::all() {
        progress::show(&format!("starting {} with {rules} rules", kind.name()));
        let server = Server::start(kind, rules, cores).await?;
        let mut case = Case { rules, cores, kind, server, micros: Vec::new(), rate: Vec::new() };
        case.measure(plan).await?;
        // That was the warm-up.
        (case.micros, case.rate) = (Vec::new(), Vec::new());
        cases.push(case);
    }
    for round in 1..=plan.rounds {
        for case in &mut cases {
            let (name, who) = (case.name(), case.kind.name());
            progress::show(&format!("round {round} of {}: {name}: {who}", plan.rounds));
            case.measure(plan).await?;
        }
    }
    Ok(cases)
}

fn line(case: &Case) -> Vec<String> {
    vec![
        format!("{}: {}", case.name(), case.kind.name()),
        format!("{:.0}", case.per_cpu_second()),
        format!("{:.2}", median(&case.micros)),
        format!("{:.0}", median(&case.rate)),
    ]
}

fn rows_of(cases: &[Case]) -> Vec<Row> {
    let Some(ours) = cases.iter().find(|case| case.kind == Kind::Tidegate) else {
        return Vec::new();
    };
    let peer = cases.iter().find(|case| case.kind == Kind::Limitador);
    let before = (ours.rules == 1 && ours.cores == Cores::One).then_some(LIMITADOR_BEFORE);
    let row = |metric, value, of: &dyn Fn(&Case) -> f64, published: Option<f64>| {
        let row = Row::new(SUITE, ours.name(), metric, value);
        match (peer, published) {
            (Some(peer), _) => row.beside(peer.kind.name(), of(peer)),
            (None, Some(published)) => row.beside("limitador, measured before", published),
            (None, None) => row,
        }
    };
    vec![
        row(
            ("calls_per_cpu_second", "1/s"),
            ours.per_cpu_second(),
            &Case::per_cpu_second,
            before.map(|(micros, _)| 1e6 / micros),
        ),
        row(
            ("calls", "1/s"),
            median(&ours.rate),
            &|case| median(&case.rate),
            before.map(|(_, rate)| rate),
        ),
    ]
}
