//! The engine in a cluster: keys on all masters, slots that move, masters that die.

use super::failures::until_refused;
use super::server::{reply, text};
use super::*;
use std::collections::HashSet;
use tempfile::TempDir;
use tidegate_remote::{Address, Health, Servers};
use tidegate_tests::shared_servers::{Cluster, RedisPrograms};
use tidegate_tests::wait as until;

pub(super) struct Nodes {
    pub(super) cluster: Cluster,
    _dir: TempDir,
}

impl Nodes {
    pub(super) async fn start() -> anyhow::Result<Option<Nodes>> {
        let Some(programs) = RedisPrograms::find()? else { return Ok(None) };
        let dir = TempDir::new()?;
        let cluster = Cluster::start(&programs, dir.path(), &[], None).await?;
        Ok(Some(Nodes { cluster, _dir: dir }))
    }

    pub(super) fn settings(&self) -> Settings {
        let nodes = self.cluster.nodes.iter().map(|node| node.address().parse().unwrap()).collect();
        let timeout = Duration::from_secs(10);
        Settings { timeout, ..Settings::new(Servers::Cluster { nodes }) }
    }

    pub(super) fn sidecar(&self) -> Remote {
        connect(self.settings()).unwrap()
    }

    /// The node that serves a key.
    pub(super) async fn master_of(&self, key: Hashed) -> usize {
        self.cluster.master_of(&tag(key)).await.unwrap()
    }
}

/// A key at the place of [`key`]`(place)`.
fn beside(place: u16, number: u128) -> Hashed {
    Hashed::narrow(number << 64 | u128::from(place))
}

/// The hash tag of a key's name.
pub(super) fn tag(key: Hashed) -> String {
    format!("{:04x}", key.hash as u16)
}

fn name(key: Hashed) -> Vec<u8> {
    let mut name = format!("tidegate:{{{}}}", tag(key)).into_bytes();
    name.extend_from_slice(&key.hash.to_be_bytes());
    name
}

/// Waits until an update is committed, and returns its counts.
pub(super) async fn hits_again(remote: &Remote, keys: &[Hashed]) -> Vec<u64> {
    until::until("an update is committed", Duration::from_secs(30), async || hit(remote, keys).ok())
        .await
        .unwrap()
}

#[tokio::test]
async fn sidecars_share_counters_on_all_masters() -> anyhow::Result<()> {
    let Some(nodes) = Nodes::start().await? else { return Ok(()) };
    let (one, two) = (nodes.sidecar(), nodes.sidecar());
    assert_eq!(one.seed(), two.seed());
    for number in 0..200 {
        assert_eq!(hit(&one, &[key(number), beside(number as u16, 1 << 20)])?, [1, 1]);
        assert_eq!(hit(&two, &[key(number)])?, [2]);
    }
    for node in &nodes.cluster.nodes[..3] {
        let keys: usize = node.command(&["DBSIZE"]).await?.parse()?;
        assert!(keys > 60, "{keys}");
    }
    let said = cause(&one, &[key(1), key(2)]);
    assert!(said.contains("several slots"), "{said}");
    // A first address where nobody is.
    let mut settings = nodes.settings();
    if let Servers::Cluster { nodes } = &mut settings.servers {
        nodes.truncate(1);
        nodes.insert(0, Address::Tcp { host: "127.0.0.1".to_owned(), port: 1 });
    }
    let three = connect(settings)?;
    assert_eq!(hit(&three, &[key(1)])?, [3]);
    // Nodes that are not there yet are not waited for at the start.
    until::until("all nodes", Duration::from_secs(30), async || {
        (three.health() == Health::Up).then_some(())
    })
    .await?;
    Ok(())
}

