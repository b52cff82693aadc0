//! New processes that take over while counters move.

use crate::scene::{Moved, Scene, database};
use crate::twin::{Crowd, Weather};
use anyhow::ensure;
use tidegate_sql::testing::Kind;

const SMALL: [&str; 4] = ["--capacity", "500", "--wide-capacity", "50"];

/// Takes over from a process to workers and back, each of which moves counters both ways.
async fn taken_over_again_and_again(
    scene: &mut Scene,
    urls: &[String],
) -> anyhow::Result<Vec<Moved>> {
    let both = |moved: &Moved| moved.moved > 100 && moved.fetched > 100;
    let mut lives = vec![scene.until_moved("moves both ways", both).await?];
    for (number, workers) in ["2", "0", "1"].into_iter().enumerate() {
        let flags = [&SMALL[..], &["--workers", workers]].concat();
        let new = scene.taken_over(urls, &flags, &format!("sidecar-{number}")).await?;
        let mut old = std::mem::replace(scene, new);
        ensure!(old.sidecar.process.wait().await?.success(), "{}", old.sidecar.process.log());
        lives.push(scene.until_moved("moves both ways", both).await?);
    }
    Ok(lives)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn takeovers_while_counters_move_lose_no_hit() -> anyhow::Result<()> {
    let Some((_server, urls)) = database(Kind::Postgres).await else { return Ok(()) };
    let mut scene = Scene::start(&urls, &SMALL).await?;
    // Connections end with the process that they were made to.
    let mut crowd = Crowd::connect(scene.dir(), 12, (2_750, 250), Weather::Kills).await?;
    let act = async |_| taken_over_again_and_again(&mut scene, &urls).await;
    let lives = crowd.during(act).await?;
    scene.calm_down(&urls, &SMALL).await?;
    crowd.set_weather(Weather::Fair);
    crowd.connect_again().await?;
    crowd.sweep().await?;
    println!("{:?}, {lives:?}", crowd.calls());
    Ok(())
}
