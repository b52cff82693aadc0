//! The HTTP endpoint from outside: `/json`, `/rlconfig`, headers about limits, what a hostile client gets, and
//! the environment of an envoyproxy/ratelimit deployment.

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;
use tidegate_tests::client::{Client, Reply, get, send};
use tidegate_tests::process::Process;
use tidegate_tests::rls::Rls;
use tidegate_tests::shared_servers::{Cluster, Redis, RedisOptions, RedisPrograms};
use tidegate_tests::sidecar::{Sidecar, home};
use tidegate_tests::{artifacts, wait};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::task::JoinSet;

const LIMITS: &str = "\
domain: test
descriptors:
  - key: client
    metadata: { tier: gold, weights: [1, 2.5] }
    rate_limit: { name: per-client, unit: hour, requests_per_unit: 3 }
  - key: client
    value: vip
    shadow_mode: true
    rate_limit: { unit: hour, requests_per_unit: 1 }
  - key: app
    descriptors:
      - key: user
        rate_limits:
          - { name: burst, algorithm: token_bucket, requests: 5, period: 1h, burst: 10 }
  - key: free
    rate_limit: { unlimited: true }
";

async fn started(flags: &[&str]) -> anyhow::Result<(TempDir, Sidecar)> {
    let (dir, path) = home(LIMITS)?;
    let flags: Vec<&str> = ["--capacity", "1000"].iter().chain(flags).copied().collect();
    let sidecar = Sidecar::start_with(dir.path(), &path, &flags).await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    Ok((dir, sidecar))
}

async fn post(http: SocketAddr, body: impl Into<bytes::Bytes>) -> anyhow::Result<Reply> {
    send(http, "POST", "/json", &[], body).await
}

fn ask(key: &str, value: &str) -> String {
    json!({"domain": "test", "descriptors": [{"entries": [{"key": key, "value": value}]}]})
        .to_string()
}

fn body(reply: &Reply) -> anyhow::Result<Value> {
    serde_json::from_slice(&reply.body).with_context(|| format!("{reply:?}"))
}

/// Posts, and takes the times out of the answer: each limit has one, which is that to the end of its window.
async fn post_for(
    http: SocketAddr,
    asked: impl Into<bytes::Bytes>,
) -> anyhow::Result<(Reply, Value)> {
    let posting = wait::reset_during(wait::DAY, wait::reset_during(wait::HOUR, post(http, asked)));
    let (of_day, (of_hour, reply)) = posting.await?;
    let mut answer = body(&reply)?;
    for status in answer["statuses"].as_array_mut().context("no statuses")? {
        let expected = match status["currentLimit"]["unit"].as_str() {
            Some("HOUR") => Some(&of_hour),
            Some("DAY") => Some(&of_day),
            _ => None,
        };
        let reset = status.as_object_mut().context("no object")?.remove("durationUntilReset");
        let Some(expected) = expected else {
            ensure!(reset.is_none(), "a time without a limit: {reply:?}");
            continue;
        };
        let reset = reset.context("no time")?;
        let secs = reset.as_str().and_then(|text| text.strip_suffix('s')).context("no seconds")?;
        ensure!(expected.contains(&secs.parse()?), "{secs} s, expected {expected:?}");
    }
    Ok((reply, answer))
}

