//! The gRPC endpoint from outside, beyond rate limit calls: its other services, TLS, and peers of all kinds.

mod peers;
mod services;
mod tls;

use std::net::SocketAddr;
use tempfile::TempDir;
use tidegate_tests::rls::Rls;
use tidegate_tests::sidecar::Sidecar;
use tidegate_tests::{client, wait};
use tonic::transport::{Channel, Endpoint};

/// A sidecar with its gRPC endpoint at a TCP port and at a Unix socket.
struct Served {
    dir: TempDir,
    sidecar: Sidecar,
    tcp: SocketAddr,
}

impl Served {
    async fn start(flags: &[&str]) -> anyhow::Result<Served> {
        let dir = TempDir::new()?;
        let (sidecar, tcp) = Sidecar::start_on_tcp(dir.path(), flags).await?;
        Ok(Served { dir, sidecar, tcp })
    }

    async fn channel(&self) -> anyhow::Result<Channel> {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.tcp))?;
        Ok(wait::within("a connection", wait::HANDSHAKE, endpoint.connect()).await??)
    }

    /// Fails when the endpoint does not answer others any more.
    async fn check_alive(&self) -> anyhow::Result<()> {
        Rls::at(self.dir.path()).await?.ask(&[("free", "a")]).await?;
        Ok(())
    }

    async fn metric(&self, line: &str) -> anyhow::Result<bool> {
        let metrics = client::get(self.sidecar.http, "/metrics").await?;
        Ok(String::from_utf8_lossy(&metrics.body).lines().any(|found| found == line))
    }
}
