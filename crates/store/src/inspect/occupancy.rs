//! How full a class of nodes is, and how its keys are spread: read from the heads alone.
//!
//! Nodes whose entry has expired count as occupied until they are reused or swept. Takes no lock: each
//! head is read as it is at some moment.

use crate::format::geometry::CHAIN_MAX;
use crate::memory::ClassMemory;
use crate::memory::sync::get;

/// So many heads are looked at: enough for shares to be right within a percent, in about a
/// millisecond.
const SAMPLE: u64 = 1 << 16;

/// How full a class of nodes is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// How many nodes there are.
    pub nodes: u64,
    /// How many of them have a key, scaled up from those that were looked at.
    pub occupied: u64,
    /// How many key-nodes were looked at.
    pub looked_at: u64,
    /// Of the key-nodes that were looked at, how many have 0, 1, 2 … nodes occupied.
    pub chains: Vec<u64>,
    /// Of the key-nodes that were looked at, how many have keys that live in their other key-node.
    pub crowded: u64,
}

impl Occupancy {
    pub(crate) fn of(class: &ClassMemory) -> Self {
        let geometry = class.layout.geometry;
        let total = geometry.key_nodes_total();
        let looked_at = total.min(SAMPLE);
        let mut chains = vec![0; geometry.chain() as usize + 1];
        let (mut occupied, mut crowded) = (0, 0);
        for index in 0..looked_at {
            let key_node = (u128::from(index) * u128::from(total) / u128::from(looked_at)) as u64;
            let node = class.spot(key_node).node;
            let len = node.occupied().len();
            chains[len as usize] += 1;
            occupied += u64::from(len);
            crowded += u64::from(get(node.away()) > 0);
        }
        let scaled = u128::from(occupied) * u128::from(total) / u128::from(looked_at);
        Self { nodes: geometry.nodes(), occupied: scaled as u64, looked_at, chains, crowded }
    }
}

const _: () = assert!(CHAIN_MAX < 64);
