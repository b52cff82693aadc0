//! Conditions (`when`) in a real Envoy: its attributes, dynamic metadata and checked tokens, with their types.

use anyhow::{Context, ensure};
use serde_json::json;
use tidegate_tests::bootstrap::{Before, Filter, route};
use tidegate_tests::plugin::plugin;
use tidegate_tests::stack::{Plan, Stack};

/// `{"iss": "shop", "tier": "gold", "seats": 250, "groups": ["staff", "beta"]}`
const GOLD: &str = "Bearer eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCIsImtpZCI6InRlc3QifQ.\
    eyJpc3MiOiJzaG9wIiwidGllciI6ImdvbGQiLCJzZWF0cyI6MjUwLCJncm91cHMiOlsic3RhZmYiLCJiZXRhIl19.\
    np4E2uS6zNmenV919lPwK6r34Xv8WF6I9CAcX1DCIAo";
/// `{"iss": "shop", "tier": "free", "seats": 3, "groups": [], "trial": true}`
const FREE: &str = "Bearer eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCIsImtpZCI6InRlc3QifQ.\
    eyJpc3MiOiJzaG9wIiwidGllciI6ImZyZWUiLCJzZWF0cyI6MywiZ3JvdXBzIjpbXSwidHJpYWwiOnRydWV9.\
    vBh-EN8SRKmDAK-pjvfHchNHd2C1O7d_apnaGwSTE38";

/// Denies every request that an entry with one of these conditions applies to, named by its number.
async fn started(conditions: &[&str]) -> anyhow::Result<Stack> {
    let entry = |(number, when): (usize, &&str)| {
        json!({"when": when, "actions": [
            {"generic_key": {"descriptor_key": "number", "descriptor_value": number.to_string()}},
            {"request_headers": {"header_name": "x-number", "descriptor_key": "wanted"}},
        ]})
    };
    let mut plugin = plugin();
    plugin["rate_limits"] = conditions.iter().enumerate().map(entry).collect();
    let limit = |number: usize| {
        format!(
            "  - key: number\n    value: \"{number}\"\n    descriptors:\n      - key: wanted\n        \
             value: \"{number}\"\n        rate_limit: {{ unit: hour, requests_per_unit: 0 }}\n"
        )
    };
    let limits: String = (0..conditions.len()).map(limit).collect();
    let limits = format!("domain: test\ndescriptors:\n{limits}");
    let routes = [route("/checkout", "checkout", &json!({}))];
    let plugin = plugin.to_string();
    let plan = Plan::new(&limits, Filter::TidegateWithConditions(&plugin));
    Plan { routes: &routes, before: Before::ChecksTokens, ..plan }.start().await
}

struct Case {
    when: &'static str,
    path: &'static str,
    headers: &'static [(&'static str, &'static str)],
    applies: bool,
}

const fn case(
    when: &'static str,
    path: &'static str,
    headers: &'static [(&'static str, &'static str)],
    applies: bool,
) -> Case {
    Case { when, path, headers, applies }
}

const GOLD_TOKEN: &[(&str, &str)] = &[("authorization", GOLD)];
const FREE_TOKEN: &[(&str, &str)] = &[("authorization", FREE)];
const NO_GOLD: &str = "jwt.claims.tier != 'gold'";
const STAFF: &str = "'staff' in jwt.claims.groups && jwt.claims.groups[1] == 'beta'";

