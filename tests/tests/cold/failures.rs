//! Databases that stand still, die and come back.

use crate::scene::{Scene, database};
use crate::twin::{Crowd, Weather};
use anyhow::ensure;
use std::time::Instant;
use tidegate_sql::testing::{Kind, Server};
use tidegate_tests::rls::{Rls, request};
use tidegate_tests::wait;
use tidegate_wire::rls::{Code, RateLimitResponse};
use tokio::sync::watch;

const SMALL: [&str; 4] = ["--capacity", "500", "--wide-capacity", "50"];
const ROUNDS: u32 = 2;

/// Takes the database away in both ways, while clients ask.
async fn away_and_back(
    scene: &Scene,
    server: &mut Server,
    mut decided: watch::Receiver<u64>,
) -> anyhow::Result<()> {
    for round in 0..ROUNDS {
        let before = scene.moved().await?;
        let goes_on = |moved: &crate::scene::Moved| {
            moved.moved > before.moved + 100 && moved.fetched > before.fetched + 100
        };
        scene.until_moved("moves both ways", goes_on).await?;
        server.pause();
        scene.until_up(false).await?;
        // What is in memory is decided all the same.
        let enough = *decided.borrow_and_update() + 50;
        let deciding = decided.wait_for(|decided| *decided >= enough);
        wait::within("decisions without a database", wait::ANSWER, deciding).await??;
        if round % 2 == 0 {
            server.resume();
            scene.until_up(true).await?;
        }
        server.kill();
        scene.until_up(false).await?;
        server.restart().await;
        scene.until_up(true).await?;
    }
    Ok(())
}

async fn never_over(kind: Kind) -> anyhow::Result<()> {
    let Some((mut server, urls)) = database(kind).await else { return Ok(()) };
    let more = ["--cold-failure", "deny", "--cold-timeout", "500ms"];
    let mut scene = Scene::start(&urls, &[&SMALL[..], &more].concat()).await?;
    let began = Instant::now();
    let mut crowd = Crowd::connect(scene.dir(), 12, (2_750, 250), Weather::Away).await?;
    let act = async |decided| away_and_back(&scene, &mut server, decided).await;
    crowd.during(act).await?;
    let (calls, moved) = (crowd.calls(), scene.moved().await?);
    scene.calm_down(&urls, &SMALL).await?;
    crowd.set_weather(Weather::Fair);
    crowd.connect_again().await?;
    crowd.scan(1).await?;
    crowd.sweep().await?;
    println!("{kind:?}: {calls:?}, {moved:?} in {:?}", began.elapsed());
    ensure!(calls.denied_without > 0 && moved.failed > 0 && moved.without_state > 0, "{moved:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_limit_is_passed_while_a_postgres_is_away() -> anyhow::Result<()> {
    never_over(Kind::Postgres).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_limit_is_passed_while_a_mariadb_is_away() -> anyhow::Result<()> {
    never_over(Kind::Mariadb).await
}

/// Takes one hit of a counter of ten a day.
async fn hit(rls: &Rls, value: &str) -> anyhow::Result<RateLimitResponse> {
    Ok(rls.decide(request("test", &[("day", value)])).await?)
}

async fn remaining(rls: &Rls, value: &str) -> anyhow::Result<u32> {
    let mut peek = request("test", &[("day", value)]);
    peek.descriptors[0].hits_addend = Some(0);
    let answer = rls.decide(peek).await?;
    Ok(answer.statuses[0].limit_remaining)
}

/// A sidecar with counters that have moved, ten of which are used up, and whose database is away.
async fn without_database(rule: &str) -> anyhow::Result<Option<(Scene, Server, Rls)>> {
    let Some((mut server, urls)) = database(Kind::Postgres).await else { return Ok(None) };
    let more = ["--cold-failure", rule, "--capacity", "1000"];
    let scene = Scene::start(&urls, &more).await?;
    let rls = Rls::at(scene.dir()).await?;
    for value in 0..10 {
        for _ in 0..10 {
            ensure!(hit(&rls, &value.to_string()).await?.overall_code() == Code::Ok);
        }
    }
    scene.until_moved("all to have moved", |moved| moved.moved == moved.fetched + 10).await?;
    server.kill();
    Ok(Some((scene, server, rls)))
}

#[tokio::test]
async fn denied_requests_of_counters_that_are_away_are_allowed_later() -> anyhow::Result<()> {
    let Some((scene, mut server, rls)) = without_database("deny").await? else { return Ok(()) };
    ensure!(hit(&rls, "3").await?.overall_code() == Code::OverLimit);
    // A new one needs no database.
    ensure!(hit(&rls, "new").await?.overall_code() == Code::Ok);
    ensure!(scene.moved().await?.without_state > 0);
    server.restart().await;
    scene.until_up(true).await?;
    ensure!(remaining(&rls, "3").await? == 0 && remaining(&rls, "new").await? == 9);
    Ok(())
}

#[tokio::test]
async fn limits_that_let_pass_count_nothing_while_their_counters_are_away() -> anyhow::Result<()> {
    let Some((scene, mut server, rls)) = without_database("allow").await? else { return Ok(()) };
    for _ in 0..15 {
        ensure!(hit(&rls, "3").await?.overall_code() == Code::Ok, "more than the limit pass");
    }
    ensure!(scene.moved().await?.without_state == 15);
    server.restart().await;
    scene.until_up(true).await?;
    ensure!(hit(&rls, "3").await?.overall_code() == Code::OverLimit);
    ensure!(remaining(&rls, "4").await? == 0);
    Ok(())
}

#[tokio::test]
async fn limits_that_begin_anew_forget_their_rows() -> anyhow::Result<()> {
    let Some((scene, mut server, rls)) = without_database("fresh").await? else { return Ok(()) };
    for _ in 0..10 {
        ensure!(hit(&rls, "3").await?.overall_code() == Code::Ok);
    }
    ensure!(hit(&rls, "3").await?.overall_code() == Code::OverLimit, "it counts anew");
    for _ in 0..4 {
        ensure!(hit(&rls, "4").await?.overall_code() == Code::Ok);
    }
    server.restart().await;
    scene.until_up(true).await?;
    // Also after they have moved again.
    scene.until_moved("both to move", |moved| moved.moved == moved.fetched + 12).await?;
    ensure!(remaining(&rls, "3").await? == 0 && remaining(&rls, "4").await? == 6);
    ensure!(remaining(&rls, "5").await? == 0, "what was not asked for keeps its row");
    Ok(())
}
