//! Leases while parts of the system die, stand still, or come back.

use anyhow::{Context, bail, ensure};
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_tests::bootstrap::Filter;
use tidegate_tests::client::drive;
use tidegate_tests::load::{Load, Pace};
use tidegate_tests::plugin::{limits, plugin, plugin_with};
use tidegate_tests::stack::{Plan, Stack};
use tidegate_tests::wait;

/// The longest of these tests.
const LEASE: Duration = Duration::from_secs(10);
const THOUSAND_AN_HOUR: &str = "{ unit: hour, requests_per_unit: 1000 }";

async fn served(stack: &Stack, least: u64) -> anyhow::Result<()> {
    let what = format!("{least} requests to reach the upstream");
    wait::until(&what, wait::START, async || (stack.upstream.served() >= least).then_some(())).await
}

/// Sends more until what is left of the limit is used up: how many passed.
async fn use_up(stack: &Stack, client: &str) -> anyhow::Result<u64> {
    let mut allowed = 0;
    let address = stack.addresses().pop().expect("a stack has an Envoy");
    wait::until("the limit to be used up", wait::ANSWER, async || {
        let sent = drive(address, ("x-client", client), 50, 1).await.ok()?;
        allowed += u64::from(sent.allowed);
        (sent.denied == 50).then_some(())
    })
    .await?;
    Ok(allowed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_of_the_sidecar_under_load_neither_loses_nor_adds_tokens() -> anyhow::Result<()> {
    let limits = limits(THOUSAND_AN_HOUR);
    let plugin = plugin_with("/failure_mode", json!("deny"));
    // A lease whose answer the kill has lost is recalled before it ends.
    let flags = &["--capacity", "100000", "--lease-ttl", "10s"];
    let plan = Plan { workers: 2, flags, ..Plan::new(&limits, Filter::Tidegate(&plugin)) };
    let mut stack = plan.start_shared().await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    let load = Load::of_one_client(stack.addresses(), "a", 20_000);
    let load = Load { connections: 32, pace: Pace::Open(2_500.0), ..load }.start();
    served(&stack, 300).await?;
    stack.sidecar.kill().await?;
    stack.sidecar.restart().await?;
    let outcome = load.end().await?;
    ensure!(outcome.broken == 0 && outcome.sent() == 20_000, "{outcome:?}");
    ensure!(outcome.of(200) + outcome.of(429) + outcome.of(500) == 20_000, "{outcome:?}");
    let allowed = outcome.of(200) + use_up(&stack, "a").await?;
    let seen = stack.upstream.served();
    ensure!(seen == allowed, "{allowed} were allowed, but {seen} reached the upstream");
    ensure!((990..=1_000).contains(&allowed), "{allowed} allowed: {:?}", outcome.statuses);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_of_an_envoy_adds_no_tokens_and_the_other_goes_on() -> anyhow::Result<()> {
    let limits = limits(THOUSAND_AN_HOUR);
    let plugin = plugin_with("/failure_mode", json!("deny"));
    let plan = Plan { envoys: 2, workers: 2, ..Plan::new(&limits, Filter::Tidegate(&plugin)) };
    let mut stack = plan.start().await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    let load = Load::of_one_client(stack.addresses(), "a", 10_000);
    let load = Load { connections: 32, pace: Pace::Open(2_000.0), ..load }.start();
    served(&stack, 200).await?;
    let before = stack.upstream.served();
    Arc::get_mut(&mut stack.envoy.process).context("an Envoy of its own")?.kill().await?;
    let outcome = load.end().await?;
    // The last of them: the survivor.
    let later = use_up(&stack, "a").await?;
    let seen = stack.upstream.served();
    println!("{before} before the kill, {seen} in all, {} broken", outcome.broken);
    // What was on its way through the Envoy that died may have been served without an answer.
    let allowed = outcome.of(200) + later;
    ensure!(allowed <= seen && seen <= allowed + outcome.broken, "{allowed} of {seen}");
    ensure!(seen <= 1_000, "{seen} reached the upstream");
    // A lease is at most a quarter of what was left, and only one Envoy has died.
    ensure!(seen >= 740, "{seen} reached the upstream: more is lost than a lease had");
    ensure!(outcome.of(500) == 0, "{:?}", outcome.statuses);
    Ok(())
}

/// A plugin configuration whose asks end soon.
fn impatient(mode: &str) -> String {
    let mut plugin = plugin();
    plugin["failure_mode"] = json!(mode);
    plugin["sidecar"]["timeout_ms"] = json!(300);
    plugin.to_string()
}

async fn breakers_open(stack: &Stack) -> Option<u64> {
    stack.envoy.filter_stat("breakers_open").await.ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_sidecar_costs_a_timeout_then_failure_mode_rules_and_the_breaker_opens()
-> anyhow::Result<()> {
    for (mode, status) in [("allow", 200), ("deny", 500)] {
        let stack = Stack::start_shared(
            &limits("{ unit: hour, requests_per_unit: 5 }"),
            Filter::Tidegate(&impatient(mode)),
            2,
        )
        .await?;
        wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
        // On a busy machine a breaker may be open until another answer comes in time.
        wait::until("an answer in time, and closed breakers", wait::RETRY, async || {
            stack.send(b"warm").await.ok()?.header("ratelimit")?;
            (breakers_open(&stack).await? == 0).then_some(())
        })
        .await?;
        stack.sidecar.process.freeze().await?;
        let start = Instant::now();
        let reply = stack.send(b"a").await?;
        let took = start.elapsed();
        ensure!(reply.status == status, "failure_mode {mode}: {reply:?}");
        // Envoy's timers count whole milliseconds of their own and may end a little early. The answer
        // has to come by the timeout, not at once.
        ensure!(took >= Duration::from_millis(250), "{took:?}: the request did not wait");
        ensure!(took < Duration::from_secs(10), "{took:?}: the timeout did not end the wait");
        // Clients without local state, so that each needs a call.
        let outcome = Load::of_clients(stack.addresses(), "frozen", 400, 400).run().await?;
        ensure!(outcome.of(status) == 400, "failure_mode {mode}: {:?}", outcome.statuses);
        wait::until("the breakers of both workers to open", wait::RETRY, async || {
            stack.send(b"frozen too").await.ok()?;
            (breakers_open(&stack).await? == 2).then_some(())
        })
        .await?;

        stack.sidecar.process.thaw()?;
        wait::until("decisions by the sidecar that goes on", wait::RETRY, async || {
            // Six a connection: over the limit of five as soon as somebody counts again.
            let sent = drive(stack.envoy.address, ("x-client", "later"), 12, 2).await.ok()?;
            (sent.denied > 0 && sent.failed == 0 && breakers_open(&stack).await? == 0).then_some(())
        })
        .await?;
    }
    Ok(())
}

/// Requests that had been counted before are decided by the leases at hand, as long as these last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_sidecar_leases_are_honoured_until_they_end() -> anyhow::Result<()> {
    let limits = limits("{ unit: hour, requests_per_unit: 100000 }");
    let plugin = plugin_with("/failure_mode", json!("deny"));
    // Leases of the usual two seconds could end while a busy machine kills a process.
    let flags: &[&str] = &["--capacity", "100000", "--lease-ttl", "10s"];
    let plan = Plan { flags, ..Plan::new(&limits, Filter::Tidegate(&plugin)) };
    let mut stack = plan.start_shared().await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    // A machine that stands still for some tenths of a second makes the tokens look idle, so that they are given back.
    for _ in 0..5 {
        let load = Load::of_one_client(stack.addresses(), "a", 1_000_000);
        let load = Load { pace: Pace::Open(500.0), ..load }.start();
        served(&stack, stack.upstream.served() + 1_000).await?;
        stack.sidecar.kill().await?;
        let before = stack.upstream.served();
        wait::until("the leases to end", LEASE, async || {
            (stack.send(b"a").await.ok()?.status == 500).then_some(())
        })
        .await?;
        let outcome = load.stop().await?;
        let decided = outcome.of(200) + outcome.of(500);
        ensure!(decided == outcome.sent(), "{:?}, {} broken", outcome.statuses, outcome.broken);
        if stack.upstream.served() >= before + 20 {
            return Ok(());
        }
        stack.sidecar.restart().await?;
        wait::until("decisions by the sidecar that is back", wait::RETRY, async || {
            (stack.send(b"a").await.ok()?.status == 200).then_some(())
        })
        .await?;
    }
    bail!("tokens that were held were worth nothing, five times")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_give_up_while_they_wait_leave_nothing_behind() -> anyhow::Result<()> {
    let mut patient = plugin();
    // A busy machine may need more than the usual five seconds until all have come and gone.
    patient["sidecar"]["timeout_ms"] = json!(60_000);
    let stack = Stack::start(
        &limits("{ unit: hour, requests_per_unit: 5 }"),
        Filter::Tidegate(&patient.to_string()),
        1,
    )
    .await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    ensure!(stack.send_many("warm", 1).await?.allowed == 1);
    stack.sidecar.process.freeze().await?;
    let address = stack.envoy.address;
    // Some ask, most wait for what another has asked.
    let waiting = tokio::spawn(drive(address, ("x-client", "gone"), 40, 40));
    wait::until("the requests to be held by the filter", wait::SOON, async || {
        (stack.envoy.filter_stat("waiting").await.ok()? >= 30).then_some(())
    })
    .await?;
    waiting.abort();
    wait::until("the filter to see them go", wait::SOON, async || {
        let there = stack.envoy.stat("http.main.downstream_rq_active").await.ok()?;
        (there == 0 && stack.envoy.filter_stat("waiting").await.ok()? == 0).then_some(())
    })
    .await?;
    stack.sidecar.process.thaw()?;
    let after = stack.send_many("a", 6).await?;
    ensure!((after.allowed, after.denied) == (5, 1), "{after:?}");
    // No request that had ended was sent on.
    let seen = stack.upstream.served();
    ensure!(seen == 6, "{seen} reached the upstream");
    Ok(())
}
