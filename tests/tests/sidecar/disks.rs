//! Disks that stand still, and data directories that somebody moves: requests are decided all the same, and
//! it is reported.

use anyhow::{Context, ensure};
use std::os::unix::fs::symlink;
use std::path::Path;
use tempfile::TempDir;
use tidegate_tests::disk::Disk;
use tidegate_tests::not_run;
use tidegate_tests::rls::Rls;
use tidegate_tests::sidecar::Sidecar;
use tidegate_tests::{client, wait};
use tidegate_wire::rls::Code;

const LIMITS: &str = "\
domain: test
descriptors:
  - key: client
    rate_limit: { unit: year, requests_per_unit: 4 }
";
const CLIENTS: u32 = 500;
const LOOP_DEVICE: &str = "root, a loop device and mkfs.ext4";
const FREEZE: &str = "root and fsfreeze";

fn home() -> anyhow::Result<TempDir> {
    let dir = TempDir::new()?;
    std::fs::write(dir.path().join("limits.yaml"), LIMITS)?;
    Ok(dir)
}

async fn serve(dir: &Path) -> anyhow::Result<Sidecar> {
    let flags = ["--capacity", "20000", "--sync-interval", "50ms"];
    Sidecar::start_with(dir, &dir.join("limits.yaml"), &flags).await
}

/// A request of each client. One that waited for a disk that stands still would have no answer.
async fn round(rls: &Rls, expected: Code) -> anyhow::Result<()> {
    for client in 0..CLIENTS {
        let answer = rls.ask(&[("client", &client.to_string())]).await?;
        ensure!(answer.overall_code() == expected, "client {client}: {answer:?}");
    }
    Ok(())
}

async fn unsaved_seconds(sidecar: &Sidecar) -> anyhow::Result<u64> {
    let page = client::get(sidecar.http, "/metrics").await?;
    let page = String::from_utf8_lossy(&page.body).into_owned();
    let value = page.lines().find_map(|line| line.strip_prefix("tidegate_store_unsaved_seconds "));
    Ok(value.context("how long nothing was saved")?.parse()?)
}

/// Counters were mapped files of the disk: while a volume snapshot was made, each request that was the first
/// to write to a page waited until it was done, and every request that needed the same lock.
#[tokio::test]
async fn a_frozen_disk_holds_up_nobody() -> anyhow::Result<()> {
    let home = home()?;
    let disk = Disk::new(&home.path().join("disk"), 64 << 20);
    let Some(disk) = not_run::or_named(LOOP_DEVICE, disk)? else { return Ok(()) };
    std::fs::create_dir(home.path().join("disk/data"))?;
    symlink(home.path().join("disk/data"), home.path().join("data"))?;
    let mut sidecar = serve(home.path()).await?;
    let rls = Rls::at(home.path()).await?;
    round(&rls, Code::Ok).await?;

    let Some(frozen) = not_run::or_named(FREEZE, disk.freeze())? else { return Ok(()) };
    // New counters, and counters whose pages have just been written.
    round(&rls, Code::Ok).await?;
    wait::until("a snapshot to stand still", wait::CHECK, async || {
        unsaved_seconds(&sidecar).await.is_ok_and(|seconds| seconds >= 2).then_some(())
    })
    .await?;
    for expected in [Code::Ok, Code::Ok, Code::OverLimit] {
        round(&rls, expected).await?;
    }
    ensure!(client::get(sidecar.http, "/healthcheck").await?.status == 200);
    drop(frozen);
    wait::until("a snapshot", wait::CHECK, async || {
        unsaved_seconds(&sidecar).await.is_ok_and(|seconds| seconds == 0).then_some(())
    })
    .await?;
    // What was counted meanwhile is saved.
    ensure!(sidecar.process.stop().await?.success(), "{}", sidecar.process.log());
    let mut sidecar = serve(home.path()).await?;
    round(&Rls::at(home.path()).await?, Code::OverLimit).await?;
    ensure!(sidecar.process.stop().await?.success());
    Ok(())
}

#[tokio::test]
async fn a_directory_that_is_moved_is_reported_and_counters_go_on() -> anyhow::Result<()> {
    let home = home()?;
    let mut sidecar = serve(home.path()).await?;
    let rls = Rls::at(home.path()).await?;
    round(&rls, Code::Ok).await?;
    let (data, away) = (home.path().join("data/cluster"), home.path().join("data/away"));
    std::fs::rename(&data, &away)?;
    let degraded = async || {
        let health = client::get(sidecar.http, "/healthcheck").await.ok()?;
        let said = String::from_utf8_lossy(&health.body).into_owned();
        (health.status == 200).then_some(said)
    };
    wait::until("the health check to say so", wait::CHECK, async || {
        degraded().await.filter(|said| said.contains("degraded: files of the counters were moved"))
    })
    .await?;
    round(&rls, Code::Ok).await?;
    std::fs::rename(&away, &data)?;
    wait::until("the health check to be well", wait::CHECK, async || {
        degraded().await.filter(|said| !said.contains("degraded"))
    })
    .await?;
    let log = sidecar.process.log();
    ensure!(log.contains("counters live on in memory alone"), "{log}");
    // Killed, or ended in order: nothing was lost on the way.
    sidecar.kill().await?;
    let mut sidecar = serve(home.path()).await?;
    let rls = Rls::at(home.path()).await?;
    for expected in [Code::Ok, Code::Ok, Code::OverLimit] {
        round(&rls, expected).await?;
    }
    ensure!(sidecar.process.stop().await?.success());
    Ok(())
}
