//! Shares of hot hits: the other calls are each on a counter that has moved, which comes back for it.

use super::database::Database;
use super::figures::{Before, Figures};
use super::moving::group_name;
use super::sidecar::{STREAMS, Sidecar};
use super::{Plan, SHARES, SUITE};
use crate::generator::{Order, Pace};
use crate::progress;
use crate::report::{Row, print_table};

const PACE: Pace = Pace::Closed { streams: STREAMS };

pub(super) async fn measure(
    plan: &Plan,
    database: &Database,
    sidecar: &Sidecar,
) -> anyhow::Result<Vec<Row>> {
    let mut rounds: [Vec<Figures>; SHARES.len()] = Default::default();
    let mut groups = 0..;
    for round in 1..=plan.rounds {
        for (percent, rounds) in SHARES.into_iter().zip(&mut rounds) {
            let name = database.name();
            progress::show(&format!("{name}: {percent} % hot, round {round} of {}", plan.rounds));
            // Those without cold hits have one whose hot keys are hot already.
            let group = if percent == 100 { Some(0) } else { groups.next() };
            let group = group_name(group.unwrap_or_default());
            rounds.push(measured(plan, sidecar, &group, percent).await?);
        }
    }
    progress::clear();
    let title = format!(
        "{}: shares of hot hits, the others each on another cold counter; a sidecar on 1 core, as fast as it answers; medians of {} \
         rounds of {:?}; CPU of the sidecar alone; latency in µs of all decisions",
        database.name(),
        plan.rounds,
        plan.mixed
    );
    let header = [
        "hot hits, %",
        "fetched, %",
        "decisions a second",
        "µs of CPU a decision",
        "p50",
        "p99",
        "not decided, %",
    ];
    let mut lines = Vec::new();
    let mut rows = Vec::new();
    for (percent, rounds) in SHARES.into_iter().zip(&rounds) {
        let figures = Figures::medians(rounds);
        lines.push(vec![
            percent.to_string(),
            format!("{:.2}", 100.0 * figures.fetched),
            format!("{:.0}", figures.rate),
            format!("{:.2}", figures.micros),
            format!("{:.0}", figures.p50),
            format!("{:.0}", figures.p99),
            format!("{:.2}", 100.0 * figures.undecided),
        ]);
        let row = |metric, value| {
            Row::new(SUITE, format!("{}, {percent} % hot hits", database.name()), metric, value)
        };
        rows.push(row(("decisions", "1/s"), figures.rate));
        rows.push(row(("cpu", "us/decision"), figures.micros));
        rows.push(row(("fetched", "share"), figures.fetched));
        rows.push(row(("latency_p50", "us"), figures.p50));
        rows.push(row(("latency_p99", "us"), figures.p99));
    }
    print_table(&title, &header, &lines);
    Ok(rows)
}

/// One round, on a group of counters. None of them is hot yet, or all that are called are.
async fn measured(
    plan: &Plan,
    sidecar: &Sidecar,
    group: &str,
    percent: u32,
) -> anyhow::Result<Figures> {
    let (hot, duration) = (plan.hot_of_group, plan.mixed);
    // They come back first, and are used often enough.
    sidecar.calls(group, hot, Order::Random, PACE, duration).await?;
    let (keys, order) = match percent {
        100 => (hot, Order::Random),
        _ => (plan.group, Order::Hot { percent, keys: hot }),
    };
    let before = Before::of(sidecar).await?;
    let report = sidecar.calls(group, keys, order, PACE, duration).await?;
    before.figures(sidecar, &report).await
}
