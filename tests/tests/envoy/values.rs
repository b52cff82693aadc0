//! Values with substitution commands, items of lists, claims and overrides of limits, in two real
//! Envoys: one with the filter, one with Envoy's own. Both get the same configuration and the same
//! requests, and must make the same descriptors.

mod repeated;

use anyhow::ensure;
use serde_json::{Value, json};
use std::path::Path;
use tempfile::TempDir;
use tidegate_tests::bootstrap::{Filter, Setup, bootstrap, route};
use tidegate_tests::client::Reply;
use tidegate_tests::envoy::start_envoy;
use tidegate_tests::plugin::plugin;
use tidegate_tests::sidecar::Sidecar;
use tidegate_tests::stack::Stack;
use tidegate_tests::upstream::Upstream;
use tidegate_tests::wait;

/// Formats of `descriptor_value` are optional in Envoy.
const FORMATS: &str =
    "envoy.reloadable_features.enable_formatter_for_ratelimit_action_descriptor_value";

/// The dynamic metadata of every request. `limit` is from headers.
const METADATA: &str = r#"
function envoy_on_request(handle)
  local metadata = handle:streamInfo():dynamicMetadata()
  local set = function(key, value) metadata:set("values", key, value) end
  set("text", "gold")
  set("empty", "")
  set("seven", 7)
  set("half", 2.5)
  set("true", true)
  set("digits", "12345678")
  set("roles", {"admin", "user", {"deep", {key = "deeper"}}, 5})
  set("nested", {key = "down"})
  local requests, unit = handle:headers():get("x-limit"), handle:headers():get("x-unit")
  if requests and unit then
    set("limit", {requests_per_unit = tonumber(requests) or requests, unit = unit})
  end
end
"#;

/// An Envoy with this filter, a sidecar with these limits, and an upstream.
async fn started(limits: &Value, filter: Filter<'_>) -> anyhow::Result<Stack> {
    let dir = TempDir::new()?;
    let path = dir.path().join("limits.yaml");
    // JSON is YAML.
    std::fs::write(&path, limits.to_string())?;
    let upstream = Upstream::start("127.0.0.1:0").await?;
    let flags = ["--capacity", "10000", "--response-headers", "ietf"];
    let sidecar = Sidecar::start_with(dir.path(), &path, &flags).await?;
    let envoy = start(dir.path(), filter, &upstream).await?;
    Ok(Stack { envoy, others: Vec::new(), sidecar, upstream, dir })
}

async fn start(
    dir: &Path,
    filter: Filter<'_>,
    upstream: &Upstream,
) -> anyhow::Result<tidegate_tests::envoy::Envoy> {
    let socket = Sidecar::socket(dir);
    let routes = [route("/team", "team-route", &json!({"team": "payments", "list": ["a", "b"]}))];
    let setup = Setup { routes: &routes, ..Setup::new(filter, &socket, upstream.address) };
    let mut config = bootstrap(&setup)?;
    config["layered_runtime"] =
        json!({"layers": [{"name": "formats", "static_layer": {FORMATS: true}}]});
    let filters =
        "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/http_filters";
    let filters = config.pointer_mut(filters).and_then(Value::as_array_mut).expect("filters");
    filters.insert(
        0,
        json!({"name": "envoy.filters.http.lua", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
            "default_source_code": {"inline_string": METADATA},
        }}),
    );
    start_envoy(&config.to_string(), dir, 1).await
}

/// The filter and Envoy's own, each with its counters.
struct Twins([Stack; 2]);

impl Twins {
    async fn start(limits: &Value, rate_limits: &Value) -> anyhow::Result<Twins> {
        let mut plugin = plugin();
        plugin["rate_limits"] = rate_limits.clone();
        plugin["leases"] = json!({"slots": 0});
        let plugin = plugin.to_string();
        let ours = started(limits, Filter::Tidegate(&plugin)).await?;
        let (filter, host) = (json!({"rate_limits": rate_limits}), json!({}));
        let native = Filter::NativeWith { domain: "test", filter: &filter, host: &host };
        let theirs = started(limits, native).await?;
        wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
        Ok(Twins([ours, theirs]))
    }

    /// The replies of both to the same request.
    async fn send(&self, path: &str, headers: &[(&str, &[u8])]) -> anyhow::Result<[Reply; 2]> {
        let Twins([ours, theirs]) = self;
        Ok([ours.get(path, headers).await?, theirs.get(path, headers).await?])
    }
}

