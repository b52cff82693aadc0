//! Who is limited, of a real sidecar: known by its workers, asked for over HTTP and by `tidegate top`.

use super::console::of_all_workers;
use super::statistics::TOO_LATE;
use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use std::net::SocketAddr;
use tidegate_tests::artifacts;
use tidegate_tests::client::{get, send};
use tidegate_tests::command::{Ran, run};
use tidegate_tests::rls::{Rls, allowed_at_once, request};
use tidegate_tests::sidecar::{Sidecar, home};
use tidegate_tests::wait;
use tokio::process::Command;
use tokio::task::JoinHandle;

const LIMITS: &str = "\
domain: test
descriptors:
  - key: user
    rate_limit: { unit: hour, requests_per_unit: 30 }
  - key: path
    rate_limit: { unlimited: true }
";

/// Moves a cursor, turns the direction of a line around, is markup, and is longer than a name may be.
const HOSTILE: &str = "\u{1b}[2J\u{1b}]0;owned\u{7}\u{202e}<script>\r\n";

async fn started(flags: &[&str]) -> anyhow::Result<(tempfile::TempDir, Sidecar)> {
    let (dir, path) = home(LIMITS)?;
    let flags = [&["--capacity", "1000"], flags].concat();
    let sidecar = Sidecar::start_with(dir.path(), &path, &flags).await?;
    Ok((dir, sidecar))
}

async fn top(http: SocketAddr, query: &str) -> anyhow::Result<Vec<Value>> {
    let reply = get(http, &format!("/v1/top?{query}")).await?;
    ensure!(reply.status == 200, "{query}: {reply:?}");
    let answer: Value = serde_json::from_slice(&reply.body)?;
    answer["descriptors"].as_array().cloned().context("descriptors")
}

async fn command(http: SocketAddr, arguments: &[&str]) -> anyhow::Result<Ran> {
    tidegate("top", http, arguments).await
}

async fn tidegate(name: &str, http: SocketAddr, arguments: &[&str]) -> anyhow::Result<Ran> {
    let mut command = Command::new(artifacts::sidecar()?);
    command.args([name, "--http", &http.to_string()]).args(arguments);
    run(command).await
}

