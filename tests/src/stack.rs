//! The whole of it in one directory: upstream, sidecar, Envoy.

use crate::envoy::{Envoy, Filter, Setup, bootstrap};
use crate::sidecar::Sidecar;
use crate::upstream::Upstream;
use anyhow::Context;
use std::path::Path;
use tempfile::TempDir;

/// A running stack. Its processes end when it is dropped, and its directory goes with them.
#[derive(Debug)]
pub struct Stack {
    /// The front.
    pub envoy: Envoy,
    /// The counters.
    pub sidecar: Sidecar,
    /// The service behind.
    pub upstream: Upstream,
    /// Logs, data, sockets and configuration.
    pub dir: TempDir,
}

impl Stack {
    /// Starts a stack on a limits file's text.
    ///
    /// # Errors
    /// When a part does not start; the error has its log.
    pub async fn start(limits: &str, filter: Filter<'_>, workers: u32) -> anyhow::Result<Stack> {
        let dir = TempDir::new()?;
        let path = dir.path().join("limits.yaml");
        std::fs::write(&path, limits)?;
        let upstream = Upstream::start("127.0.0.1:0").await?;
        let sidecar = Sidecar::start(dir.path(), &path).await?;
        let socket = Sidecar::socket(dir.path());
        let config =
            bootstrap(&Setup { filter, sidecar: &socket, upstream: upstream.address })?.to_string();
        let envoy = start_envoy(&config, dir.path(), workers).await?;
        Ok(Stack { envoy, sidecar, upstream, dir })
    }
}

/// Writes `config` to `dir` and starts Envoy on it.
///
/// # Errors
/// When Envoy does not start; the error has its log.
pub async fn start_envoy(config: &str, dir: &Path, workers: u32) -> anyhow::Result<Envoy> {
    // JSON is YAML, and Envoy goes by the name.
    let path = dir.join("envoy.yaml");
    std::fs::write(&path, config).with_context(|| format!("cannot write {}", path.display()))?;
    Envoy::start(&path, dir, workers).await
}
