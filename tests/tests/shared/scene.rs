//! Several sidecars on shared counters. Each stands for a machine: it has a data directory of its own.

use anyhow::Context;
use tempfile::TempDir;
use tidegate_tests::rls::Rls;
use tidegate_tests::service::Service;
use tidegate_tests::shared_servers::{Redis, RedisOptions, RedisPrograms};
use tidegate_tests::{client, wait};

/// One limit of a hundred an hour for each value, one that a sidecar cannot hold, and one of three.
pub(crate) const LIMITS: &str = "  - key: counted
    rate_limit: { unit: hour, requests_per_unit: 100 }
  - key: direct
    rate_limits: [ { unit: hour, requests_per_unit: 100, count_denied: true } ]
  - key: few
    rate_limit: { unit: hour, requests_per_unit: 3 }
";

/// A Redis with a directory.
pub(crate) struct Scene {
    pub(crate) redis: Redis,
    _dir: TempDir,
}

impl Scene {
    /// None if there is no Redis on this machine.
    pub(crate) async fn start(options: RedisOptions<'_>) -> anyhow::Result<Option<Scene>> {
        let Some(programs) = RedisPrograms::find()? else { return Ok(None) };
        let dir = TempDir::new()?;
        let redis = Redis::start(&programs, dir.path(), options).await?;
        Ok(Some(Scene { redis, _dir: dir }))
    }

    /// A sidecar on it.
    pub(crate) async fn sidecar(&self, flags: &[&str]) -> anyhow::Result<Service> {
        on(&self.url(), flags).await
    }

    /// The same before it has a connection.
    pub(crate) async fn sidecar_alone(&self, flags: &[&str]) -> anyhow::Result<Service> {
        alone(&self.url(), flags).await
    }

    fn url(&self) -> String {
        format!("redis://{}", self.redis.address())
    }
}

/// A sidecar that is connected to these servers.
pub(crate) async fn on(url: &str, flags: &[&str]) -> anyhow::Result<Service> {
    let sidecar = alone(url, flags).await?;
    is_up(&sidecar, true).await?;
    Ok(sidecar)
}

async fn alone(url: &str, flags: &[&str]) -> anyhow::Result<Service> {
    // A busy machine may take long to answer.
    let usual = ["--authority", url, "--authority-timeout", "2s"];
    Service::start(LIMITS, &[&usual[..], flags].concat()).await
}

/// Waits until the metrics of a sidecar say whether its servers answer.
pub(crate) async fn is_up(sidecar: &Service, is_up: bool) -> anyhow::Result<()> {
    sidecar.until_metric(&format!("tidegate_shared_up {}", u8::from(is_up))).await
}

/// So many connections to each of these sidecars.
pub(crate) async fn clients(sidecars: &[&Service], each: usize) -> anyhow::Result<Vec<Rls>> {
    let mut clients = Vec::new();
    for sidecar in sidecars {
        for _ in 0..each {
            clients.push(Rls::at(sidecar.dir()).await?);
        }
    }
    Ok(clients)
}

/// The status and the text of a sidecar's health check.
pub(crate) async fn health(sidecar: &Service) -> anyhow::Result<(u16, String)> {
    let answer = client::get(sidecar.sidecar.http, "/healthcheck").await?;
    Ok((answer.status.into(), String::from_utf8(answer.body.into()).context("text")?))
}

/// Waits until the health check of a sidecar is degraded, with this in its text.
pub(crate) async fn says(sidecar: &Service, text: &str) -> anyhow::Result<()> {
    wait::until(text, wait::CHECK, async || {
        let (status, found) = health(sidecar).await.ok()?;
        (status == 200 && found.starts_with("degraded: ") && found.contains(text)).then_some(())
    })
    .await
}
