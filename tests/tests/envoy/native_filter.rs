//! Envoy's own rate limit filter, pointed at a sidecar instead of envoyproxy/ratelimit: a real Envoy, no
//! module of ours in it.

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::Path;
use tempfile::TempDir;
use tidegate_tests::bootstrap::{Filter, Setup, bootstrap};
use tidegate_tests::client::{Reply, Tally, get};
use tidegate_tests::envoy::start_envoy;
use tidegate_tests::sidecar::Sidecar;
use tidegate_tests::stack::{Plan, Stack};
use tidegate_tests::upstream::Upstream;
use tidegate_tests::wait;

const LIMITS: &str = "\
domain: shop
descriptors:
  - key: client
    metadata: { tier: gold }
    rate_limit: { name: per-client, unit: hour, requests_per_unit: 5 }
  - key: watched
    shadow_mode: true
    rate_limit: { unit: hour, requests_per_unit: 1 }
";

/// One descriptor of the header `x-<key>`, under that key.
fn of_header(key: &str) -> Value {
    let header = format!("x-{key}");
    json!({"actions": [{"request_headers": {"header_name": header, "descriptor_key": key}}]})
}

async fn started(filter: &Value, host: &Value, flags: &[&str]) -> anyhow::Result<Stack> {
    let filter = Filter::NativeWith { domain: "shop", filter, host };
    let flags: Vec<&str> = ["--capacity", "1000"].iter().chain(flags).copied().collect();
    let plan = Plan { flags: &flags, ..Plan::new(LIMITS, filter) };
    let stack = plan.start().await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    Ok(stack)
}

fn by_client() -> Value {
    json!({"rate_limits": [of_header("client")]})
}

#[tokio::test]
async fn what_is_over_the_limit_is_denied_as_by_envoyproxy_ratelimit() -> anyhow::Result<()> {
    let stack = started(&json!({}), &by_client(), &[]).await?;
    let tally = stack.send_many("a", 8).await?;
    ensure!(tally == Tally { allowed: 5, denied: 3, failed: 0 }, "{tally:?}");
    let denied = stack.send(b"a").await?;
    ensure!(
        denied.status == 429 && denied.header("x-envoy-ratelimited") == Some("true"),
        "{denied:?}"
    );
    ensure!(denied.header("ratelimit").is_none() && denied.header("retry-after").is_none());
    let other = stack.send(b"b").await?;
    ensure!(other.status == 200, "{other:?}");
    // Without the header there is no descriptor, and nobody is asked.
    ensure!(stack.get("/", &[]).await?.status == 200);
    let stats = stack.envoy.stats("cluster.upstream.ratelimit").await?;
    let of = |name: &str| stats.get(&format!("cluster.upstream.ratelimit.{name}")).copied();
    ensure!((of("ok"), of("over_limit")) == (Some(6), Some(4)), "{stats:?}");
    ensure!(of("error").unwrap_or(0) == 0, "{stats:?}");
    ensure!(stack.metric("tidegate_over_limit_total").await? == 4.0);
    Ok(())
}

