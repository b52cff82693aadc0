//! One Redis, as a process that is started, killed, frozen and started again.

use super::{RedisPrograms, ServerTls};
use crate::process::Process;
use crate::{command, ports, wait};
use anyhow::{Context, ensure};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    RedisConnectionInfo, RedisResult, Value, cmd,
};
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::process::Command;

/// How often a server that found its port taken is started at another one.
const STARTS_MAX: usize = 20;
/// A replica confirms what it has every second.
const REPLICATED: Duration = Duration::from_secs(2);

/// What a Redis is started with.
#[derive(Debug, Clone, Copy)]
pub struct RedisOptions<'o> {
    /// The name of its log and its files.
    pub name: &'o str,
    /// Its flags beside those of address and files.
    pub flags: &'o [&'o str],
    /// The password that it asks for.
    pub password: Option<&'o str>,
    /// Its certificates, if it speaks TLS only.
    pub tls: Option<&'o ServerTls>,
}

impl Default for RedisOptions<'_> {
    fn default() -> Self {
        RedisOptions { name: "redis", flags: &[], password: None, tls: None }
    }
}

/// How clients reach a server.
#[derive(Debug, Clone, Default)]
pub(super) struct Access {
    /// Its Unix socket, if it has one. There is no TLS there.
    pub(super) socket: Option<PathBuf>,
    /// The password that it asks for.
    pub(super) password: Option<String>,
    /// The flags of `redis-cli` for TLS.
    pub(super) tls: Vec<String>,
}

/// A running Redis.
#[derive(Debug)]
pub struct Redis {
    /// Its process.
    pub process: Process,
    /// Its port of 127.0.0.1.
    pub port: u16,
    programs: RedisPrograms,
    dir: PathBuf,
    name: String,
    /// The arguments of the server.
    arguments: Vec<String>,
    access: Access,
}

impl Redis {
    /// Starts one in `dir`, without files of its own, and waits until it answers.
    ///
    /// # Errors
    /// When it ends instead; the error has its log.
    pub async fn start(
        programs: &RedisPrograms,
        dir: &Path,
        options: RedisOptions<'_>,
    ) -> anyhow::Result<Redis> {
        let home = dir.join(options.name);
        std::fs::create_dir_all(&home)?;
        let socket = Self::socket(dir, options.name);
        let access = Access {
            socket: Some(socket.clone()),
            password: options.password.map(str::to_owned),
            tls: options.tls.map(|tls| tls.client_flags().collect()).unwrap_or_default(),
        };
        let mut arguments: Vec<String> = Vec::new();
        let (home, socket) = (home.display().to_string(), socket.display().to_string());
        let files = ["--dir", &home, "--unixsocket", &socket, "--save", "", "--appendonly", "no"];
        arguments.extend(files.map(str::to_owned));
        // Tests ask for faults by DEBUG.
        arguments.extend(["--enable-debug-command", "local"].map(str::to_owned));
        if let Some(password) = options.password {
            arguments.extend(["--requirepass", password].map(str::to_owned));
        }
        if let Some(tls) = options.tls {
            arguments.extend(tls.server_flags());
        }
        arguments.extend(options.flags.iter().map(|&flag| flag.to_owned()));
        let port_flag = if options.tls.is_some() { "--tls-port" } else { "--port" };
        Self::start_at_a_free_port(programs, dir, options.name, access, |port| {
            let mut all = vec![port_flag.to_owned(), port.to_string()];
            if options.tls.is_some() {
                all.extend(["--port", "0"].map(str::to_owned));
            }
            all.extend(["--bind", "127.0.0.1"].map(str::to_owned));
            all.extend_from_slice(&arguments);
            Ok(all)
        })
        .await
    }

