//! What is behind the cases: a real Envoy with the filter, a sidecar with workers, limits and statistics.

use crate::browser::Browser;
use anyhow::{Context, ensure};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;
use tidegate_tests::bootstrap::Filter;
use tidegate_tests::certificates::{Authority, ip};
use tidegate_tests::client::{get, send};
use tidegate_tests::load::Load;
use tidegate_tests::plugin::plugin;
use tidegate_tests::sidecar::{Sidecar, home, replace};
use tidegate_tests::stack::Plan;
use tidegate_tests::wait;

const LIMITS: &str = "\
domain: test
statistics:
  - { name: clients, by: [client] }
descriptors:
  - { key: client, rate_limit: { unit: day, requests_per_unit: 100 } }
";
/// What a browser needs at most for all of a test, on a busy machine.
const ROOM: Duration = Duration::from_secs(300);
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

fn token_file(dir: &Path) -> anyhow::Result<String> {
    let path = dir.join("token");
    std::fs::write(&path, TOKEN)?;
    Ok(path.display().to_string())
}

fn at(http: SocketAddr) -> String {
    format!("http://{http}")
}

/// Decides one hit of a client over HTTP.
async fn ask(http: SocketAddr, client: &str) -> anyhow::Result<()> {
    let entries = [json!({"key": "client", "value": client})];
    let body = json!({"domain": "test", "descriptors": [{"entries": entries}]});
    let reply = send(http, "POST", "/json", &[], body.to_string()).await?;
    ensure!(reply.status == 200 || reply.status == 429, "{reply:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_page_shows_what_was_sent() -> anyhow::Result<()> {
    const REQUESTS: u64 = 3_000;
    let Some(browser) = Browser::find()? else { return Ok(()) };
    let mut plugin = plugin();
    plugin["failure_mode"] = json!("deny");
    let plugin = plugin.to_string();
    let flags = &["--capacity", "100000", "--workers", "2"];
    let plan = Plan::new(LIMITS, Filter::Tidegate(&plugin));
    let stack = Plan { workers: 2, flags, ..plan }.start().await?;
    let http = stack.sidecar.http;
    // A change, and then a mistake.
    let path = stack.dir.path().join("limits.yaml");
    let extra = "  - { key: extra, rate_limit: { unit: day, requests_per_unit: 5 } }\n";
    replace(&path, &format!("{LIMITS}{extra}"))?;
    let limits = async || {
        let reply = get(http, "/v1/limits").await.ok()?;
        serde_json::from_slice::<Value>(&reply.body).ok()
    };
    let changed = async || (limits().await?["limits"] == 2).then_some(());
    wait::until("the change", wait::RELOAD, changed).await?;
    replace(&path, &format!("{LIMITS}{extra}  - {{ key: extra, rate_limt: 1 }}\n"))?;
    let refused = async || (limits().await?["current"] == false).then_some(());
    wait::until("the mistake", wait::RELOAD, refused).await?;

    wait::for_room_in_window(wait::DAY, ROOM).await?;
    let load = Load::of_clients(stack.addresses(), "client-", 3, REQUESTS);
    let outcome = Load { connections: 8, ..load }.run().await?;
    let denied = outcome.of(429);
    ensure!(outcome.of(200) + denied == REQUESTS && denied > REQUESTS / 2, "{outcome:?}");
    let given = json!({"sent": REQUESTS, "denied": denied, "client": "client-1"});
    browser.run("pages", &at(http), given).await
}

/// Names as an attacker would choose them: markup, what moves a cursor or turns text around, and 10 KB.
fn hostile_names() -> Vec<String> {
    let long = "x".repeat(10_000);
    let names = [
        "<img src=x onerror=owned=1>",
        "</span><script>owned=1</script>",
        "\u{202e}gnp.exe\u{2066}\u{200b}\u{feff}",
        "\u{1b}[2J\u{1b}]0;owned\u{7}\u{9b}31m",
        "a\0b\r\nx: y\u{2028}\u{85}",
        "javascript:owned=1",
        "\" onmouseover=\"owned=1\" style=\"x",
        "${owned=1}{{owned=1}}%3Cb%3E&lt;b&gt;",
        "#/key?domain=x&entry=y=z=w",
    ];
    let names = names.iter().map(|name| (*name).to_owned());
    names.chain([long.clone(), format!("<b>{long}")]).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_names_are_text() -> anyhow::Result<()> {
    const EACH: u64 = 3;
    let Some(browser) = Browser::find()? else { return Ok(()) };
    let plugin = plugin().to_string();
    // Tokens of a lease that ends count as spent. A busy machine may stand still for the usual two seconds.
    let flags: &[&str] = &["--capacity", "100000", "--lease-ttl", "60s"];
    let plan = Plan { flags, ..Plan::new(LIMITS, Filter::Tidegate(&plugin)) };
    let stack = plan.start().await?;
    let http = stack.sidecar.http;
    wait::for_room_in_window(wait::DAY, ROOM).await?;
    let names = hostile_names();
    for name in &names {
        for _ in 0..EACH {
            // Most of them cannot be in a header. What can comes the way that an attacker's would.
            match name.len() < 1_000 && name.bytes().all(|byte| (0x20..0x7f).contains(&byte)) {
                true => _ = stack.send(name.as_bytes()).await?,
                false => ask(http, name).await?,
            }
        }
    }
    browser.run("hostile", &at(http), json!({"names": names, "each": EACH})).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_take_the_token_and_a_confirmation() -> anyhow::Result<()> {
    let Some(browser) = Browser::find()? else { return Ok(()) };
    let (_dir, sidecar) = exhausted().await?;
    browser.run("changes", &at(sidecar.http), json!({"token": TOKEN})).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_keyboard_is_enough() -> anyhow::Result<()> {
    let Some(browser) = Browser::find()? else { return Ok(()) };
    let (_dir, sidecar) = exhausted().await?;
    browser.run("keyboard", &at(sidecar.http), json!({"token": TOKEN})).await
}

/// A sidecar with a token, where `eve` has nothing left.
async fn exhausted() -> anyhow::Result<(TempDir, Sidecar)> {
    let (dir, path) = home(LIMITS)?;
    let token = token_file(dir.path())?;
    let flags = ["--capacity", "1000", "--http-token-file", &token];
    let sidecar = Sidecar::start_with(dir.path(), &path, &flags).await?;
    wait::for_room_in_window(wait::DAY, ROOM).await?;
    for _ in 0..101 {
        ask(sidecar.http, "eve").await?;
    }
    Ok((dir, sidecar))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beyond_this_machine_the_token_opens_the_pages() -> anyhow::Result<()> {
    let Some(browser) = Browser::find()? else { return Ok(()) };
    let (dir, path) = home(LIMITS)?;
    let token = token_file(dir.path())?;
    let identity = Authority::new()?.sign(ip("127.0.0.1")?)?;
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    std::fs::write(&cert, identity.cert)?;
    std::fs::write(&key, identity.key)?;
    let (cert, key) = (cert.display().to_string(), key.display().to_string());
    let tls = ["--http-tls-cert", &cert, "--http-tls-key", &key];
    let flags = [["--capacity", "1000", "--http-token-file", &token].as_slice(), &tls].concat();
    // An address of all interfaces counts as beyond this machine, whoever comes.
    let sidecar = Sidecar::start_at(dir.path(), &path, "0.0.0.0:0", &flags).await?;
    let port = sidecar.http.port();
    browser
        .run("beyond", &format!("https://127.0.0.1:{port}"), json!({"token": TOKEN}))
        .await
        .context("over TLS")
}