/// The headers of a reply whose names begin so, without those that tell of time.
fn values<'r>(reply: &'r Reply, names: &[&'r str]) -> Vec<&'r str> {
    names.iter().map(|name| reply.header(name).unwrap_or("-")).collect()
}

/// Sends one request as client `a`; in how many seconds its window may end.
async fn send_timed(stack: &Stack) -> anyhow::Result<(RangeInclusive<u64>, Reply)> {
    wait::reset_during(wait::HOUR, stack.send(b"a")).await
}

/// That this header has a time to the end of the window.
fn is_time(expected: &RangeInclusive<u64>, reply: &Reply, name: &str) -> anyhow::Result<()> {
    let text = reply.header(name).with_context(|| format!("no {name} in {reply:?}"))?;
    let secs = text.rsplit("t=").next().unwrap_or(text).parse()?;
    ensure!(expected.contains(&secs), "{name}: {secs} s, expected {expected:?}");
    Ok(())
}

#[tokio::test]
async fn headers_of_the_sidecar_reach_the_client() -> anyhow::Result<()> {
    let stack = started(&json!({}), &by_client(), &["--response-headers", "ratelimit"]).await?;
    let names = ["ratelimit-limit", "ratelimit-remaining"];
    for (status, left) in [(200, "4"), (200, "3"), (200, "2"), (200, "1"), (200, "0"), (429, "0")] {
        let (expected, reply) = send_timed(&stack).await?;
        ensure!(reply.status == status && values(&reply, &names) == ["5", left], "{reply:?}");
        is_time(&expected, &reply, "ratelimit-reset")?;
    }

    let stack = started(&json!({}), &by_client(), &["--response-headers", "ietf"]).await?;
    let (expected, reply) = send_timed(&stack).await?;
    ensure!(reply.header("ratelimit-policy") == Some("\"per-client\";q=5;w=3600"), "{reply:?}");
    let state = reply.header("ratelimit").context("no RateLimit")?;
    ensure!(state.starts_with("\"per-client\";r=4;t="), "{state}");
    is_time(&expected, &reply, "ratelimit")?;
    ensure!(reply.header("retry-after").is_none(), "{reply:?}");
    stack.send_many("a", 4).await?;
    let (expected, denied) = send_timed(&stack).await?;
    ensure!(denied.status == 429, "{denied:?}");
    is_time(&expected, &denied, "retry-after")
}

/// Envoy makes these of what an answer says of each descriptor; ours are the same.
#[tokio::test]
async fn headers_by_envoy_are_those_by_the_sidecar() -> anyhow::Result<()> {
    let by_envoy = json!({
        "enable_x_ratelimit_headers": "DRAFT_VERSION_03", "enable_retry_after_header": true,
    });
    let theirs = started(&by_envoy, &by_client(), &[]).await?;
    let ours = started(&json!({}), &by_client(), &["--response-headers", "x-ratelimit"]).await?;
    let names = ["x-ratelimit-limit", "x-ratelimit-remaining"];
    for (status, left) in [(200, "4"), (200, "3"), (200, "2"), (200, "1"), (200, "0"), (429, "0")] {
        for stack in [&theirs, &ours] {
            let (times, reply) = send_timed(stack).await?;
            let expected = ["5, 5;w=3600;name=\"per-client\"", left];
            ensure!(reply.status == status && values(&reply, &names) == expected, "{reply:?}");
            is_time(&times, &reply, "x-ratelimit-reset")?;
        }
    }
    let (expected, denied) = send_timed(&theirs).await?;
    is_time(&expected, &denied, "retry-after")
}

#[tokio::test]
async fn a_dead_sidecar_is_what_failure_mode_says() -> anyhow::Result<()> {
    for (filter, status, stat) in [
        (json!({"failure_mode_deny": true}), 500, "error"),
        (json!({}), 200, "failure_mode_allowed"),
    ] {
        let mut stack = started(&filter, &by_client(), &[]).await?;
        ensure!(stack.send_many("a", 5).await?.allowed == 5);
        stack.sidecar.kill().await?;
        let reply = stack.send(b"a").await?;
        ensure!(reply.status == status, "{filter}: {reply:?}");
        let stat = format!("cluster.upstream.ratelimit.{stat}");
        ensure!(stack.envoy.stat(&stat).await? >= 1, "{stat}");
        // It comes back with its counts, and Envoy finds it by itself.
        stack.sidecar.restart().await?;
        wait::until("Envoy to find the sidecar", wait::RETRY, async || {
            let reply = stack.send(b"a").await.ok()?;
            (reply.status == 429).then_some(())
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn hits_are_what_the_route_says() -> anyhow::Result<()> {
    let mut costly = of_header("client");
    costly["hits_addend"] = json!({"format": "%REQ(x-cost)%"});
    // Envoy goes by the costs of the filter's own list only, not by those of a virtual host's.
    let filter = json!({"rate_limits": [costly]});
    let stack = started(&filter, &json!({}), &["--response-headers", "ratelimit"]).await?;
    for (cost, status, left) in [("2", 200, "3"), ("2", 200, "1"), ("2", 429, "0"), ("1", 200, "0")]
    {
        let reply = stack.get("/", &[("x-client", b"a"), ("x-cost", cost.as_bytes())]).await?;
        let found = (reply.status.as_u16(), reply.header("ratelimit-remaining"));
        ensure!(found == (status, Some(left)), "{cost}: {reply:?}");
    }
    Ok(())
}

/// Taken when a request comes, given back when it is done: what is limited is how many are under way. Both
/// are asked for by Envoy in calls that nobody waits for, so it is the counter that tells.
#[tokio::test]
async fn hits_are_given_back_when_a_request_is_done() -> anyhow::Result<()> {
    let mut back = of_header("client");
    back["apply_on_stream_done"] = json!(true);
    back["hits_addend"] = json!({"number": 1, "is_negative_hits": true});
    let filter = json!({"rate_limits": [of_header("client"), back]});
    let stack = started(&filter, &json!({}), &[]).await?;
    for round in 0..12 {
        let what = format!("the hit of round {round} to be given back");
        // One of five is taken by each request; without returns the sixth would be denied.
        let reply = wait::until(&what, wait::SOON, async || {
            let reply = stack.send(b"a").await.ok()?;
            (reply.status == 200).then_some(reply)
        });
        reply.await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_rule_in_shadow_denies_nobody() -> anyhow::Result<()> {
    let host = json!({"rate_limits": [of_header("watched")]});
    let stack = started(&json!({}), &host, &[]).await?;
    for _ in 0..4 {
        ensure!(stack.get("/", &[("x-watched", b"a")]).await?.status == 200);
    }
    ensure!(stack.metric("tidegate_shadow_mode_total").await? == 3.0);
    ensure!(stack.envoy.stat("cluster.upstream.ratelimit.ok").await? == 4);
    // And a whole sidecar in shadow.
    let stack = started(&json!({}), &by_client(), &["--shadow-mode"]).await?;
    let tally = stack.send_many("a", 9).await?;
    ensure!(tally == Tally { allowed: 9, denied: 0, failed: 0 }, "{tally:?}");
    ensure!(stack.metric("tidegate_global_shadow_mode_total").await? == 4.0);
    Ok(())
}

#[tokio::test]
async fn dynamic_metadata_is_there_for_formatters_of_envoy() -> anyhow::Result<()> {
    let mut host = by_client();
    let descriptor = |header: &str, path: &str| {
        let value = format!("%DYNAMIC_METADATA(envoy.filters.http.ratelimit:{path})%");
        json!({"header": {"key": header, "value": value}})
    };
    host["response_headers_to_add"] =
        json!([descriptor("x-domain", "domain"), descriptor("x-tier", "metadata:tier")]);
    let stack = started(&json!({}), &host, &["--dynamic-metadata"]).await?;
    let reply = stack.send(b"a").await?;
    let found = (reply.header("x-domain"), reply.header("x-tier"));
    ensure!(found == (Some("shop"), Some("gold")), "{reply:?}");
    Ok(())
}

/// A directory as deployments of envoyproxy/ratelimit have it: a domain a file, every key of its schema.
const DIRECTORY: [(&str, &str); 3] = [
    (
        "shop.yaml",
        "\
domain: shop
descriptors:
  - key: client
    rate_limit: { unit: hour, requests_per_unit: 3 }
  - key: client
    value: vip
    rate_limit: { unlimited: true }
  - key: client
    value: bad-*
    rate_limit: { unit: day, requests_per_unit: 0 }
  - key: client
    value: watched
    shadow_mode: true
    rate_limit: { unit: HOUR, requests_per_unit: 1 }
  - key: plan
    descriptors:
      - key: path
        value: /costly
        detailed_metric: true
        rate_limit:
          name: costly
          unit: week
          requests_per_unit: 1
          replaces: [{ name: broad }]
  - key: broad
    rate_limit: { name: broad, unit: hour, requests_per_unit: 2 }
",
    ),
    (
        "other.yml",
        "domain: other\ndescriptors: [{key: client, rate_limit: {unit: month, requests_per_unit: 1}}]\n",
    ),
    (".hidden.yaml", "this: is no limit\n"),
];

async fn on_directory(dir: &Path, rate_limits: &Value) -> anyhow::Result<Stack> {
    let limits = dir.join("config");
    std::fs::create_dir(&limits)?;
    for (name, text) in DIRECTORY {
        std::fs::write(limits.join(name), text)?;
    }
    let own = TempDir::new()?;
    let upstream = Upstream::start("127.0.0.1:0").await?;
    let sidecar = Sidecar::start(own.path(), &limits).await?;
    let socket = Sidecar::socket(own.path());
    let filter = Filter::Native { domain: "shop", rate_limits };
    let config = bootstrap(&Setup::new(filter, &socket, upstream.address))?.to_string();
    let envoy = start_envoy(&config, own.path(), 1).await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    let others = Vec::new();
    Ok(Stack { envoy, others, sidecar, upstream, dir: own })
}

#[tokio::test]
async fn a_directory_of_envoyproxy_ratelimit_means_what_it_meant() -> anyhow::Result<()> {
    let dir = TempDir::new()?;
    let path = json!({"request_headers": {"header_name": ":path", "descriptor_key": "path"}});
    let plan = json!({"request_headers": {"header_name": "x-plan", "descriptor_key": "plan"}});
    let rate_limits = json!([of_header("client"), of_header("broad"), {"actions": [plan, path]}]);
    let stack = on_directory(dir.path(), &rate_limits).await?;
    let statuses = async |path: &str, headers: &[(&str, &[u8])], times: u32| {
        let mut statuses = Vec::new();
        for _ in 0..times {
            statuses.push(stack.get(path, headers).await?.status.as_u16());
        }
        anyhow::Ok(statuses)
    };
    // A key alone: a counter for each value. A value, a pattern, shadow.
    for (client, expected) in [
        ("a", [200, 200, 200, 429]),
        ("b", [200, 200, 200, 429]),
        ("vip", [200; 4]),
        ("bad-one", [429; 4]),
        ("watched", [200; 4]),
    ] {
        let found = statuses("/", &[("x-client", client.as_bytes())], 4).await?;
        ensure!(found == expected, "{client}: {found:?}");
    }
    // Nested, and in place of the broad limit: where it applies, that one is not taken from.
    let costly: [(&str, &[u8]); 2] = [("x-broad", b"x"), ("x-plan", b"p")];
    ensure!(statuses("/costly", &costly, 2).await? == [200, 429]);
    ensure!(statuses("/cheap", &costly, 3).await? == [200, 200, 429]);
    let rlconfig = get(stack.sidecar.http, "/rlconfig").await?;
    let rlconfig = String::from_utf8_lossy(&rlconfig.body).into_owned();
    let domains: BTreeSet<&str> =
        rlconfig.lines().filter_map(|line| line.split('.').next()).collect();
    ensure!(domains == BTreeSet::from(["other", "shop"]), "{rlconfig}");
    Ok(())
}
