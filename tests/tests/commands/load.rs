//! `tidegate load` as a user runs it, against a real sidecar: what it says was allowed and denied is
//! what the limits allow, and its JSON and its drawing can be read by others.

use serde_json::Value;
use std::path::Path;
use tempfile::TempDir;
use tidegate_tests::command::{Ran, run};
use tidegate_tests::sidecar::Sidecar;
use tidegate_tests::{artifacts, client, wait};
use tokio::process::Command;

/// Each key may be used 30 times; no key of the other rule may be.
const LIMITS: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: { algorithm: first_hit_window, requests: 30, period: 1d }
  - key: blocked
    rate_limit: { unit: day, requests_per_unit: 0 }
";

async fn sidecar(dir: &TempDir) -> anyhow::Result<Sidecar> {
    let limits = dir.path().join("limits.yaml");
    std::fs::write(&limits, LIMITS)?;
    Sidecar::start(dir.path(), &limits).await
}

/// 300 requests in 0.3 s, with all the time that they need, and more flags.
async fn load(dir: &Path, flags: &[&str]) -> anyhow::Result<Ran> {
    let mut command = Command::new(artifacts::sidecar()?);
    command
        .arg("load")
        .arg(format!("--target=unix:{}", Sidecar::socket(dir).display()))
        .args(["--domain", "shop", "--rate", "1000", "--duration", "300ms", "--timeout", "60s"])
        .args(flags);
    run(command).await
}

fn count(report: &Value, class: &str) -> u64 {
    report["classes"][class].as_u64().unwrap()
}

#[tokio::test]
async fn what_it_says_was_allowed_is_what_the_limits_allow() -> anyhow::Result<()> {
    let dir = TempDir::new()?;
    let _sidecar = sidecar(&dir).await?;
    // Four keys have room for 30 requests each, and are asked 75 times.
    let flags = ["--descriptor", "user=u{key}", "--keys", "4", "--distribution", "sequential"];
    let ran = load(dir.path(), &[&flags[..], &["--threads", "2", "--json", "-"]].concat()).await?;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let report = ran.json()?;
    assert_eq!(report["due"], 300, "{report}");
    assert_eq!(count(&report, "allowed"), 120, "{report}");
    assert_eq!(count(&report, "denied"), 180, "{report}");
    // What is used up stays used up; another key has all its room.
    let report = load(dir.path(), &[&flags[..], &["--json", "-"]].concat()).await?.json()?;
    assert_eq!(count(&report, "denied"), 300, "{report}");
    let single = ["--descriptor", "user=other", "--distribution", "single", "--hits", "3"];
    let report = load(dir.path(), &[&single[..], &["--json", "-"]].concat()).await?.json()?;
    assert_eq!(count(&report, "allowed"), 10, "{report}");
    assert_eq!(count(&report, "denied"), 290, "{report}");
    Ok(())
}

#[tokio::test]
async fn the_report_has_what_its_document_says() -> anyhow::Result<()> {
    let dir = TempDir::new()?;
    let _sidecar = sidecar(&dir).await?;
    let (json, svg) = (dir.path().join("report.json"), dir.path().join("latency.svg"));
    let paths = ["--json", json.to_str().unwrap(), "--svg", svg.to_str().unwrap()];
    let flags = ["--descriptor", "blocked=x", "--warmup", "100ms", "--poisson"];
    let ran = load(dir.path(), &[&flags[..], &paths[..]].concat()).await?;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for part in ["requests", "denied", "latency, ms", "served, from due", "µs a request"] {
        assert!(ran.out.contains(part), "{part} in\n{}", ran.out);
    }

    let report: Value = serde_json::from_slice(&std::fs::read(json)?)?;
    assert_eq!(report["config"]["arrivals"], "poisson");
    assert_eq!(report["config"]["descriptors"][0], "blocked=x");
    let due = report["due"].as_u64().unwrap();
    assert!(due > 0 && report["warmup"]["due"].as_u64().unwrap() > 0, "{report}");
    let sum: u64 = report["classes"].as_object().unwrap().values().flat_map(Value::as_u64).sum();
    assert_eq!(sum, due, "{report}");
    assert_eq!(count(&report, "denied"), due, "{report}");
    for kind in ["answered", "served", "shed"] {
        for from in ["from_due", "from_written"] {
            let figures = &report["latency"][kind][from];
            let order: Vec<f64> = ["p50", "p90", "p99", "p99.9", "p99.99", "max"]
                .map(|name| figures[name].as_f64().unwrap())
                .into();
            assert!(order.is_sorted(), "{figures}");
        }
    }
    assert_eq!(report["latency"]["served"]["from_due"]["count"], due);
    assert_eq!(report["schedule_lag"]["count"], due);
    assert!(report["cpu_seconds"].as_f64().unwrap() > 0.0);
    assert!(report["achieved_rate"].as_f64().unwrap() > 0.0);

    let titles = titles(&std::fs::read_to_string(svg)?)?;
    assert_eq!(titles[1..], ["served, from due", "served, from written"]);
    Ok(())
}

