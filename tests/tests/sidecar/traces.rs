//! Spans of a real sidecar, as a collector receives them: their traces, what they hold, and what a collector that does
//! not answer costs.

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tidegate_tests::certificates::{Authority, dns};
use tidegate_tests::client::{get, send};
use tidegate_tests::collector::{Collector, Protocol, Received};
use tidegate_tests::command::run;
use tidegate_tests::process::Process;
use tidegate_tests::rls::{Rls, request};
use tidegate_tests::shared_servers::{Redis, RedisOptions, RedisPrograms};
use tidegate_tests::sidecar::{Sidecar, home, start_until_ready, until_shared_up};
use tidegate_tests::{artifacts, wait};
use tidegate_wire::rls::{Code, RateLimitRequest};
use tokio::net::{TcpListener, TcpSocket};
use tokio::process::Command;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

const LIMITS: &str = "\
domain: test
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 2 }
  - key: free
    rate_limit: { unlimited: true }
";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";
/// A process that ends sends its spans for so long.
const FINISH: Duration = Duration::from_secs(3);

/// A sidecar that exports traces, and a connection to it.
struct Traced {
    process: Process,
    http: SocketAddr,
    rls: Rls,
    dir: TempDir,
}

impl Traced {
    async fn start(environment: &[(&str, String)], flags: &[&str]) -> anyhow::Result<Traced> {
        let (dir, limits) = home(LIMITS)?;
        let mut command = serve(dir.path(), &limits)?;
        command.args(flags).envs(environment.iter().map(|(name, value)| (name, value)));
        let (process, http) = start_until_ready(command, "sidecar", dir.path(), "http").await?;
        let rls = Rls::at(dir.path()).await?;
        Ok(Traced { process, http, rls, dir })
    }

    /// Waits until so many are exported and dropped: a collector has spans before its answer lets them count.
    async fn until_counts(&self, expected: [u64; 2]) -> anyhow::Result<()> {
        let mut last = [0; 2];
        let counted = wait::until("the counts of spans", wait::CHECK, async || {
            last = self.counts().await.ok()?;
            (last == expected).then_some(())
        });
        let counted = counted.await;
        counted.with_context(|| format!("exported and dropped: {last:?}"))
    }

    /// What is exported and what is dropped, by the metrics.
    async fn counts(&self) -> anyhow::Result<[u64; 2]> {
        let page = get(self.http, "/metrics").await?.body;
        let page = std::str::from_utf8(&page)?;
        let value = |name: &str| {
            let line = page.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
        };
        Ok([value("tidegate_spans_exported_total"), value("tidegate_spans_dropped_total")])
    }
}

fn serve(dir: &Path, limits: &Path) -> anyhow::Result<Command> {
    let mut command = Command::new(artifacts::sidecar()?);
    command.args(["serve", "--log-format", "json", "--frs", "off", "--http", "127.0.0.1:0"]);
    // Unless the flags have another.
    command.env("TIDEGATE_TRACES", "on");
    command.args(["--capacity", "2000", "--limits"]).arg(limits);
    command.arg("--data-dir").arg(dir.join("data"));
    command.arg("--grpc").arg(format!("unix:{}", Sidecar::socket(dir).display()));
    Ok(command)
}

fn collector_at(address: SocketAddr) -> (&'static str, String) {
    ("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{address}"))
}

fn free() -> RateLimitRequest {
    request("test", &[("free", "1")])
}

fn ids(received: &Received) -> (String, String) {
    let (trace, parent, _) = received.context();
    (trace, parent)
}

