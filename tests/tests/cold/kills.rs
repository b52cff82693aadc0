//! Sidecars that are killed while counters move, again and again.
//!
//! `TIDEGATE_KILLS` is the number of kills, ten if it is not set.

use crate::scene::{Moved, Scene, database};
use crate::twin::{Crowd, Weather};
use anyhow::{Context, ensure};
use rustix::process::Signal;
use std::time::Instant;
use tidegate_sql::testing::Kind;
use tidegate_tests::{process, wait};
use tokio::sync::watch;

const KILLS: u32 = 10;
/// Decisions between two kills: a different number each time.
const DECISIONS: u64 = 100;

/// What is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Sidecar,
    /// In turns the supervisor, which its workers follow, and a worker alone.
    SupervisorOrWorker,
}

/// How many times something is killed, if nothing else is asked for.
pub(crate) fn kills(usual: u32) -> anyhow::Result<u32> {
    match std::env::var("TIDEGATE_KILLS") {
        Ok(kills) => Ok(kills.parse()?),
        Err(_) => Ok(usual),
    }
}

/// Kills while counters go down and come up. Returns what had moved in all lives.
async fn kill_again_and_again(
    scene: &mut Scene,
    victim: Victim,
    mut decided: watch::Receiver<u64>,
) -> anyhow::Result<Moved> {
    let mut all = Moved::default();
    for number in 0..kills(KILLS)? {
        let more = DECISIONS + u64::from(number.wrapping_mul(2_654_435_761) % 400);
        let enough = *decided.borrow_and_update() + more;
        let deciding = decided.wait_for(|decided| *decided >= enough);
        wait::within("decisions between kills", wait::RETRY, deciding).await??;
        let both = |moved: &Moved| moved.moved > 0 && moved.fetched > 0;
        let moved = scene.until_moved("moves both ways", both).await?;
        all.moved += moved.moved;
        all.fetched += moved.fetched;
        all.removed += moved.removed;
        if victim == Victim::SupervisorOrWorker && number % 2 == 1 {
            let workers = scene.sidecar.process.children()?;
            process::signal(*workers.first().context("a worker")?, Signal::KILL)?;
        } else {
            scene.sidecar.kill().await?;
            scene.sidecar.restart().await?;
        }
    }
    Ok(all)
}

async fn kills_lose_no_hit(kind: Kind, victim: Victim, flags: &[&str]) -> anyhow::Result<()> {
    let Some((_server, urls)) = database(kind).await else { return Ok(()) };
    let small = ["--capacity", "500", "--wide-capacity", "50"];
    let short = ["--cold-timeout", "1s"];
    let mut scene = Scene::start(&urls, &[&small[..], &short, flags].concat()).await?;
    let began = Instant::now();
    let mut crowd = Crowd::connect(scene.dir(), 12, (2_750, 250), Weather::Kills).await?;
    // A store that is full of what has just come is no time for a kill alone.
    crowd.scan(1).await?;
    let act = async |decided| kill_again_and_again(&mut scene, victim, decided).await;
    let moved = crowd.during(act).await?;
    scene.calm_down(&urls, &[&small[..], flags].concat()).await?;
    crowd.set_weather(Weather::Fair);
    crowd.connect_again().await?;
    crowd.sweep().await?;
    println!(
        "{kind:?}, {victim:?}: {} kills, {:?}, {moved:?}, {:?}",
        kills(KILLS)?,
        crowd.calls(),
        began.elapsed()
    );
    let calls = crowd.calls();
    ensure!(calls.lost > 0 && moved.moved > 1_000 && moved.fetched > 1_000, "{calls:?} {moved:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_sidecar_loses_no_hit_with_sqlite() -> anyhow::Result<()> {
    kills_lose_no_hit(Kind::Sqlite, Victim::Sidecar, &[]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_sidecar_loses_no_hit_with_mariadb() -> anyhow::Result<()> {
    kills_lose_no_hit(Kind::Mariadb, Victim::Sidecar, &[]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_workers_lose_no_hit_with_postgres() -> anyhow::Result<()> {
    kills_lose_no_hit(Kind::Postgres, Victim::SupervisorOrWorker, &["--workers", "2"]).await
}
