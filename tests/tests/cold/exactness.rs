//! Each decision is that of a twin, while many more counters are in use than the memory has room for.

use crate::scene::{Scene, database};
use crate::twin::{Crowd, Weather};
use anyhow::ensure;
use std::time::Instant;
use tidegate_sql::testing::Kind;

/// Counters ten times as many as the memory has room for.
struct Size {
    capacity: u32,
    rounds: usize,
}

async fn each_decision_is_the_twins(kind: Kind, size: Size) -> anyhow::Result<()> {
    let Some((_server, urls)) = database(kind).await else { return Ok(()) };
    let Size { capacity, rounds } = size;
    let (narrow, wide) = (capacity * 19 / 2, capacity / 2);
    let capacities = [capacity, capacity / 10].map(|capacity| capacity.to_string());
    let small = ["--capacity", &capacities[0], "--wide-capacity", &capacities[1]];
    let scene = Scene::start(&urls, &small).await?;
    let began = Instant::now();
    let mut crowd = Crowd::connect(scene.dir(), 24, (narrow, wide), Weather::Fair).await?;
    crowd.scan(rounds).await?;
    crowd.sweep().await?;
    crowd.use_up().await?;
    let (moved, calls) = (scene.moved().await?, crowd.calls());
    println!("{kind:?}: {calls:?}, {moved:?} in {:?}", began.elapsed());
    // Each counter but those in memory moved once, and came back at least for the sweep.
    let most = u64::from(narrow + wide) * 3 / 4;
    ensure!(moved.moved > most && moved.fetched > most && moved.removed > 0, "{moved:?}");
    ensure!(moved.without_state == 0 && calls.denied > 0, "{moved:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_times_more_counters_than_memory_are_exact_with_sqlite() -> anyhow::Result<()> {
    each_decision_is_the_twins(Kind::Sqlite, Size { capacity: 1_000, rounds: 1 }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_times_more_counters_than_memory_are_exact_with_postgres() -> anyhow::Result<()> {
    each_decision_is_the_twins(Kind::Postgres, Size { capacity: 300, rounds: 2 }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_times_more_counters_than_memory_are_exact_with_mariadb() -> anyhow::Result<()> {
    each_decision_is_the_twins(Kind::Mariadb, Size { capacity: 300, rounds: 2 }).await
}