#[tokio::test]
async fn a_span_continues_the_trace_of_its_call() -> anyhow::Result<()> {
    let collector = Collector::over_http().await?;
    let traced =
        Traced::start(&[collector_at(collector.address)], &["--traces-ratio", "0"]).await?;
    let call = async |metadata: &[(&'static str, String)]| {
        traced.rls.call_with(free(), metadata).await.map(|_| ())
    };
    // Without a span: no context with a ratio of 0, a client that has not sampled, and values that make no sense.
    call(&[]).await?;
    call(&[("traceparent", format!("00-{TRACE}-{PARENT}-00"))]).await?;
    call(&[("b3", "0".to_owned())]).await?;
    call(&[("traceparent", format!("00-{}-{PARENT}-01", "0".repeat(32)))]).await?;
    call(&[("traceparent", "x".repeat(8000))]).await?;

    let w3c = ("traceparent", format!("00-{TRACE}-{PARENT}-01"));
    call(&[w3c.clone(), ("tracestate", "vendor=1".to_owned())]).await?;
    call(&[("b3", format!("{TRACE}-{PARENT}-1"))]).await?;
    let several = [("x-b3-traceid", PARENT), ("x-b3-spanid", PARENT), ("x-b3-sampled", "1")];
    call(&several.map(|(name, value)| (name, value.to_owned()))).await?;
    call(&[("b3", "d".to_owned())]).await?;

    let spans = collector.spans(4).await?;
    ensure!(spans.len() == 4, "{spans:?}");
    let of_w3c = (TRACE.to_owned(), PARENT.to_owned(), "vendor=1");
    ensure!(spans[0].context() == of_w3c, "{:?}", spans[0]);
    ensure!(ids(&spans[1]) == (TRACE.to_owned(), PARENT.to_owned()), "{:?}", spans[1]);
    let padded = (format!("{PARENT:0>32}"), PARENT.to_owned());
    ensure!(ids(&spans[2]) == padded, "{:?}", spans[2]);
    let (trace, parent, state) = spans[3].context();
    ensure!(trace.len() == 32 && trace != TRACE && parent.is_empty() && state.is_empty());
    let mut own: Vec<&Vec<u8>> = spans.iter().map(|received| &received.span.span_id).collect();
    own.sort();
    own.dedup();
    ensure!(own.len() == 4 && own.iter().all(|id| id.len() == 8), "{own:?}");
    for Received { span, .. } in &spans {
        // A server's.
        ensure!(span.kind == 2 && span.end_time_unix_nano >= span.start_time_unix_nano, "{span:?}");
    }
    traced.until_counts([4, 0]).await
}

#[tokio::test]
async fn a_span_says_what_was_decided() -> anyhow::Result<()> {
    let collector = Collector::over_http().await?;
    let environment = [
        collector_at(collector.address),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20b".to_owned()),
        ("OTEL_SERVICE_NAME", "limits".to_owned()),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test".to_owned()),
    ];
    let traced = Traced::start(&environment, &[]).await?;
    let mut ask = request("test", &[("user", "secret")]);
    ask.hits_addend = 2;
    traced.rls.call(ask.clone()).await?;
    ask.descriptors.push(free().descriptors.remove(0));
    let denied = traced.rls.call(ask).await?;
    ensure!(denied.overall_code == i32::from(Code::OverLimit), "{denied:?}");
    let refused = traced.rls.call(request("", &[("user", "1")])).await;
    ensure!(refused.is_err(), "a request without a domain was answered: {refused:?}");
    let entries = [json!({"key": "user", "value": "secret"})];
    let body = json!({"domain": "test", "descriptors": [{"entries": entries}]}).to_string();
    let w3c = format!("00-{TRACE}-{PARENT}-01");
    let headers = [("traceparent", w3c.as_bytes())];
    let reply = send(traced.http, "POST", "/json", &headers, body).await?;
    ensure!(reply.status == 429, "{reply:?}");

    let spans = collector.spans(4).await?;
    ensure!(!format!("{spans:?}").contains("secret"), "a value of a descriptor: {spans:?}");
    let rpc = |status: u32| {
        json!({
            "rpc.system": "grpc",
            "rpc.service": "envoy.service.ratelimit.v3.RateLimitService",
            "rpc.method": "ShouldRateLimit",
            "rpc.grpc.status_code": status,
        })
    };
    let with = |mut base: Value, more: Value| {
        if let (Value::Object(base), Value::Object(more)) = (&mut base, more) {
            base.extend(more);
        }
        base
    };
    let decided = |code: &str, descriptors: u32, hits: u32| {
        json!({
            "tidegate.domain": "test",
            "tidegate.code": code,
            "tidegate.descriptors": descriptors,
            "tidegate.hits_addend": hits,
        })
    };
    let denial = json!({"tidegate.denied": 1, "tidegate.denied_rules": ["test/user"]});
    let http = json!({
        "http.request.method": "POST",
        "http.route": "/json",
        "url.path": "/json",
        "http.response.status_code": 429,
    });
    let expected = [
        with(rpc(0), decided("OK", 1, 2)),
        with(with(rpc(0), decided("OVER_LIMIT", 2, 2)), denial.clone()),
        rpc(3),
        with(with(http, decided("OVER_LIMIT", 1, 1)), denial),
    ];
    for (received, expected) in spans.iter().zip(expected) {
        ensure!(received.attributes() == expected, "{received:?}\nexpected {expected}");
        ensure!(received.key.as_deref() == Some("a b"), "{received:?}");
        let resource = &received.resource;
        ensure!(resource["service.name"] == "limits", "{resource}");
        ensure!(resource["deployment.environment.name"] == "test", "{resource}");
        ensure!(resource["process.pid"] == traced.process.pid()?, "{resource}");
    }
    let names: Vec<&str> = spans.iter().map(|received| received.span.name.as_str()).collect();
    let rls = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    ensure!(names == [rls, rls, rls, "POST /json"], "{names:?}");
    let statuses: Vec<_> = spans.iter().map(|received| received.span.status.clone()).collect();
    ensure!(statuses[0].is_none() && statuses[1].is_none() && statuses[3].is_none());
    let error = statuses[2].clone().unwrap_or_default();
    ensure!(error.code == 2 && error.message.contains("domain"), "{error:?}");
    ensure!(ids(&spans[3]) == (TRACE.to_owned(), PARENT.to_owned()), "{:?}", spans[3]);
    Ok(())
}

/// Each worker exports by itself, over gRPC here, and what it has at its end, too.
#[tokio::test]
async fn workers_export_what_they_have_when_they_end() -> anyhow::Result<()> {
    let collector = Collector::over_grpc().await?;
    let environment = [
        collector_at(collector.address),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc".to_owned()),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=secret".to_owned()),
    ];
    let mut traced = Traced::start(&environment, &["--workers", "2"]).await?;
    for _ in 0..10 {
        let rls = Rls::at(traced.dir.path()).await?;
        rls.call(free()).await?;
    }
    collector.spans(10).await?;
    traced.until_counts([10, 0]).await?;
    let workers = traced.process.children()?;
    for _ in 0..700 {
        traced.rls.call(free()).await?;
    }
    ensure!(traced.process.stop().await?.success(), "{}", traced.process.log());
    let spans = collector.received();
    ensure!(spans.len() == 710, "{}", spans.len());
    for received in spans {
        let pid = received.resource["process.pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        ensure!(pid.is_some_and(|pid| workers.contains(&pid)), "{received:?}");
        ensure!(received.key.as_deref() == Some("secret"), "{received:?}");
    }
    Ok(())
}

#[tokio::test]
async fn spans_go_over_tls_to_a_collector_of_a_known_authority() -> anyhow::Result<()> {
    let (dir, authority) = (TempDir::new()?, Authority::new()?);
    let (known, other) = (dir.path().join("known.pem"), dir.path().join("other.pem"));
    std::fs::write(&known, &authority.pem)?;
    std::fs::write(&other, Authority::new()?.pem)?;
    let identity = authority.sign(dns("localhost")?)?;
    for (protocol, name) in [(Protocol::Http, "http/protobuf"), (Protocol::Grpc, "grpc")] {
        let cert = CertificateDer::from_pem_slice(identity.cert.as_bytes())?;
        let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes())?;
        let tls = ServerConfig::builder().with_no_client_auth();
        let mut tls = tls.with_single_cert(vec![cert], key)?;
        let alpn: &[u8] = if protocol == Protocol::Grpc { b"h2" } else { b"http/1.1" };
        tls.alpn_protocols = vec![alpn.to_vec()];
        let collector = Collector::start(protocol, Some(tls)).await?;
        let environment = |authorities: &Path| {
            let port = collector.address.port();
            [
                ("OTEL_EXPORTER_OTLP_ENDPOINT", format!("https://localhost:{port}")),
                ("OTEL_EXPORTER_OTLP_PROTOCOL", name.to_owned()),
                ("OTEL_EXPORTER_OTLP_CERTIFICATE", authorities.display().to_string()),
            ]
        };
        let refusing = Traced::start(&environment(&other), &[]).await?;
        refusing.rls.call(free()).await?;
        wait::until("the certificate to be refused", wait::CHECK, async || {
            refusing.process.log().contains("invalid peer certificate").then_some(())
        })
        .await?;
        ensure!(collector.received().is_empty());
        let traced = Traced::start(&environment(&known), &[]).await?;
        traced.rls.call(free()).await?;
        collector.spans(1).await?;
    }
    Ok(())
}

