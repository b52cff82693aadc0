//! Sidecars with one Redis hold one limit together.

use crate::scene::{Scene, clients, on};
use anyhow::{Context, ensure};
use std::time::Duration;
use tempfile::TempDir;
use tidegate_tests::rls::{allowed_at_once, allowed_in_all};
use tidegate_tests::shared_servers::{
    Cluster, Memcached, MemcachedProgram, PRIMARY, Redis, RedisOptions, RedisPrograms, Replicated,
    ServerTls,
};
use tidegate_tests::wait;
use tidegate_wire::rls::Code;

/// Over tokens that each holds, and directly.
#[tokio::test]
async fn sidecars_admit_a_limit_once() -> anyhow::Result<()> {
    let Some(scene) = Scene::start(RedisOptions::default()).await? else { return Ok(()) };
    let (one, two) = (scene.sidecar(&[]).await?, scene.sidecar(&["--workers", "2"]).await?);
    for key in ["counted", "direct"] {
        let clients = clients(&[&one, &two], 4).await?;
        let allowed = allowed_in_all(clients, 60, (key, "a")).await?;
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
    let cluster = Cluster::start(&programs, dir.path(), &[], Some("secret")).await?;
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
        (format!("redis+cluster://:secret@{}", cluster.addresses()), vec![]),
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
        sidecar.until_metric("tidegate_shared_up 1").await?;
    }
    Ok(())
}

#[tokio::test]
async fn clusters_and_memcached_are_reached_over_tls() -> anyhow::Result<()> {
    let (Some(programs), Some(program)) = (RedisPrograms::find()?, MemcachedProgram::find()?)
    else {
        return Ok(());
    };
    let dir = TempDir::new()?;
    let tls = ServerTls::new(dir.path())?.with_client_certificates();
    let cluster = Cluster::start_with_tls(&programs, dir.path(), &tls).await?;
    let memcached = Memcached::start_with_tls(&program, dir.path(), &tls).await?;
    let path = |path: &std::path::Path| path.display().to_string();
    let (ca, cert, key) = (path(&tls.ca), path(&tls.cert), path(&tls.key));
    let files = ["--authority-ca", &ca, "--authority-cert", &cert, "--authority-key", &key];
    let port = memcached.tls_port.context("a port for TLS")?;
    for url in [
        format!("rediss+cluster://{}", cluster.addresses()),
        format!("memcacheds://127.0.0.1:{port}"),
    ] {
        let sidecar = on(&url, &files).await?;
        let allowed = allowed_at_once(clients(&[&sidecar], 2).await?, 5, ("few", "a")).await?;
        ensure!(allowed == 3, "{url}: {allowed} of 3");
        sidecar.until_metric("tidegate_shared_up 1").await?;
    }
    Ok(())
}

/// Three sidecars, many counters on all masters, and requests over several of them.
#[tokio::test]
async fn sidecars_with_a_cluster_admit_a_limit_once() -> anyhow::Result<()> {
    let Some(programs) = RedisPrograms::find()? else { return Ok(()) };
    let dir = TempDir::new()?;
    let cluster = Cluster::start(&programs, dir.path(), &[], None).await?;
    let url = format!("redis+cluster://{}", cluster.addresses());
    let sidecars =
        [on(&url, &[]).await?, on(&url, &[]).await?, on(&url, &["--workers", "2"]).await?];
    let all: Vec<_> = sidecars.iter().collect();
    for key in ["counted", "direct"] {
        for value in ["a", "b", "c", "d"] {
            let clients = clients(&all, 3).await?;
            let allowed = allowed_in_all(clients, 30, (key, value)).await?;
            ensure!(allowed == 100, "{key} {value}: {allowed} of 100");
        }
    }
    // The descriptor with a limit of three is at another place than the one that is decided directly.
    let rls = clients(&all, 1).await?;
    let mut allowed = 0;
    for number in 0..12 {
        let answer = rls[number % 3].ask(&[("direct", "pair"), ("few", "pair")]).await?;
        allowed += u32::from(answer.overall_code() == Code::Ok);
    }
    ensure!(allowed == 3, "{allowed} of 3");
    // So many that each master gets some.
    for number in 0..100 {
        rls[0].ask(&[("few", &format!("number-{number}"))]).await?;
    }
    for node in &cluster.nodes[..3] {
        let keys: u32 = node.command(&["DBSIZE"]).await?.parse()?;
        ensure!(keys > 0, "a master without keys");
    }
    Ok(())
}