/// The text of each `title` of a document of XML, which is read as XML.
fn titles(svg: &str) -> anyhow::Result<Vec<String>> {
    use quick_xml::events::Event;
    let mut reader = quick_xml::Reader::from_str(svg);
    let (mut titles, mut is_title, mut depth) = (Vec::new(), false, 0);
    loop {
        match reader.read_event()? {
            Event::Start(element) => {
                depth += 1;
                is_title = element.name().as_ref() == "title";
            }
            Event::Text(text) if is_title => titles.push(text.into_inner().into_owned()),
            Event::End(_) => {
                depth -= 1;
                is_title = false;
            }
            Event::Eof => break,
            _ => {}
        }
    }
    assert_eq!(depth, 0, "an element is not closed");
    Ok(titles)
}

#[tokio::test]
async fn an_interrupt_ends_it_early_with_its_report() -> anyhow::Result<()> {
    use rustix::process::{Pid, Signal, kill_process};
    let dir = TempDir::new()?;
    let sidecar = sidecar(&dir).await?;
    let mut command = Command::new(artifacts::sidecar()?);
    command
        .arg("load")
        .arg(format!("--target=unix:{}", Sidecar::socket(dir.path()).display()))
        .args(["--domain", "shop", "--descriptor", "blocked=x", "--duration", "1h", "--json", "-"])
        .args(["--timeout", "60s"])
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true);
    let child = command.spawn()?;
    // Once the sidecar has denied something, the load is under way.
    const DENIED: &str = "tidegate_answers_total{code=\"over_limit\"} ";
    wait::until("the load to be under way", wait::START, async || {
        let page = client::get(sidecar.http, "/metrics").await.ok()?;
        let page = String::from_utf8_lossy(&page.body).into_owned();
        let value = page.lines().find_map(|line| line.strip_prefix(DENIED))?;
        (value.trim().parse::<u64>().ok()? > 0).then_some(())
    })
    .await?;
    let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())).unwrap();
    kill_process(pid, Signal::INT)?;
    let output = wait::within("the load to end", wait::COMMAND, child.wait_with_output()).await??;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(report["interrupted"], true);
    assert!(count(&report, "denied") > 0, "{report}");
    Ok(())
}

#[tokio::test]
async fn help_teaches_and_mistakes_are_named() -> anyhow::Result<()> {
    let dir = TempDir::new()?;
    let ran = load(dir.path(), &["--help"]).await?;
    assert_eq!(ran.code, Some(0));
    for part in
        ["Load a rate limit service", "Examples:", "--poisson", "zipf:S", "accounted for", "{key}"]
    {
        assert!(ran.out.contains(part), "{part} in\n{}", ran.out);
    }
    for (flags, code, message) in [
        (&["--distribution", "normal"][..], 2, "`normal` is not a distribution"),
        (&["--descriptor", "user"], 2, "`user` must be KEY=VALUE"),
        (&["--threads", "9"], 1, "--connections 2 must be at least --threads 9"),
        (&[], 1, "cannot connect to unix:"),
    ] {
        let ran = load(dir.path(), flags).await?;
        assert_eq!(ran.code, Some(code), "{ran:?}");
        assert!(ran.err.contains(message), "{ran:?}");
    }
    Ok(())
}
