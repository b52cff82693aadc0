//! The conformance cases, which have every algorithm, over counters in a Redis, in a cluster and in memcached.

use crate::scene::Scene;
use std::rc::Rc;
use tempfile::TempDir;
use tidegate_tests::corpus::holds_over_the_wire;
use tidegate_tests::shared_servers::{
    Cluster, Memcached, MemcachedProgram, RedisOptions, RedisPrograms,
};

/// A sidecar denies a request by the last answer about a counter, and takes nothing for it. A descriptor of a denied
/// request that had room by itself is said to be over its limit, if its counter is that of another descriptor which had none.
const DIFFER: [&str; 1] = ["A counter may be shared within one request"];

#[tokio::test]
async fn every_conformance_case_holds_over_redis() -> anyhow::Result<()> {
    let Some(scene) = Scene::start(RedisOptions::default()).await? else { return Ok(()) };
    holds_over(format!("redis://{}", scene.redis.address())).await
}

#[tokio::test]
async fn every_conformance_case_holds_over_a_cluster() -> anyhow::Result<()> {
    let Some(programs) = RedisPrograms::find()? else { return Ok(()) };
    let dir = TempDir::new()?;
    let cluster = Cluster::start(&programs, dir.path(), &[], None).await?;
    holds_over(format!("redis+cluster://{}", cluster.addresses())).await
}

#[tokio::test]
async fn every_conformance_case_holds_over_memcached() -> anyhow::Result<()> {
    let Some(program) = MemcachedProgram::find()? else { return Ok(()) };
    let dirs = [TempDir::new()?, TempDir::new()?];
    let one = Memcached::start(&program, dirs[0].path(), &[]).await?;
    let two = Memcached::start(&program, dirs[1].path(), &[]).await?;
    holds_over(format!("memcached://{},{}", one.address(), two.address())).await
}

async fn holds_over(url: String) -> anyhow::Result<()> {
    // Each sidecar has counters of its own: a case may run twice. Hits whose answer is late are counted again, so an answer
    // has more time than a busy machine takes.
    let flags = move |number: usize| {
        let prefix = format!("{number}:");
        let flags = ["--authority", &url, "--authority-timeout", "30s", "--authority-prefix"];
        flags.into_iter().chain([&*prefix]).map(str::to_owned).collect()
    };
    holds_over_the_wire(Rc::new(flags), &DIFFER).await
}
