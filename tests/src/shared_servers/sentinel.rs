//! A Redis with a replica, and three Sentinels, which make the replica the primary when the primary is gone.

use super::RedisPrograms;
use super::redis::{Access, Redis, RedisOptions};
use crate::wait;
use anyhow::{Context, ensure};
use std::path::Path;
use std::time::Duration;

/// The name by which Sentinels know the primary.
pub const PRIMARY: &str = "limits";
/// Sentinels hear of each other and of replicas every two seconds.
const KNOWN: Duration = Duration::from_secs(5);
/// In milliseconds: a busy machine may stop the primary for seconds, which must not make the replica its successor.
const STEADY: u32 = 60_000;
/// In milliseconds, once the primary was killed.
const NOTICED: &str = "500";
/// A primary is taken for gone after [`NOTICED`]. Sentinels that could not agree try again after twice the timeout.
const FAILOVER: Duration = Duration::from_secs(10);

/// A primary, its replica, and their Sentinels.
#[derive(Debug)]
pub struct Replicated {
    /// The primary at the start, and its replica.
    pub servers: [Redis; 2],
    /// Their Sentinels.
    pub sentinels: Vec<Redis>,
}

impl Replicated {
    /// Starts them in `dir`, and waits until the Sentinels know all of them. Redis asks for `password`, and the
    /// Sentinels for `sentinel_password`.
    ///
    /// # Errors
    /// When one of them ends instead.
    pub async fn start(
        programs: &RedisPrograms,
        dir: &Path,
        password: Option<&str>,
        sentinel_password: Option<&str>,
    ) -> anyhow::Result<Replicated> {
        let mut flags = vec!["--repl-diskless-sync-delay", "0"];
        flags.extend(password.into_iter().flat_map(|password| ["--masterauth", password]));
        let options = RedisOptions { name: "first", flags: &flags, password, tls: None };
        let primary = Redis::start(programs, dir, options).await?;
        let port = primary.port.to_string();
        flags.extend(["--replicaof", "127.0.0.1", &port]);
        let options = RedisOptions { name: "second", flags: &flags, password, tls: None };
        let replica = Redis::start(programs, dir, options).await?;
        let mut sentinels = Vec::new();
        for index in 0..3 {
            let name = format!("sentinel-{index}");
            let own_password = sentinel_password.map(str::to_owned);
            let access = Access { password: own_password, ..Access::default() };
            let file = dir.join(format!("{name}.conf"));
            let arguments = |own| {
                std::fs::write(
                    &file,
                    configuration(own, primary.port, password, sentinel_password),
                )?;
                Ok(vec![file.display().to_string(), "--sentinel".to_owned()])
            };
            let sentinel = Redis::start_at_a_free_port(programs, dir, &name, access, arguments);
            sentinels.push(sentinel.await?);
        }
        let replicated = Replicated { servers: [primary, replica], sentinels };
        replicated.know_each_other().await?;
        Ok(replicated)
    }

    /// The addresses of the Sentinels, as a list with commas.
    #[must_use]
    pub fn sentinel_addresses(&self) -> String {
        self.sentinels.iter().map(Redis::address).collect::<Vec<_>>().join(",")
    }

    /// The server that is the primary by the word of the first Sentinel that answers, as an index of
    /// [`Replicated::servers`].
    pub async fn primary(&self) -> Option<usize> {
        for sentinel in &self.sentinels {
            let asked = sentinel.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", PRIMARY]).await;
            let Ok(address) = asked else { continue };
            let port = address.lines().nth(1)?;
            return self.servers.iter().position(|server| server.port.to_string() == port);
        }
        None
    }

    /// Waits until every Sentinel names this server, which accepts writes, after the other was killed.
    ///
    /// # Errors
    /// When that does not come about.
    pub async fn becomes_primary(&self, index: usize) -> anyhow::Result<()> {
        let server = self.servers.get(index).context("no such server")?;
        for sentinel in &self.sentinels {
            let set = ["SENTINEL", "SET", PRIMARY, "down-after-milliseconds", NOTICED];
            ensure!(sentinel.command(&set).await? == "OK", "a Sentinel keeps its time");
        }
        wait::until("the other server to become the primary", FAILOVER, async || {
            let role = server.info("replication", "role").await.ok()?;
            (role == "master" && self.primary().await == Some(index)).then_some(())
        })
        .await
    }

    async fn know_each_other(&self) -> anyhow::Result<()> {
        for sentinel in &self.sentinels {
            wait::until("a Sentinel to know the others and the replica", KNOWN, async || {
                let state = sentinel.command(&["INFO", "sentinel"]).await.ok()?;
                state.contains("status=ok").then_some(())?;
                state.contains("slaves=1,sentinels=3").then_some(())
            })
            .await
            .with_context(|| sentinel.process.log())?;
        }
        wait::until("the replica to be in step", KNOWN, async || {
            let link = self.servers[1].info("replication", "master_link_status").await.ok()?;
            (link == "up").then_some(())
        })
        .await?;
        self.servers[0].confirms_what_is_new().await
    }
}

fn configuration(
    own: u16,
    primary: u16,
    password: Option<&str>,
    sentinel_password: Option<&str>,
) -> String {
    let mut lines = vec![
        format!("port {own}"),
        "bind 127.0.0.1".to_owned(),
        format!("sentinel monitor {PRIMARY} 127.0.0.1 {primary} 2"),
        format!("sentinel down-after-milliseconds {PRIMARY} {STEADY}"),
        format!("sentinel failover-timeout {PRIMARY} 2000"),
    ];
    lines.extend(password.map(|password| format!("sentinel auth-pass {PRIMARY} {password}")));
    // The Sentinels ask each other with it, too.
    lines.extend(sentinel_password.into_iter().flat_map(|password| {
        [format!("requirepass {password}"), format!("sentinel sentinel-pass {password}")]
    }));
    lines.join("\n") + "\n"
}
