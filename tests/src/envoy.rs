//! A real Envoy as a process: started on a configuration, asked for its stats.

use crate::client::get;
use crate::process::Process;
use crate::shared_envoy::SharedListener;
use crate::{artifacts, wait};
use anyhow::Context;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::process::Command;

/// The service cluster that each Envoy belongs to.
pub const SERVICE_CLUSTER: &str = "edge";

/// A running Envoy.
#[derive(Debug, Clone)]
pub struct Envoy {
    /// The process. Stacks may share it.
    pub process: Arc<Process>,
    /// Its listener.
    pub address: SocketAddr,
    /// Its admin interface.
    pub admin: SocketAddr,
    /// What keeps the listener, if several stacks share the process.
    pub(crate) shared: Option<Arc<SharedListener>>,
}

impl Envoy {
    /// Starts Envoy on the configuration in `config` (YAML or JSON, ports may be 0), with its log
    /// in `dir`, and waits until it is ready.
    ///
    /// # Errors
    /// When it ends instead; the error has its log.
    pub async fn start(config: &Path, dir: &Path, workers: u32) -> anyhow::Result<Envoy> {
        Envoy::ready(Envoy::launch(config, dir, workers)?, dir).await
    }

    /// Starts Envoy without waiting, for configurations that it should refuse.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn launch(config: &Path, dir: &Path, workers: u32) -> anyhow::Result<Process> {
        Process::start(Envoy::command(config, dir, workers)?, "envoy", dir)
    }

    /// How it is started.
    ///
    /// # Errors
    /// When there is no Envoy.
    pub(crate) fn command(config: &Path, dir: &Path, workers: u32) -> anyhow::Result<Command> {
        let mut command = Command::new(artifacts::envoy()?);
        let workers = workers.to_string();
        command
            .args(["--concurrency", &workers, "--disable-hot-restart"])
            // Listeners that go are gone after a second.
            .args(["--drain-time-s", "1"])
            .args(["--service-cluster", SERVICE_CLUSTER])
            // Enough to see why it ends, and what the filter logs.
            .args(["--log-level", "warn", "--component-log-level", "wasm:info"])
            .arg("--admin-address-path")
            .arg(admin_path(dir))
            .arg("--config-path")
            .arg(config);
        Ok(command)
    }

    /// Waits until this process, which was started in `dir`, is ready.
    ///
    /// # Errors
    /// When it ends instead, takes too long, or has no listener; the error has its log.
    pub(crate) async fn ready(mut process: Process, dir: &Path) -> anyhow::Result<Envoy> {
        let admin_path = admin_path(dir);
        let ready = wait::until("Envoy to be ready", wait::START, async || {
            if let Err(ended) = process.check_running() {
                return Some(Err(ended));
            }
            let admin = std::fs::read_to_string(&admin_path).ok()?.trim().parse().ok()?;
            let ready = get(admin, "/ready").await.ok()?;
            (ready.status == 200).then_some(Ok::<SocketAddr, anyhow::Error>(admin))
        });
        let ready = ready.await;
        let admin = ready.with_context(|| process.log())?.context("Envoy did not start")?;
        let address = listener_addresses(admin).await?.into_iter().next();
        let address = address.context("Envoy has no listener")?.1;
        Ok(Envoy { process: Arc::new(process), address, admin, shared: None })
    }

    /// The name that it has for a cluster of this name in the configuration of its stack.
    #[must_use]
    pub fn cluster(&self, name: &str) -> String {
        self.shared.as_ref().map_or(name.to_owned(), |listener| listener.cluster(name))
    }

    /// One of Envoy's own counters or gauges.
    ///
    /// # Errors
    /// When the admin interface does not answer, or has no such stat.
    pub async fn stat(&self, name: &str) -> anyhow::Result<u64> {
        let found = self.stats(name).await?;
        found.get(name).copied().with_context(|| format!("Envoy has no stat {name}"))
    }

    /// The counters and gauges whose names begin so, by name.
    ///
    /// # Errors
    /// When the admin interface does not answer.
    pub async fn stats(&self, beginning: &str) -> anyhow::Result<BTreeMap<String, u64>> {
        let reply = get(self.admin, &format!("/stats?filter=^{beginning}")).await?;
        let text = String::from_utf8_lossy(&reply.body);
        let line = |line: &str| {
            let (name, value) = line.rsplit_once(": ")?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        Ok(text.lines().filter_map(line).collect())
    }
}

fn admin_path(dir: &Path) -> PathBuf {
    dir.join("admin-address")
}

/// The name and the address of each listener of the Envoy with this admin interface, in Envoy's order.
///
/// # Errors
/// When it does not answer, or a listener has no TCP address.
pub async fn listener_addresses(admin: SocketAddr) -> anyhow::Result<Vec<(String, SocketAddr)>> {
    let reply = get(admin, "/listeners?format=json").await?;
    let listeners: Value = serde_json::from_slice(&reply.body)?;
    let all = listeners["listener_statuses"].as_array().into_iter().flatten();
    let named = all.map(|listener| {
        let address = &listener["local_address"]["socket_address"];
        let (host, port) = (address["address"].as_str(), address["port_value"].as_u64());
        let (host, port) = host.zip(port).context("a listener without an address")?;
        let name = listener["name"].as_str().context("a listener without a name")?;
        Ok((name.to_owned(), format!("{host}:{port}").parse()?))
    });
    named.collect()
}

/// Writes `config` to `dir` and starts Envoy on it.
///
/// # Errors
/// When Envoy does not start; the error has its log.
pub async fn start_envoy(config: &str, dir: &Path, workers: u32) -> anyhow::Result<Envoy> {
    Envoy::start(&write_config(config, dir)?, dir, workers).await
}

/// Writes a configuration in JSON to `dir`. Returns the file's path.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn write_config(config: &str, dir: &Path) -> anyhow::Result<PathBuf> {
    // Envoy reads a file of this name as YAML, and JSON is valid YAML.
    let path = dir.join("envoy.yaml");
    std::fs::write(&path, config).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}