/// Its counters are in a Redis, which makes it wait.
#[tokio::test]
async fn a_span_lasts_as_long_as_a_call_that_waits() -> anyhow::Result<()> {
    let Some(programs) = RedisPrograms::find()? else { return Ok(()) };
    let (dir, collector) = (TempDir::new()?, Collector::over_http().await?);
    let redis = Redis::start(&programs, dir.path(), RedisOptions::default()).await?;
    let url = format!("redis://{}", redis.address());
    let flags = ["--authority", &url, "--authority-timeout", "60s"];
    let traced = Traced::start(&[collector_at(collector.address)], &flags).await?;
    until_shared_up(traced.http).await?;
    // Three seconds longer than the span has to be: on a busy machine the call is late.
    redis.command(&["CLIENT", "PAUSE", "4000", "ALL"]).await?;
    traced.rls.call(request("test", &[("user", "1")])).await?;
    let refused = traced.rls.call(request("", &[("user", "1")])).await;
    ensure!(refused.is_err(), "{refused:?}");
    let spans = collector.spans(2).await?;
    let Received { span, .. } = &spans[0];
    let took = Duration::from_nanos(span.end_time_unix_nano - span.start_time_unix_nano);
    ensure!(took > Duration::from_secs(1), "{took:?}");
    ensure!(spans[0].attributes()["tidegate.code"] == "OK", "{spans:?}");
    ensure!(spans[1].attributes()["rpc.grpc.status_code"] == 3, "{spans:?}");
    Ok(())
}

