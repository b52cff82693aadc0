//! The files of envoyproxy/ratelimit in Istio's `samples/ratelimit`, with another image: the environment of its
//! container, its limits as Kubernetes mounts a ConfigMap, its Redis, and Envoy's own filter.

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use std::net::{Ipv6Addr, SocketAddr};
use std::os::unix::fs::symlink;
use std::path::Path;
use tempfile::TempDir;
use tidegate_tests::bare_root::BareRoot;
use tidegate_tests::bootstrap::{Filter, Setup, bootstrap, cluster, http2, socket_address};
use tidegate_tests::client::{Client, get};
use tidegate_tests::envoy::start_envoy;
use tidegate_tests::shared_servers::{Redis, RedisOptions, RedisPrograms};
use tidegate_tests::sidecar::{start_until_ready, tcp_in};
use tidegate_tests::upstream::Upstream;
use tidegate_tests::{not_run, wait};

/// As there, but an hour for a minute, so that no window ends in the test.
fn limits(of_root: u32) -> String {
    format!(
        "\
domain: echo-ratelimit
descriptors:
  - key: PATH
    value: \"/\"
    rate_limit: {{ unit: hour, requests_per_unit: {of_root} }}
  - key: PATH
    rate_limit: {{ unit: hour, requests_per_unit: 10 }}
"
    )
}

/// As there. The ports are the system's choice, since others test here too, and the log is for this test.
fn environment(redis: &Redis) -> Vec<(&'static str, String)> {
    let fixed = [
        ("LOG_LEVEL", "debug"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("USE_STATSD", "false"),
        ("RUNTIME_ROOT", "/data"),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("RUNTIME_WATCH_ROOT", "false"),
        ("RUNTIME_IGNOREDOTFILES", "true"),
        ("HOST", "::"),
        ("GRPC_HOST", "::"),
        ("PORT", "0"),
        ("GRPC_PORT", "0"),
        ("LOG_FORMAT", "json"),
    ];
    let mut all: Vec<_> = fixed.map(|(name, value)| (name, value.to_owned())).into();
    all.push(("REDIS_URL", redis.address()));
    // A busy machine may take longer than the default, and the service does without Redis then.
    all.push(("REDIS_TIMEOUT", "30s".to_owned()));
    all
}

/// Writes a version of a ConfigMap, as the kubelet does: files in a hidden directory, a link to it that is replaced at
/// once, and links by the names of the files.
fn mount(volume: &Path, version: &str, text: &str) -> anyhow::Result<()> {
    std::fs::create_dir_all(volume.join(version))?;
    std::fs::write(volume.join(version).join("config.yaml"), text)?;
    symlink(version, volume.join("..data_tmp"))?;
    std::fs::rename(volume.join("..data_tmp"), volume.join("..data"))?;
    match symlink("..data/config.yaml", volume.join("config.yaml")) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error.into()),
        _ => Ok(()),
    }
}

/// A proxy whose filter the EnvoyFilters there put before the router.
fn proxy(service: SocketAddr, upstream: SocketAddr) -> anyhow::Result<String> {
    let by_path = json!({"rate_limits": [{"actions": [
        {"request_headers": {"header_name": ":path", "descriptor_key": "PATH"}},
    ]}]});
    let filter = json!({"failure_mode_deny": true});
    let filter = Filter::NativeWith { domain: "echo-ratelimit", filter: &filter, host: &by_path };
    let mut config = bootstrap(&Setup::new(filter, Path::new("/unused"), upstream))?;
    let clusters = config.pointer_mut("/static_resources/clusters").and_then(Value::as_array_mut);
    let called = clusters.context("clusters")?.iter_mut();
    let mut called = called.filter(|cluster| cluster["name"] == "tidegate");
    *called.next().context("the cluster of the service")? =
        cluster("tidegate", &socket_address(service), &http2());
    Ok(config.to_string())
}

/// How many of these requests pass.
async fn passed(envoy: SocketAddr, path: &str, requests: usize) -> anyhow::Result<usize> {
    let (mut client, mut passed) = (Client::connect(envoy).await?, 0);
    for _ in 0..requests {
        let reply = client.get(path, &[]).await?;
        ensure!([200, 429].contains(&reply.status.as_u16()), "{reply:?}");
        passed += usize::from(reply.status == 200);
    }
    Ok(passed)
}

#[tokio::test]
async fn the_files_of_the_sample_need_another_image_only() -> anyhow::Result<()> {
    let Some(programs) = RedisPrograms::find()? else { return Ok(()) };
    let dir = TempDir::new()?;
    let made = BareRoot::create(dir.path());
    let Some(root) = not_run::or_named("root, to make a root without anything", made)? else {
        return Ok(());
    };
    let volume = root.at("data/ratelimit/config");
    mount(&volume, "..2026_01", &limits(2))?;
    let redis = Redis::start(&programs, dir.path(), RedisOptions::default()).await?;
    let command = root.command(&environment(&redis));
    let (process, _) = start_until_ready(command, "ratelimit", dir.path(), "http").await?;
    let log = process.log();
    let (http, grpc) = (tcp_in(&log, "http")?, tcp_in(&log, "grpc")?);
    ensure!(http.ip() == Ipv6Addr::UNSPECIFIED && grpc.ip() == Ipv6Addr::UNSPECIFIED, "{log}");
    // IPv4 reaches `::` too, as in a cluster without IPv6.
    let http = SocketAddr::from(([127, 0, 0, 1], http.port()));
    let grpc = SocketAddr::from(([127, 0, 0, 1], grpc.port()));
    let health = get(http, "/healthcheck").await?;
    ensure!(health.status == 200, "{health:?}");
    let upstream = Upstream::start("127.0.0.1:0").await?;
    let envoy = start_envoy(&proxy(grpc, upstream.address)?, dir.path(), 1).await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    ensure!(passed(envoy.address, "/", 5).await? == 2, "the limit of /");
    ensure!(passed(envoy.address, "/a", 15).await? == 10, "the limit of any path");

    mount(&volume, "..2026_02", &limits(4))?;
    let in_force = async || {
        let page = get(http, "/rlconfig").await.ok()?;
        String::from_utf8(page.body.into()).ok()?.contains("requests_per_unit=4").then_some(())
    };
    wait::until("the new limits", wait::RELOAD, in_force).await?;
    let keys: usize = redis.command(&["dbsize"]).await?.trim().parse()?;
    ensure!(keys >= 2, "{keys} keys in Redis");
    Ok(())
}
