//! Options that the filter shares with Envoy's own: both filters on the same requests.

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use tidegate_tests::bootstrap::{Filter, merge};
use tidegate_tests::client::Reply;
use tidegate_tests::plugin::{limits, plugin};
use tidegate_tests::stack::{Plan, Stack};
use tidegate_tests::wait;

const ONE_AN_HOUR: &str = "{ unit: hour, requests_per_unit: 1 }";

/// Both filters with the same options, each with a listener and a sidecar of its own.
struct Both {
    native: Stack,
    ours: Stack,
}

impl Both {
    /// With these options.
    async fn start(options: Value) -> anyhow::Result<Both> {
        let mut one = Both::start_each(&[(options, json!({}), json!({}))]).await?;
        one.pop().context("a pair")
    }

    /// With each of these options. Behind them are fields that only one of the filters has, Envoy's own first.
    async fn start_each(cases: &[(Value, Value, Value)]) -> anyhow::Result<Vec<Both>> {
        let limits = limits(ONE_AN_HOUR);
        let host = json!({"rate_limits": plugin()["rate_limits"]});
        let with = |mut all: Value, options: &Value, own: &Value| {
            merge(&mut all, options);
            merge(&mut all, own);
            all
        };
        let of_native = |(options, own, _): &(Value, Value, Value)| with(json!({}), options, own);
        let of_ours =
            |(options, _, own): &(Value, Value, Value)| with(plugin(), options, own).to_string();
        let natives: Vec<Value> = cases.iter().map(of_native).collect();
        let plugins: Vec<String> = cases.iter().map(of_ours).collect();
        let mut plans = Vec::new();
        for (native, plugin) in natives.iter().zip(&plugins) {
            let native = Filter::NativeWith { domain: "test", filter: native, host: &host };
            plans.push(Plan::new(&limits, native));
            plans.push(Plan::new(&limits, Filter::Tidegate(plugin)));
        }
        wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
        let mut stacks = Plan::start_each_shared(&plans).await?.into_iter();
        let mut all = Vec::new();
        while let (Some(native), Some(ours)) = (stacks.next(), stacks.next()) {
            all.push(Both { native, ours });
        }
        Ok(all)
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
    let actions = ["APPEND_IF_EXISTS_OR_ADD", "ADD_IF_ABSENT", "OVERWRITE_IF_EXISTS_OR_ADD"];
    let plugins = actions.map(|action| {
        let mut plugin = plugin();
        let header = json!({"key": "content-type", "value": "application/json"});
        plugin["response_headers_to_add"] = json!([{"header": header, "append_action": action}]);
        plugin["denied"] = json!({"body": "{}"});
        plugin.to_string()
    });
    let limits = limits(ONE_AN_HOUR);
    let plans = plugins.each_ref().map(|plugin| Plan::new(&limits, Filter::Tidegate(plugin)));
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    for stack in Plan::start_each_shared(&plans).await? {
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
    let cases = [false, true].map(|is_exhausted| {
        let options = json!({"rate_limited_as_resource_exhausted": is_exhausted});
        (options, json!({}), json!({}))
    });
    for (both, expected) in Both::start_each(&cases).await?.iter().zip(["14", "8"]) {
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
    let both = Both::start(options).await?;
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
    let (native, ours) = (json!({"failure_mode_deny": true}), json!({"failure_mode": "deny"}));
    let cases = [
        (with(100), json!({}), json!({})),
        // The share counts, whatever the mode says.
        (with(0), native.clone(), ours.clone()),
        (json!({"status_on_error": {"code": 504}}), native, ours),
    ];
    for (both, status) in Both::start_each(&cases).await?.iter_mut().zip([503, 200, 504]) {
        both.native.sidecar.kill().await?;
        both.ours.sidecar.kill().await?;
        both.answer(&[("x-client", b"a")], &[status; 8]).await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_filter_looks_at_a_share_and_enforces_a_share() -> anyhow::Result<()> {
    let client: [(&str, &[u8]); 1] = [("x-client", b"a")];
    let options = [("filter_enabled", 0), ("filter_enforced", 0), ("filter_enforced", 100)];
    let cases = options.map(|(option, of)| (json!({option: share(of)}), json!({}), json!({})));
    let all = Both::start_each(&cases).await?;
    let [disabled, unenforced, enforced] = all.as_slice() else { bail!("three are started") };
    disabled.answer(&client, &[200; 5]).await?;
    for stack in [&disabled.native, &disabled.ours] {
        ensure!(stack.metric("tidegate_answers_total").await? == 0.0, "a request was counted");
    }
    unenforced.answer(&client, &[200; 5]).await?;
    let [_, ours] = unenforced.get(&client).await?;
    ensure!(values(&ours, "x-envoy-ratelimited").is_empty(), "it was not limited: {ours:?}");
    let shadow = wait::until("the filter's report", wait::SOON, async || {
        unenforced.ours.envoy.filter_stat("shadow_denied").await.ok().filter(|denied| *denied >= 5)
    })
    .await?;
    ensure!(shadow == 5, "{shadow}");
    let native = &unenforced.native.envoy;
    let cluster = native.cluster("upstream");
    let over = native.stat(&format!("cluster.{cluster}.ratelimit.over_limit")).await?;
    ensure!(over == 5, "{over}");
    enforced.answer(&client, &[200, 429, 429]).await
}

#[tokio::test]
async fn requests_are_internal_or_external_as_envoy_says() -> anyhow::Result<()> {
    let types = [("internal", 429, 200), ("external", 200, 429), ("both", 429, 429)];
    let cases = types.map(|(of, ..)| (json!({"request_type": of}), json!({}), json!({})));
    let all = Both::start_each(&cases).await?;
    for (both, (request_type, internal, external)) in all.iter().zip(types) {
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
