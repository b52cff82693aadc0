//! What a cluster is like as a whole: how many entries still count, where it is busy, who has it open.
//!
//! Counted from heads and tails, each of which is one word or as good as one, so that no node has to
//! come to rest. A large class is sampled.

use std::fs::File;
use std::ops::Range;

use crate::key_node::expires_secs;
use crate::memory::{ClassMemory, Spot};
use crate::process::is_alive;
use crate::region::Region;
use crate::seat::{PROCESSES_MAX, Seat, owner_word, pid_word};
use crate::sync::get;

/// So many key-nodes are looked at: enough for shares to be right within a percent.
const SAMPLE: u64 = 1 << 16;

/// A process that is noted in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number among the processes of the cluster.
    pub number: u32,
    /// The process id that it noted, as it is called in its own container.
    pub pid: u64,
    /// How many seats it has: threads that were inside an update at once, at the most.
    pub seats: u32,
    /// Whether it lives, as its lock says; one in another container, too.
    pub is_alive: bool,
}

/// The processes that are noted in a control file.
pub(super) fn processes(control: &Region, control_file: &File) -> Vec<Process> {
    let owners: Vec<u64> = Seat::all(control).map(|seat| seat.owner()).collect();
    let process = |number| {
        let owner = owner_word(number);
        let pid = get(pid_word(control, number));
        let seats = owners.iter().filter(|found| **found == owner).count() as u32;
        let is_alive = is_alive(control_file, number);
        (pid != 0 || seats != 0 || is_alive).then_some(Process { number, pid, seats, is_alive })
    };
    (0..PROCESSES_MAX).filter_map(process).collect()
}

/// How many entries of a class still count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ages {
    /// Nodes whose entry has not expired, scaled up from those that were looked at.
    pub live: u64,
    /// Nodes whose entry has expired, and which were not reused yet. Scaled as well.
    pub expired: u64,
}

impl Ages {
    pub(super) fn of(class: &ClassMemory, now_secs: u32) -> Self {
        let total = class.layout.geometry.key_nodes_total();
        let mut ages = Self::default();
        for spot in sample(class, 0..total, SAMPLE) {
            for slot in spot.node.occupied() {
                let is_live = expires_secs(spot.node.tail(slot)) > now_secs;
                *(if is_live { &mut ages.live } else { &mut ages.expired }) += 1;
            }
        }
        let scaled = |count| scale(count, total, total.min(SAMPLE));
        Self { live: scaled(ages.live), expired: scaled(ages.expired) }
    }
}

/// A run of neighbouring key-nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Area {
    /// How many nodes it has.
    pub nodes: u64,
    /// How many of them have a key, scaled up from those that were looked at.
    pub occupied: u64,
    /// How often nodes of it were written, scaled up as well. Each key-node counts modulo 2^32.
    pub updates: u64,
}

impl Area {
    /// All key-nodes in `count` runs.
    pub(super) fn all_of(class: &ClassMemory, count: u64) -> Vec<Self> {
        let total = class.layout.geometry.key_nodes_total();
        let count = count.clamp(1, total);
        let start = |index| scale(total, index, count);
        let limit = (SAMPLE / count).max(1);
        (0..count).map(|index| Self::of(class, start(index)..start(index + 1), limit)).collect()
    }

    fn of(class: &ClassMemory, range: Range<u64>, limit: u64) -> Self {
        let key_nodes = range.end - range.start;
        let (mut occupied, mut updates) = (0, 0);
        for spot in sample(class, range, limit) {
            occupied += u64::from(spot.node.occupied().len());
            updates += u64::from(spot.node.activity());
        }
        let scaled = |count| scale(count, key_nodes, key_nodes.min(limit));
        Self {
            nodes: key_nodes * u64::from(class.layout.geometry.chain()),
            occupied: scaled(occupied),
            updates: scaled(updates),
        }
    }
}

/// The key-nodes of a range, or `limit` of them at even distances.
fn sample(class: &ClassMemory, range: Range<u64>, limit: u64) -> impl Iterator<Item = Spot<'_>> {
    let len = range.end - range.start;
    let count = len.min(limit);
    (0..count).map(move |index| class.spot(range.start + scale(len, index, count)))
}

/// `count × numerator / denominator`.
fn scale(count: u64, numerator: u64, denominator: u64) -> u64 {
    (u128::from(count) * u128::from(numerator) / u128::from(denominator)) as u64
}
