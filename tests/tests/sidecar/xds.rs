//! Limits from servers of the discovery protocol, which is gRPC's own implementation with Envoy's own messages: see
//! tests/clients/ads_server.py.

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tidegate_tests::ads::{AdsServer, domain, level, limit};
use tidegate_tests::rls::{Rls, request};
use tidegate_tests::sidecar::{Sidecar, home};
use tidegate_tests::{client, wait};
use tidegate_wire::rls::Code;
use tokio::net::TcpListener;

const FLAGS: [&str; 2] = ["--capacity", "1000"];

fn url(server: &AdsServer) -> PathBuf {
    PathBuf::from(format!("xds://127.0.0.1:{}", server.port))
}

/// The limit of a year that a descriptor meets now; none if it meets none.
async fn limit_of(dir: &Path, of: &str, about: &[(&str, &str)]) -> anyhow::Result<Option<u32>> {
    let rls = Rls::at(dir).await?;
    let mut peek = request(of, about);
    peek.descriptors[0].hits_addend = Some(0);
    let answer = rls.decide(peek).await?;
    let status = answer.statuses.first().context("no status")?;
    Ok(status.current_limit.as_ref().map(|limit| limit.requests_per_unit))
}

/// Waits until every worker has this limit: each connection may reach another one.
async fn limit_becomes(dir: &Path, of: &str, expected: Option<u32>) -> anyhow::Result<()> {
    let all = async || {
        for _ in 0..8 {
            if limit_of(dir, of, &[("k", "v")]).await.ok()? != expected {
                return None;
            }
        }
        Some(())
    };
    wait::until(&format!("{of} to have the limit {expected:?}"), wait::RELOAD, all).await
}

fn of(name: &str, requests: u32) -> Value {
    domain(name, &[limit("k", "", "YEAR", requests)])
}

async fn check_a_life(flags: &[&str]) -> anyhow::Result<()> {
    let dir = TempDir::new()?;
    let dir = dir.path();
    let mut server = AdsServer::start(0, None).await?;
    server.set("1", &json!([of("a", 10)])).await?;
    let flags =
        [&FLAGS[..], &["--xds-node-id", "me", "--xds-headers", "x-token:t"], flags].concat();
    let flags = [&flags[..], &["--xds-node-metadata", "zone=z1"]].concat();
    let sidecar = Sidecar::start_with(dir, &url(&server), &flags).await?;
    let request = server.accepted("1").await?;
    ensure!(request["node"] == "me" && request["metadata"]["zone"] == "z1", "{request}");
    ensure!(request["headers"]["x-token"] == "t", "{request}");
    limit_becomes(dir, "a", Some(10)).await?;

    server.set("2", &json!([of("a", 20), of("b", 30)])).await?;
    server.accepted("2").await?;
    limit_becomes(dir, "a", Some(20)).await?;
    limit_becomes(dir, "b", Some(30)).await?;

    let nested = level("r", "x", &[limit("", "", "HOUR", 1), limit("u", "", "UNKNOWN", 1)]);
    server.set("3", &json!([of("a", 40), domain("c", &[nested]), of("a", 50)])).await?;
    let refusal = server.refused().await?;
    let error = refusal["error"].as_str().context("no text")?;
    ensure!(refusal["version"] == "2", "{refusal}");
    ensure!(error.lines().count() == 3, "{error}");
    for part in [
        "resource c: descriptor r=x/: `key` is required",
        "resource c: descriptor r=x/u: ",
        "resource a: domain \"a\" is already defined",
    ] {
        ensure!(error.contains(part), "{part} is missing: {error}");
    }
    limit_becomes(dir, "a", Some(20)).await?;
    let metrics = sidecar.metrics().await?;
    ensure!(metrics.contains("\ntidegate_config_current 0\n"), "{metrics}");

    server.send(&json!({"version": "4", "raw": ["/w==", "CgH/"]})).await?;
    wait::until("the refusal of bytes", wait::SOON, async || {
        let last = server.requests().pop()?;
        let error = last["error"].as_str()?;
        (error.contains("resources[0]: ") && error.contains("resources[1]: ")).then_some(())
    })
    .await?;

    // Limits stay while the server is gone, and the version is asked for when it is back.
    let port = server.port;
    server.kill().await?;
    limit_becomes(dir, "a", Some(20)).await?;
    let mut server = AdsServer::start(port, None).await?;
    server.set("5", &json!([of("b", 60)])).await?;
    server.accepted("5").await?;
    let first = server.requests().first().context("no request")?.clone();
    ensure!(first["version"] == "2" && first["nonce"] == "", "{first}");
    limit_becomes(dir, "b", Some(60)).await?;
    limit_becomes(dir, "a", None).await
}

#[tokio::test]
async fn limits_arrive_change_are_refused_and_outlive_the_server() -> anyhow::Result<()> {
    check_a_life(&[]).await
}

/// The supervisor alone is a client of the server, and workers get its limits.
#[tokio::test]
async fn workers_have_the_limits_of_their_supervisor() -> anyhow::Result<()> {
    check_a_life(&["--workers", "2"]).await
}

