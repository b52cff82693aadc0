//! Statistics of hits that two workers of a real Envoy decide, by leases too: after quiet they are what the client and
//! the upstream saw, to the hit.

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use std::time::Duration;
use tidegate_tests::bootstrap::Filter;
use tidegate_tests::client::get;
use tidegate_tests::load::Load;
use tidegate_tests::plugin::plugin;
use tidegate_tests::stack::Stack;
use tidegate_tests::wait;

/// A client is denied after 400 requests.
const LIMITS: &str = "
domain: test
statistics:
- {name: clients, by: [client]}
- {name: teams, by: [team], distinct: client}
descriptors:
- {key: team, descriptors: [{key: client, rate_limit: {unit: hour, requests_per_unit: 400}}]}
";
/// The filter reports within 5 seconds, and the sidecar writes every 15.
const WRITTEN: Duration = Duration::from_secs(22);

async fn asked(stack: &Stack, question: &str) -> anyhow::Result<Value> {
    let reply = get(stack.sidecar.http, &format!("/v1/statistics/{question}")).await?;
    ensure!(reply.status == 200, "{question}: {reply:?}");
    Ok(serde_json::from_slice(&reply.body)?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statistics_are_what_client_and_upstream_saw() -> anyhow::Result<()> {
    const REQUESTS: u64 = 6_000;
    let mut plugin = plugin();
    let team = json!({"generic_key": {"descriptor_key": "team", "descriptor_value": "one"}});
    let client =
        json!({"request_headers": {"header_name": "x-client", "descriptor_key": "client"}});
    plugin["rate_limits"] = json!([{"actions": [team, client]}]);
    plugin["failure_mode"] = json!("deny");
    let plugin = plugin.to_string();
    let stack = Stack::start_shared(LIMITS, Filter::Tidegate(&plugin), 2).await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    let load = Load::of_clients(stack.addresses(), "c", 5, REQUESTS);
    let outcome = Load { connections: 16, ..load }.run().await?;
    let (allowed, denied, undecided) = (outcome.of(200), outcome.of(429), outcome.of(500));
    stack.found_held(undecided).await?;
    let decided = REQUESTS - undecided;
    ensure!(allowed + denied == decided && denied > REQUESTS / 2, "{:?}", outcome.statuses);
    ensure!(stack.upstream.served() == allowed, "{} of {allowed}", stack.upstream.served());
    let expected = json!({"allowed": allowed, "denied": denied, "hits": decided, "distinct": 5});
    let mut last = Value::Null;
    let written = wait::until("the statistics of all hits", WRITTEN, async || {
        last = asked(&stack, "teams?team=one").await.ok()?;
        (last["series"][0]["total"] == expected).then_some(())
    });
    written.await.with_context(|| format!("expected {expected}, found {last}"))?;
    let clients = asked(&stack, "clients?by=client").await?;
    let clients = clients["series"].as_array().context("series")?;
    let sum =
        |count: &str| clients.iter().filter_map(|of| of["total"][count].as_u64()).sum::<u64>();
    ensure!(clients.len() == 5 && (sum("allowed"), sum("denied")) == (allowed, denied));
    ensure!(clients.iter().all(|of| of["total"]["allowed"].as_u64() <= Some(400)), "{clients:?}");
    Ok(())
}
