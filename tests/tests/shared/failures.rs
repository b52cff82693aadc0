//! Servers of shared counters that are gone, stand still, or refuse.

use crate::scene::{Scene, clients, health, is_up, on};
use anyhow::ensure;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use tidegate_tests::proxy::Proxy;
use tidegate_tests::rls::{Rls, allowed_at_once, allowed_in_all};
use tidegate_tests::shared_servers::RedisOptions;
use tidegate_tests::sidecar::home;
use tidegate_tests::{artifacts, command, memory, wait};
use tidegate_wire::rls::Code;
use tokio::process::Command;

async fn code(rls: &Rls, value: &str) -> anyhow::Result<Code> {
    Ok(rls.ask(&[("counted", value)]).await?.overall_code())
}

#[tokio::test]
async fn the_failure_rule_decides_while_redis_is_gone() -> anyhow::Result<()> {
    let Some(mut scene) = Scene::start(RedisOptions::default()).await? else { return Ok(()) };
    let deny = scene.sidecar(&["--authority-failure", "deny"]).await?;
    let allow = scene.sidecar(&["--authority-failure", "allow", "--authority-health"]).await?;
    for sidecar in [&deny, &allow] {
        ensure!(code(&sidecar.rls, "before").await? == Code::Ok);
        ensure!(health(sidecar).await?.0 == 200);
    }
    scene.redis.kill().await?;
    for (sidecar, rule, expected) in [(&deny, "deny", Code::OverLimit), (&allow, "allow", Code::Ok)]
    {
        is_up(sidecar, false).await?;
        // More than the limit.
        for _ in 0..150 {
            ensure!(code(&sidecar.rls, "meanwhile").await? == expected, "{rule}");
        }
        let without = format!("tidegate_shared_decided_without_total{{rule=\"{rule}\"}} 150");
        sidecar.expect_metric(&without).await?;
    }
    for (sidecar, status, text) in [
        (&deny, 200, "degraded: a server of the shared counters does not answer: "),
        (&allow, 500, "a server of the shared counters does not answer\n"),
    ] {
        wait::until(text, wait::CHECK, async || {
            let (found, says) = health(sidecar).await.ok()?;
            (found == status && says.starts_with(text)).then_some(())
        })
        .await?;
    }

    scene.redis.restart().await?;
    for sidecar in [&deny, &allow] {
        is_up(sidecar, true).await?;
        wait::until("a good health", wait::CHECK, async || {
            (health(sidecar).await.ok()? == (200, "OK\n".to_owned())).then_some(())
        })
        .await?;
    }
    let allowed = allowed_in_all(clients(&[&deny, &allow], 2).await?, 60, ("counted", "after"));
    ensure!(allowed.await? == 100);
    let log = deny.sidecar.process.log();
    ensure!(log.contains("a server of the shared counters does not answer"), "{log}");
    ensure!(log.contains("the shared counters answer again"), "{log}");
    Ok(())
}

/// What was counted is on its disk.
#[tokio::test]
async fn a_redis_with_a_log_forgets_nothing_in_a_crash() -> anyhow::Result<()> {
    let flags = ["--appendonly", "yes", "--appendfsync", "always"];
    let options = RedisOptions { flags: &flags, ..RedisOptions::default() };
    let Some(mut scene) = Scene::start(options).await? else { return Ok(()) };
    let sidecar = scene.sidecar(&["--authority-failure", "deny"]).await?;
    let clients = clients(&[&sidecar], 2).await?;
    ensure!(allowed_at_once(clients.clone(), 30, ("direct", "a")).await? == 60);
    scene.redis.kill().await?;
    is_up(&sidecar, false).await?;
    scene.redis.restart().await?;
    is_up(&sidecar, true).await?;
    let allowed = allowed_at_once(clients, 60, ("direct", "a")).await?;
    ensure!(allowed == 40, "{allowed} of 40");
    Ok(())
}

/// The same for a network that parts one of two sidecars from Redis.
#[tokio::test]
async fn a_redis_that_stands_still_is_as_one_that_is_gone() -> anyhow::Result<()> {
    let Some(scene) = Scene::start(RedisOptions::default()).await? else { return Ok(()) };
    let proxy = Proxy::start(SocketAddr::from((Ipv4Addr::LOCALHOST, scene.redis.port))).await?;
    let flags = ["--authority-failure", "deny"];
    let parted = on(&format!("redis://{}", proxy.address), &flags).await?;
    let other = scene.sidecar(&flags).await?;
    for sidecar in [&parted, &other] {
        ensure!(code(&sidecar.rls, "before").await? == Code::Ok);
    }
    proxy.silence();
    ensure!(code(&parted.rls, "meanwhile").await? == Code::OverLimit);
    ensure!(code(&other.rls, "meanwhile").await? == Code::Ok);
    proxy.open();
    is_up(&parted, true).await?;
    scene.redis.process.freeze().await?;
    for sidecar in [&parted, &other] {
        ensure!(code(&sidecar.rls, "frozen").await? == Code::OverLimit);
        // None of its connections is as before.
        is_up(sidecar, false).await?;
    }
    scene.redis.process.thaw()?;
    for sidecar in [&parted, &other] {
        is_up(sidecar, true).await?;
    }
    let allowed = allowed_in_all(clients(&[&parted, &other], 2).await?, 60, ("counted", "after"));
    let allowed = allowed.await?;
    ensure!(allowed == 100, "{allowed} of 100");
    Ok(())
}

