//! Far more counters than the memory has room for, most of them counted long ago, in three databases, while the sidecar and
//! the databases are killed.
//!
//! `TIDEGATE_COLD_COUNTERS` is the number of counters, 7,500 if it is not set. The memory has room for a twenty-fifth of them,
//! and a hit is asked for fifty. `TIDEGATE_KILLS` is the number of kills of the sidecar, ten if it is not set; each
//! server is killed for every ten of them.

use crate::kills::kills;
use crate::rows::{self, Counted};
use crate::scene::{RULES, Scene, database};
use crate::twin::{Crowd, Weather, narrow_rule};
use anyhow::{Context, ensure};
use std::time::{Duration, Instant};
use tidegate_sql::testing::{Kind, Server};
use tidegate_tests::wait;
use tokio::sync::watch;

const COUNTERS: u32 = 7_500;
const KILLS: u32 = 10;
/// Room for one of so many in memory.
const IN_MEMORY: u32 = 25;
/// Decisions for one of so many counters, and at least these.
const ASKED: u32 = 50;
const DECISIONS: u64 = 3_000;
/// Counters that are read at the end besides those that were asked for, at most.
const OTHERS: usize = 200_000;
/// What the sidecar lists in a second, at least.
const LISTED: u64 = 50_000;
/// What it decides in a second, at least, when it has been started again.
const DECIDED: u64 = 100;

fn counters() -> anyhow::Result<u32> {
    match std::env::var("TIDEGATE_COLD_COUNTERS") {
        Ok(counters) => Ok(counters.parse()?),
        Err(_) => Ok(COUNTERS),
    }
}

/// A counter before the sidecar starts, with one hit at least and its limit at most.
fn counted(number: u32) -> Counted {
    let rule = narrow_rule(number);
    let count = 1 + (number.wrapping_mul(2_654_435_761) >> 16) % RULES[rule].limit;
    Counted { rule, number, count }
}

/// Waits for so many decisions more.
async fn decisions(decided: &mut watch::Receiver<u64>, more: u64) -> anyhow::Result<()> {
    let enough = *decided.borrow_and_update() + more;
    let patience = wait::RETRY + Duration::from_secs(more / DECIDED);
    wait::within("decisions", patience, decided.wait_for(|decided| *decided >= enough)).await??;
    Ok(())
}

/// Kills the sidecar again and again, and the servers now and then, while so many decisions are made.
async fn kill_all(
    scene: &mut Scene,
    servers: &mut [Server],
    mut decided: watch::Receiver<u64>,
    decisions_in_all: u64,
) -> anyhow::Result<()> {
    let kills = kills(KILLS)?;
    let between = decisions_in_all / u64::from(kills + 1);
    for number in 0..kills {
        // Not always at the same moment of what the sidecar does in turns.
        let part = 1 + u64::from(number.wrapping_mul(2_654_435_761) >> 24) % 2;
        decisions(&mut decided, between * part / 2).await?;
        // Each server once in ten.
        let turn = number as usize % 10;
        if let Some(server) = servers.get_mut(turn) {
            server.kill();
            scene.until_up(false).await?;
            decisions(&mut decided, 20).await?;
            server.restart().await;
            scene.until_up(true).await?;
        }
        scene.sidecar.kill().await?;
        scene.sidecar.restart().await?;
        let rest = between - between * part / 2;
        decisions(&mut decided, rest).await?;
    }
    decisions(&mut decided, between).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_of_days_are_exact_over_many_times_more_counters_than_memory() -> anyhow::Result<()>
{
    let (mut servers, mut urls) = (Vec::new(), Vec::new());
    for kind in [Kind::Postgres, Kind::Mariadb] {
        let Some((server, url)) = database(kind).await else { return Ok(()) };
        servers.push(server);
        urls.extend(url);
    }
    let Some((_sqlite, url)) = database(Kind::Sqlite).await else { return Ok(()) };
    urls.extend(url);
    let counters = counters()?;
    let [capacity, cold] = [counters / IN_MEMORY, counters + counters / 5];
    let [capacity, cold] = [capacity.to_string(), cold.to_string()];
    let mut flags = vec!["--capacity", &*capacity, "--cold-capacity", &cold];
    if counters > COUNTERS {
        // A pass over a large memory takes longer, and so does its snapshot.
        flags.extend(["--cold-idle", "10s", "--sync-interval", "1s"]);
    }
    let mut scene = Scene::start_without(&flags[..2]).await?;
    ensure!(scene.sidecar.process.stop().await?.success(), "{}", scene.sidecar.process.log());

    let began = Instant::now();
    let all = (0..counters).map(counted);
    rows::write(scene.dir(), &urls, all.clone()).await?;
    println!("{counters} counters were written in {:?}", began.elapsed());

    let began = Instant::now();
    let short = ["--cold-timeout", "1s"];
    scene.restart_with(&urls, &[&flags[..], &short].concat()).await?;
    let patience = Duration::from_secs(u64::from(counters) / LISTED);
    let listed = wait::until("the filters", wait::RETRY + patience, async || {
        let log = scene.sidecar.process.log();
        (log.matches("it is known which counters are cold").count() == urls.len()).then_some(())
    });
    listed.await.with_context(|| scene.sidecar.process.log())?;
    println!("they were listed in {:?}", began.elapsed());

    let began = Instant::now();
    let weather = Weather::KillsAndAway;
    let mut crowd = Crowd::connect_counted(scene.dir(), 24, all, weather).await?;
    let hits = u64::from(counters / ASKED).max(DECISIONS);
    let act = async |decided| kill_all(&mut scene, &mut servers, decided, hits).await;
    crowd.during(act).await?;
    let (calls, moved) = (crowd.calls(), scene.moved().await?);
    println!(
        "{} kills, {calls:?}, since the last one {moved:?}, in {:?}",
        kills(KILLS)?,
        began.elapsed()
    );

    let began = Instant::now();
    scene.calm_down(&urls, &flags).await?;
    crowd.set_weather(Weather::Fair);
    crowd.connect_again().await?;
    let swept = crowd.sweep_one_in((counters as usize).div_ceil(OTHERS)).await;
    swept.with_context(|| scene.sidecar.process.log())?;
    println!("{:?} at the end, in {:?}", scene.moved().await?, began.elapsed());
    ensure!(calls.decided() >= hits && calls.lost > 0 && calls.denied > 0, "{calls:?}");
    Ok(())
}
