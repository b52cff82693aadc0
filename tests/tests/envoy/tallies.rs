//! What two workers of a real Envoy decide by themselves arrives in the metrics of the sidecar: after quiet these are
//! what the client saw, to the hit.

use anyhow::{Context, ensure};
use serde_json::json;
use std::collections::BTreeMap;
use tidegate_tests::bootstrap::Filter;
use tidegate_tests::load::Load;
use tidegate_tests::plugin::plugin;
use tidegate_tests::stack::{Plan, Stack};
use tidegate_tests::wait;

/// A client is denied after 400 requests; no team ever is; and nothing is said of kinds.
const LIMITS: &str = "
domain: test
descriptors:
- {key: client, rate_limit: {unit: hour, requests_per_unit: 400}}
- {key: team, rate_limit: {unit: hour, requests_per_unit: 1000000}}
- {key: free, rate_limit: {unlimited: true}}
";

fn configured(constant: &[&str]) -> String {
    let entry = |key: &&str| json!({"actions": [{"generic_key": {"descriptor_key": key, "descriptor_value": "one"}}]});
    let mut entries: Vec<serde_json::Value> = constant.iter().map(entry).collect();
    let client = json!({"header_name": "x-client", "descriptor_key": "client"});
    entries.push(json!({"actions": [{"request_headers": client}]}));
    let mut plugin = plugin();
    plugin["rate_limits"] = json!(entries);
    plugin["failure_mode"] = json!("deny");
    plugin.to_string()
}

/// The counts by rule and by domain that are not 0, such as `test/client over_limit`.
async fn counts(stack: &Stack) -> anyhow::Result<BTreeMap<String, u64>> {
    let page = stack.sidecar.metrics().await?;
    let count = |line: &str| {
        let (name, rest) = line.strip_prefix("tidegate_")?.split_once("_total{")?;
        let (label, value) = rest.split_once("\"} ")?;
        let of = label.strip_prefix("rule=\"").or_else(|| label.strip_prefix("domain=\""))?;
        let value = value.parse().ok().filter(|value| *value > 0)?;
        Some((format!("{of} {name}"), value))
    };
    Ok(page.lines().filter_map(count).collect())
}

/// Waits until all these counts are there. What else is counted by rule is left alone.
async fn expect(stack: &Stack, expected: &[(&str, u64)]) -> anyhow::Result<BTreeMap<String, u64>> {
    let mut last = BTreeMap::new();
    let look = async || {
        last = counts(stack).await.ok()?;
        let is_there =
            |(name, count): &(&str, u64)| last.get(*name).copied().unwrap_or(0) == *count;
        expected.iter().all(is_there).then_some(())
    };
    let found = wait::until("the counts", wait::REPORT, look).await;
    found.with_context(|| format!("expected {expected:?}, last {last:?}"))?;
    Ok(last)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_by_rule_are_what_the_client_saw() -> anyhow::Result<()> {
    counts_are_what_the_client_saw(&["--capacity", "100000"]).await
}

/// The calls of two workers of Envoy are answered by several processes, whose counts are added up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_of_several_processes_are_what_the_client_saw() -> anyhow::Result<()> {
    counts_are_what_the_client_saw(&["--capacity", "100000", "--workers", "3"]).await
}

async fn counts_are_what_the_client_saw(flags: &[&str]) -> anyhow::Result<()> {
    const REQUESTS: u64 = 6_000;
    let plugin = configured(&["team", "kind", "free"]);
    let plan = Plan::new(LIMITS, Filter::Tidegate(&plugin));
    let stack = Plan { workers: 2, flags, ..plan }.start_shared().await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    let load = Load::of_clients(stack.addresses(), "c", 3, REQUESTS);
    let outcome = Load { connections: 16, ..load }.run().await?;
    let (allowed, denied, undecided) = (outcome.of(200), outcome.of(429), outcome.of(500));
    stack.found_held(undecided).await?;
    let decided = REQUESTS - undecided;
    ensure!(allowed + denied == decided && denied > REQUESTS / 2, "{:?}", outcome.statuses);
    ensure!(stack.upstream.served() == allowed, "{} of {allowed}", stack.upstream.served());
    let expected = [
        ("test/client total_hits", decided),
        ("test/client within_limit", allowed),
        ("test/client over_limit", denied),
        ("test/client denied_elsewhere", 0),
        ("test/team total_hits", decided),
        ("test/team within_limit", allowed),
        ("test/team over_limit", 0),
        ("test/team denied_elsewhere", denied),
        ("test/free total_hits", decided),
        ("test/free within_limit", allowed),
        ("test/free denied_elsewhere", denied),
        ("test unmatched_descriptors", decided),
    ];
    let last = expect(&stack, &expected).await?;
    // Otherwise the sidecar decided them, and the test is about nothing.
    let in_envoy = last.get("test/client decided_in_envoy").copied().unwrap_or(0);
    ensure!(in_envoy > REQUESTS / 2, "{last:?}");
    ensure!(stack.envoy.filter_stat("reports_lost").await? == 0);
    // The counts are there, and nothing more comes.
    stack.send_many("another", 3).await?;
    let [.., unmatched] = expected;
    expect(&stack, &[("test/client total_hits", decided + 3), (unmatched.0, decided + 3)]).await?;
    Ok(())
}

/// Calls that are not answered in time come again: what was counted of them counts once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_reported_without_an_answer_counts_once() -> anyhow::Result<()> {
    let mut plugin: serde_json::Value = serde_json::from_str(&configured(&[]))?;
    plugin["sidecar"]["timeout_ms"] = json!(3_000);
    let plugin = plugin.to_string();
    let stack = Stack::start_shared(LIMITS, Filter::Tidegate(&plugin), 2).await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    let first = stack.send_many("a", 1_000).await?;
    let before = expect(&stack, &[("test/client total_hits", 1_000)]).await?;
    ensure!(first.allowed + first.denied == 1_000, "{first:?}");
    // The sidecar stands still while the filter reports, and answers when nobody waits any more.
    let mut told = u64::from(first.denied);
    for _ in 0..2 {
        let more = stack.send_many("a", 200).await?;
        ensure!(more.denied == 200, "{more:?}");
        told += 200;
        stack.sidecar.process.freeze().await?;
        let silent = async || {
            let unanswered = stack.envoy.filter_stat("breakers_open").await.ok()?;
            (unanswered > 0).then_some(())
        };
        let _ = stack.send(b"b").await?;
        wait::until("an open circuit breaker", wait::REPORT, silent).await?;
        stack.sidecar.process.thaw()?;
        expect(&stack, &[("test/client over_limit", told)]).await?;
        stack.breakers_close().await?;
    }
    let last = counts(&stack).await?;
    ensure!(last["test/client over_limit"] == told, "{before:?}, {last:?}");
    Ok(())
}
