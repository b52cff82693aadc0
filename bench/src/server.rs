//! A server process that is put under load.

use anyhow::Context;
use std::ffi::OsString;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tidegate_tests::process::Process;
use tidegate_tests::wait;
use tokio::net::TcpStream;
use tokio::process::Command;

/// The cores of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cores {
    /// The first core; the generator has the second.
    One,
    /// Both, shared with the generator.
    Two,
}

impl Cores {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Cores::One => "1 core",
            Cores::Two => "2 cores",
        }
    }

    /// The command, restricted to these cores.
    pub(crate) fn run(self, command: Vec<OsString>) -> Vec<OsString> {
        match self {
            Cores::Two => command,
            Cores::One => {
                let pinned = ["taskset", "-c", "0"].map(OsString::from);
                pinned.into_iter().chain(command).collect()
            }
        }
    }
}

/// A server that is ready.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) process: Process,
    /// The address of its gRPC or FRS server.
    pub(crate) address: SocketAddr,
    /// Its files, unless they outlive it.
    _dir: Option<TempDir>,
}

impl Server {
    /// Starts a server by this command, and waits until it listens. `dir` has its files.
    pub(crate) async fn start(
        dir: TempDir,
        name: &str,
        arguments: Vec<OsString>,
        address: SocketAddr,
    ) -> anyhow::Result<Server> {
        let server = Server::start_in(dir.path(), name, arguments, address).await?;
        Ok(Server { _dir: Some(dir), ..server })
    }

    /// The same, with files that stay.
    pub(crate) async fn start_in(
        dir: &Path,
        name: &str,
        mut arguments: Vec<OsString>,
        address: SocketAddr,
    ) -> anyhow::Result<Server> {
        let mut command = Command::new(arguments.remove(0));
        command.args(arguments);
        let mut process = Process::start(command, name, dir)?;
        let ready = wait::until("the server to answer", wait::START, async || {
            if let Err(ended) = process.check_running() {
                return Some(Err(ended));
            }
            TcpStream::connect(address).await.ok().map(|_| Ok(()))
        });
        ready.await?.with_context(|| format!("{name} did not start"))?;
        Ok(Server { process, address, _dir: None })
    }

    /// µs of CPU that it has used so far.
    pub(crate) fn cpu_micros(&self) -> anyhow::Result<f64> {
        Ok(self.process.cpu_time()?.as_secs_f64() * 1e6)
    }
}

/// Two free ports of the loopback, for servers that cannot choose and report their own.
pub(crate) fn free_ports() -> anyhow::Result<[SocketAddr; 2]> {
    let held = [TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?];
    Ok([held[0].local_addr()?, held[1].local_addr()?])
}

/// The path of Limitador's server, if it is set.
pub(crate) fn limitador() -> Option<PathBuf> {
    std::env::var_os("LIMITADOR").filter(|path| !path.is_empty()).map(PathBuf::from)
}
