//! One PostgreSQL with an empty database.

use super::PostgresPrograms;
use crate::process::Process;
use crate::{command, ports, wait};
use anyhow::{Context, ensure};
use rustix::process::geteuid;
use std::os::unix::fs::chown;
use std::path::Path;
use tempfile::TempDir;
use tokio::process::Command;

/// How often one that found its port taken is started at another one.
const STARTS_MAX: usize = 20;
/// `nobody`, as Debian and most others number it. PostgreSQL refuses to run as root.
const UNPRIVILEGED: u32 = 65_534;
const PASSWORD: &str = "se@cret";

/// A running PostgreSQL.
#[derive(Debug)]
pub struct Postgres {
    /// Its process.
    pub process: Process,
    /// Its port of 127.0.0.1.
    pub port: u16,
    // After the process, which ends first.
    _dir: TempDir,
}

impl Postgres {
    /// Starts one in a directory of its own, and waits until it answers.
    ///
    /// # Errors
    /// When it ends instead; the error has its log.
    pub async fn start(programs: &PostgresPrograms) -> anyhow::Result<Postgres> {
        let dir = TempDir::new()?;
        if geteuid().is_root() {
            chown(dir.path(), Some(UNPRIVILEGED), Some(UNPRIVILEGED))?;
        }
        let data = dir.path().join("data");
        let password = dir.path().join("password");
        std::fs::write(&password, PASSWORD)?;
        let mut initdb = unprivileged(&programs.initdb, dir.path());
        initdb.args(["--no-sync", "-U", "tide", "-A", "scram-sha-256", "-E", "UTF8", "--locale=C"]);
        initdb.arg("-D").arg(&data).arg(format!("--pwfile={}", password.display()));
        let ran = command::run(initdb).await?;
        ensure!(ran.code == Some(0), "initdb: {}{}", ran.out, ran.err);
        for _ in 0..STARTS_MAX {
            let port = ports::free()?;
            let mut process = spawn(programs, dir.path(), &data, port)?;
            match answers(&mut process, programs, port).await {
                Ok(()) => return Ok(Postgres { process, port, _dir: dir }),
                Err(_) if process.log().contains("Address already in use") => {}
                Err(error) => return Err(error),
            }
        }
        anyhow::bail!("PostgreSQL found its port taken {STARTS_MAX} times")
    }

    /// The URL of its database, with user and password.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://tide:se%40cret@127.0.0.1:{}/postgres", self.port)
    }
}

async fn answers(
    process: &mut Process,
    programs: &PostgresPrograms,
    port: u16,
) -> anyhow::Result<()> {
    let port = port.to_string();
    let answered = wait::until("PostgreSQL to answer", wait::START, async || {
        if let Err(ended) = process.check_running() {
            return Some(Err(ended));
        }
        let mut ready = Command::new(&programs.is_ready);
        ready.args(["-q", "-h", "127.0.0.1", "-p", &port]);
        (command::run(ready).await.ok()?.code == Some(0)).then_some(Ok(()))
    });
    let answered = answered.await;
    answered.with_context(|| process.log())?
}

fn spawn(
    programs: &PostgresPrograms,
    dir: &Path,
    data: &Path,
    port: u16,
) -> anyhow::Result<Process> {
    let mut command = unprivileged(&programs.server, dir);
    command.arg("-D").arg(data).args(["-p", &port.to_string()]);
    command.args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]);
    command.args(["-c", "fsync=off"]);
    Process::start(command, "postgres", dir)
}

fn unprivileged(program: &Path, dir: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(dir);
    if geteuid().is_root() {
        command.uid(UNPRIVILEGED).gid(UNPRIVILEGED);
    }
    command
}
