//! The sidecar as a process: started, killed, frozen, started again on the same data.

use crate::process::{Process, lives};
use crate::scarcity::MemoryGroup;
use crate::{artifacts, client, wait};
use anyhow::Context;
use serde_json::Value;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tokio::process::Command;

/// Limits for tests of an endpoint: one key without a limit, and one with a hundred an hour.
pub const FREE_AND_COUNTED: &str = "\
domain: test
descriptors:
  - key: free
    rate_limit: { unlimited: true }
  - key: counted
    rate_limit: { unit: hour, requests_per_unit: 100 }
";

/// A directory with a limits file, and the path of the file.
///
/// # Errors
/// When it cannot be written.
pub fn home(limits: &str) -> anyhow::Result<(TempDir, PathBuf)> {
    let dir = TempDir::new()?;
    let path = dir.path().join("limits.yaml");
    std::fs::write(&path, limits)?;
    Ok((dir, path))
}

/// Puts a file with this text in the place of the one at `path`, in one step: a sidecar that looks at it reads the old text or
/// the new one. A file that is written in place is empty for a moment, which may be long on a busy machine.
///
/// # Errors
/// When it cannot be written.
pub fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut next = path.as_os_str().to_owned();
    next.push(".new");
    std::fs::write(&next, text)?;
    Ok(std::fs::rename(&next, path)?)
}

/// A sidecar and what it takes to start it again.
#[derive(Debug)]
pub struct Sidecar {
    /// The process.
    pub process: Process,
    /// Its HTTP endpoint.
    pub http: SocketAddr,
    dir: PathBuf,
    limits: PathBuf,
    flags: Vec<String>,
}

impl Sidecar {
    /// Starts one on `limits`, with data, log and socket in `dir`, and waits until it is ready.
    ///
    /// # Errors
    /// When it ends instead; the error has its log.
    pub async fn start(dir: &Path, limits: &Path) -> anyhow::Result<Sidecar> {
        Self::start_with(dir, limits, &["--capacity", "100000"]).await
    }

    /// As [`Sidecar::start`], with these flags.
    ///
    /// # Errors
    /// As [`Sidecar::start`].
    pub async fn start_with(dir: &Path, limits: &Path, flags: &[&str]) -> anyhow::Result<Sidecar> {
        let flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
        let (process, http) = start(dir, limits, &flags, "sidecar").await?;
        Ok(Sidecar { process, http, dir: dir.to_owned(), limits: limits.to_owned(), flags })
    }

    /// As [`Sidecar::start_with`], with its HTTP endpoint at this address, such as `0.0.0.0:0`.
    ///
    /// # Errors
    /// As [`Sidecar::start`].
    pub async fn start_at(
        dir: &Path,
        limits: &Path,
        http: &str,
        flags: &[&str],
    ) -> anyhow::Result<Sidecar> {
        Self::start_with(dir, limits, &[&["--http", http], flags].concat()).await
    }

    /// As [`Sidecar::start_with`], under the memory limit of a group.
    ///
    /// # Errors
    /// As [`Sidecar::start`].
    pub async fn start_in(
        group: &MemoryGroup,
        dir: &Path,
        limits: &Path,
        flags: &[&str],
    ) -> anyhow::Result<Sidecar> {
        let flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
        let command = group.command(&artifacts::sidecar()?);
        let (process, http) = start_by(command, dir, limits, &flags, "sidecar").await?;
        Ok(Sidecar { process, http, dir: dir.to_owned(), limits: limits.to_owned(), flags })
    }

    /// Waits until another one can take over from this one, which is a moment after it answers.
    ///
    /// # Errors
    /// When none could for too long.
    pub async fn until_takeover_is_possible(&self) -> anyhow::Result<()> {
        let socket = self.dir.join("data/takeover.sock");
        let opened = wait::until("the takeover's socket", wait::CHECK, async || {
            // It gets its mode when it listens.
            let mode = std::fs::metadata(&socket).ok()?.permissions().mode();
            (mode & 0o777 == 0o600).then_some(())
        });
        opened.await
    }

    /// Starts another one on the same data and addresses, which takes over from this one. Its log has
    /// this name.
    ///
    /// # Errors
    /// When it ends instead; the error has its log.
    pub async fn taken_over_by(&self, flags: &[&str], name: &str) -> anyhow::Result<Sidecar> {
        self.until_takeover_is_possible().await?;
        let mut flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
        flags.push("--takeover".to_owned());
        let (process, http) = start(&self.dir, &self.limits, &flags, name).await?;
        let (dir, limits) = (self.dir.clone(), self.limits.clone());
        Ok(Sidecar { process, http, dir, limits, flags })
    }

    /// The Unix socket of its gRPC endpoint, which keeps its name over a restart.
    #[must_use]
    pub fn socket(dir: &Path) -> PathBuf {
        dir.join("tidegate.sock")
    }

    /// The TCP address of an endpoint, from the log.
    ///
    /// # Errors
    /// When it has no such endpoint.
    pub fn tcp(&self, endpoint: &str) -> anyhow::Result<SocketAddr> {
        tcp_in(&self.process.log(), endpoint)
    }

