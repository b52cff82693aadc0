//! Several databases that share the counters, and more of them later.

use crate::scene::{Moved, Scene, database};
use crate::twin::{Crowd, Weather};
use anyhow::ensure;
use tidegate_sql::testing::Kind;

const SMALL: [&str; 4] = ["--capacity", "500", "--wide-capacity", "50"];
/// Of 3,000, each shard of three has about 1,000. Those in memory are in none.
const SHARE_MIN: i64 = 500;

/// The bytes of counters in a database.
async fn bytes_in(url: &str) -> anyhow::Result<i64> {
    use sqlx::{AnyConnection, Connection, Row};
    sqlx::any::install_default_drivers();
    let file = url.strip_prefix("sqlite:").map(|path| tidegate_sql::sqlite_url(path.as_ref()));
    let mut database = AnyConnection::connect(file.as_deref().unwrap_or(url)).await?;
    let sum = "SELECT CAST(COALESCE(SUM(LENGTH(entries)), 0) AS BIGINT) FROM tidegate_cold";
    let sum =
        if url.starts_with("mysql:") { sum.replace("BIGINT", "SIGNED") } else { sum.to_owned() };
    let row = sqlx::query(sqlx::AssertSqlSafe(sum)).fetch_one(&mut database).await?;
    Ok(row.try_get(0)?)
}

/// Starts the sidecar on these shards while clients ask, and has all counters come by.
async fn go_on(scene: &mut Scene, crowd: &mut Crowd, urls: &[String]) -> anyhow::Result<Moved> {
    let both = |moved: &Moved| moved.moved > 500 && moved.fetched > 500;
    crowd.set_weather(Weather::Kills);
    let restart = async |_| {
        ensure!(scene.sidecar.process.stop().await?.success(), "{}", scene.sidecar.process.log());
        scene.restart_with(urls, &SMALL).await?;
        scene.until_moved("moves both ways", both).await
    };
    crowd.during(restart).await?;
    crowd.set_weather(Weather::Fair);
    crowd.connect_again().await?;
    crowd.scan(1).await?;
    crowd.sweep().await?;
    let moved = scene.moved().await?;
    ensure!(moved.moved > 2_000 && moved.fetched > 2_000, "{moved:?}");
    Ok(moved)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_stay_exact_when_shards_are_added_and_listed_in_another_order() -> anyhow::Result<()>
{
    let Some((_postgres, mut urls)) = database(Kind::Postgres).await else { return Ok(()) };
    let Some((_mariadb, mariadb)) = database(Kind::Mariadb).await else { return Ok(()) };
    let Some((_sqlite, third)) = database(Kind::Sqlite).await else { return Ok(()) };
    urls.extend(mariadb);
    let mut scene = Scene::start(&urls, &SMALL).await?;
    let mut crowd = Crowd::connect(scene.dir(), 12, (2_750, 250), Weather::Fair).await?;
    crowd.scan(1).await?;
    crowd.sweep().await?;
    // A third one, which counters move to when they come by.
    urls.extend(third);
    let moved = go_on(&mut scene, &mut crowd, &urls).await?;
    let mut sizes = Vec::new();
    for url in &urls {
        sizes.push(bytes_in(url).await?);
    }
    println!("{moved:?}, bytes {sizes:?}");
    // A counter has 20 bytes and more.
    ensure!(sizes.iter().all(|size| *size > SHARE_MIN * 20), "{sizes:?}");
    urls.reverse();
    let moved = go_on(&mut scene, &mut crowd, &urls).await?;
    println!("{moved:?}, {:?}", crowd.calls());
    Ok(())
}