/// More calls than the queue holds, and more attempts than the end has time for.
#[tokio::test]
async fn a_collector_that_does_not_answer_holds_up_nothing() -> anyhow::Result<()> {
    // It accepts by its backlog, and reads nothing.
    let silent = TcpListener::bind("127.0.0.1:0").await?;
    let mut traced = Traced::start(&[collector_at(silent.local_addr()?)], &[]).await?;
    let calling = async {
        for _ in 0..6_000 {
            traced.rls.call(free()).await?;
        }
        anyhow::Ok(())
    };
    // An attempt takes 10 s until it fails, and a batch is tried for minutes.
    wait::within("decisions while a collector is silent", Duration::from_secs(30), calling)
        .await??;
    let [exported, dropped] = traced.counts().await?;
    // Two batches may be on their way.
    let left = 6_000 - 4_096;
    ensure!(exported == 0 && (left - 1024..=left).contains(&dropped), "{exported} {dropped}");
    let began = Instant::now();
    ensure!(traced.process.stop().await?.success(), "{}", traced.process.log());
    let took = began.elapsed();
    // Seven batches that are left would take 70 s.
    ensure!(took < wait::bound(FINISH), "{took:?}");
    let log = traced.process.log();
    ensure!(log.contains("the last spans could not be sent"), "{log}");
    Ok(())
}

