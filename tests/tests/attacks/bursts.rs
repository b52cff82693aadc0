//! Thousands of requests at once: none may end the virtual machine of a worker, none may hang, and none
//! may pass beyond the limit.
//!
//! 310 to 450 requests that waited for one answer ended the machine: all of them were settled in one
//! callback, Envoy carried the replies out one inside the other, and the stack overflowed. From then
//! on every request got 503.

use anyhow::{bail, ensure};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;
use tidegate_tests::bootstrap::{Filter, NO_HOSTS};
use tidegate_tests::burst::{Burst, Protocol};
use tidegate_tests::load::Outcome;
use tidegate_tests::plugin::{limits, plugin};
use tidegate_tests::stack::{Plan, Stack};
use tidegate_tests::wait;

const REQUESTS: u64 = 5_000;
const LIMIT: u64 = 50;

/// Routes that Envoy answers by itself, inside of the call that lets a request go on.
fn routes() -> Vec<Value> {
    vec![
        json!({"match": {"prefix": "/direct"}, "direct_response": {"status": 200}}),
        json!({"match": {"prefix": "/redirect"}, "redirect": {"path_redirect": "/"}}),
        json!({"match": {"prefix": "/nowhere"}, "route": {"cluster": NO_HOSTS}}),
    ]
}

/// The default timeout of 20 ms.
fn defaults(failure_mode: &str) -> String {
    let mut plugin = plugin();
    plugin["failure_mode"] = json!(failure_mode);
    plugin["sidecar"] = json!({"cluster": "tidegate"});
    plugin.to_string()
}

/// Stacks on these plugin configurations, which share an Envoy. Each is new to its burst.
async fn start(plugins: &[String], workers: u32) -> anyhow::Result<Vec<Stack>> {
    let limits = limits(&format!("{{ unit: hour, requests_per_unit: {LIMIT} }}"));
    let routes = routes();
    let plan =
        |plugin| Plan { workers, routes: &routes, ..Plan::new(&limits, Filter::Tidegate(plugin)) };
    let plans: Vec<_> = plugins.iter().map(|plugin| plan(plugin)).collect();
    Plan::start_each(&plans).await
}

/// That each request was answered, with one of these statuses, by a filter that is still there.
async fn all_answered(stack: &Stack, outcome: &Outcome, statuses: &[u16]) -> anyhow::Result<()> {
    ensure!(outcome.broken == 0 && outcome.sent() == REQUESTS, "{:?}", outcome.statuses);
    let seen: BTreeSet<u16> = outcome.statuses.keys().copied().collect();
    ensure!(seen.iter().all(|status| statuses.contains(status)), "{:?}", outcome.statuses);
    println!("{:?}, the slowest after {} ms", outcome.statuses, outcome.latency_ms(100.0));
    let log = stack.envoy.process.log();
    ensure!(!log.contains("Wasm VM failed") && !log.contains("call stack"), "{log}");
    Ok(())
}

/// A burst with a sidecar and an Envoy that get a processor. If they wait for one as long as the filter waits for any answer,
/// the sidecar counts as silent, and `failure_mode` decides: on so busy a machine another client sends its
/// burst.
///
/// Symptom: `failure_mode` decided all requests although the sidecar had waited for 0.2 s only. Cause: thousands of new
/// connections keep Envoy's worker busy, and it waited for as long and longer.
async fn burst_while_fed(
    stack: &Stack,
    workers: u32,
    path: &str,
    passed: u16,
    protocol: Protocol,
) -> anyhow::Result<(String, Outcome)> {
    const SILENT: Duration = Duration::from_millis(400);
    for turn in 0..5 {
        wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
        let client = format!("client-{turn}");
        let burst = Burst::of_one_client(stack.envoy.address, &client, REQUESTS);
        let (sidecar, envoy) = (&stack.sidecar.process, &stack.envoy.process);
        let before = (sidecar.waits()?, envoy.waits()?);
        let decided = stack.envoy.decisions().await?;
        let outcome = Burst { path: path.to_owned(), protocol, ..burst }.run().await?;
        let now = (sidecar.waits()?, envoy.waits()?);
        let starved = now.0.longest_since(&before.0) + now.1.longest_since(&before.1);
        println!("{workers} workers, {path}, {protocol:?}, without a processor for {starved:?}");
        all_answered(stack, &outcome, &[passed, 429, 503]).await?;
        let all = stack.envoy.decisions_of(decided.total() + REQUESTS).await?;
        let failed = all.since(&decided).failure_allowed;
        if failed == 0 {
            return Ok((client, outcome));
        }
        ensure!(starved >= SILENT, "failure_mode decided {failed}");
        stack.breakers_close().await?;
    }
    bail!("sidecar and Envoy had no processor for {SILENT:?} in each of five bursts")
}

/// The bursts of a worker with a sidecar that answers: by protocol, and by what happens to what passes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_on_one_key_ends_no_worker_and_passes_no_limit() -> anyhow::Result<()> {
    let http2 = Protocol::Http2 { connections: 5 };
    let table = [
        ("/", 200, Protocol::Http2 { connections: 1 }),
        ("/", 200, http2),
        ("/", 200, Protocol::Http1),
        ("/direct", 200, http2),
        ("/direct", 200, Protocol::Http1),
        ("/redirect", 301, http2),
        ("/nowhere", 503, http2),
    ];
    for workers in [1, 2] {
        let stacks = start(&table.map(|_| defaults("allow")), workers).await?;
        for (stack, (path, passed, protocol)) in stacks.iter().zip(table) {
            let (client, outcome) = burst_while_fed(stack, workers, path, passed, protocol).await?;
            if path != "/nowhere" {
                ensure!(outcome.of(passed) <= LIMIT, "{:?}", outcome.statuses);
            }
            let after = stack.get(path, &[("x-client", client.as_bytes())]).await?;
            ensure!([429, passed].contains(&after.status.as_u16()), "{after:?}");
        }
    }
    Ok(())
}

/// As above with a sidecar that stands still, or is gone: `failure_mode` decides all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_without_a_sidecar_is_answered_by_failure_mode() -> anyhow::Result<()> {
    let table = [("deny", "/direct", 500), ("allow", "/direct", 200), ("allow", "/nowhere", 503)];
    for workers in [1, 2] {
        for is_killed in [false, true] {
            let mut stacks = start(&table.map(|(mode, ..)| defaults(mode)), workers).await?;
            for (stack, (mode, path, status)) in stacks.iter_mut().zip(table) {
                if is_killed {
                    stack.sidecar.kill().await?;
                } else {
                    stack.sidecar.process.freeze().await?;
                }
                let burst = Burst::of_one_client(stack.envoy.address, "a", REQUESTS);
                let outcome = Burst { path: path.to_owned(), ..burst }.run().await?;
                println!("{workers} workers, failure_mode {mode}, {path}, killed {is_killed}");
                all_answered(stack, &outcome, &[status]).await?;
            }
        }
    }
    Ok(())
}
