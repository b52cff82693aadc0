//! Each decision is that of a twin, while many more counters are in use than the memory has room for.

use crate::scene::{Scene, database};
use crate::twin::{Crowd, Weather};
use anyhow::ensure;
use std::time::Instant;
use tidegate_sql::testing::Kind;

const NARROW: u32 = 19_000;
const WIDE: u32 = 1_000;

async fn each_decision_is_the_twins(kind: Kind) -> anyhow::Result<()> {
    let Some((_server, urls)) = database(kind).await else { return Ok(()) };
    let small = ["--capacity", "2000", "--wide-capacity", "200"];
    let scene = Scene::start(&urls, &small).await?;
    let began = Instant::now();
    let mut crowd = Crowd::connect(scene.dir(), 24, (NARROW, WIDE), Weather::Fair).await?;
    crowd.scan(2).await?;
    crowd.sweep().await?;
    let (moved, calls) = (scene.moved().await?, crowd.calls());
    println!("{kind:?}: {calls:?}, {moved:?} in {:?}", began.elapsed());
    // Each counter but those in memory moved once, and came back at least for the sweep.
    let most = u64::from(NARROW + WIDE) * 3 / 4;
    ensure!(moved.moved > most && moved.fetched > most, "{moved:?}");
    ensure!(moved.failed == 0 && moved.without_state == 0, "{moved:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_times_more_counters_than_memory_are_exact_with_sqlite() -> anyhow::Result<()> {
    each_decision_is_the_twins(Kind::Sqlite).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_times_more_counters_than_memory_are_exact_with_postgres() -> anyhow::Result<()> {
    each_decision_is_the_twins(Kind::Postgres).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_times_more_counters_than_memory_are_exact_with_mariadb() -> anyhow::Result<()> {
    each_decision_is_the_twins(Kind::Mariadb).await
}
