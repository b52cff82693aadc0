//! More load than the sidecar can answer: what it does not decide it says so, its memory stays, and right
//! after it is as before. How fast it stays is measured by `make bench-rls`.

use anyhow::{Context, ensure};
use serde_json::Value;
use std::path::Path;
use tempfile::TempDir;
use tidegate_tests::artifacts;
use tidegate_tests::command::{Ran, run};
use tidegate_tests::rls::Rls;
use tidegate_tests::sidecar::Sidecar;
use tidegate_wire::rls::Code;
use tokio::process::Command;

/// Limits that a call meets: enough that 64 connections with 128 calls each have several times more to
/// decide than may wait, also on a machine that is a few times as fast as those of today.
const LIMITS_MET: usize = 64;

fn limits() -> String {
    let limit = |number| {
        format!(
            "  - key: k{number}\n    rate_limit: {{ unit: hour, requests_per_unit: 4000000000 }}\n"
        )
    };
    let limits: String = (0..LIMITS_MET).map(limit).collect();
    format!("domain: test\ndescriptors:\n{limits}")
}

/// Above what it has at rest; connections and their buffers are bounded, and so is all else.
const MEMORY_MAX: u64 = 128 << 20;

async fn load(dir: &Path, flags: &[&str]) -> anyhow::Result<Value> {
    let mut command = Command::new(artifacts::sidecar()?);
    command.args(["load", "--json", "-", "--no-progress", "--domain", "test"]);
    for number in 0..LIMITS_MET {
        command.args(["--descriptor", &format!("k{number}={{key}}")]);
    }
    command.arg("--target");
    command.arg(format!("unix:{}", Sidecar::socket(dir).display())).args(flags);
    let ran: Ran = run(command).await?;
    ensure!(ran.code == Some(0), "{ran:?}");
    ran.json()
}

fn class(report: &Value, name: &str) -> anyhow::Result<u64> {
    report["classes"][name].as_u64().with_context(|| format!("{name} in {report}"))
}

/// How many calls the sidecar has left undecided, since a thread held their counter for too long.
async fn undecided(sidecar: &Sidecar) -> anyhow::Result<u64> {
    let page = sidecar.metrics().await?;
    let series = "tidegate_undecided_total{cause=\"busy\"} ";
    // It has no series before the first.
    let count = page.lines().find_map(|line| line.strip_prefix(series));
    Ok(count.map_or(Ok(0), str::parse)?)
}

#[tokio::test]
async fn beyond_capacity_calls_are_shed_and_nothing_else_breaks() -> anyhow::Result<()> {
    let dir = TempDir::new()?;
    let limits = dir.path().join("limits.yaml");
    std::fs::write(&limits, self::limits())?;
    let sidecar = Sidecar::start(dir.path(), &limits).await?;
    let at_rest = sidecar.process.resident_bytes()?;
    let flags = ["--closed", "--connections", "64", "--streams", "1000", "--duration", "3s"];
    let report = load(dir.path(), &[&flags[..], &["--timeout", "60s"]].concat()).await?;
    for never in ["broken", "timed_out", "not_sent"] {
        ensure!(class(&report, never)? == 0, "{never}: {report}");
    }
    // A thread that holds a counter may lose its processor to the load generator for longer than others wait. The
    // sidecar counts these calls, too.
    let (refused, shed) = (class(&report, "refused")?, class(&report, "shed")?);
    let aborted = report["refused_by"]["grpc 10 ABORTED"].as_u64().unwrap_or(0);
    ensure!(refused == aborted && refused < shed / 10, "refused: {report}");
    ensure!(undecided(&sidecar).await? == aborted, "the sidecar counted others: {report}");
    ensure!(class(&report, "allowed")? > 0 && class(&report, "denied")? == 0, "{report}");
    ensure!(class(&report, "shed")? > 0, "nothing was shed: {report}");
    let above = sidecar.process.resident_bytes()?.saturating_sub(at_rest);
    ensure!(above < MEMORY_MAX, "{above} bytes more than at rest");

    let rls = Rls::at(dir.path()).await?;
    for _ in 0..100 {
        let answer = rls.ask(&[("k0", "after")]).await?;
        ensure!(answer.overall_code() == Code::Ok, "{answer:?}");
    }
    Ok(())
}
