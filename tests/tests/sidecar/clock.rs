//! A system clock that is ahead of the time that has passed, under a running sidecar. The clock of the machine
//! stays as it is: it is what the processes know of the past that is moved, so that the clock seems ahead.

use anyhow::{Context, ensure};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use tempfile::TempDir;
use tidegate_tests::command::{Ran, run};
use tidegate_tests::rls::Rls;
use tidegate_tests::sidecar::Sidecar;
use tidegate_tests::{artifacts, client, memory, wait};
use tidegate_wire::rls::Code;
use tokio::process::Command;

const LIMITS: &str = "\
domain: test
descriptors:
  - key: short
    rate_limit: { unit: second, requests_per_unit: 1000 }
";
const TWO_DAYS: u32 = 2 * 86_400;
/// Where docs/internals/store-format.md has what is known of the clock.
const KNOWN_AT: u64 = 4624;
const WARNING: &str = "the system clock is ahead of the time that has passed";
const TRUSTED: &str = "the system clock is trusted again";

/// Has the system clock seem two days ahead.
fn step(dir: &Path) -> anyhow::Result<()> {
    let control = File::options()
        .read(true)
        .write(true)
        .open(memory::of(&dir.join("data"))?.join("control.tide"))?;
    let mut word = [0; 8];
    control.read_exact_at(&mut word, KNOWN_AT)?;
    let (began, moved) = (u64::from_le_bytes(word) >> 32, u64::from_le_bytes(word) & 0xffff_ffff);
    ensure!(began > 1_700_000_000, "nothing is known: {began}");
    let word = (began - u64::from(TWO_DAYS)) << 32 | moved;
    control.write_all_at(&word.to_le_bytes(), KNOWN_AT)?;
    Ok(())
}

async fn store(dir: &Path, words: &[&str]) -> anyhow::Result<Ran> {
    let mut command = Command::new(artifacts::sidecar()?);
    command.arg("store").args(words).arg(dir.join("data"));
    run(command).await
}

/// Waits until both nodes have counters that have expired by the system clock.
async fn all_expired(dir: &Path) -> anyhow::Result<()> {
    wait::until("all counters to expire", wait::CHECK, async || {
        let inspected = store(dir, &["inspect", "--json"]).await.ok()?.json().ok()?;
        let narrow = &inspected["classes"][0];
        (narrow["expired"] == 2 && narrow["live"] == 0).then_some(())
    })
    .await
}

/// Fills both nodes. The one before may still be in its last second.
async fn fill(rls: &Rls, keys: [&str; 2]) -> anyhow::Result<()> {
    for key in keys {
        wait::until("room for a counter", wait::CHECK, async || {
            rls.ask(&[("short", key)]).await.ok()
        })
        .await?;
    }
    Ok(())
}

/// By how many seconds the clock is ahead.
async fn ahead(sidecar: &Sidecar) -> Option<u32> {
    let metrics = client::get(sidecar.http, "/metrics").await.ok()?;
    let metrics = String::from_utf8(metrics.body.to_vec()).ok()?;
    metrics
        .lines()
        .find_map(|line| line.strip_prefix("tidegate_clock_ahead_seconds "))?
        .parse()
        .ok()
}

async fn check(more: &[&str]) -> anyhow::Result<()> {
    let dir = TempDir::new()?;
    let limits = dir.path().join("limits.yaml");
    fs::write(&limits, LIMITS)?;
    let flags =
        [&["--geometry", "1x1x2", "--wide-capacity", "0", "--lease-ttl", "off"], more].concat();
    let mut sidecar = Sidecar::start_with(dir.path(), &limits, &flags).await?;
    ensure!(ahead(&sidecar).await == Some(0));

    // As it should be: expired counters make room.
    let rls = Rls::at(dir.path()).await?;
    fill(&rls, ["a", "b"]).await?;
    fill(&rls, ["c", "d"]).await?;

    step(dir.path())?;
    wait::until("a word in the log", wait::CHECK, async || {
        sidecar.process.log().contains(WARNING).then_some(())
    })
    .await?;
    let seconds = ahead(&sidecar).await.context("a metric")?;
    // What is known of the past is noted once a second; a busy machine may be late with that.
    ensure!((TWO_DAYS - 2..TWO_DAYS + 20).contains(&seconds), "{seconds}");
    for is_restarted in [false, true] {
        if is_restarted {
            ensure!(sidecar.process.stop().await?.success());
            sidecar.restart().await?;
        }
        let rls = Rls::at(dir.path()).await?;
        let mut tries = 0..;
        // Each of the workers learns of it within a second, and the restarted ones before they serve.
        let refused = wait::until("a new counter to be refused", wait::START, async || {
            all_expired(dir.path()).await.ok()?;
            let [key, other] = tries.next().map(|n| [format!("e{n}"), format!("o{n}")])?;
            let refused = rls.ask(&[("short", &key)]).await.err();
            if refused.is_none() {
                // Both nodes have to be in use again.
                let _ = rls.ask(&[("short", &other)]).await;
            }
            refused
        });
        let refused = refused.await?;
        ensure!(refused.code() == tonic::Code::ResourceExhausted, "{refused:?}");
        ensure!(tries.start == 1 || !is_restarted, "an expired counter was taken after a restart");
        let swept = store(dir.path(), &["sweep"]).await?;
        ensure!(swept.out.starts_with("freed 0 nodes of expired entries\n"), "{swept:?}");
        ensure!(swept.out.contains("add --trust-clock"), "{swept:?}");
        let swept = store(dir.path(), &["sweep", "--json"]).await?.json()?;
        ensure!(
            swept["freed"] == 0 && swept["clock_ahead_seconds"].as_u64() > Some(172_000),
            "{swept}"
        );
    }
    ensure!(sidecar.process.log().matches(WARNING).count() == 1, "{}", sidecar.process.log());

    let swept = store(dir.path(), &["sweep", "--trust-clock"]).await?;
    ensure!(swept.out == "freed 2 nodes of expired entries\n", "{swept:?}");
    wait::until("the clock to be trusted", wait::CHECK, async || {
        sidecar.process.log().contains(TRUSTED).then_some(())
    })
    .await?;
    wait::until("a clock that is not ahead", wait::CHECK, async || {
        (ahead(&sidecar).await? == 0).then_some(())
    })
    .await?;
    let rls = Rls::at(dir.path()).await?;
    ensure!(rls.ask(&[("short", "e")]).await?.overall_code() == Code::Ok);
    fill(&rls, ["f", "g"]).await?;
    Ok(())
}

#[tokio::test]
async fn a_clock_that_is_ahead_frees_nothing_until_it_is_trusted() -> anyhow::Result<()> {
    check(&[]).await
}

#[tokio::test]
async fn workers_go_by_the_same_time() -> anyhow::Result<()> {
    check(&["--workers", "2"]).await
}
