//! Options that the filter shares with Envoy's own: both filters on the same requests.

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tidegate_tests::bootstrap::{Filter, merge};
use tidegate_tests::client::Reply;
use tidegate_tests::plugin::{limits, plugin};
use tidegate_tests::stack::Stack;
use tidegate_tests::wait;

const ONE_AN_HOUR: &str = "{ unit: hour, requests_per_unit: 1 }";

/// Both filters with the same options, each in an Envoy of its own with a sidecar of its own.
struct Both {
    native: Stack,
    ours: Stack,
}

impl Both {
    /// `ours` and `native` are fields that only one of the filters has.
    async fn start(options: &Value, native: &Value, ours: &Value) -> anyhow::Result<Both> {
        let limits = limits(ONE_AN_HOUR);
        let host = json!({"rate_limits": plugin()["rate_limits"]});
        let with = |mut all: Value, own: &Value| {
            merge(&mut all, options);
            merge(&mut all, own);
            all
        };
        let native = with(json!({}), native);
        let native = Filter::NativeWith { domain: "test", filter: &native, host: &host };
        let plugin = with(plugin(), ours).to_string();
        wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
        Ok(Both {
            native: Stack::start(&limits, native, 1).await?,
            ours: Stack::start(&limits, Filter::Tidegate(&plugin), 1).await?,
        })
    }

    /// The same request to both.
    async fn get(&self, headers: &[(&str, &[u8])]) -> anyhow::Result<[Reply; 2]> {
        Ok([self.native.get("/", headers).await?, self.ours.get("/", headers).await?])
    }

    /// The same requests of a client to both, which answer with these statuses.
    async fn answer(&self, headers: &[(&str, &[u8])], statuses: &[u16]) -> anyhow::Result<()> {
        for (number, status) in statuses.iter().enumerate() {
            let [native, ours] = self.get(headers).await?;
            ensure!(native.status == *status, "native, request {number}: {native:?}");
            ensure!(ours.status == *status, "ours, request {number}: {ours:?}");
        }
        Ok(())
    }
}

/// With a body of JSON. Envoy's own filter has no body here, and so no content type.
#[tokio::test]
async fn a_configured_content_type_is_the_only_one() -> anyhow::Result<()> {
    for action in ["APPEND_IF_EXISTS_OR_ADD", "ADD_IF_ABSENT", "OVERWRITE_IF_EXISTS_OR_ADD"] {
        let mut plugin = plugin();
        let header = json!({"key": "content-type", "value": "application/json"});
        plugin["response_headers_to_add"] = json!([{"header": header, "append_action": action}]);
        plugin["denied"] = json!({"body": "{}"});
        let (limits, plugin) = (limits(ONE_AN_HOUR), plugin.to_string());
        let stack = Stack::start(&limits, Filter::Tidegate(&plugin), 1).await?;
        wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
        stack.send(b"a").await?;
        let denied = stack.send(b"a").await?;
        ensure!(denied.status == 429 && denied.body == "{}", "{denied:?}");
        ensure!(values(&denied, "content-type") == ["application/json"], "{denied:?}");
    }
    Ok(())
}

/// All values of a header.
fn values<'r>(reply: &'r Reply, name: &str) -> Vec<&'r str> {
    reply.headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect()
}

fn share(numerator: u32) -> Value {
    json!({"default_value": {"numerator": numerator, "denominator": "HUNDRED"}})
}