    /// Starts one whose arguments depend on its port.
    ///
    /// # Errors
    /// When it ends instead; the error has its log.
    pub(super) async fn start_at_a_free_port(
        programs: &RedisPrograms,
        dir: &Path,
        name: &str,
        access: Access,
        arguments: impl Fn(u16) -> anyhow::Result<Vec<String>>,
    ) -> anyhow::Result<Redis> {
        for _ in 0..STARTS_MAX {
            let port = ports::free()?;
            let arguments = arguments(port)?;
            let process = spawn(programs, dir, name, &arguments)?;
            let mut redis = Redis {
                process,
                port,
                programs: programs.clone(),
                dir: dir.to_owned(),
                name: name.to_owned(),
                arguments,
                access: access.clone(),
            };
            match redis.answers().await {
                Ok(()) => return Ok(redis),
                Err(_) if redis.process.log().contains("Address already in use") => {}
                Err(error) => return Err(error),
            }
        }
        anyhow::bail!("{name} found its port taken {STARTS_MAX} times")
    }

    /// The Unix socket of the one that was started with this name in `dir`.
    #[must_use]
    pub fn socket(dir: &Path, name: &str) -> PathBuf {
        dir.join(format!("{name}.sock"))
    }

    /// Its address, as `host:port`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Runs a command of it over a connection of its own. Returns what `redis-cli` would print: the parts of an array in
    /// lines, nothing for nil.
    ///
    /// # Errors
    /// When it does not answer, or answers an error.
    pub async fn command(&self, words: &[&str]) -> anyhow::Result<String> {
        let (name, arguments) = words.split_first().context("no command")?;
        let asking = async {
            let config = AsyncConnectionConfig::new();
            let config = config.set_response_timeout(None).set_connection_timeout(None);
            let client = Client::open(self.connection_info()?)?;
            let mut connection =
                client.get_multiplexed_async_connection_with_config(&config).await?;
            cmd(name).arg(arguments).query_async(&mut connection).await
        };
        let answer = wait::within("an answer of Redis", wait::COMMAND, asking).await?;
        let answer: RedisResult<Value> = answer;
        let answer = answer.map_err(|error| anyhow::anyhow!("{words:?}: {error}"))?;
        Ok(lines_of(&answer)?.join("\n").trim_end().to_owned())
    }

    fn connection_info(&self) -> RedisResult<ConnectionInfo> {
        let tcp = || ConnectionAddr::Tcp("127.0.0.1".to_owned(), self.port);
        let address = self.access.socket.clone().map_or_else(tcp, ConnectionAddr::Unix);
        let mut settings = RedisConnectionInfo::default();
        if let Some(password) = &self.access.password {
            settings = settings.set_password(password);
        }
        Ok(address.into_connection_info()?.set_redis_settings(settings))
    }

    /// A `redis-cli` that is connected to it.
    pub(super) fn client(&self) -> Command {
        let mut command = Command::new(&self.programs.cli);
        command.args(["-h", "127.0.0.1", "-p", &self.port.to_string()]).args(&self.access.tls);
        if let Some(password) = &self.access.password {
            command.args(["-a", password, "--no-auth-warning"]);
        }
        command
    }

    /// Moves slots with their keys from one master of its cluster to another, both by their ids.
    ///
    /// # Errors
    /// When that fails; the error has the words of `redis-cli`.
    pub async fn reshard(&self, from: &str, to: &str, slots: u16) -> anyhow::Result<()> {
        let mut command = self.client();
        let (address, slots) = (self.address(), slots.to_string());
        command.args(["--cluster", "reshard", &address, "--cluster-from", from]);
        command.args(["--cluster-to", to, "--cluster-slots", &slots, "--cluster-yes"]);
        let ran = command::run(command).await?;
        ensure!(ran.code == Some(0), "{}{}", ran.out, ran.err);
        Ok(())
    }

    /// A field of `INFO`.
    ///
    /// # Errors
    /// When it does not answer or has no such field.
    pub async fn info(&self, section: &str, field: &str) -> anyhow::Result<String> {
        let info = self.command(&["INFO", section]).await?;
        let value =
            info.lines().find_map(|line| line.trim_end().strip_prefix(field)?.strip_prefix(':'));
        Ok(value.with_context(|| format!("no {field} in:\n{info}"))?.to_owned())
    }

