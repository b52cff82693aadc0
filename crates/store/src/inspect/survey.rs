//! Surveys of a whole cluster: how full it is, how many entries are live, where it is busy, which processes
//! have it open.
//!
//! Reads heads and tails only, so it need not wait for any node. Takes no lock. Samples large classes. An
//! expired node counts as occupied until it is reused or swept.

use std::fs::File;
use std::ops::Range;
use std::thread;
use std::time::{Duration, SystemTime};

use crate::format::node::expires_secs;
use crate::memory::control::{PROCESSES_MAX, pid_word};
use crate::memory::sync::get;
use crate::memory::{ClassMemory, KeyNode, Memory};
use crate::writers::WriterSlot;
use crate::writers::liveness::is_alive;
use crate::writers::slot::owner_word;
use crate::writers::stall::{locks_held, stalled_since};

/// The number of sampled key-nodes: enough for shares to be right within a percent, in about a millisecond.
const SAMPLE: u64 = 1 << 16;
/// The same for those who look every second, in a tenth of the time.
const SMALL_SAMPLE: u64 = 1 << 12;

/// A holder without progress for this long is stuck. An update takes a microsecond, and a ready thread gets a
/// processor sooner.
const PROBE_INTERVAL: Duration = Duration::from_millis(50);

/// A process recorded in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number in the cluster.
    pub number: u32,
    /// The process id that it recorded, as seen in its own container.
    pub pid: u64,
    /// Its writer slots: the most threads that were inside an update at once.
    pub writer_slots: u32,
    /// Whether its liveness lock is held, also from another container.
    pub is_alive: bool,
}

pub(super) fn processes(memory: &Memory, control_file: &File) -> Vec<Process> {
    let owners: Vec<u64> = WriterSlot::all(&memory.control).map(|writer| writer.owner()).collect();
    let process = |number| {
        let owner = owner_word(number);
        let pid = get(pid_word(&memory.control, number));
        let writer_slots = owners.iter().filter(|found| **found == owner).count() as u32;
        let is_alive = is_alive(control_file, number);
        (pid != 0 || writer_slots != 0 || is_alive).then_some(Process {
            number,
            pid,
            writer_slots,
            is_alive,
        })
    };
    (0..PROCESSES_MAX).filter_map(process).collect()
}

/// A live process that holds locks and makes no progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// Its number in the cluster.
    pub process: u32,
    /// The process id that it recorded, as seen in its own container.
    pub pid: u64,
    /// The number of locks that it holds.
    pub locks: u32,
    /// Since when, as recorded by waiters; none without waiters.
    pub since: Option<SystemTime>,
}

/// The holders of locks that make no progress between two readings.
pub(super) fn holders(memory: &Memory, control_file: &File) -> Vec<LockHolder> {
    let writers = WriterSlot::all(&memory.control).filter(|writer| locks_held(memory, writer) > 0);
    let seen: Vec<_> = writers.map(|writer| (writer, writer.progress())).collect();
    if seen.is_empty() {
        return Vec::new();
    }
    thread::sleep(PROBE_INTERVAL);
    let mut holders: Vec<LockHolder> = Vec::new();
    for (writer, progress) in seen {
        let locks = locks_held(memory, &writer);
        let Some(process) = writer.process() else { continue };
        if locks == 0 || writer.progress() != progress || !is_alive(control_file, process) {
            continue;
        }
        let (pid, since) = (get(pid_word(&memory.control, process)), stalled_since(&writer));
        match holders.iter_mut().find(|holder| holder.process == process) {
            Some(holder) => {
                holder.locks += locks;
                holder.since = holder.since.into_iter().chain(since).min();
            }
            None => holders.push(LockHolder { process, pid, locks, since }),
        }
    }
    holders
}

/// How full a class of nodes is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// The number of nodes.
    pub nodes: u64,
    /// The number of occupied nodes, scaled up from the sample.
    pub occupied: u64,
    /// The number of sampled key-nodes.
    pub sampled: u64,
    /// Of the sampled key-nodes, how many have 0, 1, 2 … occupied nodes.
    pub chains: Vec<u64>,
    /// Of the sampled key-nodes, how many have displaced keys.
    pub crowded: u64,
}

impl Occupancy {
    pub(crate) fn of(class: &ClassMemory) -> Self {
        Self::of_sample(class, SAMPLE)
    }

    pub(crate) fn roughly(class: &ClassMemory) -> Self {
        Self::of_sample(class, SMALL_SAMPLE)
    }

    fn of_sample(class: &ClassMemory, most: u64) -> Self {
        let geometry = class.layout.geometry;
        let total = geometry.key_nodes_total();
        let sampled = total.min(most);
        let mut chains = vec![0; geometry.chain() as usize + 1];
        let (mut occupied, mut crowded) = (0, 0);
        for key_node in sample(class, 0..total, most) {
            let len = key_node.occupied().len();
            chains[len as usize] += 1;
            occupied += u64::from(len);
            crowded += u64::from(get(key_node.displaced()) > 0);
        }
        let occupied = scale(occupied, total, sampled);
        Self { nodes: geometry.nodes(), occupied, sampled, chains, crowded }
    }
}

/// How many entries of a class are live and expired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryCounts {
    /// Nodes with a live entry, scaled up from the sample.
    pub live: u64,
    /// Nodes with an expired entry, not yet reused; scaled up as well.
    pub expired: u64,
}

impl EntryCounts {
    pub(super) fn of(class: &ClassMemory, now_secs: u32) -> Self {
        let total = class.layout.geometry.key_nodes_total();
        let mut entry_counts = Self::default();
        for key_node in sample(class, 0..total, SAMPLE) {
            for slot in key_node.occupied() {
                let is_live = expires_secs(key_node.tail(slot)) > now_secs;
                *(if is_live { &mut entry_counts.live } else { &mut entry_counts.expired }) += 1;
            }
        }
        let scaled = |count| scale(count, total, total.min(SAMPLE));
        Self { live: scaled(entry_counts.live), expired: scaled(entry_counts.expired) }
    }
}

/// Statistics of a range of adjacent key-nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeStats {
    /// The number of nodes.
    pub nodes: u64,
    /// The number of occupied nodes, scaled up from the sample.
    pub occupied: u64,
    /// The number of writes to nodes, scaled up as well. Each key-node counts modulo 2^32.
    pub updates: u64,
}

impl RangeStats {
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
        for key_node in sample(class, range, limit) {
            occupied += u64::from(key_node.occupied().len());
            updates += u64::from(key_node.changes());
        }
        let scaled = |count| scale(count, key_nodes, key_nodes.min(limit));
        Self {
            nodes: key_nodes * u64::from(class.layout.geometry.chain()),
            occupied: scaled(occupied),
            updates: scaled(updates),
        }
    }
}

/// The key-nodes of a range, or `limit` of them, evenly spaced.
fn sample(class: &ClassMemory, range: Range<u64>, limit: u64) -> impl Iterator<Item = KeyNode<'_>> {
    let len = range.end - range.start;
    let count = len.min(limit);
    (0..count).map(move |index| class.key_node(range.start + scale(len, index, count)))
}

/// `count × numerator / denominator`.
fn scale(count: u64, numerator: u64, denominator: u64) -> u64 {
    (u128::from(count) * u128::from(numerator) / u128::from(denominator)) as u64
}
