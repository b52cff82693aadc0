//! What the filter reads of requests in a real Envoy: every action, routes, hits; and what it says.

use anyhow::{Context, ensure};
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};
use tidegate_tests::bootstrap::{Before, Filter, route};
use tidegate_tests::client::Reply;
use tidegate_tests::plugin::{limits, plugin, plugin_with};
use tidegate_tests::stack::{Plan, Stack};
use tidegate_tests::wait;

type Request = (&'static str, &'static [(&'static str, &'static str)]);

/// A recipe, a request that it makes a descriptor of, one that it does not, and the descriptor.
struct Row {
    name: &'static str,
    recipe: Value,
    request: Request,
    /// None where every request has the descriptor.
    other: Option<Request>,
    entries: &'static [(&'static str, &'static str)],
}

fn actions(actions: &Value) -> Value {
    json!({"actions": actions})
}

const PLAIN: Request = ("/", &[]);
const ELSEWHERE: Request = ("/", &[("x-forwarded-for", "198.51.100.7")]);

fn rows_of_values() -> Vec<Row> {
    let row = |name, action: Value, request, other, entries| {
        let recipe = actions(&json!([action]));
        Row { name, recipe, request, other, entries }
    };
    vec![
        row(
            "request_headers",
            json!({"request_headers": {"header_name": "x-client", "descriptor_key": "client"}}),
            ("/", &[("x-client", "a")]),
            Some(PLAIN),
            &[("client", "a")],
        ),
        row(
            "a pseudo-header",
            json!({"request_headers": {"header_name": ":path", "descriptor_key": "path"}}),
            ("/cart?x=1", &[]),
            Some(PLAIN),
            &[("path", "/cart?x=1")],
        ),
        row(
            "generic_key",
            json!({"generic_key": {"descriptor_value": "all"}}),
            PLAIN,
            None,
            &[("generic_key", "all")],
        ),
        row(
            "remote_address",
            json!({"remote_address": {}}),
            ("/", &[("x-forwarded-for", "203.0.113.9")]),
            Some(ELSEWHERE),
            &[("remote_address", "203.0.113.9")],
        ),
        row(
            "masked_remote_address",
            json!({"masked_remote_address": {"v4_prefix_mask_len": 24}}),
            ("/", &[("x-forwarded-for", "203.0.113.9")]),
            Some(ELSEWHERE),
            &[("masked_remote_address", "203.0.113.0/24")],
        ),
        row(
            "masked_remote_address of IPv6",
            json!({"masked_remote_address": {"v6_prefix_mask_len": 48}}),
            ("/", &[("x-forwarded-for", "2001:db8:1:2::3")]),
            Some(ELSEWHERE),
            &[("masked_remote_address", "2001:db8:1::/48")],
        ),
        row(
            "query_parameters",
            json!({"query_parameters":
                {"query_parameter_name": "user", "descriptor_key": "user"}}),
            ("/search?q=x&user=ann", &[]),
            Some(("/search?q=x&users=ann", &[])),
            &[("user", "ann")],
        ),
        row(
            "source_cluster",
            json!({"source_cluster": {}}),
            PLAIN,
            None,
            &[("source_cluster", "edge")],
        ),
        row(
            "destination_cluster",
            json!({"destination_cluster": {}}),
            PLAIN,
            None,
            &[("destination_cluster", "upstream")],
        ),
    ]
}

