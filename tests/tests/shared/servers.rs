//! The servers themselves: each starts, answers, is killed, comes back and fails over as the tests of sidecars rely on.

use anyhow::ensure;
use std::net::{Ipv4Addr, SocketAddr};
use tempfile::TempDir;
use tidegate_tests::process::lives;
use tidegate_tests::proxy::Proxy;
use tidegate_tests::shared_servers::{
    Cluster, Memcached, MemcachedProgram, Redis, RedisOptions, RedisPrograms, Replicated, ServerTls,
};
use tidegate_tests::wait;
use tokio::net::TcpStream;

#[tokio::test]
async fn a_redis_is_killed_frozen_and_started_again_at_its_port() -> anyhow::Result<()> {
    let Some(programs) = RedisPrograms::find()? else { return Ok(()) };
    let dir = TempDir::new()?;
    let mut redis = Redis::start(&programs, dir.path(), RedisOptions::default()).await?;
    redis.command(&["SET", "a", "1"]).await?;
    ensure!(redis.command(&["GET", "a"]).await? == "1");
    ensure!(redis.calls("set").await? == 1 && redis.calls("del").await? == 0);
    let failed = redis.command(&["INCR"]).await.expect_err("half a command").to_string();
    ensure!(failed.contains("wrong number of arguments"), "{failed}");

    redis.process.freeze().await?;
    redis.process.thaw()?;
    ensure!(redis.command(&["GET", "a"]).await? == "1");

    let port = redis.port;
    redis.kill().await?;
    ensure!(redis.command(&["PING"]).await.is_err(), "it answers though it was killed");
    redis.restart().await?;
    ensure!(redis.port == port && redis.command(&["GET", "a"]).await?.is_empty());
    redis.stop().await
}

#[tokio::test]
async fn a_server_ends_with_a_test_that_panics() -> anyhow::Result<()> {
    let Some(programs) = RedisPrograms::find()? else { return Ok(()) };
    let dir = TempDir::new()?;
    let redis = Redis::start(&programs, dir.path(), RedisOptions::default()).await?;
    let pid = redis.process.pid()?;
    let test = tokio::spawn(async move {
        let _redis = redis;
        // Without the message of a panic.
        std::panic::resume_unwind(Box::new("a test fails"));
    });
    ensure!(test.await.is_err_and(|error| error.is_panic()));
    wait::until("the server to end", wait::SOON, async || (!lives(pid)).then_some(())).await
}

#[tokio::test]
async fn a_redis_asks_for_its_password_and_for_certificates() -> anyhow::Result<()> {
    let Some(programs) = RedisPrograms::find()? else { return Ok(()) };
    let dir = TempDir::new()?;
    let tls = ServerTls::new(dir.path())?.with_client_certificates();
    let secured =
        RedisOptions { password: Some("secret"), tls: Some(&tls), ..RedisOptions::default() };
    let redis = Redis::start(&programs, dir.path(), secured).await?;
    ensure!(redis.command(&["CONFIG", "GET", "requirepass"]).await?.ends_with("secret"));
    // Its socket needs no TLS, but the password.
    let socket = Redis::socket(dir.path(), "redis");
    let mut stream = tokio::net::UnixStream::connect(socket).await?;
    tokio::io::AsyncWriteExt::write_all(&mut stream, b"PING\r\n").await?;
    let mut answer = [0; 7];
    let read = tokio::io::AsyncReadExt::read_exact(&mut stream, &mut answer);
    wait::within("a refusal", wait::SOON, read).await??;
    ensure!(&answer == b"-NOAUTH");
    Ok(())
}

/// As one client that is parted from a server which others reach.
#[tokio::test]
async fn a_proxy_parts_one_client_from_a_redis() -> anyhow::Result<()> {
    let Some(programs) = RedisPrograms::find()? else { return Ok(()) };
    let dir = TempDir::new()?;
    let redis = Redis::start(&programs, dir.path(), RedisOptions::default()).await?;
    let proxy = Proxy::start(SocketAddr::from((Ipv4Addr::LOCALHOST, redis.port))).await?;
    let mut client = TcpStream::connect(proxy.address).await?;
    proxy.cut();
    let mut rest = Vec::new();
    let read = tokio::io::AsyncReadExt::read_to_end(&mut client, &mut rest);
    let _ = wait::within("the end of the connection", wait::SOON, read).await?;
    ensure!(redis.command(&["PING"]).await? == "PONG");
    Ok(())
}

#[tokio::test]
async fn sentinels_make_the_replica_the_primary() -> anyhow::Result<()> {
    let Some(programs) = RedisPrograms::find()? else { return Ok(()) };
    let dir = TempDir::new()?;
    let passwords = (Some("secret"), Some("watchword"));
    let mut replicated = Replicated::start(&programs, dir.path(), passwords.0, passwords.1).await?;
    ensure!(replicated.primary().await == Some(0));
    ensure!(replicated.servers[0].command(&["SET", "a", "1"]).await? == "OK");
    replicated.servers[0].is_replicated().await?;
    replicated.servers[0].kill().await?;
    replicated.becomes_primary(1).await?;
    ensure!(replicated.servers[1].command(&["GET", "a"]).await? == "1");
    Ok(())
}

#[tokio::test]
async fn a_cluster_serves_every_slot_and_again_when_a_master_is_gone() -> anyhow::Result<()> {
    let Some(programs) = RedisPrograms::find()? else { return Ok(()) };
    let dir = TempDir::new()?;
    let mut cluster = Cluster::start(&programs, dir.path(), &[], None).await?;
    let mut masters: Vec<usize> = Vec::new();
    for key in ["a", "b", "c"] {
        masters.push(cluster.master_of(key).await?);
    }
    ensure!(masters.iter().all(|&master| master < 3) && masters[0] != masters[1], "{masters:?}");
    let master = masters[0];
    ensure!(cluster.nodes[master].command(&["SET", "a", "1"]).await? == "OK");
    cluster.nodes[master].is_replicated().await?;
    cluster.nodes[master].kill().await?;
    cluster.fails_over("a", master).await?;
    let now = cluster.master_of("a").await?;
    ensure!(cluster.nodes[now].command(&["GET", "a"]).await? == "1");
    Ok(())
}

#[tokio::test]
async fn a_memcached_is_killed_and_started_again_at_its_port() -> anyhow::Result<()> {
    let Some(program) = MemcachedProgram::find()? else { return Ok(()) };
    let dir = TempDir::new()?;
    let mut memcached = Memcached::start(&program, dir.path(), &["-m", "8"]).await?;
    ensure!(memcached.command("set a 0 60 1\r\n1").await? == "STORED");
    ensure!(memcached.command("get a").await? == "VALUE a 0 1");
    memcached.kill().await?;
    memcached.restart().await?;
    ensure!(memcached.command("get a").await? == "END");
    Ok(())
}