const CASES: [Case; 29] = [
    case("request.method == 'GET'", "/", &[], true),
    case("request.method == 'POST'", "/", &[], false),
    case("request.path == '/a?b=c' && request.url_path == '/a'", "/a?b=c", &[], true),
    case("request.query == 'b=c'", "/a?b=c", &[], true),
    case("request.host.startsWith('127.0.0.1') || request.host != ''", "/", &[], true),
    case("request.scheme == 'http'", "/", &[], true),
    case("request.protocol == 'HTTP/1.1'", "/", &[], true),
    case("request.size == 0", "/", &[], true),
    case("request.headers['X-App'] == 'web'", "/", &[("x-app", "web")], true),
    case("'x-app' in request.headers", "/", &[], false),
    case("has(request.id) && request.id.matches('^[0-9a-f-]{36}$')", "/", &[], true),
    case("source.address.matches('^127\\\\.0\\\\.0\\\\.1:[0-9]+$')", "/", &[], true),
    case("source.port > 0 && source.port < 65536", "/", &[], true),
    case("destination.port > 0 && destination.address.startsWith('127.')", "/", &[], true),
    case("connection.mtls", "/", &[], false),
    case(
        "has(connection.requested_server_name) && connection.requested_server_name != ''",
        "/",
        &[],
        false,
    ),
    case("xds.route_name == 'checkout'", "/checkout", &[], true),
    case("xds.route_name == 'checkout'", "/", &[], false),
    case("xds.virtual_host_name == 'all' && xds.cluster_name == 'upstream'", "/", &[], true),
    case("metadata.filter_metadata['tidegate']['plan'] == 'free'", "/", &[], true),
    case(NO_GOLD, "/", GOLD_TOKEN, false),
    case(NO_GOLD, "/", FREE_TOKEN, true),
    // No token makes nobody a gold customer.
    case(NO_GOLD, "/", &[], true),
    case("has(jwt.claims.tier)", "/", &[], false),
    case("jwt.claims.seats > 100 && jwt.claims.seats == 250", "/", GOLD_TOKEN, true),
    case("jwt.claims.seats > 100", "/", FREE_TOKEN, false),
    case(STAFF, "/", GOLD_TOKEN, true),
    case("size(jwt.claims.groups) == 0 && jwt.claims.trial", "/", FREE_TOKEN, true),
    case("has(jwt.claims.trial)", "/", GOLD_TOKEN, false),
];

#[tokio::test]
async fn an_entry_applies_to_requests_for_which_its_condition_holds() -> anyhow::Result<()> {
    let stack = started(&CASES.map(|case| case.when)).await?;
    for (number, case) in CASES.iter().enumerate() {
        let number = number.to_string();
        let mut headers: Vec<(&str, &[u8])> = vec![("x-number", number.as_bytes())];
        headers.extend(case.headers.iter().map(|(name, value)| (*name, value.as_bytes())));
        let reply = stack.get(case.path, &headers).await?;
        let expected = if case.applies { 429 } else { 200 };
        ensure!(reply.status == expected, "{} for {:?}: {reply:?}", case.when, case.headers);
    }
    // A token that nobody signed is refused before.
    let forged = GOLD.replace("np4E", "aaaa");
    let reply = stack.get("/", &[("authorization", forged.as_bytes())]).await?;
    ensure!(reply.status == 401, "{reply:?}");
    Ok(())
}

/// What clients can do to a condition: the entry applies, the worker lives, and an operator sees it.
#[tokio::test]
async fn a_request_that_no_condition_understands_is_limited_and_counted() -> anyhow::Result<()> {
    let stack = started(&["int(request.headers['x-n']) < 0 && request.path.matches('b$')"]).await?;
    let long = "1".repeat(40_000);
    for value in ["", "x", "99999999999999999999", "\u{e9}", long.as_str()] {
        for _ in 0..200 {
            let headers = [("x-number", &b"0"[..]), ("x-n", value.as_bytes())];
            let reply = stack.get("/b", &headers).await?;
            ensure!(reply.status == 429, "{value:.20}: {reply:?}");
        }
    }
    let reply = stack.get("/b", &[("x-number", b"0"), ("x-n", b"1")]).await?;
    ensure!(reply.status == 200, "{reply:?}");
    stack
        .logged("rate_limits[0].when: no result for some requests: a string is not a number")
        .await?;
    let counted = async || {
        let counted = stack.envoy.filter_stat("condition_errors").await.ok()?;
        (counted == 1_000).then_some(())
    };
    tidegate_tests::wait::until("1000 errors", tidegate_tests::wait::SOON, counted).await
}

#[tokio::test]
async fn a_mistake_in_a_condition_stops_envoy_with_its_place() -> anyhow::Result<()> {
    let error = started(&["request.metod == 'GET'"]).await.err().context("it starts")?;
    let message =
        "rate_limits[0].when: unknown variable `request.metod` (did you mean `request.method`?)";
    ensure!(format!("{error:#}").contains(message), "{error:#}");
    Ok(())
}

/// The types of values that an earlier filter sets.
#[tokio::test]
async fn values_of_a_wrong_type_apply_the_entry() -> anyhow::Result<()> {
    let stack = started(&["metadata.filter_metadata.tidegate.plan > 3"]).await?;
    let reply = stack.get("/", &[("x-number", b"0")]).await?;
    ensure!(reply.status == 429, "{reply:?}");
    Ok(())
}
