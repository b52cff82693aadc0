//! Replies to denied requests in a real Envoy, beside those of Envoy's own filter where it has the
//! same.

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tidegate_tests::bootstrap::{Filter, merge};
use tidegate_tests::client::{Client, Reply};
use tidegate_tests::plugin::plugin;
use tidegate_tests::stack::{Plan, Stack};
use tidegate_tests::wait;

/// Two limits, the first of which has the least left; `client` has a name that JSON must escape.
const LIMITS: &str = r#"
domain: test
descriptors:
  - key: client
    rate_limit: { name: 'per "client"\', unit: hour, requests_per_unit: 2 }
  - key: team
    rate_limit: { name: team, unit: hour, requests_per_unit: 5 }
"#;

fn of_header(key: &str) -> Value {
    let header = format!("x-{key}");
    json!({"actions": [{"request_headers": {"header_name": header, "descriptor_key": key}}]})
}

fn configured(fields: &Value) -> String {
    let mut plugin = plugin();
    plugin["rate_limits"] = json!([of_header("client"), of_header("team")]);
    merge(&mut plugin, fields);
    plugin.to_string()
}

async fn ours(fields: &Value) -> anyhow::Result<Stack> {
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    Stack::start_shared(LIMITS, Filter::Tidegate(&configured(fields)), 1).await
}

async fn native(fields: &Value, rate_limits: &Value) -> anyhow::Result<Stack> {
    let host = json!({"rate_limits": rate_limits});
    let filter = Filter::NativeWith { domain: "test", filter: fields, host: &host };
    Stack::start_shared(LIMITS, filter, 1).await
}

/// Uses up the limit of client `a`.
async fn use_up(stack: &Stack) -> anyhow::Result<()> {
    for _ in 0..2 {
        let allowed = stack.send(b"a").await?;
        ensure!(allowed.status == 200, "{allowed:?}");
    }
    Ok(())
}

/// The reply to client `a` with this `accept`.
async fn accepting(stack: &Stack, accept: &str) -> anyhow::Result<Reply> {
    stack.get("/", &[("x-client", b"a"), ("accept", accept.as_bytes())]).await
}

fn values<'r>(reply: &'r Reply, name: &str) -> Vec<&'r str> {
    reply.headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect()
}

fn is_problem(reply: &Reply, content_type: &str) -> anyhow::Result<()> {
    ensure!(values(reply, "content-type") == [content_type], "{reply:?}");
    let expected = json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Quota Exceeded", "status": 429, "detail": "slow down",
        "violated-policies": ["per \"client\"\\"],
    });
    let found: Value = serde_json::from_slice(&reply.body).context("no JSON")?;
    ensure!(reply.status == 429 && found == expected, "{reply:?}");
    Ok(())
}

#[tokio::test]
async fn a_denial_has_the_format_that_the_client_accepts() -> anyhow::Result<()> {
    let stack = ours(&json!({"denied": {"format": "accept", "body": "slow down"}})).await?;
    use_up(&stack).await?;
    // The first is denied by the sidecar's answer, all others by what the filter remembers of it.
    for _ in 0..2 {
        is_problem(&accepting(&stack, "application/json").await?, "application/json")?;
        let problem = "application/problem+json";
        is_problem(&accepting(&stack, "*/*;q=0.1, application/problem+json").await?, problem)?;
        for accept in ["*/*", "text/html, */*;q=0.8", "application/json;q=0", "\u{e9}\"\\,;q"] {
            let text = accepting(&stack, accept).await?;
            ensure!(text.body == "slow down" && values(&text, "content-type") == ["text/plain"]);
        }
        let none = stack.send(b"a").await?;
        ensure!(none.body == "slow down" && none.status == 429, "{none:?}");
    }
    let long = format!("{}application/json", "text/html, ".repeat(4_000));
    ensure!(accepting(&stack, &long).await?.body == "slow down");
    Ok(())
}

/// Thousands wait for one answer, which denies them, and each chooses its own format.
#[tokio::test]
async fn requests_that_waited_choose_too() -> anyhow::Result<()> {
    // Without leases every request needs an answer.
    let fields =
        json!({"denied": {"format": "accept", "body": "slow down"}, "leases": {"slots": 0}});
    let stack = ours(&fields).await?;
    use_up(&stack).await?;
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..200_u32 {
        let mut client = Client::connect(stack.envoy.address).await?;
        let accept = if number % 2 == 0 { "application/json" } else { "text/plain" };
        clients.spawn(async move {
            for _ in 0..20 {
                let headers: [(&str, &[u8]); 2] =
                    [("x-client", b"a"), ("accept", accept.as_bytes())];
                let reply = client.get("/", &headers).await?;
                ensure!(values(&reply, "content-type") == [accept], "{reply:?}");
                ensure!(
                    reply.body.starts_with(b"{") == (accept == "application/json"),
                    "{reply:?}"
                );
            }
            Ok(())
        });
    }
    while let Some(done) = clients.join_next().await {
        done??;
    }
    Ok(())
}

