//! More calls than a server can answer: the served part, its latency, and the recovery.

use super::pace::{line, medians, rows_alone};
use super::server::{self, Software};
use super::{Plan, SUITE, calls};
use crate::generator::{From, Pace};
use crate::progress;
use crate::report::{Row, print_table};
use crate::server::Cores;

/// Concurrent calls on each connection while the server's capacity is measured.
const STREAMS: u32 = 20;
/// The offered rates in parts of the capacity. The generator's own core cannot offer much more.
const EXCESS: f64 = 1.5;
const AFTER: f64 = 0.25;

pub(super) async fn measure(plan: &Plan) -> anyhow::Result<Vec<Row>> {
    // One core, so that the generator has the other.
    let cores = Cores::One;
    let server = server::start(Software::Tidegate, 1, cores).await?;
    let (mut over, mut after, mut shed, mut rows) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 1..=plan.rounds {
        let ask = async |pace| calls(&server, pace, plan, cores).run().await;
        progress::show(&format!("overload, round {round} of {}", plan.rounds));
        let most = ask(Pace::Closed { streams: STREAMS }).await?;
        let most = most.decided() / most.seconds();
        let report = ask(Pace::Open { rate: (most * EXCESS) as u64 }).await?;
        shed.push(1.0 - report.decided() / report.due());
        over.push(report);
        after.push(ask(Pace::Open { rate: (most * AFTER) as u64 }).await?);
    }
    progress::clear();
    let memory = server.process.resident_bytes()? as f64 / f64::from(1 << 20);
    let shed = crate::figures::median(&shed);
    let lines =
        [(&over, "1.5 times the most it answers"), (&after, "a quarter of it, right after")].map(
            |(reports, name)| {
                let figures = medians(reports, From::Written);
                rows.extend(rows_alone(name, &figures));
                line(name, &figures, reports)
            },
        );
    let title = format!(
        "Overload, 1 core: latency in µs of what is served, since it was written, medians of {} rounds of {:?}; {:.0} % shed, \
         {memory:.0} MiB resident at the end",
        plan.rounds,
        plan.duration,
        shed * 100.0
    );
    print_table(&title, &["load", "p50", "p99", "p99.9", "p99.99", "not decided"], &lines);
    rows.push(Row::new(SUITE, "1.5 times the most it answers", ("shed", "share"), shed));
    rows.push(Row::new(SUITE, "after overload", ("resident_memory", "MiB"), memory));
    Ok(rows)
}