/// What is left of the limit with this name.
fn left_of(reply: &Reply, name: &str) -> Option<u64> {
    let text = reply.header("ratelimit")?.split(&format!("\"{name}\";r=")).nth(1)?;
    text.split(|char: char| !char.is_ascii_digit()).next()?.parse().ok()
}

const REQUESTS: u64 = 1_000;

/// An action, and the value of its entry; none if there is no descriptor.
type Row = (Value, Option<&'static str>);

fn format(value: &str) -> Value {
    json!({"generic_key": {"descriptor_key": "v", "descriptor_value": value}})
}

fn metadata(source: &str, path: &Value) -> Value {
    let namespace = if source == "DYNAMIC" { "values" } else { "tidegate" };
    json!({"metadata": {"descriptor_key": "v", "source": source,
        "metadata_key": {"key": namespace, "path": path}}})
}

fn claim(fields: Value) -> Value {
    let kind =
        "type.googleapis.com/envoy.extensions.rate_limit_descriptors.jwt_claim.v3.Descriptor";
    let mut typed = fields;
    typed["@type"] = json!(kind);
    typed["descriptor_key"] = json!("v");
    json!({"extension":
        {"name": "envoy.rate_limit_descriptors.jwt_claim", "typed_config": typed}})
}

fn rows_of_formats() -> Vec<Row> {
    let with_default = |value: &str| {
        json!({"generic_key":
            {"descriptor_key": "v", "descriptor_value": value, "default_value": "default"}})
    };
    let by_header = |value: &str| {
        json!({"header_value_match":
        {"descriptor_key": "v", "descriptor_value": value, "headers": [{"name": "x-a"}]}})
    };
    let by_query = |value: &str| {
        json!({"query_parameter_value_match":
        {"descriptor_key": "v", "descriptor_value": value, "query_parameters": [{"name": "q"}]}})
    };
    let by_address = |value: &str| {
        json!({"remote_address_match":
        {"descriptor_key": "v", "descriptor_value": value, "address_matcher":
            {"ranges": [{"address_prefix": "203.0.113.0", "prefix_len": 24}]}}})
    };
    vec![
        (format("%REQ(x-a)%"), Some("one")),
        (format("%REQ(X-A):2%"), Some("on")),
        (format("%REQ(x-none?x-a)%"), Some("one")),
        (format("%REQUEST_HEADER(x-a)%"), Some("one")),
        (format("%REQ(x-empty?x-a)%"), None),
        (format("%REQ(x-none)%"), None),
        (with_default("%REQ(x-none)%"), Some("default")),
        (with_default("%REQ(x-empty)%"), Some("default")),
        (format("<%REQ(x-none)%>-%%-%REQ(x-a)%"), Some("<>-%-one")),
        // What a client sends is no format.
        (format("%REQ(x-format)%"), Some("%REQ(x-a)% %%")),
        (format("%PATH%"), Some("/team/x?q=%41&q=b")),
        (format("%PATH(NQ)%"), Some("/team/x")),
        (format("%PATH(NQ:PATH):3%"), Some("/te")),
        (format("%QUERY_PARAM(q)%"), Some("A")),
        (format("%PROTOCOL%"), Some("HTTP/1.1")),
        (format("%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%"), Some("203.0.113.9")),
        (format("%DOWNSTREAM_REMOTE_ADDRESS%"), Some("203.0.113.9:0")),
        (format("%DOWNSTREAM_REMOTE_PORT%"), Some("0")),
        (format("%DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT%"), Some("127.0.0.1")),
        (format("%REQUESTED_SERVER_NAME%"), None),
        (format("%DOWNSTREAM_TLS_VERSION%"), None),
        (format("%ROUTE_NAME%"), Some("team-route")),
        (format("%UPSTREAM_CLUSTER%"), Some("upstream")),
        (format("%UPSTREAM_CLUSTER_RAW%"), Some("upstream")),
        (format("%DYNAMIC_METADATA(values:text)%"), Some("gold")),
        (format("%DYNAMIC_METADATA(values:text):2%"), Some("go")),
        (format("%DYNAMIC_METADATA(values:seven)%"), Some("7")),
        (format("%DYNAMIC_METADATA(values:true)%"), Some("true")),
        (format("%DYNAMIC_METADATA(values:nested:key)%"), Some("down")),
        (format("%DYNAMIC_METADATA(values:empty)%"), None),
        (format("%DYNAMIC_METADATA(values:none)%"), None),
        (format("%METADATA(DYNAMIC:values:digits)%"), Some("12345678")),
        (format("%METADATA(ROUTE:tidegate:team)%"), Some("payments")),
        (format("%METADATA(CLUSTER:tidegate:tier)%"), Some("gold")),
        (format("%CLUSTER_METADATA(tidegate:tier)%"), Some("gold")),
        (by_header("%REQ(x-a)%"), Some("one")),
        (by_query("%REQ(x-a)%"), Some("one")),
        (by_address("%REQ(x-a)%"), Some("one")),
    ]
}

fn rows_of_paths_and_claims() -> Vec<Row> {
    let roles = |path: Value| {
        let mut all = vec![json!({"key": "roles"})];
        all.extend(path.as_array().expect("a list").iter().cloned());
        metadata("DYNAMIC", &Value::Array(all))
    };
    let list = |index: u32| json!([{"key": "list"}, {"index": index}]);
    let bearer = json!({"header_name": "Authorization", "value_prefix": "Bearer "});
    let named = |name: &str| {
        let mut fields = bearer.clone();
        fields["claim_name"] = json!(name);
        fields
    };
    let mut with_default = named("none");
    with_default["default_value"] = json!("default");
    vec![
        (roles(json!([{"index": 0}])), Some("admin")),
        (roles(json!([{"index": 1}])), Some("user")),
        (roles(json!([{"index": 2}, {"index": 0}])), Some("deep")),
        (roles(json!([{"index": 2}, {"index": 1}, {"key": "key"}])), Some("deeper")),
        (roles(json!([{"index": 4}])), None),
        (roles(json!([{"key": "x"}])), None),
        (metadata("DYNAMIC", &json!([{"key": "text"}, {"index": 0}])), None),
        (metadata("DYNAMIC", &json!([{"key": "nested"}, {"index": 0}])), None),
        (metadata("ROUTE_ENTRY", &list(1)), Some("b")),
        (metadata("ROUTE_ENTRY", &list(2)), None),
        (claim(named("sub")), Some("ann")),
        (claim(named("realm.role")), Some("admin")),
        (claim(named("number")), None),
        (claim(named("realm")), None),
        (claim(named("none")), None),
        (claim(with_default), Some("default")),
        (claim(json!({"cookie": "jwt", "claim_name": "sub"})), Some("ann")),
    ]
}

/// `{"alg":"HS256"}`, `{"sub":"ann","realm":{"role":"admin"},"number":5}`, and any signature.
const TOKEN: &str = "eyJhbGciOiJIUzI1NiJ9\
                     .eyJzdWIiOiJhbm4iLCJyZWFsbSI6eyJyb2xlIjoiYWRtaW4ifSwibnVtYmVyIjo1fQ.c2ln";

#[tokio::test]
async fn both_filters_make_the_same_values() -> anyhow::Result<()> {
    let rows = [rows_of_formats(), rows_of_paths_and_claims()].concat();
    let (mut rate_limits, mut limits) = (Vec::new(), Vec::new());
    for (index, (action, expected)) in rows.iter().enumerate() {
        let row = format!("row-{index}");
        let mark = json!({"generic_key": {"descriptor_key": "row", "descriptor_value": row}});
        rate_limits.push(json!({"actions": [mark, action]}));
        let limit = json!({"name": row, "unit": "hour", "requests_per_unit": REQUESTS});
        // Without an expected value, any value meets the limit.
        let mut entry = json!({"key": "v", "rate_limit": limit});
        if let Some(value) = expected {
            entry["value"] = json!(value);
        }
        limits.push(json!({"key": "row", "value": row, "descriptors": [entry]}));
    }
    let limits = json!({"domain": "test", "descriptors": limits});
    let twins = Twins::start(&limits, &json!(rate_limits)).await?;
    let (bearer, cookie) = (format!("Bearer {TOKEN}"), format!("a=b; jwt={TOKEN}"));
    let headers: [(&str, &[u8]); 6] = [
        ("x-a", b"one"),
        ("x-empty", b""),
        ("x-format", b"%REQ(x-a)% %%"),
        ("x-forwarded-for", b"203.0.113.9"),
        ("authorization", bearer.as_bytes()),
        ("cookie", cookie.as_bytes()),
    ];
    let replies = twins.send("/team/x?q=%41&q=b", &headers).await?;
    let mut wrong = Vec::new();
    for (reply, filter) in replies.iter().zip(["ours", "Envoy's"]) {
        ensure!(reply.status == 200, "{filter}: {reply:?}");
        for (index, (action, expected)) in rows.iter().enumerate() {
            let met = left_of(reply, &format!("row-{index}")).is_some();
            if met != expected.is_some() {
                wrong.push(format!("{filter}: {action}, expected {expected:?}"));
            }
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[tokio::test]
async fn both_filters_take_the_same_hits() -> anyhow::Result<()> {
    let rows = [
        ("%REQ(x-cost)%", 42),
        ("%REQ(x-none?x-cost)%", 42),
        ("%REQ(x-cost):1%", 4),
        ("%QUERY_PARAM(n)%", 9),
        ("%DYNAMIC_METADATA(values:seven)%", 7),
        ("%METADATA(DYNAMIC:values:seven)%", 7),
        ("%METADATA(DYNAMIC:values:digits):2%", 12),
    ];
    let (mut rate_limits, mut limits) = (Vec::new(), Vec::new());
    for (index, (format, _)) in rows.iter().enumerate() {
        let row = format!("row-{index}");
        let mark = json!({"generic_key": {"descriptor_key": "row", "descriptor_value": row}});
        rate_limits.push(json!({"actions": [mark], "hits_addend": {"format": format}}));
        let limit = json!({"name": row, "unit": "hour", "requests_per_unit": REQUESTS});
        limits.push(json!({"key": "row", "value": row, "rate_limit": limit}));
    }
    let limits = json!({"domain": "test", "descriptors": limits});
    let twins = Twins::start(&limits, &json!(rate_limits)).await?;
    let replies = twins.send("/?n=9", &[("x-cost", b"42")]).await?;
    for (reply, filter) in replies.iter().zip(["ours", "Envoy's"]) {
        for (index, (format, hits)) in rows.iter().enumerate() {
            let left = left_of(reply, &format!("row-{index}"));
            ensure!(left == Some(REQUESTS - hits), "{filter}: {format}: {left:?} in {reply:?}");
        }
    }
    Ok(())
}

/// With leases, so that state of one override could serve another.
#[tokio::test]
async fn an_override_is_the_limit_of_its_requests_only() -> anyhow::Result<()> {
    let rate_limits = json!([{
        "actions": [{"request_headers": {"header_name": "x-client", "descriptor_key": "client"}}],
        "limit": {"dynamic_metadata": {"metadata_key": {"key": "values", "path": [{"key": "limit"}]}}},
    }]);
    let limits = json!({"domain": "test", "descriptors": [
        {"key": "client", "rate_limit": {"unit": "hour", "requests_per_unit": 3}},
    ]});
    let mut plugin = plugin();
    plugin["rate_limits"] = rate_limits.clone();
    let plugin = plugin.to_string();
    let (filter, host) = (json!({"rate_limits": rate_limits}), json!({}));
    let native = Filter::NativeWith { domain: "test", filter: &filter, host: &host };
    let ours = started(&limits, Filter::Tidegate(&plugin)).await?;
    let twins = Twins([ours, started(&limits, native).await?]);
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    // A number, a unit, and how many of six requests pass. Overrides with the same unit share a
    // counter, so a higher one passes what is left, and a denial by a lower one is forgotten.
    let rows: [(&str, &str, usize); 9] = [
        ("2", "HOUR", 2),
        ("5", "HOUR", 3),
        ("2", "HOUR", 0),
        ("5", "DAY", 5),
        ("0", "MINUTE", 0),
        // Unreadable: the limit of the file, for all of these together.
        ("9", "WEEK", 3),
        ("9", "hour", 0),
        ("many", "HOUR", 0),
        ("", "", 0),
    ];
    for (requests, unit, expected) in rows {
        let mut headers: Vec<(&str, &[u8])> = vec![("x-client", b"a")];
        headers.extend([("x-limit", requests.as_bytes()), ("x-unit", unit.as_bytes())]);
        let mut passed = [0, 0];
        for _ in 0..6 {
            let replies = twins.send("/", &headers).await?;
            for (passed, reply) in passed.iter_mut().zip(&replies) {
                ensure!([200, 429].contains(&reply.status.as_u16()), "{reply:?}");
                *passed += usize::from(reply.status == 200);
            }
        }
        ensure!(passed == [expected; 2], "{requests} per {unit}: {passed:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_configured_override_is_the_limit_of_all() -> anyhow::Result<()> {
    let rate_limits = json!([{
        "actions": [{"request_headers": {"header_name": "x-client", "descriptor_key": "client"}}],
        "limit": {"rate_limit": {"requests_per_unit": 2, "unit": "HOUR"}},
    }]);
    // Without a rule in the domain, too.
    let limits = json!({"domain": "test", "descriptors": []});
    let twins = Twins::start(&limits, &rate_limits).await?;
    for status in [200, 200, 429, 429] {
        for reply in twins.send("/", &[("x-client", b"a")]).await? {
            ensure!(reply.status == status, "expected {status}: {reply:?}");
        }
    }
    Ok(())
}
