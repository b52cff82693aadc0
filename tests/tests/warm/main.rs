//! Idle counters in a real Redis, above SQLite and alone.

use anyhow::{Context, ensure};
use rustix::process::Signal;
use std::time::Duration;
use tempfile::TempDir;
use tidegate_tests::command::{Ran, run};
use tidegate_tests::service::Service;
use tidegate_tests::shared_servers::{Redis, RedisOptions, RedisPrograms};
use tidegate_tests::{artifacts, client, wait};
use tokio::process::Command;

const USERS: u32 = 40;
const LIMITS: &str = "  - key: user
    rate_limit: { unit: day, requests_per_unit: 100 }
";
/// Counters that are idle for a second move.
const FLAGS: [&str; 2] = ["--cold-idle", "1s"];
/// A busy machine may take long to answer.
const PATIENT: [&str; 2] = ["--cold-timeout", "5s"];
/// Some times as long as a busy machine takes until all counters have moved.
const MOVED: Duration = Duration::from_secs(60);

struct Scene {
    redis: Redis,
    sidecar: Service,
    _dir: TempDir,
}

impl Scene {
    /// None if there is no Redis on this machine.
    async fn start(options: RedisOptions<'_>, flags: &[&str]) -> anyhow::Result<Option<Scene>> {
        let Some(programs) = RedisPrograms::find()? else { return Ok(None) };
        let dir = TempDir::new()?;
        let redis = Redis::start(&programs, dir.path(), options).await?;
        let password = options.password.map_or(String::new(), |password| format!(":{password}@"));
        let url = format!("redis://{password}{}", redis.address());
        let flags = [&FLAGS[..], &["--warm", &url], flags].concat();
        let sidecar = Service::start(LIMITS, &flags).await?;
        Ok(Some(Scene { redis, sidecar, _dir: dir }))
    }

    /// Each user asks once; so many are left.
    async fn all_ask(&self, left: u32) -> anyhow::Result<()> {
        for user in 0..USERS {
            self.asks(user, left).await?;
        }
        Ok(())
    }

    async fn asks(&self, user: u32, left: u32) -> anyhow::Result<()> {
        let answer = self.sidecar.ask(&format!("user=u{user}")).await?;
        let found = answer.statuses.first().context("a status")?.limit_remaining;
        ensure!(found == left, "user {user} has {found} left instead of {left}");
        Ok(())
    }

    async fn metric(&self, name: &str) -> anyhow::Result<u64> {
        let lines = self.sidecar.metrics().await?;
        let line = lines.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(line.with_context(|| format!("no {name}"))?.parse::<f64>()? as u64)
    }

    /// Waits until no counter is in memory. One that was idle between two asks has moved twice, and come back once.
    async fn until_all_moved(&self) -> anyhow::Result<()> {
        let mut last = [0; 2];
        let moved = wait::until("all counters to have moved", MOVED, async || {
            let moved = self.metric("tidegate_cold_moved_total").await.ok()?;
            last = [moved, self.metric("tidegate_cold_fetched_total").await.ok()?];
            (last[0] == last[1] + u64::from(USERS)).then_some(())
        });
        let moved = moved.await;
        moved.with_context(|| format!("moved and came back: {last:?}"))
    }

    /// Waits until a metric has grown that far.
    async fn until(&self, name: &str, least: u64) -> anyhow::Result<()> {
        wait::until(name, MOVED, async || (self.metric(name).await.ok()? >= least).then_some(()))
            .await
    }

    async fn health(&self) -> anyhow::Result<String> {
        let answer = client::get(self.sidecar.sidecar.http, "/healthcheck").await?;
        Ok(String::from_utf8(answer.body.into())?)
    }

    async fn store(&self, arguments: &[&str], flags: &[&str]) -> anyhow::Result<Ran> {
        let data = self.sidecar.dir().join("data");
        let mut command = Command::new(artifacts::sidecar()?);
        command.arg("store").arg(arguments[0]).arg(data).args(&arguments[1..]).args(flags);
        command.env_remove("TIDEGATE_DATA_DIR");
        run(command).await
    }
}