fn rows_of_matches() -> Vec<Row> {
    let row = |name, action: Value, request, other, entries| {
        let recipe = actions(&json!([action]));
        Row { name, recipe, request, other: Some(other), entries }
    };
    let mobile = json!([{"name": "user-agent", "string_match": {"contains": "mobile"}}]);
    vec![
        row(
            "remote_address_match",
            json!({"remote_address_match": {
                "descriptor_value": "inside",
                "address_matcher":
                    {"ranges": [{"address_prefix": "203.0.113.0", "prefix_len": 24}]},
            }}),
            ("/", &[("x-forwarded-for", "203.0.113.200")]),
            ELSEWHERE,
            &[("remote_address_match", "inside")],
        ),
        row(
            "header_value_match",
            json!({"header_value_match": {"descriptor_value": "mobile", "headers": mobile}}),
            ("/", &[("user-agent", "a mobile one")]),
            ("/", &[("user-agent", "another")]),
            &[("header_match", "mobile")],
        ),
        row(
            "header_value_match that expects none",
            json!({"header_value_match": {
                "descriptor_key": "kind", "descriptor_value": "desktop",
                "headers": mobile, "expect_match": false,
            }}),
            ("/", &[("user-agent", "another")]),
            ("/", &[("user-agent", "a mobile one")]),
            &[("kind", "desktop")],
        ),
        row(
            "query_parameter_value_match",
            json!({"query_parameter_value_match": {
                "descriptor_value": "debug",
                "query_parameters": [{"name": "debug", "string_match": {"exact": "1"}}],
            }}),
            ("/?debug=1", &[]),
            ("/?debug=2", &[]),
            &[("query_match", "debug")],
        ),
    ]
}

fn rows_of_metadata() -> Vec<Row> {
    let metadata = |source: &str, key: &str| {
        let metadata_key = json!({"key": "tidegate", "path": [{"key": key}]});
        json!({"metadata":
            {"descriptor_key": "tenant", "metadata_key": metadata_key, "source": source}})
    };
    let row = |name, action: Value, request, other, entries| {
        let recipe = actions(&json!([action]));
        Row { name, recipe, request, other, entries }
    };
    let mut absent = metadata("DYNAMIC", "nothing");
    absent["metadata"]["default_value"] = json!("default");
    vec![
        row(
            "metadata of the route",
            metadata("ROUTE_ENTRY", "team"),
            ("/checkout/1", &[]),
            Some(PLAIN),
            &[("tenant", "payments")],
        ),
        row(
            "metadata of the cluster",
            metadata("CLUSTER_ENTRY", "tier"),
            PLAIN,
            None,
            &[("tenant", "gold")],
        ),
        row(
            "metadata of the request",
            metadata("DYNAMIC", "plan"),
            PLAIN,
            None,
            &[("tenant", "free")],
        ),
        row(
            "metadata of the request, by the deprecated action",
            json!({"dynamic_metadata": {
                "descriptor_key": "tenant",
                "metadata_key": {"key": "tidegate", "path": [{"key": "plan"}]},
            }}),
            PLAIN,
            None,
            &[("tenant", "free")],
        ),
        row("metadata that is absent", absent, PLAIN, None, &[("tenant", "default")]),
    ]
}

fn rows_of_recipes() -> Vec<Row> {
    let key = json!({"generic_key": {"descriptor_value": "here"}});
    let header = json!({"request_headers":
        {"header_name": "x-none", "descriptor_key": "none", "skip_if_absent": true}});
    let team = json!({"key": "tidegate", "path": [{"key": "team"}]});
    vec![
        Row {
            name: "several actions, one of them skipped",
            recipe: actions(&json!([
                header,
                key,
                {"request_headers": {"header_name": "x-client", "descriptor_key": "client"}},
            ])),
            request: ("/", &[("x-client", "b")]),
            other: Some(("/", &[("x-client", "b"), ("x-none", "there")])),
            entries: &[("generic_key", "here"), ("client", "b")],
        },
        Row {
            name: "a rule of a route",
            recipe: json!({"actions": [key], "routes": ["cart", "checkout"]}),
            request: ("/checkout/1", &[]),
            other: Some(("/orders", &[])),
            entries: &[("generic_key", "here")],
        },
        Row {
            name: "a rule of routes by parts of their names",
            recipe: json!({"actions": [key], "routes": [
                {"prefix": "cart"}, {"safe_regex": {"regex": "check(in|out)"}}]}),
            request: ("/checkout/1", &[]),
            other: Some(("/orders", &[])),
            entries: &[("generic_key", "here")],
        },
        Row {
            name: "a rule of routes with metadata",
            recipe: json!({
                "actions": [key],
                "route_metadata": {"metadata_key": team, "value": "payments"},
            }),
            request: ("/checkout/1", &[]),
            other: Some(("/orders", &[])),
            entries: &[("generic_key", "here")],
        },
    ]
}

