//! Statistics of a real sidecar: recorded by its workers, kept in its data directory, asked for over HTTP.

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use tidegate_tests::client::{get, send};
use tidegate_tests::command::{Ran, run};
use tidegate_tests::rls::{Rls, allowed_at_once, request};
use tidegate_tests::sidecar::{Sidecar, home};
use tidegate_tests::{artifacts, wait};
use tidegate_wire::rls::DescriptorEntry;
use tokio::process::Command;

const LIMITS: &str = "\
domain: test
statistics:
  - { name: calls, by: [app] }
  - { name: interfaces, by: [app, interface] }
  - { name: users, by: [app], distinct: user }
descriptors:
  - key: app
    value: few
    rate_limit: { unit: year, requests_per_unit: 30 }
";
/// Counts are written every 15 seconds, in the next two if the database is well.
const WRITTEN: Duration = Duration::from_secs(17);
/// In the log of a sidecar that had no processor for the seconds in which it writes its last statistics.
pub(crate) const TOO_LATE: &str = "the last statistics could not be written in";

async fn started(limits: &str, flags: &[&str]) -> anyhow::Result<(tempfile::TempDir, Sidecar)> {
    let (dir, path) = home(limits)?;
    let flags = [&["--capacity", "1000"], flags].concat();
    let sidecar = Sidecar::start_with(dir.path(), &path, &flags).await?;
    Ok((dir, sidecar))
}

async fn asked(http: SocketAddr, question: &str) -> anyhow::Result<Value> {
    let reply = get(http, &format!("/v1/statistics{question}")).await?;
    ensure!(reply.status == 200, "{question}: {reply:?}");
    Ok(serde_json::from_slice(&reply.body)?)
}

/// The values and the sums of each series.
async fn totals(http: SocketAddr, question: &str) -> anyhow::Result<Vec<(Value, Value)>> {
    let answer = asked(http, question).await?;
    let series = answer["series"].as_array().context("series")?;
    Ok(series.iter().map(|series| (series["values"].clone(), series["total"].clone())).collect())
}

async fn stats(data: &Path, arguments: &[&str]) -> anyhow::Result<Ran> {
    let mut command = Command::new(artifacts::sidecar()?);
    command.arg("stats").args(arguments).arg("--data-dir").arg(data);
    run(command).await
}

fn counts(allowed: u64, denied: u64) -> Value {
    json!({"allowed": allowed, "denied": denied, "hits": allowed + denied})
}

#[tokio::test]
async fn statistics_of_all_workers_outlive_the_sidecar() -> anyhow::Result<()> {
    for _ in 0..5 {
        if are_kept().await? {
            return Ok(());
        }
    }
    bail!("the last statistics took three seconds and more, each time")
}