#[tokio::test]
async fn files_and_servers_have_domains_of_their_own() -> anyhow::Result<()> {
    const FILE: &str = "\
domain: file
descriptors:
  - { key: k, rate_limit: { unit: year, requests_per_unit: 7 } }
";
    let (dir, limits) = home(FILE)?;
    let dir = dir.path();
    let mut servers = [AdsServer::start(0, None).await?, AdsServer::start(0, None).await?];
    servers[0].set("1", &json!([of("one", 1)])).await?;
    servers[1].set("1", &json!([of("two", 2)])).await?;
    let urls = [url(&servers[0]), url(&servers[1])].map(|url| url.display().to_string());
    let flags = [&FLAGS[..], &["--limits", &urls[0], "--limits", &urls[1]]].concat();
    let _sidecar = Sidecar::start_with(dir, &limits, &flags).await?;
    for (name, expected) in [("file", 7), ("one", 1), ("two", 2)] {
        limit_becomes(dir, name, Some(expected)).await?;
    }
    std::fs::write(&limits, FILE.replace('7', "8"))?;
    limit_becomes(dir, "file", Some(8)).await?;
    // A domain belongs to the source that has it already.
    servers[1].set("2", &json!([of("two", 3), of("file", 9)])).await?;
    let refusal = servers[1].refused().await?;
    ensure!(
        refusal["error"].as_str().is_some_and(|error| error.contains("already defined")),
        "{refusal}"
    );
    servers[0].set("2", &json!([of("one", 4)])).await?;
    servers[0].accepted("2").await?;
    for (name, expected) in [("file", 8), ("one", 4), ("two", 2)] {
        limit_becomes(dir, name, Some(expected)).await?;
    }
    Ok(())
}

/// As the server of Envoy AI Gateway: in plain text, for its node, with each limit in quota mode.
#[tokio::test]
async fn limits_in_quota_mode_deny_when_all_are_over() -> anyhow::Result<()> {
    let dir = TempDir::new()?;
    let mut server = AdsServer::start(0, None).await?;
    let quota = |backend: &str, requests| {
        let mut quota = limit("backend", backend, "YEAR", requests);
        quota["quota_mode"] = json!(true);
        quota
    };
    server.set("1", &json!([domain("ai", &[quota("one", 1), quota("two", 2)])])).await?;
    let flags = [&FLAGS[..], &["--xds-node-id", "envoy-ai-gateway-ratelimit"]].concat();
    let _sidecar = Sidecar::start_with(dir.path(), &url(&server), &flags).await?;
    let accepted = server.accepted("1").await?;
    ensure!(accepted["node"] == "envoy-ai-gateway-ratelimit", "{accepted}");
    let rls = Rls::at(dir.path()).await?;
    let mut both = request("ai", &[("backend", "one")]);
    both.descriptors.extend(request("ai", &[("backend", "two")]).descriptors);
    for expected in [Code::Ok, Code::Ok, Code::OverLimit] {
        let answer = rls.decide(both.clone()).await?;
        ensure!(answer.overall_code() == expected, "{expected:?}: {answer:?}");
    }
    Ok(())
}

/// A server that accepts and never speaks, and one that sends more than there is room for, change nothing.
#[tokio::test]
async fn no_server_delays_a_decision_or_opens_a_limit() -> anyhow::Result<()> {
    let (dir, limits) = home(tidegate_tests::sidecar::FREE_AND_COUNTED)?;
    let dir = dir.path();
    let silent = TcpListener::bind("127.0.0.1:0").await?;
    let silent = format!("xds://{}", silent.local_addr()?);
    let mut large = AdsServer::start(0, None).await?;
    let large_url = url(&large).display().to_string();
    large.send(&json!({"version": "1", "pad": 5 * 1024 * 1024})).await?;
    let more = ["--limits", &silent, "--limits", &large_url, "--start-without-limits"];
    let flags = [&FLAGS[..], &more].concat();
    let sidecar = Sidecar::start_with(dir, &limits, &flags).await?;
    let rls = Rls::at(dir).await?;
    ensure!(limit_of(dir, "test", &[("counted", "c")]).await? == Some(100));
    // A domain that may still arrive is not allowed: Envoy decides by its mode for failures.
    let refused = rls.call(request("unknown", &[("k", "v")])).await;
    let status = refused.err().context("allowed without limits")?;
    ensure!(status.code() == tonic::Code::Unavailable, "{status}");
    let health = client::get(sidecar.http, "/healthcheck").await?;
    ensure!(health.status == 200, "{health:?}");
    wait::until("the log of the large message", wait::RETRY, async || {
        sidecar.process.log().contains("too large").then_some(())
    })
    .await
    .with_context(|| sidecar.process.log())?;
    // It is asked again, and may have thought better of it.
    large.set("2", &json!([of("late", 5)])).await?;
    large.accepted("2").await?;
    limit_becomes(dir, "late", Some(5)).await?;
    ensure!(
        rls.call(request("unknown", &[("k", "v")])).await.is_err(),
        "the silent one is awaited"
    );
    Ok(())
}
