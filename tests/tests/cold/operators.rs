//! What an operator is told.

use crate::scene::{Moved, Scene, database};
use anyhow::ensure;
use tempfile::TempDir;
use tidegate_sql::testing::Kind;
use tidegate_tests::rls::Rls;
use tidegate_tests::sidecar::FREE_AND_COUNTED;
use tidegate_tests::{artifacts, client, command, wait};
use tokio::process::Command;

/// The database is away: the health check says so until it is back, whether anybody asks for a counter or not.
#[tokio::test]
async fn the_health_check_says_that_a_database_does_not_answer() -> anyhow::Result<()> {
    for workers in ["0", "2"] {
        let Some((mut server, urls)) = database(Kind::Postgres).await else { return Ok(()) };
        let flags = ["--capacity", "1000", "--workers", workers];
        let scene = Scene::start(&urls, &flags).await?;
        let rls = Rls::at(scene.dir()).await?;
        for _ in 0..3 {
            rls.ask(&[("day", "a")]).await?;
        }
        // On a busy machine it is idle between two asks, and moves once more.
        let away = |moved: &Moved| moved.moved == moved.fetched + 1;
        let before = scene.until_moved("a move", away).await?;
        scene.until_healthy("OK\n").await?;
        server.kill();
        rls.ask(&[("day", "a")]).await?;
        let says = "degraded: a database of cold counters does not answer: postgres://127.0.0.1";
        scene.until_healthy(&format!("{says}...")).await?;
        let (_, text) = scene.health().await?;
        ensure!(!text.contains("se@cret") && !text.contains("se%40cret"), "{text}");
        scene.until_up(false).await?;
        server.restart().await;
        scene.until_healthy("OK\n").await?;
        scene.until_up(true).await?;
        rls.ask(&[("day", "a")]).await?;
        let is_back = |moved: &Moved| moved.fetched == before.fetched + 1;
        let moved = scene.until_moved("it to come back", is_back).await?;
        ensure!(moved.failed > 0 && moved.without_state == 1 && moved.spared >= 1, "{moved:?}");
        let log = scene.sidecar.process.log();
        for line in [
            "a database of cold counters does not answer",
            "the database of cold counters answers again",
        ] {
            ensure!(log.contains(line), "{log}");
        }
        let page = client::get(scene.sidecar.http, "/metrics").await?;
        ensure!(
            String::from_utf8(page.body.into())?.contains("tidegate_cold_fetched_in_vain_total ")
        );
    }
    Ok(())
}

#[tokio::test]
async fn an_inspection_says_what_is_done_with_cold_counters() -> anyhow::Result<()> {
    let Some((_server, urls)) = database(Kind::Sqlite).await else { return Ok(()) };
    let scene = Scene::start(&urls, &["--capacity", "1000"]).await?;
    let rls = Rls::at(scene.dir()).await?;
    for value in ["a", "b", "c"] {
        for _ in 0..2 {
            rls.ask(&[("day", value)]).await?;
        }
    }
    scene.until_moved("all to have moved", |moved| moved.moved == moved.fetched + 3).await?;
    rls.ask(&[("day", "a")]).await?;
    let inspect = async |flags: &[&str]| {
        let mut inspect = Command::new(artifacts::sidecar()?);
        inspect.args(["store", "inspect"]).arg(scene.dir().join("data")).args(flags);
        let ran = command::run(inspect).await?;
        ensure!(ran.code == Some(0) && ran.err.is_empty(), "{ran:?}");
        anyhow::Ok(ran)
    };
    // What a process does is added once a second.
    let counted = wait::until("the totals", wait::SOON, async || {
        let found = inspect(&["--json"]).await.ok()?.json().ok()?;
        let counts = &found["cold_counts"]["counts"];
        // The one that came back may have moved again.
        let has =
            |name: &str, least: u64| counts[name].as_u64().is_some_and(|count| count >= least);
        (has("moved", 3) && has("fetched", 1) && has("spared", 3)).then_some(())
    });
    counted.await?;
    let text = inspect(&[]).await?.out;
    for words in ["in all", "a second", "Idle counters that moved to a database"] {
        ensure!(text.contains(words), "{words:?} is not in\n{text}");
    }
    Ok(())
}

async fn serve(dir: &TempDir, flags: &[&str]) -> anyhow::Result<command::Ran> {
    let limits = dir.path().join("limits.yaml");
    std::fs::write(&limits, FREE_AND_COUNTED)?;
    let mut serve = Command::new(artifacts::sidecar()?);
    serve.args(["serve", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--frs", "off"]);
    serve.arg("--limits").arg(&limits).args(flags);
    if !flags.contains(&"--data-dir") {
        serve.arg("--data-dir").arg(dir.path().join("data"));
    }
    command::run(serve).await
}

#[tokio::test]
async fn mistakes_on_the_command_line_say_what_to_do() -> anyhow::Result<()> {
    let dir = TempDir::new()?;
    for (flags, says) in [
        (
            &["--cold", "data-dir", "--authority", "redis://127.0.0.1:6379"][..],
            "--cold: counters of an --authority are in its servers, and do not move; leave out one of the two",
        ),
        (
            &["--cold", "data-dir", "--data-dir", "off"],
            "--cold: needs a data directory; --data-dir is off",
        ),
        (&["--cold", "redis://127.0.0.1"], "sqlite:, postgres:// or mysql://"),
        (&["--cold", "sqlite:///tmp/a?mode=rwc"], "a file takes no options"),
        (&["--cold", "data-dir", "--cold", "off"], "--cold: off stands alone"),
        (&["--cold", "data-dir", "--cold", "data-dir"], "name it once"),
        (&["--cold", "data-dir", "--cold-idle", "1ms"], "--cold-idle"),
        (&["--cold", "data-dir", "--cold-failure", "ignore"], "deny, allow, fresh"),
    ] {
        let ran = serve(&dir, flags).await?;
        ensure!(ran.code == Some(2) && ran.err.contains(says), "{flags:?}: {ran:?}");
    }
    Ok(())
}
