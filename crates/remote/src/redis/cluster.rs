//! The nodes of a cluster: which there are, which has which slot, and the connections to each.
//!
//! One node is asked for the others every second, and at once when something has changed; the next one when it does not
//! answer. A command that its node has refused goes on to the node that this one names.
//!
//! The `redis` crate has connections to clusters, too. They send a command again when its answer is lost. Here that would
//! count twice: a flight that was made is lost when it comes again, and its updates are run once more. They also read
//! answers of any length.

use super::dial::Connection;
use super::nodes::{NODES_MAX, View};
use super::open::ask;
use super::{Inner, Node};
use crate::engine::Cause;
use crate::retry;
use crate::settings::Address;
use crate::shared::Door;
use crate::slots::{Lane, NOWHERE};
use ::redis::{Value, cmd};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

/// How often a node is asked for the others.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// And how often at most.
const LOOK_PAUSE: Duration = Duration::from_millis(50);
/// How long a node may take to answer before the next one is asked.
const LOOK: Duration = Duration::from_millis(500);
/// What `CLUSTER SLOTS` may be answered with: a range for each slot takes less.
const VIEW_BYTES: usize = 8 * 1024 * 1024;
/// A node without slots is kept for so long after it was asked for a slot that is on its way to it.
const KEPT: Duration = Duration::from_secs(10);

pub(super) struct Cluster {
    /// The nodes of the settings.
    given: Vec<Address>,
    map: Mutex<Map>,
    change: Notify,
}

#[derive(Default)]
struct Map {
    nodes: HashMap<Address, Connected>,
    replicas: Vec<Address>,
}

/// The connections to a node.
struct Connected {
    door: Door,
    tasks: Vec<JoinHandle<()>>,
    named_at: Instant,
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Cluster {
    pub(super) fn new(given: Vec<Address>) -> Result<Cluster, String> {
        match given.is_empty() {
            true => Err("no address of a node is given".to_owned()),
            false => Ok(Cluster { given, map: Mutex::default(), change: Notify::new() }),
        }
    }

    pub(super) fn look_again(&self) {
        self.change.notify_one();
    }

    fn map(&self) -> MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The nodes to ask, each once.
    fn sources(&self) -> Vec<Address> {
        let map = self.map();
        let mut sources: Vec<Address> = Vec::new();
        for address in map.nodes.keys().chain(&self.given).chain(&map.replicas) {
            if !sources.contains(address) {
                sources.push(address.clone());
            }
        }
        sources
    }
}

impl Inner {
    /// Watches the nodes, for ever.
    pub(super) async fn scout(self: Arc<Inner>) {
        let Some(cluster) = &self.cluster else { return };
        loop {
            for address in cluster.sources() {
                let cause = self.watch(cluster, &address).await;
                self.shared.nowhere(cause.clone());
                self.shared.set_trouble(Some(cause.clone()));
                retry::log(&self.log_rate, &cause);
            }
            sleep(LOOK_PAUSE).await;
        }
    }

    /// Asks a node until it does not answer well. Returns why.
    async fn watch(self: &Arc<Inner>, cluster: &Cluster, address: &Address) -> Cause {
        let late = || {
            let millis = LOOK.as_millis();
            Cause::new(&format!("node {address} has not answered within {millis} ms"))
        };
        let mut connection = match timeout(LOOK, self.dialer.dial_node(address)).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(cause)) => return cause,
            Err(_) => return late(),
        };
        loop {
            match timeout(LOOK, view(&mut connection, address)).await {
                Ok(Ok(view)) => self.apply(cluster, view),
                Ok(Err(cause)) => return Cause::new(&format!("node {address}: {cause}")),
                Err(_) => return late(),
            }
            let _ = timeout(LOOK_EVERY, cluster.change.notified()).await;
            sleep(LOOK_PAUSE).await;
        }
    }

    fn apply(self: &Arc<Inner>, cluster: &Cluster, view: View) {
        let mut map = cluster.map();
        let now = Instant::now();
        let mut ranges = Vec::with_capacity(view.slots.len());
        for (range, address) in view.slots {
            ranges.push((range, self.lane(&mut map, &address, now)));
        }
        map.replicas = view.replicas;
        self.shared.nowhere(Cause::new("no node of the cluster has the slot of this key"));
        self.shared.set_trouble(None);
        self.shared.set_lanes(|lanes| {
            lanes.fill(NOWHERE);
            for (range, lane) in ranges {
                if let Some(slots) = lanes.get_mut(range) {
                    slots.fill(lane);
                }
            }
        });
        map.nodes.retain(|_, node| {
            let stays = node.named_at + KEPT > now;
            if !stays {
                self.shared.close_lane(&node.door);
            }
            stays
        });
    }

    /// The lane of a node, which is connected to if it is new.
    fn lane(self: &Arc<Inner>, map: &mut Map, address: &Address, now: Instant) -> Lane {
        if let Some(node) = map.nodes.get_mut(address) {
            node.named_at = now;
            return node.door.lane;
        }
        if map.nodes.len() >= NODES_MAX {
            return NOWHERE;
        }
        let door = self.shared.open_lane();
        let (lane, inner) = (door.lane, self.clone());
        let node = Node { inner, door: door.clone(), address: Some(address.clone()) };
        let tasks = (0..self.connections).map(|_| tokio::spawn(node.clone().run())).collect();
        map.nodes.insert(address.clone(), Connected { door, tasks, named_at: now });
        lane
    }

    /// A slot has moved to another node. Returns the lane of this.
    pub(super) fn moved(self: &Arc<Inner>, slot: usize, to: &Address) -> Lane {
        let lane = self.named(to);
        self.shared.set_lanes(|lanes| {
            if let Some(of_slot) = lanes.get_mut(slot) {
                *of_slot = lane;
            }
        });
        self.look_again();
        lane
    }

    /// The lane of a node that another one has named.
    pub(super) fn named(self: &Arc<Inner>, address: &Address) -> Lane {
        match &self.cluster {
            Some(cluster) => self.lane(&mut cluster.map(), address, Instant::now()),
            None => NOWHERE,
        }
    }
}

/// Asks a node which node has which slot. An error if it is not part of the cluster at the moment.
pub(super) async fn view(connection: &mut Connection, address: &Address) -> Result<View, Cause> {
    let info = ask(connection, cmd("CLUSTER").arg("INFO")).await?;
    let text = match &info {
        Value::BulkString(text) => String::from_utf8_lossy(text).into_owned(),
        Value::VerbatimString { text, .. } => text.clone(),
        _ => return Err(Cause::new("the server answers CLUSTER INFO with something else")),
    };
    connection.allowance.ask(VIEW_BYTES);
    let slots = ask(connection, cmd("CLUSTER").arg("SLOTS")).await;
    connection.allowance.answered();
    let view = View::read(&slots?, address)?;
    if !text.lines().any(|line| line.trim_end() == "cluster_state:ok") {
        return Err(Cause::new("the cluster is down, as some slots are not served"));
    }
    Ok(view)
}