#[tokio::test]
async fn counters_move_to_redis_and_on_to_sqlite_and_come_back() -> anyhow::Result<()> {
    let flags = ["--cold", "data-dir", "--warm-idle", "1s", "--cold-timeout", "5s"];
    let Some(scene) = Scene::start(RedisOptions::default(), &flags).await? else { return Ok(()) };
    let users = u64::from(USERS);
    for left in [99, 98, 97] {
        scene.all_ask(left).await?;
    }
    scene.until("tidegate_cold_moved_total", users).await?;
    scene.until("tidegate_cold_moved_on_total", users).await?;
    scene.all_ask(96).await?;
    ensure!(scene.metric("tidegate_cold_fetched_total").await? >= users);
    let names = std::fs::read_to_string(scene.sidecar.dir().join("data/cold-databases"))?;
    ensure!(names.lines().count() == 2 && names.starts_with("redis://127.0.0.1"), "{names}");
    Ok(())
}

#[tokio::test]
async fn counters_are_exact_over_a_kill_and_a_server_that_stands_still() -> anyhow::Result<()> {
    let options = RedisOptions { password: Some("s3cret"), ..RedisOptions::default() };
    let Some(mut scene) = Scene::start(options, &PATIENT).await? else { return Ok(()) };
    for left in [99, 98, 97] {
        scene.all_ask(left).await?;
    }
    scene.until_all_moved().await?;
    scene.sidecar.sidecar.kill().await?;
    scene.sidecar.sidecar.restart().await?;
    scene.sidecar.rls = tidegate_tests::rls::Rls::at(scene.sidecar.dir()).await?;
    scene.redis.process.signal(Signal::STOP)?;
    wait::until("a degraded health", wait::RETRY, async || {
        // Denied by default, and not counted.
        let _ = scene.sidecar.ask("user=u1").await;
        let health = scene.health().await.ok()?;
        health.contains("a database of cold counters does not answer: redis://").then_some(())
    })
    .await?;
    scene.redis.process.signal(Signal::CONT)?;
    wait::until("the server to be asked again", wait::RETRY, async || {
        let _ = scene.sidecar.ask("user=other").await;
        let health = scene.health().await.ok()?;
        (!health.contains("does not answer")).then_some(())
    })
    .await?;
    scene.all_ask(96).await
}

#[tokio::test]
async fn commands_find_warm_counters() -> anyhow::Result<()> {
    let options = RedisOptions { password: Some("s3cret"), ..RedisOptions::default() };
    let Some(scene) = Scene::start(options, &PATIENT).await? else { return Ok(()) };
    for left in [99, 98, 97] {
        scene.all_ask(left).await?;
    }
    scene.until_all_moved().await?;
    let url = format!("redis://:s3cret@{}", scene.redis.address());
    let warm = ["--warm", url.as_str()];
    let limits = scene.sidecar.dir().join("limits");
    let limits = limits.to_str().context("a path")?;

    let inspected = scene.store(&["inspect", "--json"], &warm).await?.json()?;
    ensure!(inspected["cold"][0]["counters"] == USERS, "{inspected}");
    let got = scene.store(&["get", "--limits", limits, "user=u7", "--json"], &warm).await?;
    ensure!(got.code == Some(0), "{got:?}");
    let exported = scene.store(&["export"], &warm).await?;
    ensure!(exported.out.lines().count() as u32 == USERS + 1, "{exported:?}");
    let without = scene.store(&["export"], &["--warm", "off"]).await?;
    ensure!(without.code == Some(0) && without.out.lines().count() == 1, "{without:?}");
    let refused = scene.store(&["export"], &[]).await?;
    ensure!(refused.code != Some(0) && refused.err.contains("--warm"), "{refused:?}");
    let erased = scene.store(&["erase", "--limits", limits, "user=u7"], &warm).await?;
    ensure!(erased.code == Some(0), "{erased:?}");
    scene.asks(7, 99).await?;
    let reset = scene.store(&["reset", "--yes"], &warm).await?;
    ensure!(reset.code == Some(0), "{reset:?}");
    scene.all_ask(99).await
}

#[tokio::test]
async fn a_server_that_may_evict_degrades_the_health() -> anyhow::Result<()> {
    let flags = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
    let options = RedisOptions { flags: &flags, ..RedisOptions::default() };
    let Some(scene) = Scene::start(options, &PATIENT).await? else { return Ok(()) };
    wait::until("a warning", wait::RETRY, async || {
        let health = scene.health().await.ok()?;
        (health.starts_with("degraded: ") && health.contains("allkeys-lru")).then_some(())
    })
    .await?;
    ensure!(scene.sidecar.sidecar.process.log().contains("maxmemory-policy is allkeys-lru"));
    Ok(())
}
