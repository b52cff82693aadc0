//! One memcached.

use super::{MemcachedProgram, ports};
use crate::process::Process;
use crate::wait;
use anyhow::Context;
use std::path::{Path, PathBuf};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;

/// How often one that found its port taken is started at another one.
const STARTS_MAX: usize = 20;

/// A running memcached.
#[derive(Debug)]
pub struct Memcached {
    /// Its process.
    pub process: Process,
    /// Its port of 127.0.0.1.
    pub port: u16,
    program: PathBuf,
    dir: PathBuf,
    flags: Vec<String>,
}

impl Memcached {
    /// Starts one with its log in `dir`, and waits until it answers.
    ///
    /// # Errors
    /// When it ends instead; the error has its log.
    pub async fn start(
        program: &MemcachedProgram,
        dir: &Path,
        flags: &[&str],
    ) -> anyhow::Result<Memcached> {
        for _ in 0..STARTS_MAX {
            let port = ports::free()?;
            let flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
            let process = spawn(&program.0, dir, port, &flags)?;
            let (program, dir) = (program.0.clone(), dir.to_owned());
            let mut memcached = Memcached { process, port, program, dir, flags };
            match memcached.answers().await {
                Ok(()) => return Ok(memcached),
                Err(_) if memcached.process.log().contains("Address already in use") => {}
                Err(error) => return Err(error),
            }
        }
        anyhow::bail!("memcached found its port taken {STARTS_MAX} times")
    }

    /// Its address, as `host:port`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Sends a line, and returns the first line of the answer.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn command(&self, line: &str) -> anyhow::Result<String> {
        let asking = async {
            let mut stream = BufReader::new(TcpStream::connect(self.address()).await?);
            stream.write_all(format!("{line}\r\n").as_bytes()).await?;
            let mut answer = String::new();
            stream.read_line(&mut answer).await?;
            anyhow::Ok(answer.trim_end().to_owned())
        };
        wait::within("an answer of memcached", wait::SOON, asking).await?
    }

    /// Ends it with SIGKILL; its counters are lost.
    ///
    /// # Errors
    /// When it cannot be signalled.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.process.kill().await
    }

    /// Starts it again at its port, after it has ended, and waits until it answers.
    ///
    /// # Errors
    /// When it ends instead; the error has its log.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        self.process = spawn(&self.program, &self.dir, self.port, &self.flags)?;
        self.answers().await
    }

    async fn answers(&mut self) -> anyhow::Result<()> {
        let answered = wait::until("memcached to answer", wait::START, async || {
            if let Err(ended) = self.process.check_running() {
                return Some(Err(ended));
            }
            let first = self.command("stats").await.ok()?;
            // Another one may have been faster to listen at this port.
            let pid = self.process.pid().ok()?;
            (first == format!("STAT pid {pid}")).then_some(Ok(()))
        });
        let answered = answered.await;
        answered.with_context(|| self.process.log())?
    }
}

fn spawn(program: &Path, dir: &Path, port: u16, flags: &[String]) -> anyhow::Result<Process> {
    let mut command = Command::new(program);
    // As root it asks for the user to run as.
    command.args(["-l", "127.0.0.1", "-U", "0", "-u", "root", "-p", &port.to_string()]).args(flags);
    Process::start(command, "memcached", dir)
}