    /// Starts one on [`FREE_AND_COUNTED`] with its gRPC endpoint at a TCP port too, and returns that port.
    ///
    /// # Errors
    /// As [`Sidecar::start`].
    pub async fn start_on_tcp(dir: &Path, flags: &[&str]) -> anyhow::Result<(Sidecar, SocketAddr)> {
        let limits = dir.join("limits.yaml");
        std::fs::write(&limits, FREE_AND_COUNTED)?;
        let flags = [&["--capacity", "1000", "--grpc", "127.0.0.1:0"], flags].concat();
        let sidecar = Sidecar::start_with(dir, &limits, &flags).await?;
        let tcp = sidecar.tcp("grpc")?;
        Ok((sidecar, tcp))
    }

    /// Its page of metrics.
    ///
    /// # Errors
    /// When it does not answer, or not with text.
    pub async fn metrics(&self) -> anyhow::Result<String> {
        let page = client::get(self.http, "/metrics").await?;
        String::from_utf8(page.body.into()).context("/metrics is no text")
    }

    /// Ends it with SIGKILL, as a crash would, and waits for the end of its workers.
    ///
    /// # Errors
    /// When it cannot be signalled, or a worker outlives it.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        // Until they end they listen at the address, and a sidecar that is started again does not start.
        let workers = self.process.children()?;
        self.process.kill().await?;
        let have_ended = async || workers.iter().all(|&worker| !lives(worker)).then_some(());
        wait::until("the workers to end", wait::DRAIN, have_ended).await
    }

    /// Waits until its health check reports that it drains.
    ///
    /// # Errors
    /// When it does not.
    pub async fn reports_drain(&self) -> anyhow::Result<()> {
        wait::until("the health check to report the drain", wait::SOON, async || {
            let health = client::get(self.http, "/healthcheck").await.ok()?;
            (health.status == 500 && health.body == "draining\n").then_some(())
        })
        .await
    }

    /// Starts it again on its data, after it has ended.
    ///
    /// # Errors
    /// When it ends instead; the error has its log.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        (self.process, self.http) = start(&self.dir, &self.limits, &self.flags, "sidecar").await?;
        Ok(())
    }
}

async fn start(
    dir: &Path,
    limits: &Path,
    flags: &[String],
    name: &str,
) -> anyhow::Result<(Process, SocketAddr)> {
    start_by(Command::new(artifacts::sidecar()?), dir, limits, flags, name).await
}

async fn start_by(
    mut command: Command,
    dir: &Path,
    limits: &Path,
    flags: &[String],
    name: &str,
) -> anyhow::Result<(Process, SocketAddr)> {
    command
        .args(["serve", "--log-format", "json"])
        // Unless the flags have another.
        .env("TIDEGATE_HTTP", "127.0.0.1:0")
        // Unless the flags open it.
        .env("TIDEGATE_FRS", "off")
        .args(flags)
        .arg("--limits")
        .arg(limits)
        .arg("--data-dir")
        .arg(dir.join("data"))
        .arg("--grpc")
        .arg(format!("unix:{}", Sidecar::socket(dir).display()));
    start_until_ready(command, name, dir, "http").await
}

/// Starts a service by this command, waits until it is ready, and returns the address of an endpoint.
///
/// # Errors
/// When it ends instead; the error has its log.
pub async fn start_until_ready(
    command: Command,
    name: &str,
    dir: &Path,
    endpoint: &str,
) -> anyhow::Result<(Process, SocketAddr)> {
    let mut process = Process::start(command, name, dir)?;
    let ready = wait::until("the sidecar to be ready", wait::START, async || {
        if let Err(ended) = process.check_running() {
            return Some(Err(ended));
        }
        let log = process.log();
        let is_ready = events(&log).any(|event| event["fields"]["message"] == "ready");
        let address = addresses(&log, endpoint).first().and_then(|address| address.parse().ok());
        address.filter(|_| is_ready).map(Ok)
    });
    let ready = ready.await;
    let address = ready.with_context(|| process.log())?.context("the sidecar did not start")?;
    Ok((process, address))
}

/// Waits until the servers of shared counters answer a sidecar. Until then, a failure rule decides.
///
/// # Errors
/// When they do not.
pub async fn until_shared_up(http: SocketAddr) -> anyhow::Result<()> {
    wait::until("a connection to the shared counters", wait::RETRY, async || {
        let page = client::get(http, "/metrics").await.ok()?.body;
        std::str::from_utf8(&page).ok()?.contains("tidegate_shared_up 1\n").then_some(())
    })
    .await
}

/// The TCP address of an endpoint, from a log.
///
/// # Errors
/// When there is no such endpoint.
pub fn tcp_in(log: &str, endpoint: &str) -> anyhow::Result<SocketAddr> {
    let address = addresses(log, endpoint).iter().find_map(|address| address.parse().ok());
    address.with_context(|| format!("no TCP endpoint {endpoint:?} in the log:\n{log}"))
}

/// The addresses of this endpoint in a log.
fn addresses(log: &str, endpoint: &str) -> Vec<String> {
    let fields = events(log).map(|event| event["fields"].clone());
    let of_endpoint = fields.filter(|fields| fields["door"] == endpoint);
    of_endpoint.filter_map(|fields| Some(fields["address"].as_str()?.to_owned())).collect()
}

fn events(log: &str) -> impl Iterator<Item = Value> {
    log.lines().filter_map(|line| serde_json::from_str(line).ok())
}
