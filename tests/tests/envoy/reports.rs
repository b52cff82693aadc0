//! Reports beside decisions, and answers of a service with more than a decision: access logs, statistics, headers,
//! bodies and metadata. Both filters on the same requests, where Envoy's own has the same.

use anyhow::{Context, ensure};
use bytes::{Buf, Bytes, BytesMut};
use prost::Message;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tidegate_tests::bootstrap::{Filter, Setup, bootstrap, merge};
use tidegate_tests::client::{Client, Reply};
use tidegate_tests::envoy::{Envoy, start_envoy};
use tidegate_tests::plugin::{plugin, plugin_with};
use tidegate_tests::sidecar::Sidecar;
use tidegate_tests::stack::{Plan, Stack};
use tidegate_tests::upstream::Upstream;
use tidegate_tests::wait;
use tidegate_wire::rls::{
    Code, DescriptorStatus, HeaderValue, RateLimitRequest, RateLimitResponse,
};
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

/// Envoy writes its access log every ten seconds.
const LOG_FLUSH: Duration = Duration::from_secs(10);

/// An Envoy that writes an access log, and its upstream. The service at its socket is that of the test.
struct Logged {
    envoy: Envoy,
    log: PathBuf,
    _upstream: Upstream,
}

impl Logged {
    /// `format` is that of the log. The response has the header `x-seen`, the request's `x-plan` at the router.
    async fn start(
        dir: &Path,
        socket: &Path,
        filter: Filter<'_>,
        format: &str,
    ) -> anyhow::Result<Logged> {
        let (upstream, log) = (Upstream::start("127.0.0.1:0").await?, dir.join("access.log"));
        let seen = json!({"header": {"key": "x-seen", "value": "%REQ(x-plan)%"}});
        let routes = [json!({
            "match": {"prefix": "/"},
            "route": {"cluster": "upstream"},
            "response_headers_to_add": [seen],
        })];
        let mut setup = Setup::new(filter, socket, upstream.address);
        setup.routes = &routes;
        let mut config = bootstrap(&setup)?;
        let manager = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
        let manager = config.pointer_mut(manager).context("no connection manager")?;
        manager["access_log"] = json!([{"name": "envoy.access_loggers.file", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
            "path": log,
            "log_format": {"text_format_source": {"inline_string": format}},
        }}]);
        let envoy = start_envoy(&config.to_string(), dir, 1).await?;
        Ok(Logged { envoy, log, _upstream: upstream })
    }

    async fn send(&self, client: &[u8]) -> anyhow::Result<Reply> {
        Client::connect(self.envoy.address).await?.get("/", &[("x-client", client)]).await
    }

    /// The lines of the log, once it has as many.
    async fn lines(&self, count: usize) -> anyhow::Result<Vec<String>> {
        wait::until("the access log", LOG_FLUSH, async || {
            let log = std::fs::read_to_string(&self.log).ok()?;
            let lines: Vec<String> = log.lines().map(str::to_owned).collect();
            (lines.len() >= count).then_some(lines)
        })
        .await
    }
}

/// All values of a header.
fn values<'r>(reply: &'r Reply, name: &str) -> Vec<&'r str> {
    reply.headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect()
}

/// A part of the log format in docs/reference/filter-replies.md.
const LOG_FORMAT: &str = "%RESPONSE_CODE% %RESPONSE_CODE_DETAILS% \
    denied_by=%FILTER_STATE(wasm.tidegate.denied_by:PLAIN)% \
    shadow=%FILTER_STATE(wasm.tidegate.shadow:PLAIN)%";

/// `a` and others are limited; `dark` is in shadow. Both meet two limits.
const LIMITS: &str = "
domain: test
descriptors:
- key: client
  rate_limits:
  - {name: hourly, unit: hour, requests: 2}
  - {name: daily, unit: day, requests: 100}
