//! What a failover forgets: all that the replica did not have. Confirmed changes are never forgotten.

use super::cluster::{Nodes, hits_again};
use super::*;
use tempfile::TempDir;
use tidegate_remote::{Credentials, Servers};
use tidegate_tests::shared_servers::{PRIMARY, Redis, RedisPrograms, Replicated};
use tidegate_tests::wait;

const BEFORE: u64 = 30;
const UNSEEN: u64 = 20;
/// Each waits for its replica in vain.
const REFUSED: u64 = 4;
/// As long as a busy machine may take. A quarter of it is waited for a replica.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Hits that the replica has, then hits while it stands still. Returns the count of the first, and how many of the others
/// were committed.
async fn hits(
    remote: &Remote,
    master: &Redis,
    replica: &Redis,
    replicas: u32,
) -> anyhow::Result<(u64, u64)> {
    let (mut before, mut failed) = (0, 0);
    for number in 1..=BEFORE {
        // A hit that is reported as failed is repeated, and may count all the same.
        let counts = wait::until("an update is committed", Duration::from_secs(30), async || {
            let counts = hit(remote, &[key(3)]).ok();
            failed += u64::from(counts.is_none());
            counts
        });
        before = counts.await?[0];
        assert!(
            (number..=number + failed).contains(&before),
            "{before} of {number}, {failed} failed"
        );
    }
    master.is_replicated().await?;
    replica.process.freeze().await?;
    // What is on its way to the replica would reach it even after the end of the master.
    master.command(&["CLIENT", "KILL", "TYPE", "replica"]).await?;
    let tries = if replicas == 0 { UNSEEN } else { REFUSED };
    let committed = (0..tries).filter(|_| hit(remote, &[key(3)]).is_ok()).count() as u64;
    Ok((before, committed))
}

/// The counts are those of the replica: what is admitted again is what it had not seen.
fn check(counts: &[u64], (before, committed): (u64, u64), replicas: u32) {
    let forgotten = (before + committed + 1).saturating_sub(counts[0]);
    println!(
        "{replicas} replicas confirm: {committed} hits unseen by the replica, {forgotten} forgotten"
    );
    match replicas {
        0 => assert_eq!((committed, forgotten), (UNSEEN, UNSEEN)),
        _ => assert_eq!((committed, forgotten), (0, 0)),
    }
}

async fn in_a_cluster(replicas: u32) -> anyhow::Result<()> {
    let Some(mut nodes) = Nodes::start().await? else { return Ok(()) };
    let remote = connect(Settings { replicas, timeout: TIMEOUT, ..nodes.settings() })?;
    let master = nodes.master_of(key(3)).await;
    let port = nodes.cluster.nodes[master].port.to_string();
    let mut replica = None;
    for index in 3..6 {
        if nodes.cluster.nodes[index].info("replication", "master_port").await? == port {
            replica = Some(index);
        }
    }
    let replica = replica.expect("a replica of each master");
    let [of_master, of_replica] = [master, replica].map(|index| &nodes.cluster.nodes[index]);
    let counted = hits(&remote, of_master, of_replica, replicas).await?;
    nodes.cluster.nodes[master].kill().await?;
    nodes.cluster.nodes[replica].process.thaw()?;
    nodes.cluster.fails_over(&cluster::tag(key(3)), master).await?;
    // The new master has no replica that could confirm.
    let remote = connect(nodes.settings())?;
    check(&hits_again(&remote, &[key(3)]).await, counted, replicas);
    Ok(())
}

async fn with_sentinels(replicas: u32) -> anyhow::Result<()> {
    let Some(programs) = RedisPrograms::find()? else { return Ok(()) };
    let dir = TempDir::new()?;
    let mut replicated = Replicated::start(&programs, dir.path(), None, None).await?;
    let sentinels = replicated.sentinels.iter().map(|one| one.address().parse().unwrap()).collect();
    let (primary, credentials) = (PRIMARY.to_owned(), Credentials::default());
    let servers = Servers::Sentinel { sentinels, primary, credentials };
    let remote =
        connect(Settings { replicas, timeout: TIMEOUT, ..Settings::new(servers.clone()) })?;
    let [master, replica] = &replicated.servers;
    let counted = hits(&remote, master, replica, replicas).await?;
    replicated.servers[0].kill().await?;
    replicated.servers[1].process.thaw()?;
    replicated.becomes_primary(1).await?;
    // The new primary has no replica that could confirm.
    let remote = connect(Settings { timeout: TIMEOUT, ..Settings::new(servers) })?;
    check(&hits_again(&remote, &[key(3)]).await, counted, replicas);
    Ok(())
}

#[tokio::test]
async fn a_cluster_forgets_what_the_replica_had_not_seen() -> anyhow::Result<()> {
    in_a_cluster(0).await
}

#[tokio::test]
async fn a_cluster_forgets_nothing_that_a_replica_has_confirmed() -> anyhow::Result<()> {
    in_a_cluster(1).await
}

#[tokio::test]
async fn sentinels_forget_what_the_replica_had_not_seen() -> anyhow::Result<()> {
    with_sentinels(0).await
}

#[tokio::test]
async fn sentinels_forget_nothing_that_a_replica_has_confirmed() -> anyhow::Result<()> {
    with_sentinels(1).await
}