#[tokio::test]
async fn json_is_decided_as_a_call_is() -> anyhow::Result<()> {
    let (dir, sidecar) = started(&[]).await?;
    let limit = json!({"name": "per-client", "requestsPerUnit": 3, "unit": "HOUR"});
    for left in [2, 1] {
        let (reply, answer) = post_for(sidecar.http, ask("client", "a")).await?;
        ensure!(reply.status == 200 && reply.header("content-type") == Some("application/json"));
        let expected = json!({"overallCode": "OK", "statuses": [
            {"code": "OK", "currentLimit": limit, "limitRemaining": left},
        ]});
        ensure!(answer == expected, "{reply:?}");
    }
    // A call over gRPC takes from the same counter.
    Rls::at(dir.path()).await?.ask(&[("client", "a")]).await?;
    let (over, answer) = post_for(sidecar.http, ask("client", "a")).await?;
    ensure!(over.status == 429, "{over:?}");
    let expected = json!({"overallCode": "OVER_LIMIT", "statuses": [
        {"code": "OVER_LIMIT", "currentLimit": limit},
    ]});
    ensure!(answer == expected, "{over:?}");

    // In snake_case, with a limit of its own, numbers as texts and one hit given back.
    let own = r#"{"domain":"test","hits_addend":"2","descriptors":[
        {"entries":[{"key":"own"}],"limit":{"requests_per_unit":9,"unit":"DAY"}},
        {"entries":[{"key":"client","value":"a"}],"hits_addend":"1","is_negative_hits":true}]}"#;
    let (reply, answer) = post_for(sidecar.http, own).await?;
    let expected = json!({"overallCode": "OK", "statuses": [
        {"code": "OK", "currentLimit": {"requestsPerUnit": 9, "unit": "DAY"}, "limitRemaining": 7},
        {"code": "OK", "currentLimit": limit, "limitRemaining": 1},
    ]});
    ensure!(reply.status == 200 && answer == expected, "{reply:?}");

    let (free, answer) = post_for(sidecar.http, ask("free", "x")).await?;
    let expected =
        json!({"overallCode": "OK", "statuses": [{"code": "OK", "limitRemaining": u32::MAX}]});
    ensure!(answer == expected, "{free:?}");
    Ok(())
}

#[tokio::test]
async fn json_has_metadata_and_headers() -> anyhow::Result<()> {
    let flags =
        ["--dynamic-metadata", "--response-headers", "ratelimit", "--ratelimit-reset-header"];
    let flags: Vec<&str> = flags.into_iter().chain(["x-reset"]).collect();
    let (_dir, sidecar) = started(&flags).await?;
    let answer = body(&post(sidecar.http, ask("client", "a")).await?)?;
    let expected = json!({
        "domain": "test",
        "descriptors": [{"entries": ["client=a"]}],
        "hitsAddend": 1,
        "metadata": {"tier": "gold", "weights": [1, 2.5]},
    });
    ensure!(answer["dynamicMetadata"] == expected, "{answer}");
    let headers = answer["responseHeadersToAdd"].as_array().context("no headers")?;
    ensure!(headers[0] == json!({"key": "RateLimit-Limit", "value": "3"}), "{answer}");
    ensure!(headers[1] == json!({"key": "RateLimit-Remaining", "value": "2"}), "{answer}");
    let until = answer["statuses"][0]["durationUntilReset"].as_str().context("no time")?;
    let reset = until.trim_end_matches('s');
    ensure!(headers[2] == json!({"key": "x-reset", "value": reset}), "{answer}");
    Ok(())
}

