//! A Redis Cluster: three masters with a replica each.

use super::redis::{Redis, RedisOptions};
use super::{RedisPrograms, ServerTls};
use crate::{command, ports, wait};
use anyhow::{Context, ensure};
use std::path::Path;
use std::time::Duration;

const MASTERS: usize = 3;
/// Nodes exchange what they know every second.
const AGREED: Duration = Duration::from_secs(5);
/// In milliseconds: a busy machine may stop a node for seconds, which must not make a replica its successor.
const STEADY: &str = "60000";
/// In milliseconds, once a node was killed.
const NOTICED: &str = "2000";
/// A node is taken for gone after [`NOTICED`]; its replica is elected within a few seconds more.
const FAILOVER: Duration = Duration::from_secs(15);

/// A running cluster.
#[derive(Debug)]
pub struct Cluster {
    /// The masters of the start, then their replicas.
    pub nodes: Vec<Redis>,
}

impl Cluster {
    /// Starts one in `dir`, and waits until all nodes agree that every slot is served and has a replica. Its nodes
    /// have `flags` and ask for `password`.
    ///
    /// # Errors
    /// When a node ends instead, or they do not agree.
    pub async fn start(
        programs: &RedisPrograms,
        dir: &Path,
        flags: &[&str],
        password: Option<&str>,
    ) -> anyhow::Result<Cluster> {
        Self::of_nodes(programs, dir, RedisOptions { flags, password, ..RedisOptions::default() })
            .await
    }

    /// The same over TLS alone, between the nodes too.
    ///
    /// # Errors
    /// When a node ends instead, or they do not agree.
    pub async fn start_with_tls(
        programs: &RedisPrograms,
        dir: &Path,
        tls: &ServerTls,
    ) -> anyhow::Result<Cluster> {
        let flags = ["--tls-cluster", "yes", "--tls-replication", "yes"];
        let tls = Some(tls);
        Self::of_nodes(
            programs,
            dir,
            RedisOptions { flags: &flags, tls, ..RedisOptions::default() },
        )
        .await
    }

    /// One whose nodes have these options, but for their names.
    async fn of_nodes(
        programs: &RedisPrograms,
        dir: &Path,
        options: RedisOptions<'_>,
    ) -> anyhow::Result<Cluster> {
        let mut nodes = Vec::new();
        for index in 0..2 * MASTERS {
            let bus = ports::free()?.to_string();
            let mut all = vec!["--cluster-enabled", "yes", "--cluster-port", &bus];
            all.extend(["--cluster-node-timeout", STEADY, "--repl-diskless-sync-delay", "0"]);
            all.extend(
                options.password.into_iter().flat_map(|password| ["--masterauth", password]),
            );
            all.extend(options.flags);
            let name = format!("node-{index}");
            let options = RedisOptions { name: &name, flags: &all, ..options };
            nodes.push(Redis::start(programs, dir, options).await?);
        }
        let cluster = Cluster { nodes };
        cluster.join().await?;
        cluster.is_whole().await?;
        Ok(cluster)
    }

    /// The addresses of all nodes, as a list with commas.
    #[must_use]
    pub fn addresses(&self) -> String {
        self.nodes.iter().map(Redis::address).collect::<Vec<_>>().join(",")
    }

    /// The node that serves the slot of this key by the word of a node that answers, as an index of
    /// [`Cluster::nodes`].
    ///
    /// # Errors
    /// When no node answers, or none serves it.
    pub async fn master_of(&self, key: &str) -> anyhow::Result<usize> {
        for node in &self.nodes {
            let Ok(slot) = node.command(&["CLUSTER", "KEYSLOT", key]).await else { continue };
            let slot: u16 = slot.parse()?;
            let nodes = node.command(&["CLUSTER", "NODES"]).await?;
            let master = nodes.lines().find(|line| serves(line, slot)).context("no such slot")?;
            let port = master.split([':', '@']).nth(1).context("no port")?;
            let found = self.nodes.iter().position(|node| node.port.to_string() == port);
            return found.with_context(|| format!("no node for {master:?}"));
        }
        anyhow::bail!("no node of the cluster answers")
    }

    /// Makes nodes take one that does not answer for gone soon. Not before one was killed: until then no replica may
    /// follow its master.
    ///
    /// # Errors
    /// When a node refuses.
    pub async fn notice_soon(&self) -> anyhow::Result<()> {
        for node in &self.nodes {
            let set = ["CONFIG", "SET", "cluster-node-timeout", NOTICED];
            let Ok(answer) = node.command(&set).await else { continue };
            ensure!(answer == "OK", "{answer}");
        }
        Ok(())
    }

    /// Waits until a node other than `index`, which was killed, serves the slot of this key, and all nodes that answer
    /// know it.
    ///
    /// # Errors
    /// When that does not come about.
    pub async fn fails_over(&self, key: &str, index: usize) -> anyhow::Result<()> {
        self.notice_soon().await?;
        wait::until("a replica to become a master", FAILOVER, async || {
            let is_other = self.master_of(key).await.ok()? != index;
            (is_other && self.is_ok().await).then_some(())
        })
        .await
    }

    async fn join(&self) -> anyhow::Result<()> {
        let mut create = self.nodes[0].client();
        create.args(["--cluster", "create"]).args(self.nodes.iter().map(Redis::address));
        create.args(["--cluster-replicas", "1", "--cluster-yes"]);
        let ran = command::run(create).await?;
        ensure!(ran.code == Some(0), "{}{}", ran.out, ran.err);
        Ok(())
    }

    async fn is_whole(&self) -> anyhow::Result<()> {
        wait::until("the nodes to agree", AGREED, async || self.is_ok().await.then_some(()))
            .await?;
        for replica in &self.nodes[MASTERS..] {
            wait::until("a replica to be in step", AGREED, async || {
                let link = replica.info("replication", "master_link_status").await.ok()?;
                (link == "up").then_some(())
            })
            .await?;
        }
        for master in &self.nodes[..MASTERS] {
            master.confirms_what_is_new().await?;
        }
        Ok(())
    }

    /// Whether all nodes that answer have every slot.
    async fn is_ok(&self) -> bool {
        let mut answered = 0;
        for node in &self.nodes {
            let Ok(state) = node.command(&["CLUSTER", "INFO"]).await else { continue };
            let state: Vec<&str> = state.lines().map(str::trim_end).collect();
            let is_ok = ["cluster_state:ok", "cluster_known_nodes:6", "cluster_slots_ok:16384"];
            if !is_ok.iter().all(|line| state.contains(line)) {
                return false;
            }
            answered += 1;
        }
        answered > 0
    }
}

/// Whether a line of `CLUSTER NODES` is of a master in service that has this slot.
fn serves(line: &str, slot: u16) -> bool {
    let fields: Vec<&str> = line.split(' ').collect();
    let is_master =
        fields.get(2).is_some_and(|flags| flags.contains("master") && !flags.contains("fail"));
    let has = |range: &&str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let bounds = first.parse::<u16>().ok().zip(last.parse::<u16>().ok());
        bounds.is_some_and(|(first, last)| (first..=last).contains(&slot))
    };
    is_master && fields.iter().skip(8).any(has)
}