/// Each row has an entry with its name, so that none takes the limit of another.
fn marked(mut row: Row) -> Row {
    let mark = json!({"generic_key": {"descriptor_key": "row", "descriptor_value": row.name}});
    let actions = row.recipe["actions"].as_array_mut().expect("a recipe has actions");
    actions.insert(0, mark);
    row
}

/// A limit of the row's name at exactly the row's descriptor. JSON is YAML.
fn limit_of(row: &Row) -> Value {
    let mut inner = json!({"rate_limit":
        {"name": row.name, "unit": "hour", "requests_per_unit": 1_000}});
    for (key, value) in row.entries.iter().rev().chain([&("row", row.name)]) {
        let mut entry = Map::new();
        entry.insert("key".to_owned(), json!(key));
        entry.insert("value".to_owned(), json!(value));
        let below = inner.as_object_mut().expect("an object");
        if below.contains_key("key") {
            entry.insert("descriptors".to_owned(), json!([inner]));
        } else {
            entry.append(below);
        }
        inner = Value::Object(entry);
    }
    inner
}

async fn send(stack: &Stack, (path, headers): Request) -> anyhow::Result<Reply> {
    let headers: Vec<(&str, &[u8])> =
        headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
    stack.get(path, &headers).await
}

/// Whether the response tells of a limit of this name.
fn met(reply: &Reply, name: &str) -> bool {
    let policies = reply.header("ratelimit-policy").unwrap_or_default();
    policies.contains(&format!("\"{name}\";q=1000"))
}