/// One server is no cluster, and a node of a cluster is no server by itself.
#[tokio::test]
async fn the_wrong_kind_of_server_is_told() -> anyhow::Result<()> {
    let Some(nodes) = Nodes::start().await? else { return Ok(()) };
    let Some(server) = std::thread::spawn(|| Server::start(&[])).join().unwrap() else {
        return Ok(());
    };
    let patience = Duration::from_secs(1);
    let lone = vec![server.address().parse()?];
    let settings = Settings { patience, ..Settings::new(Servers::Cluster { nodes: lone }) };
    until_refused(&settings, "cluster support disabled");
    std::thread::spawn(|| drop(server)).join().unwrap();
    // Its own slots it would serve.
    let owner = nodes.cluster.master_of("tidegate:seed").await?;
    let timeout = Duration::from_secs(10);
    let single =
        connect(Settings { timeout, ..Settings::at(&nodes.cluster.nodes[owner].address())? })?;
    let causes = (1..40).filter_map(|number| hit(&single, &[key(number)]).err());
    let causes: Vec<String> = causes.map(|cause| cause.to_string()).collect();
    assert!(causes.iter().any(|cause| cause.contains("write redis+cluster://")), "{causes:?}");
    Ok(())
}

/// Moves a slot by hand, and counts at each step.
#[tokio::test]
async fn a_slot_moves_while_its_keys_are_counted() -> anyhow::Result<()> {
    let Some(nodes) = Nodes::start().await? else { return Ok(()) };
    let remote = nodes.sidecar();
    let (old, new) = (key(7), beside(7, 1 << 20));
    assert_eq!(hit(&remote, &[old])?, [1]);
    let from = nodes.master_of(old).await;
    let to = (from + 1) % 3;
    let port = |index: usize| nodes.cluster.nodes[index].port;
    let id = |index: usize| text(port(index), "CLUSTER MYID").lines().nth(1).unwrap().to_owned();
    let slot = nodes.cluster.nodes[0].command(&["CLUSTER", "KEYSLOT", &tag(old)]).await?;
    let run = |index: usize, line: &str| {
        let answer = text(port(index), line);
        assert!(answer.starts_with("+OK"), "{line}: {answer}");
    };
    run(to, &format!("CLUSTER SETSLOT {slot} IMPORTING {}", id(from)));
    run(from, &format!("CLUSTER SETSLOT {slot} MIGRATING {}", id(to)));
    assert_eq!(hit(&remote, &[old])?, [2], "not moved yet");
    assert_eq!(hit(&remote, &[new])?, [1], "new there");
    assert_eq!(hit(&remote, &[new])?, [2]);
    // One is here, the other is there.
    let mut settings = nodes.settings();
    settings.timeout = Duration::from_millis(300);
    let hasty = connect(settings)?;
    until::until("the cause is told", Duration::from_secs(30), async || {
        cause(&hasty, &[old, new]).contains("on its way").then_some(())
    })
    .await?;
    let to_port = port(to).to_string();
    let migrate: [&[u8]; 6] =
        [b"MIGRATE", b"127.0.0.1", to_port.as_bytes(), &name(old), b"0", b"5000"];
    assert_eq!(reply(port(from), &migrate), b"+OK\r\n");
    assert_eq!(hit(&remote, &[old])?, [3], "moved");
    assert_eq!(hit(&remote, &[old, new])?, [4, 3]);
    for index in [to, from, (to + 1) % 3] {
        run(index, &format!("CLUSTER SETSLOT {slot} NODE {}", id(to)));
    }
    assert_eq!(hit(&remote, &[old, new])?, [5, 4]);
    assert_eq!(hit(&nodes.sidecar(), &[old, new])?, [6, 5]);
    assert_eq!(remote.counts().failed, 0);
    Ok(())
}

