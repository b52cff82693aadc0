//! The compared servers. Every rule of a server has one counter per user.

use super::Cores;
use anyhow::{Context, ensure};
use std::ffi::OsString;
use std::fmt::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tidegate_tests::process::Process;
use tidegate_tests::{artifacts, wait};
use tokio::net::TcpStream;
use tokio::process::Command;

/// Users of the calls, each with a counter.
pub(super) const USERS: u32 = 10_000;
/// The descriptor of every call; `{key}` is the user.
pub(super) const DESCRIPTOR: &str = "tier=t0,user={key}";
/// Requests per minute: nobody is denied.
const REQUESTS: u32 = 4_000_000_000;

/// The implementation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Software {
    Tidegate,
    Limitador,
}

impl Software {
    pub(super) fn name(self) -> &'static str {
        match self {
            Software::Tidegate => "tidegate",
            Software::Limitador => "limitador",
        }
    }

    /// The servers that are available.
    pub(super) fn all() -> Vec<Software> {
        match limitador() {
            Some(_) => vec![Software::Tidegate, Software::Limitador],
            None => vec![Software::Tidegate],
        }
    }
}

/// The path of Limitador's server, if it is set.
pub(super) fn limitador() -> Option<PathBuf> {
    std::env::var_os("LIMITADOR").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// A server that is ready.
pub(super) struct Server {
    pub(super) process: Process,
    /// The address of its gRPC or FRS server.
    pub(super) address: SocketAddr,
    _dir: TempDir,
}

impl Server {
    /// Starts a server with this many rules.
    pub(super) async fn start(kind: Software, rules: u32, cores: Cores) -> anyhow::Result<Server> {
        let dir = TempDir::new()?;
        let [door, other] = free_ports()?;
        let arguments = match kind {
            Software::Tidegate => tidegate(dir.path(), rules, door)?,
            Software::Limitador => limitador_arguments(dir.path(), rules, [door, other])?,
        };
        start(dir, kind.name(), on(cores, arguments), door).await
    }

    /// Starts Tidegate with FRS.
    pub(super) async fn start_frs(cores: Cores) -> anyhow::Result<Server> {
        let dir = TempDir::new()?;
        let [door, _] = free_ports()?;
        let map =
            format!("<map><business id=\"bench\" max=\"{REQUESTS}\" interval=\"1h\"/></map>\n");
        let limits = dir.path().join("map.xml");
        std::fs::write(&limits, map)?;
        let mut arguments = serve(dir.path(), &limits)?;
        arguments.extend(["--grpc".into(), "off".into(), "--frs".into(), door.to_string().into()]);
        start(dir, "tidegate", on(cores, arguments), door).await
    }

    /// µs of CPU that it has used so far.
    pub(super) fn cpu_micros(&self) -> anyhow::Result<f64> {
        Ok(self.process.cpu_time()?.as_secs_f64() * 1e6)
    }
}

async fn start(
    dir: TempDir,
    name: &str,
    mut arguments: Vec<OsString>,
    address: SocketAddr,
) -> anyhow::Result<Server> {
    let mut command = Command::new(arguments.remove(0));
    command.args(arguments);
    let mut process = Process::start(command, name, dir.path())?;
    let ready = wait::until("the server to answer", wait::START, async || {
        if let Err(ended) = process.check_running() {
            return Some(Err(ended));
        }
        TcpStream::connect(address).await.ok().map(|_| Ok(()))
    });
    ready.await?.with_context(|| format!("{name} did not start"))?;
    Ok(Server { process, address, _dir: dir })
}

/// Two free ports of the loopback, for servers that cannot choose and report their own.
fn free_ports() -> anyhow::Result<[SocketAddr; 2]> {
    let held = [TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?];
    Ok([held[0].local_addr()?, held[1].local_addr()?])
}

/// The command, restricted to the allowed cores.
fn on(cores: Cores, command: Vec<OsString>) -> Vec<OsString> {
    match cores {
        Cores::Two => command,
        Cores::One => {
            let pinned = ["taskset", "-c", "0"].map(OsString::from);
            pinned.into_iter().chain(command).collect()
        }
    }
}

fn serve(dir: &Path, limits: &Path) -> anyhow::Result<Vec<OsString>> {
    let mut arguments = vec![artifacts::sidecar()?.into_os_string()];
    arguments.extend(["serve", "--http", "off", "--limits"].map(OsString::from));
    arguments.extend([limits.into(), "--data-dir".into(), dir.join("data").into_os_string()]);
    Ok(arguments)
}

fn tidegate(dir: &Path, rules: u32, grpc: SocketAddr) -> anyhow::Result<Vec<OsString>> {
    let mut yaml = "domain: bench\ndescriptors:\n".to_owned();
    for rule in 0..rules {
        writeln!(
            yaml,
            "- {{key: tier, value: t{rule}, descriptors: [{{key: user, rate_limit: {{unit: minute, \
             requests_per_unit: {REQUESTS}}}}}]}}"
        )?;
    }
    let limits = dir.join("limits.yaml");
    std::fs::write(&limits, yaml)?;
    let mut arguments = serve(dir, &limits)?;
    arguments.extend(["--frs".into(), "off".into(), "--grpc".into(), grpc.to_string().into()]);
    Ok(arguments)
}

/// Limitador's limits are conditions on descriptors, in one namespace.
fn limitador_arguments(
    dir: &Path,
    rules: u32,
    [grpc, http]: [SocketAddr; 2],
) -> anyhow::Result<Vec<OsString>> {
    let mut yaml = String::new();
    for rule in 0..rules {
        writeln!(
            yaml,
            "- namespace: bench\n  name: l{rule}\n  max_value: {REQUESTS}\n  seconds: 60\n  \
             conditions: [\"descriptors[0].tier == 't{rule}'\"]\n  variables: [\"descriptors[0].user\"]"
        )?;
    }
    let binary = limitador().context("LIMITADOR is not set")?;
    ensure!(binary.is_file(), "LIMITADOR={} is no file", binary.display());
    // Limitador watches the directory of the file.
    let own = dir.join("limitador");
    std::fs::create_dir(&own)?;
    let limits = own.join("limits.yaml");
    std::fs::write(&limits, yaml)?;
    let port = |address: SocketAddr| OsString::from(address.port().to_string());
    let mut arguments = vec![binary.into_os_string()];
    arguments.extend(["-b", "127.0.0.1", "-B", "127.0.0.1", "-p"].map(OsString::from));
    arguments.extend([port(grpc), "-P".into(), port(http), limits.into_os_string()]);
    arguments.extend(["memory", "--cache", "1000000"].map(OsString::from));
    Ok(arguments)
}
