//! The built filter in a real Envoy, with a real sidecar process behind it.

use anyhow::{Context, bail, ensure};
use serde_json::json;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;
use tidegate_tests::bootstrap::{Filter, Setup, bootstrap};
use tidegate_tests::client::{Client, Tally, drive};
use tidegate_tests::command::run;
use tidegate_tests::envoy::Envoy;
use tidegate_tests::plugin::{limits, plugin, plugin_with};
use tidegate_tests::stack::{Plan, Stack};
use tidegate_tests::{artifacts, wait};
use tokio::process::Command;

const FIVE_AN_HOUR: &str = "{ name: five, unit: hour, requests_per_unit: 5 }";

async fn start(limits: &str, plugin: &str, workers: u32) -> anyhow::Result<Stack> {
    Stack::start_shared(limits, Filter::Tidegate(plugin), workers).await
}

fn tally(allowed: u32, denied: u32) -> Tally {
    Tally { allowed, denied, failed: 0 }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_of_two_hundred_pass_over_four_connections_and_two_workers() -> anyhow::Result<()> {
    let limits = limits("{ unit: hour, requests_per_unit: 50 }");
    let plugin = plugin().to_string();
    // Tokens of a lease that ends before they are spent count as spent. On a busy machine the requests may take longer than
    // the usual two seconds.
    let flags: &[&str] = &["--capacity", "100000", "--lease-ttl", "60s"];
    let plan = Plan { workers: 2, flags, ..Plan::new(&limits, Filter::Tidegate(&plugin)) };
    let stack = plan.start().await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    let sent = drive(stack.envoy.address, ("x-client", "a"), 200, 4).await?;
    ensure!(sent == tally(50, 150), "{sent:?}");
    ensure!(stack.upstream.served() == 50, "{} reached the upstream", stack.upstream.served());
    for worker in 0..2 {
        let connections = format!("listener.127.0.0.1_0.worker_{worker}.downstream_cx_total");
        ensure!(stack.envoy.stat(&connections).await? >= 2, "worker {worker} was left out");
    }
    Ok(())
}

#[tokio::test]
async fn a_window_rolls_over() -> anyhow::Result<()> {
    let period = Duration::from_secs(4);
    let limits = limits("{ period: 4s, requests: 2 }");
    let stack = start(&limits, &plugin().to_string(), 1).await?;
    // Which window a moment is in.
    let window = || SystemTime::now().duration_since(UNIX_EPOCH).map(|now| now.as_secs() / 4);
    let mut rounds = 0;
    for client in 0..20 {
        let client = client.to_string();
        wait::for_room_in_window(period, Duration::from_secs(3)).await?;
        let first = window()?;
        let sent = stack.send_many(&client, 5).await?;
        if window()? != first {
            // A machine that stood still for three seconds shows nothing.
            continue;
        }
        ensure!(sent == tally(2, 3), "a window has one quota: {sent:?}");
        wait::until("the next window to let requests pass", period, async || {
            (stack.send(client.as_bytes()).await.ok()?.status == 200).then_some(())
        })
        .await?;
        ensure!(window()? > first, "a request passed before the window was over");
        rounds += 1;
        if rounds == 2 {
            return Ok(());
        }
    }
    bail!("five requests took three seconds and more, nearly each time")
}

#[tokio::test]
async fn keys_are_counted_apart_and_a_denial_says_what_and_until_when() -> anyhow::Result<()> {
    let stack = start(&limits(FIVE_AN_HOUR), &plugin().to_string(), 1).await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    let first = stack.send(b"a").await?;
    ensure!(first.header("ratelimit-policy") == Some("\"five\";q=5;w=3600"), "{first:?}");
    let state = first.header("ratelimit").context("a RateLimit header")?;
    ensure!(state.starts_with("\"five\";r=4;t="), "{state}");
    ensure!(stack.send_many("a", 9).await? == tally(4, 5));
    ensure!(stack.send_many("b", 5).await? == tally(5, 0));

    let (expected, denied) = wait::reset_during(wait::HOUR, stack.send(b"a")).await?;
    ensure!(denied.status == 429 && denied.body == "rate limit exceeded", "{denied:?}");
    ensure!(denied.header("x-envoy-ratelimited") == Some("true"), "{denied:?}");
    let retry_after: u64 = denied.header("retry-after").context("Retry-After")?.parse()?;
    // A denial that is repeated counts its time from when the answer reached Envoy.
    let expected = *expected.start()..=expected.end() + 1;
    ensure!(expected.contains(&retry_after), "{retry_after} s, expected {expected:?}");
    let state = denied.header("ratelimit").context("a RateLimit header")?;
    ensure!(state == format!("\"five\";r=0;t={retry_after}"), "{state}");

    // Envoy makes the body the message of a gRPC status, in which a line end would be `%0A`.
    let headers: [(&str, &[u8]); 3] =
        [("x-client", b"a"), ("content-type", b"application/grpc"), ("te", b"trailers")];
    let call = stack.get("/", &headers).await?;
    ensure!(call.header("grpc-status").is_some(), "{call:?}");
    ensure!(call.header("content-type") == Some("application/grpc"), "{call:?}");
    ensure!(call.header("grpc-message") == Some("rate limit exceeded"), "{call:?}");

    let unkeyed = Client::connect(stack.envoy.address).await?.get("/", &[]).await?;
    ensure!(unkeyed.status == 200, "a request without the header meets no limit");
    ensure!(unkeyed.header("ratelimit").is_none(), "{unkeyed:?}");
    Ok(())
}

#[tokio::test]
async fn an_address_is_limited_as_envoy_trusts_it() -> anyhow::Result<()> {
    let limits = "domain: test\ndescriptors:\n  - key: api\n    value: v1\n    descriptors:\n      \
                  - key: remote_address\n        rate_limit: { unit: hour, requests_per_unit: 1 }\n";
    let actions = json!([
        {"generic_key": {"descriptor_key": "api", "descriptor_value": "v1"}},
        {"remote_address": {}},
    ]);
    let plugin = plugin_with("/rate_limits", json!([{"actions": actions}]));
    let stack = start(limits, &plugin, 1).await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    let mut client = Client::connect(stack.envoy.address).await?;
    for (forwarded, status) in [
        (None, 200),
        (None, 429),
        (Some("203.0.113.9"), 200),
        (Some("203.0.113.9"), 429),
        (Some("2001:db8::1"), 200),
    ] {
        let forwarded: Vec<(&str, &[u8])> =
            forwarded.iter().map(|ip: &&str| ("x-forwarded-for", ip.as_bytes())).collect();
        let reply = client.get("/", &forwarded).await?;
        ensure!(reply.status == status, "{forwarded:?}: {reply:?}");
    }
    Ok(())
}

#[tokio::test]
async fn without_a_sidecar_failure_mode_rules_until_it_is_back() -> anyhow::Result<()> {
    for (mode, status) in [("allow", 200), ("deny", 500)] {
        let plugin = plugin_with("/failure_mode", json!(mode));
        let limits = limits(FIVE_AN_HOUR);
        let mut stack = Stack::start(&limits, Filter::Tidegate(&plugin), 1).await?;
        wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
        ensure!(stack.send_many("a", 6).await? == tally(5, 1));
        stack.sidecar.kill().await?;
        let known = stack.send(b"a").await?;
        ensure!(known.status == 429, "a denial that is known needs no sidecar: {known:?}");
        // Enough for the breaker to open, which is what the log tells of.
        for _ in 0..10 {
            let reply = stack.send(b"b").await?;
            ensure!(reply.status == status, "failure_mode {mode}: {reply:?}");
        }
        let news = format!("failure_mode {mode}");
        stack.logged(&news).await?;
        let logged = stack.envoy.process.log().matches(&news).count();
        ensure!(logged == 1, "logged {logged} times, not once");

        stack.sidecar.restart().await?;
        wait::until("denials by the sidecar that is back", wait::RETRY, async || {
            (stack.send(b"b").await.ok()?.status == 429).then_some(())
        })
        .await?;
        stack.logged("answers again").await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_kill_of_the_sidecar_loses_no_count() -> anyhow::Result<()> {
    let plugin = plugin_with("/failure_mode", json!("deny"));
    let mut stack = start(&limits(FIVE_AN_HOUR), &plugin, 2).await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    // One hit between any two kills, and still five in all.
    for hit in 1..=5 {
        ensure!(stack.send_many("a", 1).await? == tally(1, 0), "hit {hit}");
        stack.sidecar.kill().await?;
        stack.sidecar.restart().await?;
    }
    ensure!(stack.send_many("a", 4).await? == tally(0, 4));
    Ok(())
}

/// Starts Envoy on a plugin configuration that it must refuse, and returns its log.
async fn refused(plugin: &str) -> anyhow::Result<String> {
    let dir = TempDir::new()?;
    let sidecar = dir.path().join("none.sock");
    let upstream = "127.0.0.1:9".parse()?;
    let config = bootstrap(&Setup::new(Filter::Tidegate(plugin), &sidecar, upstream))?.to_string();
    let path = dir.path().join("envoy.yaml");
    std::fs::write(&path, config)?;
    let mut envoy = Envoy::launch(&path, dir.path(), 1)?;
    let status =
        wait::until("Envoy to end", wait::START, async || envoy.ended().ok().flatten()).await?;
    ensure!(!status.success(), "Envoy accepted {plugin}");
    Ok(envoy.log())
}

#[tokio::test]
async fn a_bad_plugin_configuration_is_refused_by_name() -> anyhow::Result<()> {
    let misspelt = plugin_with("/rate_limits", json!([{"actions": [{"remote_adress": {}}]}]));
    for (plugin, message) in [
        (
            misspelt,
            "rate_limits[0].actions[0].remote_adress: unknown field `remote_adress` (did you mean \
             `remote_address`?), expected one of `request_headers`, ",
        ),
        (
            plugin_with("/sidecar/timeout_ms", json!("20ms")),
            "sidecar.timeout_ms: invalid type: string \"20ms\", expected a non-negative integer",
        ),
        (plugin_with("/domain", json!("")), "domain: must not be empty"),
        (
            "nonsense".to_owned(),
            "expected a JSON object with `domain`, `sidecar` and `rate_limits`",
        ),
    ] {
        let log = refused(&plugin).await?;
        let message = format!("tidegate: plugin configuration: {message}");
        ensure!(log.contains(&message), "no {message:?} in:\n{log}");
    }
    Ok(())
}

#[tokio::test]
async fn a_cluster_that_envoy_does_not_have_is_a_failure_and_no_crash() -> anyhow::Result<()> {
    let plugin = plugin_with("/sidecar/cluster", json!("nowhere"));
    let stack = start(&limits(FIVE_AN_HOUR), &plugin, 1).await?;
    ensure!(stack.send_many("a", 7).await? == tally(7, 0), "failure_mode allow");
    stack.logged("cluster nowhere").await?;
    Ok(())
}

#[tokio::test]
async fn header_bytes_that_are_not_utf8_do_not_harm_the_worker() -> anyhow::Result<()> {
    let stack = start(&limits(FIVE_AN_HOUR), &plugin().to_string(), 1).await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    let mut client = Client::connect(stack.envoy.address).await?;
    // Every byte that HTTP/1.1 lets through, alone and in bulk.
    for byte in (0x21..=0xffu8).filter(|byte| *byte != 0x7f) {
        let reply = client.get("/", &[("x-client", &[byte])]).await?;
        ensure!([200, 429].contains(&reply.status.as_u16()), "byte {byte:#x}: {reply:?}");
    }
    let mut last = 0;
    for _ in 0..6 {
        last = client.get("/", &[("x-client", b"\xff\xfe\xfd")]).await?.status.as_u16();
    }
    ensure!(last == 429, "bytes that are no text are limited as well");
    let long = vec![0xe9; 30_000];
    ensure!(client.get("/", &[("x-client", &long)]).await?.status == 200);
    // Not one of the bytes above, which are keys of their own.
    let after = stack.send_many("new", 6).await?;
    ensure!(after == tally(5, 1), "the worker still decides: {after:?}");
    let log = stack.envoy.process.log();
    ensure!(!log.contains("Wasm VM failed"), "{log}");
    Ok(())
}

/// A client could make its ask too large for the sidecar, so that `failure_mode` allow let every
/// request pass: bytes that are no text tripled on the wire, once per descriptor.
#[tokio::test]
async fn a_header_as_long_as_envoy_lets_through_is_limited_all_the_same() -> anyhow::Result<()> {
    let actions = json!([{"request_headers":
        {"header_name": "x-client", "descriptor_key": "client"}}]);
    let many = vec![json!({"actions": actions}); 8];
    let plugin = plugin_with("/rate_limits", json!(many));
    let limits = limits("{ unit: hour, requests_per_unit: 16 }");
    let stack = start(&limits, &plugin, 1).await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    let long = vec![0xe9; 45_000];
    // Eight descriptors that are the same charge one counter eight times.
    for status in [200, 200, 429] {
        let reply = stack.send(&long).await?;
        ensure!(reply.status == status, "{reply:?}");
    }
    Ok(())
}

#[tokio::test]
async fn replies_are_as_configured() -> anyhow::Result<()> {
    let mut plugin = plugin();
    plugin["headers"] = json!("draft03");
    plugin["denied"] = json!({"status": 503, "body": "come back later"});
    let limits = limits("{ algorithm: token_bucket, period: 1h, requests: 1, burst: 2 }");
    let shown = plugin.to_string();
    plugin["headers"] = json!("off");
    let plugins = [shown, plugin.to_string()];
    let plans = plugins.each_ref().map(|plugin| Plan::new(&limits, Filter::Tidegate(plugin)));
    let stacks = Plan::start_each_shared(&plans).await?;
    let [stack, hidden] = stacks.as_slice() else { bail!("two are started") };
    let allowed = stack.send(b"a").await?;
    let header = |name| allowed.header(name);
    ensure!(header("x-ratelimit-limit") == Some("2, 2;name=\"client\""), "{allowed:?}");
    ensure!(header("x-ratelimit-remaining") == Some("1"), "{allowed:?}");
    stack.send(b"a").await?;
    let denied = stack.send(b"a").await?;
    ensure!(denied.status == 503 && denied.body == "come back later", "{denied:?}");
    ensure!(denied.header("x-ratelimit-remaining") == Some("0"), "{denied:?}");

    for status in [200, 200, 503] {
        let reply = hidden.send(b"a").await?;
        ensure!(reply.status == status, "{reply:?}");
        let about = |name: &&str| name.contains("ratelimit-") || *name == "ratelimit";
        let names = reply.headers.keys().map(hyper::header::HeaderName::as_str);
        ensure!(names.filter(about).count() == 0, "{reply:?}");
    }
    Ok(())
}

#[tokio::test]
async fn the_shipped_configuration_is_valid() -> anyhow::Result<()> {
    // Validation loads the filter with the shipped plugin configuration as well.
    let mut command = Command::new(artifacts::envoy()?);
    command.current_dir(artifacts::root());
    command.args(["--mode", "validate", "-c", "envoy/standalone/envoy.yaml"]);
    let validated = run(command).await?;
    ensure!(validated.code == Some(0), "{}", validated.err);
    Ok(())
}