#[tokio::test]
async fn who_is_limited_by_any_worker_is_named() -> anyhow::Result<()> {
    let (dir, sidecar) = started(&["--workers", "2"]).await?;
    let http = sidecar.http;
    ensure!(top(http, "").await?.is_empty(), "of nothing");
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    // Each connection is at one worker.
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(Rls::at(dir.path()).await?);
    }
    ensure!(allowed_at_once(clients, 10, ("user", "eve")).await? == 30);
    let rls = Rls::at(dir.path()).await?;
    rls.ask(&[("user", "ada")]).await?;
    let long = format!("{HOSTILE}{}", "x".repeat(5_000));
    rls.call(request("test", &[("path", &long)])).await?;
    // What was decided over HTTP is the supervisor's.
    let entries = [json!({"key": "usr", "value": "eve"})];
    let body = json!({"domain": "test", "descriptors": [{"entries": entries}]});
    send(http, "POST", "/json", &[], body.to_string()).await?;

    of_all_workers("who is denied", async || {
        let denied = top(http, "order=denied").await?;
        let [eve] = &denied[..] else { anyhow::bail!("{denied:?}") };
        ensure!(eve["entries"] == json!([{"key": "user", "value": "eve"}]), "{eve}");
        ensure!(eve["rule"] == "test/user" && eve["met"] == "rule", "{eve}");
        ensure!(eve["hits"]["denied"] == 50 && eve["in_envoy"] == 0.0, "{eve}");
        ensure!(eve["remaining"] == 0 && eve["capacity"] == 30, "{eve}");
        ensure!(eve["retry_ms"].as_u64().is_some_and(|ms| (1..=3_600_000).contains(&ms)), "{eve}");
        let rate = eve["rate"]["denied"].as_f64();
        ensure!(rate.is_some_and(|rate| rate > 0.1 && rate <= 5.0), "{eve}");
        Ok(())
    })
    .await?;
    of_all_workers("the hottest one", async || {
        let hottest = top(http, "domain=test&n=1").await?;
        let hits = json!({"allowed": 30, "denied": 50});
        ensure!(hottest.len() == 1 && hottest[0]["hits"] == hits, "{hottest:?}");
        Ok(())
    })
    .await?;
    of_all_workers("what no rule is for", async || {
        let none = top(http, "rule=none").await?;
        ensure!(none.len() == 1 && none[0]["entries"][0]["key"] == "usr", "{none:?}");
        ensure!(none[0]["met"] == "no_rule" && none[0]["rule"] == Value::Null, "{none:?}");
        Ok(())
    })
    .await?;
    of_all_workers("a value that is cut", async || {
        let cut = top(http, "rule=test/path").await?;
        ensure!(cut.len() == 1 && cut[0]["cut"] == true, "{cut:?}");
        let value = cut[0]["entries"][0]["value"].as_str().context("a value")?;
        let is_cut = value.ends_with('…') && value.len() <= 128;
        ensure!(value.starts_with(HOSTILE) && is_cut, "{cut:?}");
        Ok(())
    })
    .await?;

    of_all_workers("the screen", async || {
        let shown = command(http, &["--once"]).await?;
        ensure!(shown.code == Some(0) && shown.err.is_empty(), "{shown:?}");
        ensure!(shown.out.contains(" user=eve\n") && shown.out.contains("(no rule)"), "{shown:?}");
        let path = r"path=\u{1b}[2J\u{1b}]0;owned\u{7}\u{202e}<script>";
        ensure!(shown.out.contains(path), "{shown:?}");
        ensure!(shown.out.chars().all(|c| c == '\n' || !c.is_control()), "{shown:?}");
        ensure!(shown.out.lines().count() == 6, "a title, names, four descriptors: {shown:?}");
        Ok(())
    })
    .await?;
    of_all_workers("the screen as JSON", async || {
        let arguments = ["--json", "--order", "denied", "--rule", "test/user"];
        let shown = command(http, &arguments).await?;
        ensure!(shown.json()?["descriptors"][0]["hits"]["denied"] == 50, "{shown:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn questions_are_refused_with_their_cause() -> anyhow::Result<()> {
    let (dir, sidecar) = started(&["--top", "off"]).await?;
    Rls::at(dir.path()).await?.ask(&[("user", "eve")]).await?;
    let reply = get(sidecar.http, "/v1/top").await?;
    ensure!(reply.status == 404, "{reply:?}");
    let shown = command(sidecar.http, &["--once"]).await?;
    let expected = "the sidecar answers 404: nothing is known; the sidecar has --top off";
    ensure!(shown.code == Some(1) && shown.err.contains(expected), "{shown:?}");
    let (_dir, sidecar) = started(&[]).await?;
    for (query, error) in [
        ("n=0", "`n` must be a number from 1 to 100"),
        ("by=app", "\"by\" is no parameter: domain, rule, order, n"),
    ] {
        let reply = get(sidecar.http, &format!("/v1/top?{query}")).await?;
        let body: Value = serde_json::from_slice(&reply.body)?;
        ensure!(reply.status == 400 && body["error"] == error, "{reply:?}");
    }
    let reply = send(sidecar.http, "POST", "/v1/top", &[], String::new()).await?;
    ensure!(reply.status == 405, "{reply:?}");
    Ok(())
}

#[tokio::test]
async fn decisions_of_all_workers_are_shown_while_somebody_asks() -> anyhow::Result<()> {
    let (dir, sidecar) = started(&["--workers", "2"]).await?;
    let http = sidecar.http;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(Rls::at(dir.path()).await?);
    }
    ensure!(allowed_at_once(clients, 10, ("user", "eve")).await? == 30);
    let first = get(http, "/v1/decisions").await?;
    ensure!(first.status == 200 && first.header("content-type") == Some("text/event-stream"));
    ensure!(first.body == "retry: 500\n\n", "nobody had asked: {first:?}");
    // From now on they are kept. Each connection is at one worker.
    let rls = [Rls::at(dir.path()).await?, Rls::at(dir.path()).await?];
    let asking: JoinHandle<anyhow::Result<()>> = tokio::spawn(async move {
        loop {
            for rls in &rls {
                let hostile = format!("{HOSTILE}{}", "x".repeat(500));
                rls.call(request("test", &[("path", &hostile)])).await?;
                rls.ask(&[("user", "eve")]).await?;
                rls.ask(&[("usr", "eve")]).await?;
            }
        }
    });
    let denied = tidegate("tail", http, &["--denied", "--match", "user=eve", "-n", "20"]).await?;
    ensure!(denied.code == Some(0) && denied.out.lines().count() == 20, "{denied:?}");
    let is_eve = |line: &str| {
        line.starts_with("denied           sidecar  test/user ")
            && line.contains(" test user=eve, left 0/30, retry in ")
    };
    ensure!(denied.out.lines().all(is_eve), "{denied:?}");
    let unknown = tidegate("tail", http, &["--rule", "none", "-n", "1", "--json"]).await?;
    let unknown = unknown.json()?;
    ensure!(unknown["met"] == "no_rule" && unknown["verdict"] == "allowed", "{unknown}");
    ensure!(unknown["entries"] == json!([{"key": "usr", "value": "eve"}]), "{unknown}");
    let hostile = tidegate("tail", http, &["--rule", "test/path", "-n", "5"]).await?;
    ensure!(hostile.out.lines().count() == 5, "{hostile:?}");
    ensure!(hostile.out.chars().all(|c| c == '\n' || !c.is_control()), "{hostile:?}");
    asking.abort();
    let wrong = tidegate("tail", http, &["--match", "user"]).await?;
    let expected = "the sidecar answers 400: `match` must be KEY=VALUE, at most 8 times";
    ensure!(wrong.code == Some(1) && wrong.err.contains(expected), "{wrong:?}");
    Ok(())
}

/// A key is a hash. What the sidecar knows names it, and once that has ended, what the statistics know.
#[tokio::test]
async fn keys_of_counters_are_named() -> anyhow::Result<()> {
    for _ in 0..5 {
        if are_named().await? {
            return Ok(());
        }
    }
    bail!("the last statistics took three seconds and more, each time")
}

/// Whether the sidecar had the processor in time to write its last statistics. Then they name keys.
async fn are_named() -> anyhow::Result<bool> {
    const LIMITS: &str = "\
domain: test
statistics: [{ name: users, by: [user] }]
descriptors:
  - key: user
    rate_limit: { unit: hour, requests_per_unit: 30 }
  - key: app
    descriptors:
      - key: user
        rate_limits:
          - { name: hour, unit: hour, requests_per_unit: 5 }
          - { name: day, unit: day, requests_per_unit: 9 }
";
    let (dir, limits) = home(LIMITS)?;
    let mut sidecar = Sidecar::start_with(dir.path(), &limits, &["--capacity", "1000"]).await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    let rls = Rls::at(dir.path()).await?;
    rls.ask(&[("user", "eve")]).await?;
    let entries = [json!({"key": "app", "value": "web"}), json!({"key": "user", "value": "ada"})];
    let body = json!({"domain": "test", "descriptors": [{"entries": entries}]});
    send(sidecar.http, "POST", "/json", &[], body.to_string()).await?;

    let (data, limits) =
        (dir.path().join("data").display().to_string(), limits.display().to_string());
    let http = sidecar.http.to_string();
    let store = async |arguments: &[&str]| {
        let mut command = Command::new(artifacts::sidecar()?);
        command.arg("store").args(arguments).args(["--names", &limits, "--http", &http]);
        run(command).await
    };
    let exported = store(&["export", &data]).await?;
    ensure!(exported.code == Some(0) && exported.err.is_empty(), "{exported:?}");
    let names: Vec<&str> =
        exported.out.lines().filter_map(|line| line.split('\t').nth(4)).collect();
    for name in [
        "test user=eve (test/user)",
        "test app=web user=ada (test/app/user#hour)",
        "test app=web user=ada (test/app/user#day)",
    ] {
        ensure!(names.contains(&name), "{name}: {exported:?}");
    }
    ensure!(names.len() == 4 && names[0] == "name", "{exported:?}");
    let key = exported.out.lines().find(|line| line.contains("user=eve")).context("a line")?;
    let key = key.split('\t').next().context("a key")?;
    let shown = store(&["get", &data, key, "--json"]).await?.json()?;
    ensure!(shown["name"]["entries"] == json!([{"key": "user", "value": "eve"}]), "{shown}");

    ensure!(sidecar.process.stop().await?.success(), "{}", sidecar.process.log());
    if sidecar.process.log().contains(TOO_LATE) {
        return Ok(false);
    }
    let exported = store(&["export", &data, "--json"]).await?;
    ensure!(exported.err.contains("no names from the sidecar"), "{exported:?}");
    let lines = exported.out.lines().map(serde_json::from_str::<Value>);
    let lines = lines.collect::<Result<Vec<_>, _>>()?;
    let named: Vec<&Value> = lines.iter().filter(|line| !line["name"].is_null()).collect();
    ensure!(lines.len() == 3 && named.len() == 1 && named[0]["key"] == *key, "{lines:?}");
    Ok(true)
}