- key: client
  value: dark
  shadow_mode: true
  rate_limits:
  - {name: dark-hourly, unit: hour, requests: 1}
  # No window, which would end with that of the hour in its last hour.
  - {name: dark-yearly, unit: year, requests: 1, algorithm: token_bucket}
";

#[tokio::test]
async fn the_access_log_says_which_limit_denied_and_which_only_would_have() -> anyhow::Result<()> {
    ensure!(include_str!("../../../docs/reference/filter-replies.md").contains(LOG_FORMAT));
    let dir = TempDir::new()?;
    let (logged, _sidecar) = reporting(&dir, &json!({})).await?;
    let mut shadow = Vec::new();
    for client in [&b"a"[..], b"a", b"a", b"a", b"dark", b"dark"] {
        let reply = logged.send(client).await?;
        shadow.push(reply.header("x-shadow").map(str::to_owned));
    }
    // The longest wait comes first.
    let would_deny = "dark-yearly,dark-hourly";
    ensure!(shadow[..5].iter().all(Option::is_none), "{shadow:?}");
    ensure!(shadow[5].as_deref() == Some(would_deny), "{shadow:?}");
    let lines = logged.lines(6).await?;
    let denied = "a 429 tidegate_rate_limited{hourly} denied_by=hourly shadow=-";
    let expected = [
        "a 200 via_upstream denied_by=- shadow=-",
        "a 200 via_upstream denied_by=- shadow=-",
        // Asked, and by the cached denial.
        denied,
        denied,
        "dark 200 via_upstream denied_by=- shadow=-",
        &format!("dark 200 via_upstream denied_by=- shadow={would_deny}"),
    ];
    ensure!(lines == expected, "{lines:#?}");
    let counted = wait::until("the filter's report", wait::SOON, async || {
        logged.envoy.filter_stat("rule_shadow_denied").await.ok().filter(|denied| *denied > 0)
    });
    ensure!(counted.await? == 1);
    Ok(())
}

/// With the log format of the documentation, and all reports.
async fn reporting(dir: &TempDir, options: &Value) -> anyhow::Result<(Logged, Sidecar)> {
    let limits = dir.path().join("limits.yaml");
    std::fs::write(&limits, LIMITS)?;
    let sidecar = Sidecar::start_with(dir.path(), &limits, &["--capacity", "1000"]).await?;
    let mut config = plugin();
    merge(&mut config, &json!({"filter_state": "all", "shadow_header": "X-Shadow"}));
    merge(&mut config, options);
    let config = config.to_string();
    let socket = Sidecar::socket(dir.path());
    let format = format!("%REQ(x-client)% {LOG_FORMAT}\n");
    let logged = Logged::start(dir.path(), &socket, Filter::Tidegate(&config), &format).await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    Ok((logged, sidecar))
}