/// A sidecar that is killed has its tokens when it comes back.
#[tokio::test]
async fn a_killed_sidecar_opens_no_limit() -> anyhow::Result<()> {
    let Some(scene) = Scene::start(RedisOptions::default()).await? else { return Ok(()) };
    let (mut one, two) = (scene.sidecar(&[]).await?, scene.sidecar(&[]).await?);
    let before = allowed_at_once(clients(&[&one], 2).await?, 10, ("counted", "a")).await?;
    ensure!(before == 20, "{before} of 20");
    one.sidecar.kill().await?;
    one.sidecar.restart().await?;
    is_up(&one, true).await?;
    let after = allowed_in_all(clients(&[&one, &two], 2).await?, 60, ("counted", "a")).await?;
    ensure!(before + after == 100, "{before} and {after} of 100");
    Ok(())
}

/// The memory of a sidecar ends with its machine. The tokens in it were spent, so those of a snapshot would be spent twice.
#[tokio::test]
async fn a_sidecar_that_lost_its_memory_opens_no_limit() -> anyhow::Result<()> {
    let Some(scene) = Scene::start(RedisOptions::default()).await? else { return Ok(()) };
    let mut sidecar = scene.sidecar(&["--sync-interval", "100ms"]).await?;
    // Slow enough that tokens are held while the snapshots would be made.
    let (mut allowed, mut pace) = (0, tokio::time::interval(Duration::from_millis(60)));
    for asks in [5, 5, 5, 5, 5, 30] {
        pace.tick().await;
        allowed += allowed_at_once(clients(&[&sidecar], 2).await?, asks, ("counted", "a")).await?;
    }
    sidecar.sidecar.kill().await?;
    std::fs::remove_dir_all(memory::of(&sidecar.dir().join("data"))?)?;
    sidecar.sidecar.restart().await?;
    allowed += allowed_at_once(clients(&[&sidecar], 2).await?, 60, ("counted", "a")).await?;
    ensure!(allowed <= 100, "{allowed} of 100");
    let log = sidecar.sidecar.process.log();
    ensure!(log.contains("the memory of the last process is gone"), "{log}");
    Ok(())
}

/// The first start, without a server: the failure rule decides, and the health check says why.
#[tokio::test]
async fn a_sidecar_starts_before_its_server() -> anyhow::Result<()> {
    let Some(mut scene) = Scene::start(RedisOptions::default()).await? else { return Ok(()) };
    scene.redis.kill().await?;
    let deny = scene.sidecar_alone(&["--authority-failure", "deny", "--workers", "2"]).await?;
    let allow = scene.sidecar_alone(&["--authority-failure", "allow"]).await?;
    for (sidecar, expected) in [(&deny, Code::OverLimit), (&allow, Code::Ok)] {
        for key in ["counted", "direct"] {
            let found = sidecar.rls.ask(&[(key, "meanwhile")]).await?.overall_code();
            ensure!(found == expected, "{key}: {found:?}");
        }
        let (status, text) = health(sidecar).await?;
        let says = "none has answered yet, so --authority-failure decides every request";
        ensure!(status == 200 && text.starts_with("degraded: ") && text.contains(says), "{text}");
    }
    scene.redis.restart().await?;
    for sidecar in [&deny, &allow] {
        is_up(sidecar, true).await?;
    }
    for key in ["counted", "direct"] {
        let clients = clients(&[&deny, &allow], 2).await?;
        let allowed = allowed_in_all(clients, 60, (key, "after")).await?;
        ensure!(allowed == 100, "{key}: {allowed} of 100");
    }
    Ok(())
}

