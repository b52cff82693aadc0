//! Who is limited, where the filter decides: denials that the sidecar never saw have a name.

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tidegate_tests::bootstrap::Filter;
use tidegate_tests::client::get;
use tidegate_tests::load::Load;
use tidegate_tests::plugin::plugin;
use tidegate_tests::stack::Plan;
use tidegate_tests::wait;

const LIMITS: &str = "
domain: test
descriptors:
- {key: client, rate_limit: {unit: hour, requests_per_unit: 100}}
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denials_made_in_envoy_are_named() -> anyhow::Result<()> {
    const REQUESTS: u64 = 3_000;
    let mut plugin = plugin();
    let client = json!({"header_name": "x-client", "descriptor_key": "client"});
    plugin["rate_limits"] = json!([{"actions": [{"request_headers": client}]}]);
    let plugin = plugin.to_string();
    let flags = &["--capacity", "100000", "--workers", "2"];
    let plan = Plan::new(LIMITS, Filter::Tidegate(&plugin));
    let stack = Plan { workers: 2, flags, ..plan }.start_shared().await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    let load = Load::of_clients(stack.addresses(), "greedy-", 2, REQUESTS);
    let outcome = Load { connections: 8, ..load }.run().await?;
    let denied = outcome.of(429);
    ensure!(outcome.of(200) + denied == REQUESTS && denied > REQUESTS / 2, "{outcome:?}");
    let mut last = Vec::new();
    let look = async || {
        let reply = get(stack.sidecar.http, "/v1/top?order=denied&rule=test/client").await.ok()?;
        let answer: Value = serde_json::from_slice(&reply.body).ok()?;
        last = answer["descriptors"].as_array()?.clone();
        let of = |row: &Value| row["hits"]["denied"].as_u64().unwrap_or(0);
        (last.iter().map(of).sum::<u64>() == denied).then_some(())
    };
    let found = wait::until("all denials", wait::REPORT, look).await;
    found.with_context(|| format!("expected {denied} denials, last {last:?}"))?;
    ensure!(last.len() == 2, "{last:?}");
    for row in &last {
        let name = row["entries"][0]["value"].as_str().context("a name")?;
        ensure!(name.starts_with("greedy-"), "{row}");
        // Otherwise the sidecar decided them, and the test is about nothing.
        ensure!(row["in_envoy"].as_f64().is_some_and(|share| share > 0.5), "{row}");
        ensure!(row["retry_ms"].as_u64().is_some_and(|ms| ms > 0), "{row}");
    }
    Ok(())
}