    /// Waits until its replica has confirmed all that it was sent. `WAIT` would speak for its own connection alone.
    ///
    /// # Errors
    /// When no replica does.
    pub async fn is_replicated(&self) -> anyhow::Result<()> {
        wait::until("the replica to have everything", REPLICATED, async || {
            let info = self.command(&["INFO", "replication"]).await.ok()?;
            let field = |name| info.lines().find_map(|line| line.trim_end().strip_prefix(name));
            let (ours, replica) = (field("master_repl_offset:")?, field("slave0:")?);
            let has = |field: String| replica.split(',').any(|part| part == field);
            (has("state=online".into()) && has(format!("offset={ours}"))).then_some(())
        })
        .await
    }

    /// Waits until its replica, which is in step, confirms what is new. Until its first message to the server, which comes
    /// within a second, it is sent nothing. A hit that it should confirm would fail meanwhile, though it counts.
    ///
    /// # Errors
    /// When no replica does.
    pub(super) async fn confirms_what_is_new(&self) -> anyhow::Result<()> {
        // The replica is sent this even if there are no keys.
        self.command(&["FLUSHALL"]).await?;
        self.is_replicated().await
    }

    /// How often a command was called since the start, by clients and by scripts.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn calls(&self, command: &str) -> anyhow::Result<u64> {
        let info = self.command(&["INFO", "commandstats"]).await?;
        let prefix = format!("cmdstat_{}:calls=", command.to_lowercase());
        let calls = info.lines().find_map(|line| line.strip_prefix(&prefix)?.split(',').next());
        Ok(calls.map_or(Ok(0), str::parse)?)
    }

    /// Ends it with SIGKILL, as a crash would.
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
        self.start_again()?;
        self.answers().await
    }

    /// The same without the wait.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_again(&mut self) -> anyhow::Result<()> {
        self.process = spawn(&self.programs, &self.dir, &self.name, &self.arguments)?;
        Ok(())
    }

    /// Asks it to stop (SIGTERM), and waits until it has.
    ///
    /// # Errors
    /// When it cannot be signalled or does not end.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        self.process.signal(Signal::TERM)?;
        self.process.wait().await?;
        Ok(())
    }

    async fn answers(&mut self) -> anyhow::Result<()> {
        let answered = wait::until("Redis to answer", wait::START, async || {
            if let Err(ended) = self.process.check_running() {
                return Some(Err(ended));
            }
            // It answers so while it reads its files, too.
            let process = self.info("server", "process_id").await.ok()?;
            // Another one may have been faster to listen at this port.
            let is_this = self.process.pid().is_ok_and(|pid| pid.to_string() == process);
            let pong = self.command(&["PING"]).await.ok()?;
            (is_this && pong == "PONG").then_some(Ok(()))
        });
        let answered = answered.await;
        answered.with_context(|| self.process.log())?
    }
}

/// The lines of an answer.
fn lines_of(answer: &Value) -> anyhow::Result<Vec<String>> {
    Ok(match answer {
        Value::Nil => vec![String::new()],
        Value::Okay => vec!["OK".to_owned()],
        Value::Int(number) => vec![number.to_string()],
        Value::SimpleString(text) => vec![text.clone()],
        Value::BulkString(bytes) => vec![String::from_utf8_lossy(bytes).into_owned()],
        Value::Array(parts) => {
            let mut lines = Vec::new();
            for part in parts {
                lines.extend(lines_of(part)?);
            }
            lines
        }
        other => anyhow::bail!("an answer of another kind: {other:?}"),
    })
}

fn spawn(
    programs: &RedisPrograms,
    dir: &Path,
    name: &str,
    arguments: &[String],
) -> anyhow::Result<Process> {
    let mut command = Command::new(&programs.server);
    command.args(arguments);
    Process::start(command, name, dir)
}
