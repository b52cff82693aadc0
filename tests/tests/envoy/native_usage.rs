//! Limits of usage: peeked at when a request comes, debited when it is done, by Envoy's own filter in a real
//! Envoy. A debit that was larger than what was left took nothing, so that the next peek passed: a limit of
//! this kind admitted everything. Expected is what envoyproxy/ratelimit answers.

use anyhow::ensure;
use serde_json::{Value, json};
use tidegate_tests::bootstrap::Filter;
use tidegate_tests::client::Reply;
use tidegate_tests::stack::{Plan, Stack};
use tidegate_tests::wait;

const TOKENS: &str = "\
domain: shop
descriptors:
  - key: client
    rate_limit: { unit: hour, requests_per_unit: 2 }
";

const SERVICES: &str = "\
domain: shop
descriptors:
  - key: service
    value: one
    quota_mode: true
    metadata: { with_quota: one }
    rate_limit: { unit: hour, requests_per_unit: 1 }
  - key: service
    value: two
    quota_mode: true
    metadata: { with_quota: two }
    rate_limit: { unit: hour, requests_per_unit: 2 }
";

fn of_header(key: &str, hits: &Value) -> Value {
    let header = format!("x-{key}");
    json!({
        "actions": [{"request_headers": {"header_name": header, "descriptor_key": key}}],
        "hits_addend": hits,
    })
}

fn when_done(mut entry: Value) -> Value {
    entry["apply_on_stream_done"] = json!(true);
    entry
}

async fn started(
    limits: &str,
    rate_limits: &[Value],
    host: &Value,
    flags: &[&str],
) -> anyhow::Result<Stack> {
    let filter = json!({"rate_limits": rate_limits});
    let filter = Filter::NativeWith { domain: "shop", filter: &filter, host };
    let flags: Vec<&str> = ["--capacity", "1000"].iter().chain(flags).copied().collect();
    let stack = Plan { flags: &flags, ..Plan::new(limits, filter) }.start().await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    Ok(stack)
}

/// Sends one request, and waits until its debit is counted: nobody waits for that in Envoy.
async fn served(stack: &Stack, headers: &[(&str, &[u8])], cost: f64) -> anyhow::Result<Reply> {
    let before = stack.metric("tidegate_total_hits_total").await?;
    let reply = stack.get("/", headers).await?;
    // A peek is not counted; a denied request is not debited.
    if reply.status == 200 {
        let what = format!("the debit of {reply:?}");
        let after = async || {
            let counted = stack.metric("tidegate_total_hits_total").await.ok()?;
            (counted >= before + cost).then_some(())
        };
        wait::until(&what, wait::SOON, after).await?;
    }
    Ok(reply)
}

/// A window is over once its count has passed the limit, so that two a window admit three requests that are
/// debited one hit each when they are done.
#[tokio::test]
async fn a_quota_that_is_debited_after_the_fact_admits_what_it_did_there() -> anyhow::Result<()> {
    let entries = [
        of_header("client", &json!({"number": 0})),
        when_done(of_header("client", &json!({"number": 1}))),
    ];
    let stack = started(TOKENS, &entries, &json!({}), &["--count-denied"]).await?;
    let mut statuses = Vec::new();
    for _ in 0..5 {
        statuses.push(served(&stack, &[("x-client", b"a")], 1.0).await?.status.as_u16());
    }
    ensure!(statuses == [200, 200, 200, 429, 429], "{statuses:?}");
    ensure!(served(&stack, &[("x-client", b"b")], 1.0).await?.status == 200);
    Ok(())
}

/// The answer names a service that has quota left; that one serves, and is debited when it has.
#[tokio::test]
async fn two_services_share_the_load_as_long_as_either_has_quota() -> anyhow::Result<()> {
    let named = |name: &str, entry: Value| {
        json!({
            "actions": [{"generic_key": {"descriptor_key": "service", "descriptor_value": name}}],
            "hits_addend": entry,
        })
    };
    let entries = [
        named("one", json!({"number": 0})),
        named("two", json!({"number": 0})),
        when_done(of_header("service", &json!({"number": 1}))),
    ];
    let with_quota = "%DYNAMIC_METADATA(envoy.filters.http.ratelimit:metadata:with_quota)%";
    let set = |header: &str, value: &str| {
        json!({
            "header": {"key": header, "value": value},
            "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
        })
    };
    let host = json!({
        "request_headers_to_add": [set("x-service", with_quota)],
        "response_headers_to_add": [set("x-served-by", with_quota)],
    });
    let flags = ["--count-denied", "--dynamic-metadata"];
    let stack = started(SERVICES, &entries, &host, &flags).await?;
    for (request, expected) in ["one", "one", "two", "two", "two"].into_iter().enumerate() {
        let reply = served(&stack, &[], 1.0).await?;
        let by = reply.header("x-served-by");
        ensure!(reply.status == 200 && by == Some(expected), "request {request}: {reply:?}");
    }
    for _ in 0..2 {
        let reply = stack.get("/", &[]).await?;
        ensure!(reply.status == 429, "{reply:?}");
    }
    Ok(())
}

/// Where denied requests do not count, the log says what that means for such a limit.
#[tokio::test]
async fn a_debit_larger_than_what_is_left_closes_the_limit_or_is_logged() -> anyhow::Result<()> {
    let entries = [
        of_header("client", &json!({"number": 0})),
        when_done(of_header("client", &json!({"number": 3}))),
    ];
    let message = "set count_denied: true, or it limits nothing";
    let stack = started(TOKENS, &entries, &json!({}), &["--count-denied"]).await?;
    ensure!(served(&stack, &[("x-client", b"a")], 3.0).await?.status == 200);
    ensure!(served(&stack, &[("x-client", b"a")], 3.0).await?.status == 429);
    ensure!(!stack.sidecar.process.log().contains(message));

    let stack = started(TOKENS, &entries, &json!({}), &[]).await?;
    for _ in 0..10 {
        ensure!(served(&stack, &[("x-client", b"a")], 3.0).await?.status == 200);
    }
    let log = stack.sidecar.process.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains(message)).collect();
    ensure!(lines.len() == 1 && lines[0].contains("shop/client"), "{log}");
    Ok(())
}