#[tokio::test]
async fn every_action_makes_the_descriptor_that_envoys_filter_would() -> anyhow::Result<()> {
    let rows = [rows_of_values(), rows_of_matches(), rows_of_metadata(), rows_of_recipes()];
    let rows: Vec<Row> = rows.into_iter().flatten().map(marked).collect();
    let descriptors: Vec<Value> = rows.iter().map(limit_of).collect();
    let limits = json!({"domain": "test", "descriptors": descriptors}).to_string();
    let recipes: Vec<&Value> = rows.iter().map(|row| &row.recipe).collect();
    let plugin = plugin_with("/rate_limits", json!(recipes));
    let routes = [
        route("/checkout", "checkout", &json!({"team": "payments"})),
        route("/orders", "orders", &json!({"team": "sales"})),
    ];
    let plan = Plan {
        routes: &routes,
        before: Before::SetsMetadata,
        ..Plan::new(&limits, Filter::Tidegate(&plugin))
    };
    let stack = plan.start().await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    let mut wrong = Vec::new();
    for row in &rows {
        let reply = send(&stack, row.request).await?;
        if !met(&reply, row.name) {
            wrong.push(format!("{}: not met by {:?}: {:?}", row.name, row.request, reply.headers));
        }
        if let Some(other) = row.other {
            let reply = send(&stack, other).await?;
            if met(&reply, row.name) {
                wrong.push(format!("{}: met by {other:?}: {:?}", row.name, reply.headers));
            }
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// One recipe with one descriptor per client, that costs what `hits_addend` says.
async fn costing(hits_addend: Value) -> anyhow::Result<Stack> {
    let mut plugin = plugin();
    plugin["rate_limits"][0]["hits_addend"] = hits_addend;
    let plugin = plugin.to_string();
    let limits = limits("{ unit: hour, requests_per_unit: 10 }");
    let stack = Stack::start_shared(&limits, Filter::Tidegate(&plugin), 1).await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    Ok(stack)
}

#[tokio::test]
async fn a_request_costs_what_its_header_or_the_configuration_says() -> anyhow::Result<()> {
    let stack = costing(json!({"format": "%REQ(x-hits)%"})).await?;
    for (hits, status) in [("7", 200), ("7", 429), ("2", 200), ("2", 429), ("1", 200), ("1", 429)] {
        let headers: [(&str, &[u8]); 2] = [("x-client", b"a"), ("x-hits", hits.as_bytes())];
        let reply = stack.get("/", &headers).await?;
        ensure!(reply.status == status, "{hits} hits: {reply:?}");
    }
    let stack = costing(json!({"number": 4})).await?;
    for status in [200, 200, 429] {
        let reply = stack.send(b"a").await?;
        ensure!(reply.status == status, "4 hits: {reply:?}");
    }
    Ok(())
}

#[tokio::test]
async fn denials_are_repeated_in_envoy_with_all_that_they_say() -> anyhow::Result<()> {
    let cases = [
        ("ietf", "ratelimit-policy", "\"two\";q=2;w=3600"),
        ("draft03", "x-ratelimit-limit", "2, 2;w=3600;name=\"two\""),
        ("off", "x-envoy-ratelimited", "true"),
    ];
    let limits = limits("{ name: two, unit: hour, requests_per_unit: 2 }");
    let plugins = cases.map(|(style, ..)| plugin_with("/headers", json!(style)));
    let plans = plugins.each_ref().map(|plugin| Plan::new(&limits, Filter::Tidegate(plugin)));
    for (stack, (style, name, value)) in Plan::start_each_shared(&plans).await?.iter().zip(cases) {
        wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
        let begun = Instant::now();
        ensure!(stack.send_many("a", 3).await?.denied == 1);
        // A denial that is repeated counts its whole seconds from when the answer reached Envoy.
        let late = Duration::from_secs(1) + begun.elapsed();
        let mut replies = Vec::new();
        for _ in 0..20 {
            let most = (wait::left_in_window(wait::HOUR) + late).as_secs_f64().ceil() as u64;
            let (expected, reply) = wait::reset_during(wait::HOUR, stack.send(b"a")).await?;
            replies.push((*expected.start()..=most, reply));
        }
        let decisions = stack.envoy.decisions_of(23).await?;
        ensure!(decisions.denied_local >= 19, "{style}: {decisions:?}");
        for (expected, reply) in &replies {
            ensure!(reply.status == 429 && reply.header(name) == Some(value), "{reply:?}");
            ensure!(reply.body == "rate limit exceeded", "{reply:?}");
            let retry_after = reply.header("retry-after").context("Retry-After")?;
            let retry_after: u64 = retry_after.parse()?;
            ensure!(expected.contains(&retry_after), "{retry_after} s, expected {expected:?}");
            let is_shown = reply.headers.contains_key("ratelimit")
                || reply.headers.contains_key("x-ratelimit-remaining");
            ensure!(is_shown == (style != "off"), "{style}: {reply:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn shadow_counts_and_never_denies() -> anyhow::Result<()> {
    let limits = limits("{ unit: hour, requests_per_unit: 3 }");
    let plugin = plugin_with("/shadow", json!(true));
    let stack = Stack::start_shared(&limits, Filter::Tidegate(&plugin), 1).await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    let mut sent = 0;
    wait::until("a denial that is not carried out", wait::SOON, async || {
        let some = stack.send_many("a", 10).await.ok()?;
        assert_eq!((some.allowed, some.denied, some.failed), (10, 0, 0));
        sent += 10;
        (stack.envoy.filter_stat("shadow_denied").await.ok()? > 0).then_some(())
    })
    .await?;
    let served = stack.upstream.served();
    ensure!(served == sent, "{served} of {sent} reached the upstream");
    // Even a sidecar that is not there holds nobody up.
    stack.sidecar.process.freeze().await?;
    let some = stack.send_many("b", 10).await?;
    ensure!(some.allowed == 10, "{some:?}");
    stack.sidecar.process.thaw()
}

#[tokio::test]
async fn one_recipe_in_shadow_leaves_the_others_enforced() -> anyhow::Result<()> {
    let limits = "domain: test\ndescriptors:\n  \
        - key: client\n    rate_limit: { unit: hour, requests_per_unit: 5 }\n  \
        - key: generic_key\n    rate_limit: { unit: hour, requests_per_unit: 2 }\n";
    let mut plugin = plugin();
    plugin["rate_limits"].as_array_mut().context("an array")?.push(json!({
        "actions": [{"generic_key": {"descriptor_value": "all"}}],
        "shadow": true,
    }));
    let plugin = plugin.to_string();
    let stack = Stack::start_shared(limits, Filter::Tidegate(&plugin), 1).await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    for client in ["a", "b"] {
        let sent = stack.send_many(client, 8).await?;
        ensure!((sent.allowed, sent.denied) == (5, 3), "{client}: {sent:?}");
    }
    Ok(())
}
