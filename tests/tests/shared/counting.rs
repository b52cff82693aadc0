//! Sidecars with one Redis hold one limit together.

use crate::scene::{Scene, clients, on};
use anyhow::ensure;
use std::time::Duration;
use tempfile::TempDir;
use tidegate_tests::rls::allowed_at_once;
use tidegate_tests::shared_servers::{
    PRIMARY, Redis, RedisOptions, RedisPrograms, Replicated, ServerTls,
};
use tidegate_tests::wait;

/// Over tokens that each holds, and directly.
#[tokio::test]
async fn sidecars_admit_a_limit_once() -> anyhow::Result<()> {
    let Some(scene) = Scene::start(RedisOptions::default()).await? else { return Ok(()) };
    let (one, two) = (scene.sidecar(&[]).await?, scene.sidecar(&["--workers", "2"]).await?);
    for key in ["counted", "direct"] {
        let clients = clients(&[&one, &two], 4).await?;
        let allowed = allowed_at_once(clients, 60, (key, "a")).await?;
        ensure!(allowed == 100, "{key}: {allowed} of 100");
    }
    Ok(())
}

/// Tokens that a sidecar took ahead of requests, and that nobody asks it for any more.
#[tokio::test]
async fn what_a_sidecar_does_not_spend_another_can() -> anyhow::Result<()> {
    let Some(scene) = Scene::start(RedisOptions::default()).await? else { return Ok(()) };
    let (one, two) = (scene.sidecar(&[]).await?, scene.sidecar(&[]).await?);
    let key = ("counted", "left");
    let mut allowed = allowed_at_once(clients(&[&one], 4).await?, 10, key).await?;
    ensure!(allowed == 40, "{allowed} of 40");
    wait::until("another sidecar has admitted the rest", Duration::from_secs(3), async || {
        let clients = clients(&[&two], 1).await.ok()?;
        allowed += allowed_at_once(clients, 10, key).await.ok()?;
        (allowed >= 100).then_some(())
    })
    .await?;
    ensure!(allowed == 100, "{allowed} of 100");
    Ok(())
}

/// A prefix is all that keeps installations apart.
#[tokio::test]
async fn sidecars_with_other_prefixes_count_apart() -> anyhow::Result<()> {
    let Some(scene) = Scene::start(RedisOptions::default()).await? else { return Ok(()) };
    let (one, two) =
        (scene.sidecar(&[]).await?, scene.sidecar(&["--authority-prefix", "other:"]).await?);
    for sidecar in [&one, &two] {
        let allowed = allowed_at_once(clients(&[sidecar], 2).await?, 5, ("few", "a")).await?;
        ensure!(allowed == 3, "{allowed} of 3");
    }
    // The seed and the counter, at least.
    let count = "return #redis.call('KEYS', ARGV[1])";
    for prefix in ["tidegate:*", "other:*"] {
        let keys: u32 = scene.redis.command(&["EVAL", count, "0", prefix]).await?.parse()?;
        ensure!(keys > 1, "{prefix}: {keys}");
    }
    Ok(())
}

/// The URL of each kind of server, with what it asks for.
#[tokio::test]
async fn each_kind_of_server_is_reached() -> anyhow::Result<()> {
    let Some(programs) = RedisPrograms::find()? else { return Ok(()) };
    let dir = TempDir::new()?;
    let tls = ServerTls::new(dir.path())?.with_client_certificates();
    let options =
        RedisOptions { password: Some("secret"), tls: Some(&tls), ..RedisOptions::default() };
    let redis = Redis::start(&programs, dir.path(), options).await?;
    let sentinel = Replicated::start(&programs, dir.path(), Some("secret"), Some("watch")).await?;
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).map(|()| path.display().to_string())
    };
    let (password, watchword) = (file("password", "secret\n")?, file("watchword", "watch\n")?);
    let by_file = ["--authority-password-file", &password];
    let path = |path: &std::path::Path| path.display().to_string();
    let (ca, cert, key) = (path(&tls.ca), path(&tls.cert), path(&tls.key));
    let files = ["--authority-ca", &ca, "--authority-cert", &cert, "--authority-key", &key];
    let by_name = format!("rediss://localhost:{}", redis.port);
    for (url, flags) in [
        (format!("unix:{}", Redis::socket(dir.path(), "redis").display()), by_file.to_vec()),
        (format!("rediss://:secret@{}", redis.address()), files.to_vec()),
        // The certificate is for 127.0.0.1.
        (by_name, [&by_file[..], &files, &["--authority-skip-hostname"]].concat()),
        (
            format!("redis+sentinel://{}/{PRIMARY}", sentinel.sentinel_addresses()),
            [&by_file[..], &["--authority-sentinel-password-file", &watchword]].concat(),
        ),
    ] {
        let prefix = format!("{}:", flags.len());
        let flags = [&flags[..], &["--authority-prefix", &prefix]].concat();
        let sidecar = on(&url, &flags).await?;
        let allowed = allowed_at_once(clients(&[&sidecar], 2).await?, 5, ("few", "a")).await?;
        ensure!(allowed == 3, "{url}: {allowed} of 3");
        sidecar.expect_metric("tidegate_shared_up 1").await?;
    }
    Ok(())
}