#[tokio::test]
async fn a_collector_that_is_not_there_is_logged_once() -> anyhow::Result<()> {
    // The socket is bound, so no other process gets its port. It does not listen, so connections are refused.
    let gone = TcpSocket::new_v4()?;
    gone.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    let mut traced = Traced::start(&[collector_at(gone.local_addr()?)], &[]).await?;
    traced.rls.call(free()).await?;
    wait::until("a line about it", wait::CHECK, async || {
        traced.process.log().contains("spans are not exported").then_some(())
    })
    .await?;
    traced.rls.call(free()).await?;
    ensure!(traced.process.stop().await?.success(), "{}", traced.process.log());
    let log = traced.process.log();
    ensure!(log.matches("spans are not exported").count() == 1, "{log}");
    ensure!(log.contains("Connection refused"), "{log}");
    Ok(())
}

#[tokio::test]
async fn a_variable_that_makes_no_sense_is_an_error_where_traces_are_on() -> anyhow::Result<()> {
    let (dir, limits) = home(LIMITS)?;
    for (name, value, expected) in [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "udp", "expected grpc or http/protobuf"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318", "expected a URL, such as http://"),
        ("OTEL_TRACES_SAMPLER", "some", "expected always_on, "),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s", "expected milliseconds from 1 to 600000"),
    ] {
        let mut command = serve(dir.path(), &limits)?;
        command.env(name, value);
        let ran = run(command).await?;
        let start = format!("{name}={value:?}: {expected}");
        let told = ran.err.replace('\\', "");
        ensure!(ran.code == Some(2) && told.contains(&start), "{start}: {ran:?}");
    }
    ensure!(!dir.path().join("data").exists(), "a data directory was made");
    // Nobody reads them otherwise.
    let mut command = serve(dir.path(), &limits)?;
    command.args(["--traces", "off"]).env("OTEL_EXPORTER_OTLP_PROTOCOL", "udp");
    let started = start_until_ready(command, "off", dir.path(), "http").await?;
    let page = get(started.1, "/metrics").await?.body;
    ensure!(!std::str::from_utf8(&page)?.contains("tidegate_spans"));
    Ok(())
}

/// The environment of a deployment of that service, under its name.
#[tokio::test]
async fn in_the_place_of_envoyproxy_ratelimit_its_variables_count() -> anyhow::Result<()> {
    let collector = Collector::over_http().await?;
    let dir = TempDir::new()?;
    let config = dir.path().join("current/config");
    std::fs::create_dir_all(&config)?;
    std::fs::write(config.join("limits.yaml"), LIMITS)?;
    let program = dir.path().join("ratelimit");
    std::os::unix::fs::symlink(artifacts::sidecar()?, &program)?;
    let mut command = Command::new(program);
    command.envs([
        ("RUNTIME_ROOT", dir.path().join("current").display().to_string()),
        ("GRPC_UDS", Sidecar::socket(dir.path()).display().to_string()),
        ("HOST", "127.0.0.1".to_owned()),
        ("PORT", "0".to_owned()),
        ("LOG_FORMAT", "json".to_owned()),
        ("TRACING_ENABLED", "true".to_owned()),
        ("TRACING_EXPORTER_PROTOCOL", "http".to_owned()),
        ("TRACING_SAMPLING_RATE", "1".to_owned()),
        ("TRACING_SERVICE_NAMESPACE", "shop".to_owned()),
        ("TRACING_SERVICE_INSTANCE_ID", "pod-1".to_owned()),
        collector_at(collector.address),
    ]);
    let _started = start_until_ready(command, "ratelimit", dir.path(), "http").await?;
    let rls = Rls::at(dir.path()).await?;
    rls.call(free()).await?;
    let spans = collector.spans(1).await?;
    let resource = &spans[0].resource;
    let [name, namespace, instance] =
        ["service.name", "service.namespace", "service.instance.id"].map(|name| &resource[name]);
    ensure!(name == "RateLimit" && namespace == "shop" && instance == "pod-1", "{resource}");
    ensure!(spans[0].attributes()["tidegate.domain"] == "test", "{spans:?}");
    Ok(())
}
