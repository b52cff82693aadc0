//! The gRPC door from outside, beyond rate limit calls: its other services, TLS, and peers of all kinds.

mod frames;
mod peers;
mod services;
mod tls;

use anyhow::Context;
use serde_json::Value;
use std::net::SocketAddr;
use tempfile::TempDir;
use tidegate_tests::client;
use tidegate_tests::rls::Rls;
use tidegate_tests::sidecar::Sidecar;
use tonic::transport::{Channel, Endpoint};

const LIMITS: &str = "\
domain: test
descriptors:
  - key: free
    rate_limit: { unlimited: true }
  - key: counted
    rate_limit: { unit: hour, requests_per_unit: 100 }
";

/// A sidecar with its gRPC door at a TCP port and at a Unix socket.
struct Served {
    dir: TempDir,
    sidecar: Sidecar,
    tcp: SocketAddr,
}

impl Served {
    async fn start(flags: &[&str]) -> anyhow::Result<Served> {
        let dir = TempDir::new()?;
        let limits = dir.path().join("limits.yaml");
        std::fs::write(&limits, LIMITS)?;
        let flags = [&["--capacity", "1000", "--grpc", "127.0.0.1:0"], flags].concat();
        let sidecar = Sidecar::start_with(dir.path(), &limits, &flags).await?;
        let tcp = tcp_of(&sidecar.process.log()).context("no TCP address in the log")?;
        Ok(Served { dir, sidecar, tcp })
    }

    async fn channel(&self) -> anyhow::Result<Channel> {
        Ok(Endpoint::from_shared(format!("http://{}", self.tcp))?.connect().await?)
    }

    /// Fails when the door does not answer others any more.
    async fn check_alive(&self) -> anyhow::Result<()> {
        Rls::at(self.dir.path()).await?.ask(&[("free", "a")]).await?;
        Ok(())
    }

    async fn metric(&self, line: &str) -> anyhow::Result<bool> {
        let metrics = client::get(self.sidecar.http, "/metrics").await?;
        Ok(String::from_utf8_lossy(&metrics.body).lines().any(|found| found == line))
    }
}

fn tcp_of(log: &str) -> Option<SocketAddr> {
    let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let grpc = events.filter(|event| event["fields"]["door"] == "grpc");
    grpc.filter_map(|event| event["fields"]["address"].as_str()?.parse().ok()).next()
}