/// It goes on with what it knew: the seed, the time, and how many sidecars there are.
#[tokio::test]
async fn a_sidecar_starts_again_while_its_server_is_away() -> anyhow::Result<()> {
    let Some(scene) = Scene::start(RedisOptions::default()).await? else { return Ok(()) };
    let proxy = Proxy::start(SocketAddr::from((Ipv4Addr::LOCALHOST, scene.redis.port))).await?;
    let mut parted = on(&format!("redis://{}", proxy.address), &[]).await?;
    let other = scene.sidecar(&[]).await?;
    let known = parted.dir().join("data/shared-counters.json");
    wait::until("a copy that knows two sidecars", wait::RETRY, async || {
        let clients = clients(&[&parted, &other], 2).await.ok()?;
        allowed_at_once(clients, 20, ("counted", "before")).await.ok()?;
        std::fs::read_to_string(&known).ok()?.contains("\"sidecars\":[2,").then_some(())
    })
    .await?;
    proxy.cut();
    parted.sidecar.kill().await?;
    parted.sidecar.restart().await?;
    // Half of the limit, which counts when the server is back.
    let allowed = allowed_at_once(clients(&[&parted], 2).await?, 60, ("counted", "meanwhile"));
    let allowed = allowed.await?;
    ensure!(allowed == 50, "{allowed} of 50");
    proxy.open();
    is_up(&parted, true).await?;
    // Its next request has it pay.
    let first = allowed_at_once(clients(&[&parted], 1).await?, 1, ("counted", "meanwhile")).await?;
    let rest = allowed_in_all(clients(&[&parted, &other], 2).await?, 60, ("counted", "meanwhile"));
    let rest = rest.await?;
    ensure!(first + rest == 50, "{first} and {rest} of 50");

    // Another server in its place has counted under other keys.
    proxy.cut();
    parted.sidecar.kill().await?;
    parted.sidecar.restart().await?;
    scene.redis.command(&["SET", "tidegate:seed", "00000000000000aa"]).await?;
    proxy.open();
    wait::until("a refusal of the other seed", wait::RETRY, async || {
        let (_, text) = health(&parted).await.ok()?;
        let says = ["tidegate:seed", "00000000000000aa", "restart the sidecar"];
        says.iter().all(|part| text.contains(part)).then_some(())
    })
    .await?;
    parted.sidecar.kill().await?;
    parted.sidecar.restart().await?;
    is_up(&parted, true).await?;
    ensure!(health(&parted).await? == (200, "OK\n".to_owned()));
    Ok(())
}

/// The start fails with the words of the server, and without the password.
#[tokio::test]
async fn a_server_that_refuses_the_password_is_an_error_at_the_start() -> anyhow::Result<()> {
    let secured = RedisOptions { password: Some("right"), ..RedisOptions::default() };
    let Some(scene) = Scene::start(secured).await? else { return Ok(()) };
    let (dir, limits) = home("domain: test\ndescriptors: []\n")?;
    let address = scene.redis.address();
    for (url, says) in [
        (format!("redis://:secret@{address}"), "Password authentication failed"),
        (format!("redis://{address}"), "NOAUTH"),
    ] {
        let mut command = Command::new(artifacts::sidecar()?);
        command.args(["serve", "--http", "off", "--frs", "off", "--grpc", "127.0.0.1:0"]);
        command.args(["--capacity", "1000", "--authority", &url]).arg("--limits").arg(&limits);
        command.arg("--data-dir").arg(dir.path().join("data"));
        let ran = command::run(command).await?;
        ensure!(ran.code == Some(1) && ran.err.contains(says), "{url}: {ran:?}");
        ensure!(!ran.err.contains("secret") && !ran.out.contains("secret"), "{ran:?}");
    }
    Ok(())
}

/// A server that may forget counters is warned of, and used.
#[tokio::test]
async fn a_server_that_may_evict_counters_is_warned_of() -> anyhow::Result<()> {
    let flags = ["--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru"];
    let options = RedisOptions { flags: &flags, ..RedisOptions::default() };
    let Some(scene) = Scene::start(options).await? else { return Ok(()) };
    let sidecar = scene.sidecar(&["--authority-health"]).await?;
    ensure!(code(&sidecar.rls, "a").await? == Code::Ok);
    let (status, text) = health(&sidecar).await?;
    let policy = "maxmemory-policy is volatile-lru; set noeviction";
    ensure!(status == 200 && text.starts_with("degraded: ") && text.contains(policy), "{text}");
    ensure!(sidecar.sidecar.process.log().contains(policy));
    Ok(())
}

/// Out of memory: the failure rule decides until there is room.
#[tokio::test]
async fn a_redis_without_memory_is_as_one_that_is_gone() -> anyhow::Result<()> {
    let Some(scene) = Scene::start(RedisOptions::default()).await? else { return Ok(()) };
    let sidecar = scene.sidecar(&["--authority-failure", "deny"]).await?;
    ensure!(code(&sidecar.rls, "before").await? == Code::Ok);
    scene.redis.command(&["CONFIG", "SET", "maxmemory", "1"]).await?;
    ensure!(code(&sidecar.rls, "meanwhile").await? == Code::OverLimit);
    scene.redis.command(&["CONFIG", "SET", "maxmemory", "0"]).await?;
    let allowed = allowed_at_once(clients(&[&sidecar], 2).await?, 60, ("counted", "after")).await?;
    ensure!(allowed == 100, "{allowed} of 100");
    Ok(())
}