#[tokio::test]
async fn what_is_no_request_is_refused_with_a_reason() -> anyhow::Result<()> {
    let (_dir, sidecar) = started(&[]).await?;
    let http = sidecar.http;
    let deep = format!("{{\"domain\":{}", "[".repeat(200_000));
    for (text, says) in [
        ("", "not a RateLimitRequest in proto-JSON: EOF while parsing"),
        ("{", "not a RateLimitRequest in proto-JSON: EOF while parsing"),
        ("[1]", "expected an object"),
        (r#"{"domain":"test","descriptor":[]}"#, "unknown field `descriptor`"),
        (r#"{"domain":"","descriptors":[]}"#, "rate limit domain must not be empty"),
        (r#"{"domain":"test"}"#, "rate limit descriptor list must not be empty"),
        (r#"{"domain":"test","descriptors":[{"entries":[{"key":""}]}]}"#, "key must not be empty"),
        (
            r#"{"domain":"test","descriptors":[{"limit":{"unit":"EON"}}]}"#,
            "expected a unit by name",
        ),
        (
            r#"{"domain":"test","descriptors":[{"entries":[{"key":"k"}],"limit":{"unit":9}}]}"#,
            "9 is not a unit",
        ),
        (deep.as_str(), "invalid type: sequence, expected a string"),
        ("\u{feff}{}", "expected value at line 1 column 1"),
    ] {
        let reply = post(http, text.to_owned()).await?;
        let received = String::from_utf8_lossy(&reply.body).into_owned();
        ensure!(reply.status == 400 && received.contains(says), "{says}: {reply:?}");
    }
    let bytes = post(http, &b"\"\xff\""[..]).await?;
    ensure!(bytes.status == 400, "{bytes:?}");
    let large = send(http, "POST", "/json", &[], vec![b' '; 1024 * 1024 + 1]).await?;
    ensure!(large.status == 413, "{large:?}");
    let coded = send(http, "POST", "/json", &[("content-encoding", b"gzip")], "x").await?;
    ensure!(coded.status == 415, "{coded:?}");
    for (method, path, status, allowed) in [
        ("GET", "/json", 405, Some("POST")),
        ("POST", "/rlconfig", 405, Some("GET, HEAD")),
        ("DELETE", "/metrics", 405, Some("GET, HEAD")),
        ("GET", "/nothing", 404, None),
        ("HEAD", "/healthcheck", 200, None),
        ("GET", "/", 200, None),
    ] {
        let reply = send(http, method, path, &[], "").await?;
        let found = (reply.status.as_u16(), reply.header("allow"));
        ensure!(found == (status, allowed), "{method} {path}: {reply:?}");
    }
    // Nothing was taken, and everything was counted.
    let reply = post(http, ask("client", "a")).await?;
    ensure!(body(&reply)?["statuses"][0]["limitRemaining"] == 2, "{reply:?}");
    let metrics = get(http, "/metrics").await?;
    let metrics = String::from_utf8_lossy(&metrics.body);
    for line in [
        "tidegate_http_requests_total{path=\"/json\",status=\"200\"} 1",
        "tidegate_http_requests_total{path=\"/json\",status=\"413\"} 1",
        "tidegate_http_requests_total{path=\"other\",status=\"404\"} 1",
        "tidegate_answers_total{code=\"ok\"} 1",
        "tidegate_answers_total{code=\"error\"} 14",
        "tidegate_worker_restarts_total 0",
        "tidegate_clock_steps_total{direction=\"back\"} 0",
        "# TYPE tidegate_answer_seconds histogram",
        "# TYPE process_cpu_seconds counter",
    ] {
        ensure!(metrics.lines().any(|found| found == line), "no {line:?} in\n{metrics}");
    }
    let value = |name: &str| -> anyhow::Result<f64> {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(line.with_context(|| format!("no {name} in\n{metrics}"))?.parse()?)
    };
    let version = format!("tidegate_build_info{{version=\"{}\"", env!("CARGO_PKG_VERSION"));
    ensure!(metrics.contains(&version), "{metrics}");
    let answered = value("tidegate_answer_seconds_count{door=\"http\"}")?;
    ensure!(answered == value("tidegate_answer_seconds_bucket{door=\"http\",le=\"+Inf\"}")?);
    ensure!(answered >= 15.0 && value("tidegate_answer_seconds_sum{door=\"http\"}")? > 0.0);
    // That of the page itself is one of them.
    ensure!(value("tidegate_connections{door=\"http\"}")? >= 1.0);
    ensure!(value("tidegate_connections_accepted_total{door=\"http\"}")? >= 1.0);
    ensure!(value("process_open_fds")? >= 3.0 && value("process_cpu_seconds_total")? >= 0.0);
    Ok(())
}

/// A store without room is no reason to answer as if there were.
#[tokio::test]
async fn what_cannot_be_decided_is_unavailable() -> anyhow::Result<()> {
    let dir = TempDir::new()?;
    let path = dir.path().join("limits.yaml");
    std::fs::write(&path, LIMITS)?;
    let sidecar = Sidecar::start_with(dir.path(), &path, &["--geometry", "1x1x1"]).await?;
    ensure!(post(sidecar.http, ask("client", "a")).await?.status == 200);
    let refused = post(sidecar.http, ask("client", "b")).await?;
    let received = String::from_utf8_lossy(&refused.body).into_owned();
    ensure!(
        refused.status == 503 && received.starts_with("no decision: no room for key"),
        "{received}"
    );
    Ok(())
}

/// Bytes that are no HTTP, and a body that never comes, hold up nobody.
#[tokio::test]
async fn hostile_connections_harm_no_others() -> anyhow::Result<()> {
    let (_dir, sidecar) = started(&[]).await?;
    let mut garbage = TcpStream::connect(sidecar.http).await?;
    garbage.write_all(&[0xff; 4096]).await?;
    let mut rest = Vec::new();
    // A reset says the same as an end.
    let _ = wait::within("an end", wait::SOON, garbage.read_to_end(&mut rest)).await?;
    let mut half = TcpStream::connect(sidecar.http).await?;
    half.write_all(b"POST /json HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{").await?;
    let mut slow = TcpStream::connect(sidecar.http).await?;
    slow.write_all(b"GET /healthcheck HTTP/1.1\r\nhost").await?;
    ensure!(post(sidecar.http, ask("client", "a")).await?.status == 200);
    ensure!(get(sidecar.http, "/healthcheck").await?.body == "OK\n");
    Ok(())
}

/// Symptom: clients that held all places of the endpoint, and asked nothing, kept health checks waiting for a
/// minute. Cause: a place was free again only when its client's time was up. Thousands are in `attacks/http`.
#[tokio::test]
async fn who_asks_nothing_gives_way_and_who_does_is_answered() -> anyhow::Result<()> {
    let (_dir, sidecar) = started(&[]).await?;
    let mut under_way = TcpStream::connect(sidecar.http).await?;
    let asked = ask("client", "slow");
    let head = format!(
        "POST /json HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\nconnection: close\r\n\
         expect: 100-continue\r\n\r\n",
        asked.len()
    );
    under_way.write_all(head.as_bytes()).await?;
    // Then the endpoint has the head, and waits for the body.
    let mut received = [0; 25];
    wait::within("100 Continue", wait::SOON, under_way.read_exact(&mut received)).await??;
    ensure!(received.starts_with(b"HTTP/1.1 100 Continue"), "{}", received.escape_ascii());
    let mut resting = Vec::new();
    for _ in 0..100 {
        let mut client = Client::connect(sidecar.http).await?;
        ensure!(client.get("/healthcheck", &[]).await?.status == 200);
        resting.push(client);
    }
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(TcpStream::connect(sidecar.http).await?);
    }
    let healthy = get(sidecar.http, "/healthcheck");
    let healthy = wait::within("somebody to give way", wait::SOON, healthy).await??;
    ensure!(healthy.body == "OK\n", "{healthy:?}");
    under_way.write_all(asked.as_bytes()).await?;
    let mut answer = String::new();
    wait::within("an answer", wait::SOON, under_way.read_to_string(&mut answer)).await??;
    ensure!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    Ok(())
}

/// Symptom: clients that posted large requests held up all others, calls by gRPC among them, and never
/// got 503. Cause: bodies were read and decided by the threads that serve connections, and that work was not
/// counted.
#[tokio::test]
async fn beyond_capacity_large_requests_are_shed_and_nothing_else_breaks() -> anyhow::Result<()> {
    let (_dir, sidecar) = started(&[]).await?;
    let entries = vec![json!({"key": "none", "value": "x"}); 250];
    let descriptors = vec![json!({"entries": entries}); 100];
    let large = json!({"domain": "test", "descriptors": descriptors}).to_string();
    let mut callers = JoinSet::new();
    let is_shed = Arc::new(AtomicBool::new(false));
    for _ in 0..64 {
        let (mut client, large) = (Client::connect(sidecar.http).await?, large.clone());
        let is_shed = is_shed.clone();
        callers.spawn(async move {
            let (mut decided, mut shed) = (0, 0);
            // On a machine with more to do, callers are too slow at first.
            for round in 0..40 {
                if round >= 4 && is_shed.load(Ordering::Relaxed) {
                    break;
                }
                let reply = client.send("POST", "/json", &[], large.clone()).await?;
                if reply.status == 503 {
                    ensure!(reply.header("retry-after") == Some("1"), "{reply:?}");
                    shed += 1;
                    is_shed.store(true, Ordering::Relaxed);
                } else {
                    ensure!(reply.status == 200, "{reply:?}");
                    decided += 1;
                }
            }
            anyhow::Ok((decided, shed))
        });
    }
    let (mut decided, mut shed) = (0, 0);
    while let Some(caller) = callers.join_next().await {
        let (more, refused) = caller??;
        (decided, shed) = (decided + more, shed + refused);
    }
    ensure!(decided > 0 && shed > 0, "{decided} decided, {shed} shed");
    let page = get(sidecar.http, "/metrics").await?.body;
    let page = String::from_utf8(page.into())?;
    let counted = format!("tidegate_shed_total{{door=\"http\"}} {shed}\n");
    ensure!(page.contains(&counted), "{shed} were shed: {page}");
    for _ in 0..100 {
        ensure!(post(sidecar.http, ask("none", "after")).await?.status == 200);
    }
    Ok(())
}

#[tokio::test]
async fn rlconfig_lists_the_limits_in_force() -> anyhow::Result<()> {
    let (dir, sidecar) = started(&[]).await?;
    let received = async || -> anyhow::Result<String> {
        let reply = get(sidecar.http, "/rlconfig").await?;
        Ok(String::from_utf8_lossy(&reply.body).into_owned())
    };
    let expected = "\
test.app.user#burst: unit=HOUR requests_per_unit=5, algorithm: token_bucket, burst: 10, initial: 10, \
shadow_mode: false, quota_mode: false
test.client: unit=HOUR requests_per_unit=3, shadow_mode: false, quota_mode: false
test.client_vip: unit=HOUR requests_per_unit=1, shadow_mode: true, quota_mode: false
test.free: unlimited, shadow_mode: false, quota_mode: false
";
    let found = received().await?;
    ensure!(found == expected, "{found}");
    std::fs::write(
        dir.path().join("limits.yaml"),
        "domain: new\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 7}}]",
    )?;
    sidecar.process.signal(rustix::process::Signal::HUP)?;
    wait::until("the new limits", wait::RELOAD, async || {
        let line = "new.k: unit=DAY requests_per_unit=7, shadow_mode: false, quota_mode: false\n";
        (received().await.ok()? == line).then_some(())
    })
    .await
}

/// Starts `tidegate serve` with these variables and no flag but for its data.
fn serve(dir: &Path, set: &[(&str, &str)]) -> anyhow::Result<Process> {
    let mut command = Command::new(artifacts::sidecar()?);
    command.env_clear().envs(set.iter().copied());
    command
        .args(["serve", "--frs", "off", "--capacity", "1000", "--data-dir"])
        .arg(dir.join("data"));
    Process::start(command, "sidecar", dir)
}

#[tokio::test]
async fn the_environment_of_envoyproxy_ratelimit_is_enough_to_start() -> anyhow::Result<()> {
    let dir = TempDir::new()?;
    let runtime: PathBuf = dir.path().join("runtime");
    std::fs::create_dir_all(runtime.join("ratelimit/config"))?;
    std::fs::write(runtime.join("ratelimit/config/limits.yaml"), LIMITS)?;
    let socket = Sidecar::socket(dir.path()).display().to_string();
    let root = runtime.display().to_string();
    let set = [
        ("RUNTIME_ROOT", root.as_str()),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("GRPC_UDS", &socket),
        ("PORT", "0"),
        ("SHADOW_MODE", "true"),
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
        ("LOG_LEVEL", "info"),
        ("LOG_FORMAT", "json"),
        // No such server: counters are to stay here.
        ("REDIS_URL", "redis:6379"),
        ("TIDEGATE_AUTHORITY", "local"),
        ("USE_STATSD", "false"),
    ];
    let process = serve(dir.path(), &set)?;
    wait::until("a sidecar that is ready", wait::START, async || {
        process.log().contains("\"ready\"").then_some(())
    })
    .await?;
    let rls = Rls::at(dir.path()).await?;
    for _ in 0..5 {
        let answer = rls.ask(&[("client", "a")]).await?;
        // Global shadow.
        ensure!(answer.overall_code() == tidegate_wire::rls::Code::Ok, "{answer:?}");
        let headers: Vec<&str> =
            answer.response_headers_to_add.iter().map(|header| header.key.as_str()).collect();
        ensure!(
            headers == ["RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"],
            "{answer:?}"
        );
    }
    let log = process.log();
    let events: Vec<Value> =
        log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let about = |name: &str, level: &str, says: &str| {
        let found = events.iter().find(|event| event["fields"]["variable"] == name);
        let found = found.with_context(|| format!("nothing of {name} in {log}"))?;
        let message = found["fields"]["message"].as_str().unwrap_or_default();
        ensure!(found["level"] == level && message.contains(says), "{found}");
        Ok(())
    };
    ensure!(!log.contains("redis"), "{log}");
    about("USE_STATSD", "WARN", "scrape /metrics")?;
    about("GRPC_UDS", "INFO", "--grpc unix:")?;
    about("SHADOW_MODE", "INFO", "--shadow-mode true")?;
    let http = events
        .iter()
        .find(|event| event["fields"]["door"] == "http")
        .context("no HTTP endpoint")?;
    let address = http["fields"]["address"].as_str().context("no address")?;
    ensure!(address.starts_with("127.0.0.1:"), "beyond loopback by default: {address}");
    Ok(())
}

/// As in envoyproxy/ratelimit, where it is the only place of counters.
#[tokio::test]
async fn redis_url_names_the_server_of_shared_counters() -> anyhow::Result<()> {
    let Some(programs) = RedisPrograms::find()? else { return Ok(()) };
    let dir = TempDir::new()?;
    let redis = Redis::start(&programs, dir.path(), RedisOptions::default()).await?;
    let url = redis.address();
    counts_in(dir.path(), &[("REDIS_URL", &url)], &format!("redis://{url}"), async || {
        Ok(redis.command(&["DBSIZE"]).await?.parse()?)
    })
    .await
}

#[tokio::test]
async fn redis_type_names_a_cluster() -> anyhow::Result<()> {
    let Some(programs) = RedisPrograms::find()? else { return Ok(()) };
    let dir = TempDir::new()?;
    let cluster = Cluster::start(&programs, dir.path(), &[], None).await?;
    let url = cluster.addresses();
    let set = [("REDIS_URL", url.as_str()), ("REDIS_TYPE", "CLUSTER")];
    counts_in(dir.path(), &set, &format!("redis+cluster://{url}"), async || {
        let mut keys = 0;
        for node in &cluster.nodes[..3] {
            keys += node.command(&["DBSIZE"]).await?.parse::<u32>()?;
        }
        Ok(keys)
    })
    .await
}

/// Holds a sidecar with these variables to have its counters on the servers of this URL. `keys` says how many keys they have.
async fn counts_in(
    dir: &Path,
    more: &[(&str, &str)],
    url: &str,
    keys: impl AsyncFn() -> anyhow::Result<u32>,
) -> anyhow::Result<()> {
    let runtime = dir.join("runtime");
    std::fs::create_dir_all(runtime.join("config"))?;
    std::fs::write(runtime.join("config/limits.yaml"), LIMITS)?;
    let socket = Sidecar::socket(dir).display().to_string();
    let root = runtime.display().to_string();
    let set = [
        ("RUNTIME_ROOT", root.as_str()),
        ("GRPC_UDS", &socket),
        ("PORT", "0"),
        ("TIDEGATE_AUTHORITY_TIMEOUT", "60s"),
    ];
    let process = serve(dir, &[&set[..], more].concat())?;
    wait::until("a sidecar that is ready", wait::START, async || {
        process.log().contains("ready").then_some(())
    })
    .await?;
    let used = format!("--authority {url}");
    ensure!(process.log().contains(&used), "{used}: {}", process.log());
    let (rls, mut client) = (Rls::at(dir).await?, 0);
    // The seed, and a counter. Without a connection, as right after the start, a client is counted here.
    wait::until("a counter on the servers", wait::RETRY, async || {
        client += 1;
        rls.ask(&[("client", &client.to_string())]).await.ok()?;
        (keys().await.ok()? > 1).then_some(())
    })
    .await
}

#[tokio::test]
async fn a_variable_that_makes_no_sense_is_named() -> anyhow::Result<()> {
    let dir = TempDir::new()?;
    let mut process = serve(dir.path(), &[("SHADOW_MODE", "on"), ("RUNTIME_ROOT", "/none")])?;
    let status = process.wait().await?;
    let log = process.log();
    ensure!(status.code() == Some(2), "{status}: {log}");
    ensure!(log.contains("tidegate: SHADOW_MODE=\"on\": expected true or false"), "{log}");
    // Our own win, as they are about nothing else.
    let set = [("GRPC_PORT", "0"), ("TIDEGATE_GRPC", "off"), ("RUNTIME_ROOT", "/none")];
    let mut process = serve(dir.path(), &set)?;
    let status = process.wait().await?;
    let log = process.log();
    ensure!(
        !status.success() && log.contains("--grpc off leaves nothing to serve"),
        "{status}: {log}"
    );
    Ok(())
}
