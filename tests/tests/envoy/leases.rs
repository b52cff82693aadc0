//! Leases in real Envoys: limits are exact over workers and Envoys, nearly all is decided without a
//! call, and what one Envoy does not spend another can.

use anyhow::{Context, bail, ensure};
use serde_json::json;
use std::time::Duration;
use tidegate_tests::bootstrap::Filter;
use tidegate_tests::client::drive;
use tidegate_tests::decisions::Decisions;
use tidegate_tests::load::{Load, Outcome, Pace};
use tidegate_tests::plugin::{limits, plugin, plugin_with};
use tidegate_tests::stack::{Plan, Stack};
use tidegate_tests::wait;

/// Sends 20,000 requests as one client with 1,000 an hour, and holds the outcome to it.
async fn thousand_of_twenty_thousand(envoys: u32, workers: u32) -> anyhow::Result<()> {
    let limits = limits("{ unit: hour, requests_per_unit: 1000 }");
    let plugin = plugin_with("/failure_mode", json!("deny"));
    let plan = Plan { envoys, workers, ..Plan::new(&limits, Filter::Tidegate(&plugin)) };
    let stack = plan.start_shared().await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    let load = Load::of_one_client(stack.addresses(), "a", 20_000);
    let outcome = Load { connections: 32, ..load }.run().await?;
    let (allowed, denied, undecided) = (outcome.of(200), outcome.of(429), outcome.of(500));
    stack.found_held(undecided).await?;
    let answered = allowed + denied + undecided;
    ensure!(answered == 20_000, "{:?}, {} broken", outcome.statuses, outcome.broken);
    ensure!((990..=1_000).contains(&allowed), "{allowed} allowed\n{}", stack.counts().await?);
    let served = stack.upstream.served();
    ensure!(served == allowed, "{allowed} were allowed, but {served} reached the upstream");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_is_exact_over_the_workers_of_an_envoy() -> anyhow::Result<()> {
    thousand_of_twenty_thousand(1, 2).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_is_exact_over_two_envoys() -> anyhow::Result<()> {
    thousand_of_twenty_thousand(2, 2).await
}

/// As every algorithm, also those whose leases do not end with a window that stands still.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_window_is_exact_over_two_envoys() -> anyhow::Result<()> {
    let plugin = plugin_with("/failure_mode", json!("deny"));
    let algorithms = ["fixed_window", "first_hit_window", "sliding_window", "sliding_buckets"];
    let limits = algorithms.map(|algorithm| {
        limits(&format!("{{ algorithm: {algorithm}, period: 1h, requests: 600 }}"))
    });
    let filter = Filter::Tidegate(&plugin);
    let plans =
        limits.each_ref().map(|limits| Plan { envoys: 2, workers: 2, ..Plan::new(limits, filter) });
    for (stack, algorithm) in Plan::start_each_shared(&plans).await?.iter().zip(algorithms) {
        wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
        if algorithm == "sliding_buckets" {
            // A lease ends with a bucket, here a minute. What Envoys hold then is lost.
            wait::for_room_in_window(wait::MINUTE, Duration::from_secs(10)).await?;
        }
        let load = Load::of_one_client(stack.addresses(), "a", 6_000);
        let outcome = Load { pace: Pace::Open(2_000.0), ..load }.run().await?;
        let (allowed, denied, undecided) = (outcome.of(200), outcome.of(429), outcome.of(500));
        stack.found_held(undecided).await?;
        ensure!(
            allowed + denied + undecided == 6_000,
            "{algorithm}: {:?}\n{}",
            outcome.statuses,
            stack.counts().await?
        );
        ensure!(
            (590..=600).contains(&allowed) && stack.upstream.served() == allowed,
            "{algorithm}: {allowed} allowed, {} served\n{}",
            stack.upstream.served(),
            stack.counts().await?
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_bucket_admits_its_burst_and_the_refill_of_time_and_leases() -> anyhow::Result<()> {
    const BURST: f64 = 500.0;
    const RATE: f64 = 100.0;
    let limits = limits("{ algorithm: token_bucket, period: 1s, requests: 100, burst: 500 }");
    let plugin = plugin_with("/failure_mode", json!("deny"));
    let plan = Plan { envoys: 2, workers: 2, ..Plan::new(&limits, Filter::Tidegate(&plugin)) };
    let stack = plan.start().await?;
    let load = Load::of_one_client(stack.addresses(), "a", 10_000);
    let outcome = Load { pace: Pace::Open(2_000.0), ..load }.run().await?;
    let seconds = outcome.took.as_secs_f64();
    let allowed = outcome.of(200) as f64;
    let undecided = outcome.of(500);
    stack.found_held(undecided).await?;
    let answered = outcome.of(429) + outcome.of(200) + undecided;
    ensure!(answered == 10_000, "{:?}\n{}", outcome.statuses, stack.counts().await?);
    let most = BURST + RATE * (seconds + wait::LEASE.as_secs_f64());
    ensure!(allowed <= most, "{allowed} allowed in {seconds} s, at most {most}");
    // What is left may be the refill of the last denial's wait, 200 ms, and what the leases of the last moments hold.
    let least = BURST + RATE * (seconds - wait::LEASE.as_secs_f64() - 0.2);
    ensure!(allowed >= least, "{allowed} allowed in {seconds} s, at least {least}");
    Ok(())
}

/// Requests a second that all clients of the steady traffic send, on a machine that can, and each of them on any. A
/// lease lasts for two seconds, and a request or two of each worker may wait for the next one: of 1,000 requests in that
/// time, 4 at most. So a machine that makes half of it later still shows 99 of 100.
const RATE: f64 = 5_000.0;
const RATE_OF_ONE: f64 = 500.0;
/// Times that a machine may turn out to make less than half of that, or to stand still for a part of a second: then leases
/// end or go back, and all connections wait for an answer.
const ROUNDS: usize = 5;

/// Sends this many requests of this many clients at [`RATE`]; a slow machine sends fewer.
async fn steady(
    stack: &Stack,
    clients: u64,
    requests: u64,
) -> anyhow::Result<(Outcome, Decisions)> {
    let before = stack.envoy.decisions().await?;
    let load = Load::of_clients(stack.addresses(), "c", clients, requests);
    let outcome = Load { connections: 64, pace: Pace::Open(RATE), ..load }.run().await?;
    let after = stack.envoy.decisions_of(before.total() + outcome.sent()).await?;
    Ok((outcome, after.since(&before)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_steady_traffic_99_of_100_decisions_are_local() -> anyhow::Result<()> {
    let limits = limits("{ unit: hour, requests_per_unit: 10000000 }");
    let plugin = plugin().to_string();
    let plan = Plan { workers: 2, ..Plan::new(&limits, Filter::Tidegate(&plugin)) };
    let stack = plan.start().await?;
    let driven = |outcome: &Outcome| outcome.sent() as f64 / outcome.took.as_secs_f64();
    let (mut last, _) = steady(&stack, 100, 5_000).await?;
    let mut tries = Vec::new();
    for _ in 0..ROUNDS {
        wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
        // A machine that makes less has fewer clients, so that each still sends as much.
        let clients = (driven(&last) / RATE_OF_ONE).clamp(1.0, 10.0) as u64;
        // Leases grow with the demand, which the filter has to see first.
        steady(&stack, clients, 10_000).await?;
        let (outcome, decisions) = steady(&stack, clients, 20_000).await?;
        println!("{:.0} requests/s of {clients} clients were driven", driven(&outcome));
        ensure!(outcome.of(200) == outcome.sent(), "{:?}", outcome.statuses);
        ensure!(decisions.total() == outcome.sent(), "{decisions:?}");
        let expected = clients as f64 * RATE_OF_ONE;
        if driven(&outcome) >= expected / 2.0 && decisions.local_share() >= 0.99 {
            return Ok(());
        }
        tries.push(format!("{:.0} of {expected} requests/s: {decisions:?}", driven(&outcome)));
        last = outcome;
    }
    bail!("never were 99 of 100 decisions local at half of the rate and more: {tries:#?}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_wait_for_one_key_are_decided_by_few_asks() -> anyhow::Result<()> {
    let limits = limits("{ unit: hour, requests_per_unit: 40 }");
    let mut plugin = plugin();
    plugin["failure_mode"] = json!("deny");
    // A busy machine may need more than the usual five seconds to have all of them wait.
    plugin["sidecar"]["timeout_ms"] = json!(60_000);
    let plugin = plugin.to_string();
    let stack = Stack::start_shared(&limits, Filter::Tidegate(&plugin), 1).await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    ensure!(stack.send_many("warm", 1).await?.allowed == 1);
    // The stats come at ticks: the ask of the request before has to be among them.
    stack.envoy.decisions_of(1).await?;
    let before = stack.envoy.filter_stat("asks").await?;
    stack.sidecar.process.freeze().await?;
    let load = Load::of_one_client(stack.addresses(), "a", 60);
    let load = Load { connections: 60, ..load }.start();
    wait::until("all requests to wait", wait::SOON, async || {
        (stack.envoy.filter_stat("waiting").await.ok()? == 60).then_some(())
    })
    .await?;
    stack.sidecar.process.thaw()?;
    let outcome = load.end().await?;
    ensure!((outcome.of(200), outcome.of(429)) == (40, 20), "{:?}", outcome.statuses);
    stack.envoy.decisions_of(61).await?;
    let asks = stack.envoy.filter_stat("asks").await? - before;
    ensure!(asks <= 6, "{asks} asks for 60 requests");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_no_slots_every_request_asks() -> anyhow::Result<()> {
    let plugin = plugin_with("/leases", json!({"slots": 0}));
    let limits = limits("{ unit: hour, requests_per_unit: 1000 }");
    let stack = Stack::start_shared(&limits, Filter::Tidegate(&plugin), 1).await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    let sent = stack.send_many("a", 300).await?;
    ensure!(sent.allowed == 300, "{sent:?}");
    let decisions = stack.envoy.decisions_of(300).await?;
    ensure!(decisions.local() == 0 && decisions.allowed_asked == 300, "{decisions:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_envoy_does_not_spend_another_can() -> anyhow::Result<()> {
    let limits = limits("{ unit: hour, requests_per_unit: 1000 }");
    let plugin = plugin_with("/failure_mode", json!("deny"));
    // Tokens of a lease that has ended are lost. A busy machine may need more than the usual two seconds to give back
    // what has been idle for some tenths of one.
    let flags: &[&str] = &["--capacity", "100000", "--lease-ttl", "10s"];
    let plan = Plan { envoys: 2, flags, ..Plan::new(&limits, Filter::Tidegate(&plugin)) };
    let stack = plan.start_shared().await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    let second = stack.others[0].address;
    // Enough for the first to lease ahead; then nothing more comes.
    let first = Load::of_one_client(vec![stack.envoy.address], "a", 400);
    let first = Load { pace: Pace::Open(400.0), ..first }.run().await?;
    ensure!(first.of(200) == 400, "{:?}", first.statuses);
    wait::until("unspent tokens to come back", wait::RECALL, async || {
        let returned = stack.envoy.filter_stat("tokens_returned").await.ok()?;
        let taken = stack.metric("tidegate_returned_tokens_total").await.ok()?;
        (returned > 0 && taken > 0.0).then_some(())
    })
    .await?;
    let mut allowed = 0;
    let used_up = wait::until("the second to use up what is left", wait::ANSWER, async || {
        let sent = drive(second, ("x-client", "a"), 200, 1).await.ok()?;
        allowed += sent.allowed;
        (sent.allowed == 0 && sent.denied == 200 && allowed >= 590).then_some(())
    });
    used_up.await.with_context(|| format!("{allowed} were left for the second"))?;
    ensure!((590..=600).contains(&allowed), "{allowed} were left for the second");
    ensure!(stack.upstream.served() == 400 + u64::from(allowed));
    Ok(())
}