/// An entry in shadow does not hold requests up: what a call has still to say is only counted.
#[tokio::test]
async fn the_access_log_says_what_the_shadow_modes_of_the_filter_prevented() -> anyhow::Result<()> {
    let none = json!({"filter_enforced": {"default_value": {"numerator": 0}}});
    for (options, reported_from) in [(none, 3), (json!({"shadow": true}), 4)] {
        let dir = TempDir::new()?;
        let (logged, _sidecar) = reporting(&dir, &options).await?;
        for number in 1..=5 {
            let reply = logged.send(b"a").await?;
            let expected = (number >= reported_from).then_some("hourly");
            ensure!(reply.header("x-shadow") == expected, "{options}, {number}: {reply:?}");
            // The answer to the call about it has come once it is counted.
            let counted = || logged.envoy.filter_stat("shadow_denied");
            wait::until("the filter's report", wait::SOON, async || {
                counted().await.ok().filter(|denied| *denied + 2 >= number)
            })
            .await?;
        }
        for (line, number) in logged.lines(5).await?.iter().zip(1..) {
            let shadow = if number >= reported_from { "hourly" } else { "-" };
            let expected = format!("a 200 via_upstream denied_by=- shadow={shadow}");
            ensure!(*line == expected, "{options}, {number}: {line}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn plugins_with_a_prefix_have_statistics_of_their_own() -> anyhow::Result<()> {
    let mut config = plugin();
    merge(&mut config, &json!({"stat_prefix": "edge"}));
    let config = config.to_string();
    let stack = Stack::start(LIMITS, Filter::Tidegate(&config), 1).await?;
    stack.send(b"a").await?;
    let asked = wait::until("the filter's report", wait::SOON, async || {
        let stat = stack.envoy.stat("wasmcustom.tidegate.edge.allowed_asked").await.ok();
        stat.filter(|asked| *asked > 0)
    });
    ensure!(asked.await? == 1);
    ensure!(stack.envoy.filter_stat("allowed_asked").await.is_err(), "under no other name");
    // Envoy's own filter puts it in the same place.
    let host = json!({"rate_limits": plugin()["rate_limits"]});
    let filter = &json!({"stat_prefix": "edge"});
    let native = Filter::NativeWith { domain: "test", filter, host: &host };
    let stack = Stack::start(LIMITS, native, 1).await?;
    stack.send(b"a").await?;
    ensure!(stack.envoy.stat("cluster.upstream.ratelimit.edge.ok").await? == 1);
    Ok(())
}

/// The hits left under a limit by the header `ratelimit`.
fn left(state: &str, name: &str) -> Option<u32> {
    let limit =
        state.split(", ").find_map(|limit| limit.strip_prefix(&format!("\"{name}\";r=")))?;
    limit.split_once(";t=")?.0.parse().ok()
}

/// Each limit, with the hits left: asked about, leased, and denied.
#[tokio::test]
async fn every_limit_of_a_descriptor_is_shown() -> anyhow::Result<()> {
    let limits = "
domain: test
descriptors:
- key: client
  rate_limits:
  - {name: hourly, unit: hour, requests: 100}
  - {name: daily, unit: day, requests: 5000}
";
    let config = plugin().to_string();
    // Tokens of a lease that ends before they are spent count as spent. A busy machine may stand still for the usual two seconds.
    let flags: &[&str] = &["--capacity", "100000", "--lease-ttl", "60s"];
    let plan = Plan { flags, ..Plan::new(limits, Filter::Tidegate(&config)) };
    let stack = plan.start_shared().await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    let mut client = Client::connect(stack.envoy.address).await?;
    for number in 1..=102_u32 {
        let reply = client.get("/", &[("x-client", b"a")]).await?;
        let state = reply.header("ratelimit").context("no header")?;
        // Tokens on their way back to the sidecar are under neither limit.
        let [hourly, daily] = ["hourly", "daily"].map(|name| left(state, name));
        ensure!(hourly <= Some(100 - number.min(100)), "request {number}: {reply:?}");
        ensure!(daily == hourly.map(|left| left + 4_900), "request {number}: {reply:?}");
        let policy = "\"hourly\";q=100;w=3600, \"daily\";q=5000;w=86400";
        ensure!(reply.header("ratelimit-policy") == Some(policy), "{reply:?}");
        ensure!(reply.status == if number <= 100 { 200 } else { 429 }, "{number}: {reply:?}");
    }
    let local = stack.envoy.decisions_of(102).await?;
    ensure!(local.allowed_local > 0, "{local:?}");
    Ok(())
}

/// With leases the answers stop, so a header that only answers carry would be lost.
#[tokio::test]
async fn headers_of_the_sidecar_are_on_every_response_once() -> anyhow::Result<()> {
    let limits = "domain: test\ndescriptors:\n- {key: client, rate_limit: {unit: hour, requests_per_unit: 1000}}\n";
    let flags = ["--capacity", "1000", "--response-headers", "x-ratelimit"];
    let cases = [("draft03", true), ("off", false), ("ietf", false)];
    let plugins = cases.map(|(own, _)| plugin_with("/headers", json!(own)));
    let plan = |plugin| Plan { flags: &flags, ..Plan::new(limits, Filter::Tidegate(plugin)) };
    let plans = plugins.each_ref().map(|plugin| plan(plugin));
    for (stack, (own, is_leased)) in Plan::start_each_shared(&plans).await?.iter().zip(cases) {
        wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
        let mut client = Client::connect(stack.envoy.address).await?;
        for number in 1..=200 {
            let reply = client.get("/", &[("x-client", b"a")]).await?;
            let left = values(&reply, "x-ratelimit-remaining");
            ensure!(left.len() == 1, "{own} {number}: {reply:?}");
            let left: u32 = left[0].parse()?;
            // Tokens on their way back to the sidecar are not left.
            let most = 1_000 - number;
            ensure!(left == most || (is_leased && left < most), "{own} {number}: {reply:?}");
        }
        let leased = stack.metric("tidegate_leases_granted_total").await?;
        ensure!((leased > 0.0) == is_leased, "{own}: {leased} leases");
    }
    Ok(())
}

// A service of the test's own.

/// Answers every call with one response.
struct Service(JoinHandle<()>);

impl Service {
    fn start(socket: &Path, response: RateLimitResponse) -> anyhow::Result<Service> {
        let listener = UnixListener::bind(socket)?;
        let response = Arc::new(response);
        Ok(Service(tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let response = response.clone();
                tokio::spawn(async move {
                    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
                    while let Some(Ok((request, respond))) = connection.accept().await {
                        let response = response.clone();
                        tokio::spawn(answer(request.into_body(), respond, response));
                    }
                });
            }
        })))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn answer(
    mut body: h2::RecvStream,
    mut respond: h2::server::SendResponse<Bytes>,
    response: Arc<RateLimitResponse>,
) -> anyhow::Result<()> {
    let mut message = BytesMut::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        body.flow_control().release_capacity(chunk.len())?;
        message.extend_from_slice(&chunk);
    }
    message.advance(5);
    let asked = RateLimitRequest::decode(message)?;
    let mut response = (*response).clone();
    let status = DescriptorStatus { code: response.overall_code, ..DescriptorStatus::default() };
    response.statuses = vec![status; asked.descriptors.len()];
    let head = http_response("application/grpc")?;
    let mut stream = respond.send_response(head, false)?;
    let response = response.encode_to_vec();
    let length = u32::try_from(response.len())?.to_be_bytes();
    stream.send_data([&[0], &length[..], &response].concat().into(), false)?;
    let mut trailers = hyper::HeaderMap::new();
    trailers.insert("grpc-status", hyper::header::HeaderValue::from_static("0"));
    stream.send_trailers(trailers)?;
    Ok(())
}

fn http_response(content_type: &str) -> anyhow::Result<hyper::Response<()>> {
    Ok(hyper::Response::builder().header("content-type", content_type).body(())?)
}

fn header(key: &str, value: &str) -> HeaderValue {
    HeaderValue { key: key.to_owned(), value: value.to_owned() }
}

fn response(code: Code, headers: &[(&str, &str)], body: &str) -> RateLimitResponse {
    let plan = prost_types::Value::from("gold".to_owned());
    RateLimitResponse {
        overall_code: code.into(),
        response_headers_to_add: headers.iter().map(|(key, value)| header(key, value)).collect(),
        request_headers_to_add: vec![header("x-plan", "gold"), header("x-other", "1")],
        raw_body: body.into(),
        dynamic_metadata: Some(prost_types::Struct { fields: [("plan".into(), plan)].into() }),
        ..RateLimitResponse::default()
    }
}

/// The reply and the line of the access log of a request, by Envoy's own filter and by ours.
async fn both(
    response: &RateLimitResponse,
    options: &Value,
) -> anyhow::Result<[(Reply, String); 2]> {
    let mut ours = plugin();
    // Only the headers of the service.
    merge(&mut ours, &json!({"headers": "off", "denied": {"body": ""}}));
    merge(&mut ours, options);
    let ours = ours.to_string();
    let host = json!({"rate_limits": plugin()["rate_limits"]});
    let native = Filter::NativeWith { domain: "test", filter: options, host: &host };
    let of_native = "%DYNAMIC_METADATA(envoy.filters.http.ratelimit)%\n";
    let of_ours = "%FILTER_STATE(wasm.tidegate.metadata:PLAIN)%\n";
    let mut found = Vec::new();
    for (filter, format) in [(native, of_native), (Filter::Tidegate(&ours), of_ours)] {
        let dir = TempDir::new()?;
        let socket = dir.path().join("service.sock");
        let _service = Service::start(&socket, response.clone())?;
        let logged = Logged::start(dir.path(), &socket, filter, format).await?;
        let reply = logged.send(b"a").await?;
        let line = logged.lines(1).await?.remove(0);
        found.push((reply, line));
    }
    found.try_into().ok().context("two filters")
}

/// The request is paused while the service is asked. It goes on with the headers of the answer.
#[tokio::test]
async fn a_request_goes_on_with_the_headers_of_the_service() -> anyhow::Result<()> {
    let headers = [("X-Quota", "9"), ("x-quota", "8"), ("server-timing", "a")];
    let answer = response(Code::Ok, &headers, "no body of an allowed request");
    for (reply, metadata) in both(&answer, &json!({})).await? {
        ensure!(reply.status == 200, "{reply:?}");
        ensure!(values(&reply, "x-quota") == ["9", "8"], "{reply:?}");
        ensure!(values(&reply, "server-timing") == ["a"], "{reply:?}");
        ensure!(values(&reply, "x-seen") == ["gold"], "the upstream's request: {reply:?}");
        ensure!(reply.body == "hello from the upstream\n", "{reply:?}");
        ensure!(metadata == r#"{"plan":"gold"}"#, "{metadata}");
    }
    Ok(())
}

#[tokio::test]
async fn a_denial_has_the_headers_and_the_body_of_the_service() -> anyhow::Result<()> {
    let added = |key: &str, action: &str| json!({"header": {"key": key, "value": "configured"}, "append_action": action});
    let options = json!({"response_headers_to_add": [
        added("x-append", "APPEND_IF_EXISTS_OR_ADD"),
        added("x-absent", "ADD_IF_ABSENT"),
        added("x-overwrite", "OVERWRITE_IF_EXISTS_OR_ADD"),
        added("x-exists", "OVERWRITE_IF_EXISTS"),
    ]});
    let names = ["x-append", "x-absent", "x-overwrite", "x-exists"].map(|name| (name, "service"));
    for (of_type, body) in [(None, "a text"), (Some("application/json"), "{\"a\": 1}")] {
        let of_type = of_type.map(|of_type| ("content-type", of_type));
        let headers: Vec<_> = names.into_iter().chain(of_type).collect();
        let answer = response(Code::OverLimit, &headers, body);
        for (reply, metadata) in both(&answer, &options).await? {
            ensure!(reply.status == 429 && reply.body == body, "{reply:?}");
            let expected = of_type.map_or("text/plain", |(_, value)| value);
            ensure!(values(&reply, "content-type") == [expected], "{reply:?}");
            let mut appended = values(&reply, "x-append");
            appended.sort_unstable();
            ensure!(appended == ["configured", "service"], "{reply:?}");
            ensure!(values(&reply, "x-absent") == ["service"], "{reply:?}");
            ensure!(values(&reply, "x-overwrite") == ["configured"], "{reply:?}");
            ensure!(values(&reply, "x-exists") == ["configured"], "{reply:?}");
            ensure!(metadata == r#"{"plan":"gold"}"#, "{metadata}");
        }
    }
    Ok(())
}