#[tokio::test]
async fn a_rule_has_its_own_reply() -> anyhow::Result<()> {
    let mut team = of_header("team");
    team["denied"] = json!({"status": 403, "format": "json", "body": "{\"error\": \"team\"}"});
    let limits = json!([{"name": {"prefix": "per "}, "status": 430, "body": "client"}]);
    let fields = json!({
        "rate_limits": [of_header("client"), team],
        "denied": {"body": "all", "limits": limits, "retry_after_jitter": {"numerator": 50}},
    });
    let stack = ours(&fields).await?;
    for _ in 0..2 {
        stack.send(b"a").await?;
    }
    for _ in 0..5 {
        stack.get("/", &[("x-team", b"t")]).await?;
    }
    for _ in 0..20 {
        let client = stack.send(b"a").await?;
        ensure!(client.status == 430 && client.body == "client", "{client:?}");
        // The limit's own time is not later than the time to come back.
        let state = client.header("ratelimit").context("RateLimit")?;
        let wait: u64 = state.rsplit("t=").next().context("t")?.parse()?;
        let retry_after: u64 = client.header("retry-after").context("Retry-After")?.parse()?;
        ensure!((wait..=wait + wait / 2).contains(&retry_after), "{retry_after}, {state}");
        let team = stack.get("/", &[("x-team", b"t")]).await?;
        ensure!(team.status == 403 && team.body == r#"{"error": "team"}"#, "{team:?}");
        ensure!(values(&team, "content-type") == ["application/json"], "{team:?}");
    }
    Ok(())
}

#[tokio::test]
async fn errors_and_overload_have_the_format_of_denials() -> anyhow::Result<()> {
    let fields = json!({"failure_mode": "deny", "denied": {"format": "problem"}});
    let mut stack = ours(&fields).await?;
    stack.sidecar.kill().await?;
    let error = stack.send(b"a").await?;
    ensure!(values(&error, "content-type") == ["application/problem+json"], "{error:?}");
    let found: Value = serde_json::from_slice(&error.body)?;
    ensure!(found == json!({"status": 500, "detail": "rate limiter unavailable"}), "{error:?}");
    Ok(())
}

const GRPC: [&str; 4] = ["content-type", "grpc-status", "grpc-message", "x-envoy-ratelimited"];

fn of_grpc(reply: &Reply) -> (u16, Vec<Vec<&str>>) {
    (reply.status.as_u16(), GRPC.iter().map(|name| values(reply, name)).collect())
}

/// Denied and in error, each beside Envoy's own filter, which has no message unless the service
/// sends one.
#[tokio::test]
async fn a_grpc_client_gets_what_envoy_sends() -> anyhow::Result<()> {
    let call: [(&str, &[u8]); 4] = [
        ("x-client", b"a"),
        ("content-type", b"application/grpc+proto"),
        ("te", b"trailers"),
        ("accept", b"application/json"),
    ];
    let team = [&[("x-team", &b"t"[..])], &call[1..]].concat();
    for (is_exhausted, status, error, format) in
        [(false, 429, 500, "text"), (true, 429, 503, "accept"), (false, 503, 504, "problem")]
    {
        let both = json!({
            "rate_limited_as_resource_exhausted": is_exhausted,
            "status_on_error": {"code": error},
        });
        let mut fields = both.clone();
        let status = json!({"code": status});
        merge(&mut fields, &json!({"failure_mode_deny": true, "rate_limited_status": status}));
        let messages = [("", vec![]), ("slow down \"x\"", vec!["slow down \"x\""])];
        let plugins = messages.each_ref().map(|(body, _)| {
            let bodies = match format {
                "text" => json!(body),
                _ => json!({"text": body}),
            };
            let denied = json!({"body": bodies, "format": format, "status": status["code"]});
            let mut fields = json!({"failure_mode": "deny", "denied": denied});
            merge(&mut fields, &both);
            configured(&fields)
        });
        let host = json!({"rate_limits": [of_header("client"), of_header("team")]});
        let filter = Filter::NativeWith { domain: "test", filter: &fields, host: &host };
        let mut plans = vec![Plan::new(LIMITS, filter)];
        plans.extend(plugins.iter().map(|plugin| Plan::new(LIMITS, Filter::Tidegate(plugin))));
        wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
        let mut stacks = Plan::start_each_shared(&plans).await?.into_iter();
        let mut theirs = stacks.next().context("Envoy's own filter")?;
        use_up(&theirs).await?;
        let expected = theirs.get("/", &call).await?;
        theirs.sidecar.kill().await?;
        let expected_error = theirs.get("/", &team).await?;
        for (mut ours, (_, message)) in stacks.zip(messages) {
            use_up(&ours).await?;
            for _ in 0..2 {
                let denied = ours.get("/", &call).await?;
                let mut of_theirs = of_grpc(&expected);
                ensure!(of_theirs.1[2].is_empty(), "{expected:?}");
                of_theirs.1[2].clone_from(&message);
                ensure!(of_theirs == of_grpc(&denied), "{format}: {expected:?} {denied:?}");
            }
            ours.sidecar.kill().await?;
            let found = ours.get("/", &team).await?;
            let mut of_theirs = of_grpc(&expected_error);
            of_theirs.1[2].push("rate limiter unavailable");
            ensure!(of_theirs == of_grpc(&found), "{expected_error:?} {found:?}");
        }
    }
    Ok(())
}

/// Envoy answers HEAD without a body, and a request whose body is still under way at once.
#[tokio::test]
async fn requests_of_any_method_and_body_are_answered_as_by_envoy() -> anyhow::Result<()> {
    let rate_limits = json!([of_header("client"), of_header("team")]);
    let theirs = native(&json!({}), &rate_limits).await?;
    let ours = ours(&json!({"denied": {"format": "json"}})).await?;
    let headers: [(&str, &[u8]); 1] = [("x-client", b"a")];
    for (stack, is_ours) in [(&theirs, false), (&ours, true)] {
        use_up(stack).await?;
        for _ in 0..2 {
            let mut client = Client::connect(stack.envoy.address).await?;
            let head = client.send("HEAD", "/", &headers, "").await?;
            ensure!(head.status == 429 && head.body.is_empty(), "{head:?}");
            let length: usize = head.header("content-length").unwrap_or("0").parse()?;
            ensure!((length > 0) == is_ours, "{head:?}");
            let body = vec![b'x'; 200_000];
            let post = client.send("POST", "/", &headers, body).await?;
            ensure!(post.status == 429 && post.body.len() == length, "{post:?}");
        }
    }
    Ok(())
}

/// `x-ratelimit-*` of both filters on the same requests, for each option of two entries.
#[tokio::test]
async fn an_entry_shows_its_limits_as_in_envoy() -> anyhow::Result<()> {
    let (unspecified, off, draft) = (json!("UNSPECIFIED"), json!("OFF"), json!("DRAFT_VERSION_03"));
    let options = [
        (&unspecified, &off),
        (&off, &unspecified),
        (&draft, &off),
        (&unspecified, &draft),
        (&draft, &json!(2)),
        (&draft, &json!(1)),
    ];
    // The entries of a case read headers of their own, so that one Envoy has all cases.
    let of_case = |key: &str, case: usize, option: &Value| {
        let header = format!("x-{key}-{case}");
        json!({
            "actions": [{"request_headers": {"header_name": header, "descriptor_key": key}}],
            "x_ratelimit_option": option,
        })
    };
    let entries = options.iter().enumerate().flat_map(|(case, (first, second))| {
        [of_case("client", case, first), of_case("team", case, second)]
    });
    let rate_limits = Value::Array(entries.collect());
    let names = ["x-ratelimit-limit", "x-ratelimit-remaining"];
    for (enabled, style) in [("OFF", "off"), ("DRAFT_VERSION_03", "draft03"), ("OFF", "ietf")] {
        let filter = json!({"enable_x_ratelimit_headers": enabled});
        let theirs = native(&filter, &rate_limits).await?;
        let ours = ours(&json!({"headers": style, "rate_limits": rate_limits})).await?;
        for (case, (first, second)) in options.into_iter().enumerate() {
            let (client, team) = (format!("x-client-{case}"), format!("x-team-{case}"));
            let value = case.to_string();
            let headers = [client.as_str(), &team].map(|name| (name, value.as_bytes()));
            for number in 0..4 {
                let expected = theirs.get("/", &headers).await?;
                let found = ours.get("/", &headers).await?;
                let context = format!("{style} {first} {second} {number}");
                ensure!(expected.status == found.status, "{context}: {expected:?} {found:?}");
                for name in names {
                    // Envoy does not escape a name.
                    let shown = values(&found, name)
                        .concat()
                        .replace(r#"per \"client\"\\"#, r#"per "client"\"#);
                    let expected = values(&expected, name).concat();
                    ensure!(expected == shown, "{context}: {expected} {shown}");
                }
                let shown = found.header("ratelimit").unwrap_or_default();
                let is_off = |option: &Value| *option == "OFF" || *option == 1;
                let hides = style != "ietf" || is_off(second);
                ensure!(shown.contains("team") != hides, "{context}: {found:?}");
            }
        }
    }
    Ok(())
}

/// Of two hits, both are left when a request of three is denied. Envoy's filter says so, although no
/// such request can pass; here a limit that denies has nothing left, as with envoyproxy/ratelimit.
#[tokio::test]
async fn a_limit_that_denies_has_nothing_left() -> anyhow::Result<()> {
    let mut entry = of_header("client");
    entry["hits_addend"] = json!({"number": 3});
    let filter = json!({"enable_x_ratelimit_headers": "DRAFT_VERSION_03", "rate_limits": [entry]});
    let theirs = native(&filter, &json!([])).await?;
    let ours = ours(&json!({"headers": "draft03", "rate_limits": [entry]})).await?;
    // By the sidecar's answer, and by what the filter remembers of it.
    for _ in 0..2 {
        for (stack, left) in [(&theirs, "2"), (&ours, "0")] {
            let reply = stack.send(b"a").await?;
            let found = reply.header("x-ratelimit-remaining");
            ensure!(reply.status == 429 && found == Some(left), "expected {left}: {reply:?}");
        }
    }
    Ok(())
}
