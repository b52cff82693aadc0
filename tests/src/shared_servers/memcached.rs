//! One memcached.

use super::{MemcachedProgram, ServerTls};
use crate::process::Process;
use crate::{ports, wait};
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
    /// The same for TLS, if it speaks that too.
    pub tls_port: Option<u16>,
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
        Self::start_at_free_ports(program, dir, flags, false).await
    }

    /// The same with another port for TLS.
    ///
    /// # Errors
    /// When it ends instead; the error has its log.
    pub async fn start_with_tls(
        program: &MemcachedProgram,
        dir: &Path,
        tls: &ServerTls,
    ) -> anyhow::Result<Memcached> {
        let (cert, key) = (tls.cert.display(), tls.key.display());
        let files = format!("ssl_chain_cert={cert},ssl_key={key}");
        Self::start_at_free_ports(program, dir, &["-Z", "-o", &files], true).await
    }

    async fn start_at_free_ports(
        program: &MemcachedProgram,
        dir: &Path,
        flags: &[&str],
        has_tls: bool,
    ) -> anyhow::Result<Memcached> {
        for _ in 0..STARTS_MAX {
            let (port, tls_port) = (ports::free()?, has_tls.then(ports::free).transpose()?);
            let mut flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
            flags.push("-l".to_owned());
            flags.push(match tls_port {
                Some(tls_port) => format!("notls:127.0.0.1:{port},127.0.0.1:{tls_port}"),
                None => format!("127.0.0.1:{port}"),
            });
            let process = spawn(&program.0, dir, &flags)?;
            let (program, dir) = (program.0.clone(), dir.to_owned());
            let mut memcached = Memcached { process, port, tls_port, program, dir, flags };
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
        self.process = spawn(&self.program, &self.dir, &self.flags)?;
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

fn spawn(program: &Path, dir: &Path, flags: &[String]) -> anyhow::Result<Process> {
    let mut command = Command::new(program);
    // As root it asks for the user to run as.
    command.args(["-U", "0", "-u", "root"]).args(flags);
    Process::start(command, "memcached", dir)
}
