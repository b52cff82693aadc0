//! What `tidegate translate` makes of the configuration of an Envoy with its own filter: the same answers.

use super::routes::{Scene, lists, lists_beside_the_filters_own};
use anyhow::ensure;
use serde_json::{Value, json};
use std::path::Path;
use tidegate_tests::artifacts;
use tidegate_tests::bootstrap::{Filter, Setup, bootstrap};
use tidegate_tests::client::Reply;
use tidegate_tests::command::run;
use tidegate_tests::plugin::limits;
use tidegate_tests::stack::Stack;
use tidegate_tests::wait;
use tokio::process::Command;

/// The plugin configuration for this bootstrap of Envoy. Fails if a part has no equivalent.
async fn translated(bootstrap: &Path) -> anyhow::Result<Value> {
    let mut command = Command::new(artifacts::sidecar()?);
    command.arg("translate").arg(bootstrap);
    let ran = run(command).await?;
    let is_complete = ran.err.lines().all(|line| line.contains(": note: "));
    ensure!(ran.code == Some(0) && is_complete, "{ran:?}");
    ran.json()
}

async fn check(scene: &Scene) -> anyhow::Result<()> {
    scene
        .check(async |bootstrap| {
            let mut plugin = translated(bootstrap).await?;
            // Envoy's filter has none. The sidecar adds them to its answers there, for the test.
            plugin["headers"] = json!("ietf");
            Ok(plugin)
        })
        .await
}

#[tokio::test]
async fn translated_lists_of_routes_and_virtual_hosts_meet_the_same_limits() -> anyhow::Result<()> {
    check(&lists()).await
}

#[tokio::test]
async fn translated_lists_beside_the_filters_own_meet_the_same_limits() -> anyhow::Result<()> {
    check(&lists_beside_the_filters_own()).await
}

/// What a client gets, without times.
fn shown(reply: &Reply) -> (u16, Vec<(String, String)>, Vec<u8>) {
    let of_time = ["date", "x-ratelimit-reset", "retry-after", "x-envoy-upstream-service-time"];
    let headers = reply.headers.iter().filter(|(name, _)| !of_time.contains(&name.as_str()));
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    let mut headers: Vec<(String, String)> =
        headers.map(|(name, value)| (name.as_str().to_owned(), text(value.as_bytes()))).collect();
    headers.sort();
    (reply.status.as_u16(), headers, reply.body.to_vec())
}

/// Options and costs, on requests that pass and others that do not.
#[tokio::test]
async fn a_translated_filter_gives_the_same_replies() -> anyhow::Result<()> {
    let client =
        json!({"request_headers": {"header_name": "x-client", "descriptor_key": "client"}});
    let filter = json!({
        "rate_limited_status": {"code": 503},
        "enable_x_ratelimit_headers": "DRAFT_VERSION_03",
        "rate_limited_as_resource_exhausted": true,
        "response_headers_to_add": [{"header": {"key": "x-limited", "value": "yes"}}],
        "disable_x_envoy_ratelimited_header": true,
        "failure_mode_deny": true,
        "status_on_error": {"code": 504},
    });
    // Envoy ignores the cost here, and so does what is made of it.
    let host = json!({"rate_limits": [{"actions": [client], "hits_addend": {"number": 3}}]});
    let native = Filter::NativeWith { domain: "test", filter: &filter, host: &host };
    let limits = limits("{ name: five, unit: hour, requests_per_unit: 5 }");
    let dir = tempfile::TempDir::new()?;
    let file = dir.path().join("envoy.json");
    let setup = Setup::new(native, Path::new("socket"), "127.0.0.1:1".parse()?);
    std::fs::write(&file, bootstrap(&setup)?.to_string())?;
    let plugin = translated(&file).await?.to_string();
    let mut native = Stack::start_shared(&limits, native, 1).await?;
    let mut ours = Stack::start_shared(&limits, Filter::Tidegate(&plugin), 1).await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    for request in 0..8 {
        let (theirs, own) = (shown(&native.send(b"a").await?), shown(&ours.send(b"a").await?));
        ensure!(theirs == own, "request {request}: {theirs:?} {own:?}");
        ensure!(theirs.0 == if request < 5 { 200 } else { 503 }, "{theirs:?}");
    }
    native.sidecar.kill().await?;
    ours.sidecar.kill().await?;
    let (theirs, own) = (native.send(b"b").await?.status, ours.send(b"b").await?.status);
    ensure!(theirs == 504 && own == 504, "{theirs} {own}");
    Ok(())
}