#[tokio::test]
async fn a_grpc_client_gets_the_status_that_envoy_sends() -> anyhow::Result<()> {
    let call: [(&str, &[u8]); 3] =
        [("x-client", b"a"), ("content-type", b"application/grpc"), ("te", b"trailers")];
    for (is_exhausted, expected) in [(false, "14"), (true, "8")] {
        let options = json!({"rate_limited_as_resource_exhausted": is_exhausted});
        let both = Both::start(&options, &json!({}), &json!({})).await?;
        both.get(&call).await?;
        for denied in both.get(&call).await? {
            ensure!(denied.status == 200, "{denied:?}");
            ensure!(values(&denied, "content-type") == ["application/grpc"], "{denied:?}");
            ensure!(values(&denied, "grpc-status") == [expected], "{denied:?}");
            ensure!(values(&denied, "x-envoy-ratelimited") == ["true"], "{denied:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_denial_has_the_configured_headers_and_an_allowed_request_has_not() -> anyhow::Result<()>
{
    let added = |name: &str, value: &str, action: &str| json!({"header": {"key": name, "value": value}, "append_action": action});
    let options = json!({
        "disable_x_envoy_ratelimited_header": true,
        "response_headers_to_add": [
            {"header": {"key": "X-Plan", "value": "100%% of it"}},
            added("x-twice", "one", "APPEND_IF_EXISTS_OR_ADD"),
            added("x-twice", "two", "APPEND_IF_EXISTS_OR_ADD"),
            added("x-first", "one", "ADD_IF_ABSENT"),
            added("x-first", "two", "ADD_IF_ABSENT"),
            added("x-last", "one", "OVERWRITE_IF_EXISTS_OR_ADD"),
            added("x-last", "two", "OVERWRITE_IF_EXISTS_OR_ADD"),
            added("x-none", "one", "OVERWRITE_IF_EXISTS"),
            {"header": {"key": "x-empty", "value": ""}},
            {"header": {"key": "x-kept", "value": ""}, "keep_empty_value": true},
        ],
    });
    let both = Both::start(&options, &json!({}), &json!({})).await?;
    let names = [
        ("x-plan", vec!["100% of it"]),
        ("x-twice", vec!["one", "two"]),
        // Envoy looks at what was there before any of these.
        ("x-first", vec!["one", "two"]),
        ("x-last", vec!["two"]),
        ("x-none", vec![]),
        ("x-empty", vec![]),
        ("x-kept", vec![""]),
        ("x-envoy-ratelimited", vec![]),
    ];
    for allowed in both.get(&[("x-client", b"a")]).await? {
        ensure!(allowed.status == 200, "{allowed:?}");
        for (name, _) in &names {
            ensure!(values(&allowed, name).is_empty(), "{name}: {allowed:?}");
        }
    }
    for denied in both.get(&[("x-client", b"a")]).await? {
        ensure!(denied.status == 429, "{denied:?}");
        for (name, expected) in &names {
            ensure!(values(&denied, name) == *expected, "{name}: {denied:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn failures_have_the_configured_status_for_the_configured_share() -> anyhow::Result<()> {
    let with = |deny: u32| {
        json!({
            "status_on_error": {"code": 503},
            "failure_mode_deny_percent": share(deny),
        })
    };
    for (deny, status) in [(100, 503), (0, 200)] {
        // The share counts, whatever the mode says.
        let (native, ours) = match deny {
            0 => (json!({"failure_mode_deny": true}), json!({"failure_mode": "deny"})),
            _ => (json!({}), json!({})),
        };
        let mut both = Both::start(&with(deny), &native, &ours).await?;
        both.native.sidecar.kill().await?;
        both.ours.sidecar.kill().await?;
        both.answer(&[("x-client", b"a")], &[status; 8]).await?;
    }
    let (native, ours) = (json!({"failure_mode_deny": true}), json!({"failure_mode": "deny"}));
    let options = json!({"status_on_error": {"code": 504}});
    let mut both = Both::start(&options, &native, &ours).await?;
    both.native.sidecar.kill().await?;
    both.ours.sidecar.kill().await?;
    both.answer(&[("x-client", b"a")], &[504; 8]).await
}

#[tokio::test]
async fn the_filter_looks_at_a_share_and_enforces_a_share() -> anyhow::Result<()> {
    let client: [(&str, &[u8]); 1] = [("x-client", b"a")];
    let both = Both::start(&json!({"filter_enabled": share(0)}), &json!({}), &json!({})).await?;
    both.answer(&client, &[200; 5]).await?;
    for stack in [&both.native, &both.ours] {
        ensure!(stack.metric("tidegate_answers_total").await? == 0.0, "a request was counted");
    }
    let both = Both::start(&json!({"filter_enforced": share(0)}), &json!({}), &json!({})).await?;
    both.answer(&client, &[200; 5]).await?;
    let [_, ours] = both.get(&client).await?;
    ensure!(values(&ours, "x-envoy-ratelimited").is_empty(), "it was not limited: {ours:?}");
    let shadow = wait::until("the filter's report", wait::SOON, async || {
        both.ours.envoy.filter_stat("shadow_denied").await.ok().filter(|denied| *denied >= 5)
    })
    .await?;
    ensure!(shadow == 5, "{shadow}");
    let over = both.native.envoy.stat("cluster.upstream.ratelimit.over_limit").await?;
    ensure!(over == 5, "{over}");
    let both = Both::start(&json!({"filter_enforced": share(100)}), &json!({}), &json!({})).await?;
    both.answer(&client, &[200, 429, 429]).await
}

#[tokio::test]
async fn requests_are_internal_or_external_as_envoy_says() -> anyhow::Result<()> {
    for (request_type, internal, external) in
        [("internal", 429, 200), ("external", 200, 429), ("both", 429, 429)]
    {
        let options = json!({"request_type": request_type});
        let both = Both::start(&options, &json!({}), &json!({})).await?;
        // Envoy passes on what a trusted peer says.
        let from = |client, address| -> [(&str, &[u8]); 2] {
            [("x-client", client), ("x-forwarded-for", address)]
        };
        let (inside, outside) = (from(b"a", b"10.0.0.1"), from(b"b", b"203.0.113.9"));
        both.answer(&inside, &[200, internal]).await.context(request_type)?;
        both.answer(&outside, &[200, external]).await.context(request_type)?;
    }
    Ok(())
}