/// Whether the workers had the processor in time to write their last statistics. Then all are kept.
async fn are_kept() -> anyhow::Result<bool> {
    let (dir, mut sidecar) = started(LIMITS, &["--workers", "2"]).await?;
    let all = asked(sidecar.http, "").await?;
    let first = json!({"name": "calls", "domain": "test", "by": ["app"], "distinct": null});
    ensure!(all["statistics"][0] == first && all["statistics"].as_array().map(Vec::len) == Some(3));
    ensure!(totals(sidecar.http, "/calls?by=app").await?.is_empty(), "of nothing");
    // Each connection is at one worker.
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(Rls::at(dir.path()).await?);
    }
    ensure!(allowed_at_once(clients, 10, ("app", "few")).await? == 30);
    let rls = Rls::at(dir.path()).await?;
    for number in 0..12 {
        let mut ask = request("test", &[("app", "web")]);
        let interface = if number % 3 == 0 { "/a" } else { "/b" };
        for (key, value) in [("interface", interface), ("user", &format!("user-{}", number % 5))] {
            let (key, value) = (key.to_owned(), value.to_owned());
            ask.descriptors[0].entries.push(DescriptorEntry { key, value });
        }
        rls.call(ask).await?;
    }
    // What was decided over HTTP is the supervisor's.
    let entries = [json!({"key": "app", "value": "json"})];
    let body = json!({"domain": "test", "descriptors": [{"entries": entries}]});
    send(sidecar.http, "POST", "/json", &[], body.to_string()).await?;
    ensure!(sidecar.process.stop().await?.success());
    if sidecar.process.log().contains(TOO_LATE) {
        return Ok(false);
    }

    let sidecar = Sidecar::start_with(dir.path(), &dir.path().join("limits.yaml"), &[]).await?;
    let found = totals(sidecar.http, "/calls?by=app&order=hits").await?;
    ensure!(
        found
            == [
                (json!({"app": "few"}), counts(30, 50)),
                (json!({"app": "web"}), counts(12, 0)),
                (json!({"app": "json"}), counts(1, 0)),
            ],
        "{found:?}"
    );
    let found = totals(sidecar.http, "/interfaces?app=web&by=interface").await?;
    let of = |interface: &str, allowed| (json!({"interface": interface}), counts(allowed, 0));
    ensure!(found == [of("/b", 8), of("/a", 4)], "{found:?}");
    let found = asked(sidecar.http, "/users?app=web&last=1h").await?;
    ensure!(found["series"][0]["total"]["distinct"] == 5, "{found}");

    let data = dir.path().join("data");
    let shown = stats(&data, &["interfaces", "app=web", "--by", "interface", "--csv"]).await?;
    ensure!(shown.code == Some(0), "{shown:?}");
    let lines: Vec<&str> = shown.out.lines().collect();
    ensure!(
        lines[0] == "start,interface,other,allowed,denied,hits" && lines.len() == 3,
        "{lines:?}"
    );
    ensure!(
        lines[1].ends_with(",/b,false,8,0,8") && lines[2].ends_with(",/a,false,4,0,4"),
        "{lines:?}"
    );
    let shown = stats(&data, &["users", "app=web", "--last", "1h"]).await?;
    ensure!(shown.out.contains("allowed 12, denied 0, hits 12, distinct 5"), "{shown:?}");
    let shown = stats(&data, &[]).await?;
    ensure!(shown.out.contains("users  by app, distinct user\n"), "{shown:?}");
    let wrong = stats(&data, &["cals"]).await?;
    ensure!(wrong.code == Some(1) && wrong.err.contains("did you mean `calls`?"), "{wrong:?}");
    let wrong = stats(&data, &["calls", "--step", "2s"]).await?;
    ensure!(wrong.code == Some(2), "{wrong:?}");
    let nowhere = stats(dir.path(), &[]).await?;
    ensure!(
        nowhere.code == Some(1) && nowhere.err.contains("no statistics were kept"),
        "{nowhere:?}"
    );
    Ok(true)
}

/// A worker that is killed loses what it has recorded in the last 15 seconds, and nothing else.
#[tokio::test]
async fn a_kill_loses_no_statistics_but_the_last() -> anyhow::Result<()> {
    let (dir, mut sidecar) = started(LIMITS, &["--workers", "1"]).await?;
    let rls = Rls::at(dir.path()).await?;
    for _ in 0..7 {
        rls.ask(&[("app", "kept")]).await?;
    }
    wait::until("the statistics of the first calls", WRITTEN, async || {
        let found = totals(sidecar.http, "/calls?app=kept").await.ok()?;
        found.iter().any(|(_, total)| *total == counts(7, 0)).then_some(())
    })
    .await?;
    for _ in 0..5 {
        rls.ask(&[("app", "kept")]).await?;
    }
    sidecar.kill().await?;
    let sidecar = Sidecar::start_with(dir.path(), &dir.path().join("limits.yaml"), &[]).await?;
    let found = totals(sidecar.http, "/calls?app=kept").await?;
    let [(_, total)] = &found[..] else { anyhow::bail!("{found:?}") };
    let allowed = total["allowed"].as_u64().context("a count")?;
    ensure!((7..=12).contains(&allowed), "{allowed}");
    Ok(())
}

#[tokio::test]
async fn without_a_place_statistics_are_off_and_it_is_said() -> anyhow::Result<()> {
    let (_dir, sidecar) = started(LIMITS, &["--statistics", "off"]).await?;
    ensure!(sidecar.process.log().contains("no place to keep them; see --statistics"));
    let reply = get(sidecar.http, "/v1/statistics/calls").await?;
    ensure!(reply.status == 404, "{reply:?}");
    let (dir, sidecar) = started("domain: test\n", &[]).await?;
    ensure!(asked(sidecar.http, "").await? == json!({"statistics": []}));
    let database = dir.path().join("data/statistics.sqlite");
    ensure!(!database.exists(), "there is nothing to keep");
    Ok(())
}