/// Nothing is lost or doubled while slots move under load.
#[tokio::test]
async fn storms_go_on_while_slots_move() -> anyhow::Result<()> {
    let Some(nodes) = Nodes::start().await? else { return Ok(()) };
    let sidecars: Vec<_> = (0..3).map(|_| Arc::new(nodes.sidecar())).collect();
    let keys: Vec<Hashed> = (0..16).map(key).collect();
    let threads: Vec<_> = sidecars
        .iter()
        .map(|remote| {
            let (remote, keys) = (remote.clone(), keys.clone());
            std::thread::spawn(move || {
                let mut committed = vec![0_u64; keys.len()];
                for round in 0..1_600 {
                    let index = round % keys.len();
                    committed[index] += u64::from(hit(&remote, &[keys[index]]).is_ok());
                }
                committed
            })
        })
        .collect();
    // redis-cli moves slots with their keys from one master to another.
    let entry = &nodes.cluster.nodes[0];
    let id = async |index: usize| nodes.cluster.nodes[index].command(&["CLUSTER", "MYID"]).await;
    let (from, to) = (id(0).await?, id(1).await?);
    entry.reshard(&from, &to, 400).await?;
    let mut expected = vec![0; keys.len()];
    for thread in threads {
        let committed = thread.join().expect("a thread");
        expected.iter_mut().zip(committed).for_each(|(sum, count)| *sum += count);
    }
    let total: u64 = expected.iter().sum();
    assert!(total > 4_000, "{total} of 4,800");
    for (key, expected) in keys.iter().zip(expected) {
        assert_eq!(hit(&sidecars[0], &[*key])?, [expected + 1], "key {:x}", key.hash);
    }
    Ok(())
}

#[tokio::test]
async fn a_master_dies_and_its_replica_goes_on() -> anyhow::Result<()> {
    let Some(mut nodes) = Nodes::start().await? else { return Ok(()) };
    let mut settings = nodes.settings();
    settings.timeout = Duration::from_secs(2);
    let remote = connect(settings)?;
    let mut masters = HashSet::new();
    for number in 0..30 {
        hit(&remote, &[key(number)])?;
        masters.insert(nodes.master_of(key(number)).await);
    }
    assert_eq!(masters.len(), 3);
    let dead = nodes.master_of(key(3)).await;
    for node in &nodes.cluster.nodes[..3] {
        node.is_replicated().await?;
    }
    nodes.cluster.nodes[dead].kill().await?;
    nodes.cluster.notice_soon().await?;
    until::until("the loss is noticed", Duration::from_secs(30), async || {
        let Health::Down { cause } = remote.health() else { return None };
        (cause.contains("127.0.0.1:") || cause.contains("down")).then_some(())
    })
    .await?;
    assert_eq!(hits_again(&remote, &[key(3)]).await, [2]);
    for number in 0..30 {
        let expected = if number == 3 { 3 } else { 2 };
        assert_eq!(hits_again(&remote, &[key(number)]).await, [expected], "key {number}");
    }
    // The old master comes back as a replica, without its data.
    nodes.cluster.nodes[dead].restart().await?;
    until::until("good health", Duration::from_secs(30), async || {
        (remote.health() == Health::Up).then_some(())
    })
    .await?;
    assert_eq!(hits_again(&remote, &[key(3)]).await, [4]);
    Ok(())
}

/// The seed is at one master, and every master's data can go away alone.
#[tokio::test]
async fn what_a_master_forgets_is_new_and_the_seed_comes_back() -> anyhow::Result<()> {
    let Some(nodes) = Nodes::start().await? else { return Ok(()) };
    let remote = nodes.sidecar();
    for number in 0..30 {
        hit(&remote, &[key(number)])?;
    }
    let of_seed = nodes.cluster.master_of("tidegate:seed").await?;
    let owner = &nodes.cluster.nodes[of_seed];
    owner.command(&["FLUSHALL"]).await?;
    until::until("the seed is there again", Duration::from_secs(30), async || {
        (owner.command(&["EXISTS", "tidegate:seed"]).await.ok()? == "1").then_some(())
    })
    .await?;
    assert_eq!(nodes.sidecar().seed(), remote.seed());
    for number in 0..30 {
        let is_there = nodes.master_of(key(number)).await == of_seed;
        assert_eq!(hit(&remote, &[key(number)])?, [if is_there { 1 } else { 2 }], "key {number}");
    }
    // With another seed nobody updates anything, at any master.
    owner.command(&["SET", "tidegate:seed", "00000000000000ff"]).await?;
    until::until("it is noticed", Duration::from_secs(30), async || {
        (remote.health() != Health::Up).then_some(())
    })
    .await?;
    for number in 0..30 {
        let said = cause(&remote, &[key(number)]);
        assert!(said.contains("restart the sidecar"), "{said}");
    }
    Ok(())
}
