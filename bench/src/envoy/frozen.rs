//! A stopped sidecar: how long requests wait for it before and after the breaker opens.

use super::case::{LIMITS, one, plugin};
use super::{Plan, SUITE};
use crate::progress;
use crate::report::{Row, print_table};
use anyhow::ensure;
use serde_json::json;
use tidegate_tests::bootstrap::Filter;
use tidegate_tests::load::{Load, Outcome, Pace};
use tidegate_tests::stack::Stack;
use tidegate_tests::wait;

/// The timeout of a call in milliseconds: the default.
const TIMEOUT_MS: u32 = 20;
/// As many requests as connections, one a millisecond: all are under way before the breaker opens, and none
/// waits for another one.
const WAITING: u32 = 16;
const RATE: f64 = 1_000.0;

pub(super) async fn measure(plan: &Plan) -> anyhow::Result<Vec<Row>> {
    progress::show("the sidecar stands still");
    let mut plugin = plugin(&one());
    plugin["sidecar"]["timeout_ms"] = json!(TIMEOUT_MS);
    let plugin = plugin.to_string();
    let stack = Stack::start(LIMITS, Filter::Tidegate(&plugin), 1).await?;
    // The first request opens the connection. Slow first answers would look like a stopped sidecar.
    wait::until("quick answers", wait::START, async || {
        let warm = Load::of_clients(stack.addresses(), "warm", 100, 100).run().await.ok()?;
        (warm.of(200) == 100).then_some(())
    })
    .await?;
    stack.sidecar.process.freeze().await?;
    let first = Load::of_clients(stack.addresses(), "first", WAITING.into(), WAITING.into());
    let first = Load { connections: WAITING, pace: Pace::Open(RATE), ..first };
    let waited = undecided(first).await?;
    wait::until("the breaker to open", wait::RETRY, async || {
        stack.send(b"more").await.ok()?;
        (stack.envoy.filter_stat("breakers_open").await.ok()? > 0).then_some(())
    })
    .await?;
    let later = Load::of_clients(stack.addresses(), "later", plan.frozen, plan.frozen);
    let later = undecided(later).await?;
    stack.sidecar.process.thaw()?;
    progress::clear();
    Ok(report(&waited, &later))
}

/// Sends requests of unknown clients. None can be decided.
async fn undecided(load: Load) -> anyhow::Result<Outcome> {
    let requests = load.requests;
    let outcome = load.run().await?;
    ensure!(outcome.of(500) == requests, "failure_mode did not rule: {:?}", outcome.statuses);
    Ok(outcome)
}

fn report(waited: &Outcome, later: &Outcome) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut lines = Vec::new();
    for (case, outcome) in [("sidecar frozen", waited), ("sidecar frozen, breaker open", later)] {
        let mut line = vec![case.to_owned()];
        for (metric, percent) in [("latency_p50", 50.0), ("latency_p99", 99.0)] {
            let ms = outcome.latency_ms(percent);
            rows.push(Row::new(SUITE, case, (metric, "us"), ms * 1e3));
            line.push(format!("{ms:.2}"));
        }
        lines.push(line);
    }
    let title = format!("A sidecar that stands still, timeout_ms {TIMEOUT_MS}: latency in ms");
    print_table(&title, &["case", "p50", "p99"], &lines);
    let most = TIMEOUT_MS + 1_000;
    println!(
        "Target: at most {most} ms until it is known to stand still; then as without an ask.\n"
    );
    rows
}
