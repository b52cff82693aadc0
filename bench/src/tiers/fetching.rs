//! The time of a call on a cold counter, one at a time, and the queries that it takes.

use super::database::Database;
use super::moving::group_name;
use super::sidecar::Sidecar;
use super::{Plan, SUITE};
use crate::generator::{From, Order, Pace, Report};
use crate::progress;
use crate::report::{Row, print_table};

pub(super) async fn measure(
    plan: &Plan,
    database: &Database,
    sidecar: &Sidecar,
) -> anyhow::Result<Vec<Row>> {
    progress::show(&format!("{}: one call after the other", database.name()));
    // The shares have used the groups before these.
    let [timed, counted] = [plan.groups() - 2, plan.groups() - 1].map(group_name);
    let alone = async |group: &str, keys, duration| {
        sidecar.calls(group, keys, Order::InTurn, Pace::Alone, duration).await
    };
    let cold = alone(&timed, plan.group, plan.alone).await?;
    // One of those that came back just now.
    let hot = alone(&timed, 1, plan.alone).await?;
    let before = sidecar.metric("cold_fetched_total").await?;
    let counting = async { alone(&counted, plan.group, plan.counted).await.map(drop) };
    let statements = database.statements_during(counting).await?;
    let fetched = sidecar.metric("cold_fetched_total").await? - before;
    let queries = statements.map(|statements| statements as f64 / fetched);
    progress::clear();
    print(plan, database, [&hot, &cold], queries);
    let mut rows = Vec::new();
    for (name, report) in [("a hot hit", hot), ("a cold hit", cold)] {
        let case = format!("{}, {name} alone", database.name());
        for (metric, percentile) in [("latency_p50", "p50"), ("latency_p99", "p99")] {
            let micros = report.served_micros(From::Written, percentile);
            rows.push(Row::new(SUITE, &case, (metric, "us"), micros));
        }
    }
    let case = format!("{}, a cold hit alone", database.name());
    let queries = queries.map(|queries| Row::new(SUITE, case, ("queries", "1/fetch"), queries));
    rows.extend(queries);
    Ok(rows)
}

fn print(plan: &Plan, database: &Database, [hot, cold]: [&Report; 2], queries: Option<f64>) {
    let title = format!(
        "{}: one call after the other, for {:?}; latency in µs; queries as the server counts them, which SQLite does not",
        database.name(),
        plan.alone
    );
    let line = |name: &str, report: &Report, queries: Option<f64>| {
        vec![
            name.to_owned(),
            format!("{:.0}", report.decided()),
            format!("{:.0}", report.served_micros(From::Written, "p50")),
            format!("{:.0}", report.served_micros(From::Written, "p99")),
            queries.map_or_else(|| "-".to_owned(), |queries| format!("{queries:.3}")),
        ]
    };
    let lines = [line("hot", hot, None), line("cold", cold, queries)];
    print_table(&title, &["counter", "calls", "p50", "p99", "queries a fetch"], &lines);
}
