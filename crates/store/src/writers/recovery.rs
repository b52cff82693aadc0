//! Recovery of a dead process: completes its committed updates, and releases its locks and writer slots.
//!
//! Owns the redo of a journal (docs/internals/store-format.md, "Updates"). Does not decide which process is dead.

use crate::format::node::is_sealed;
use crate::format::{Record, read_journal};
use crate::memory::control::pid_word;
use crate::memory::sync::put_if_different;
use crate::memory::{KeyNode, Memory};
use crate::writers::lock::release_dead;
use crate::writers::slot::owner_word;
use crate::writers::{Count, WriterSlot};

/// The work that a recovery of dead processes did.
#[derive(Clone, Copy, Default)]
#[must_use = "it is to be counted"]
pub(crate) struct Recovered {
    writers: u64,
    completed: u64,
}

impl Recovered {
    /// Adds it to the counts of `writer`.
    pub(crate) fn count(self, writer: &WriterSlot<'_>) {
        writer.count(Count::Recovered, self.writers);
        writer.count(Count::Completed, self.completed);
    }
}

/// Recovers processes, which are dead. The caller holds their liveness locks.
///
/// Idempotent: can be repeated after a kill in the middle.
pub(crate) fn recover(memory: &Memory, processes: impl IntoIterator<Item = u32>) -> Recovered {
    let mut recovered = Recovered::default();
    for process in processes {
        let owner = owner_word(process);
        for dead in WriterSlot::all(&memory.control).filter(|dead| dead.owner() == owner) {
            recovered.completed += u64::from(complete(memory, &dead));
            for key_node in dead.locks().filter_map(|id| memory.key_node(id)) {
                release_dead(key_node.lock(), dead.lock_word());
            }
            dead.clear_locks();
            dead.release();
            recovered.writers += 1;
        }
        put_if_different(pid_word(&memory.control, process), 0);
    }
    recovered
}

/// Applies a committed journal up to the first invalid record, then clears it. Returns whether there was one.
fn complete(memory: &Memory, dead: &WriterSlot<'_>) -> bool {
    let words = dead.committed_words();
    let node_words = |class| Some(memory.class(class)?.layout.node_words);
    for record in read_journal(&words, node_words) {
        let Some(key_node) = memory.key_node(record.id) else { break };
        if record.slot >= key_node.layout().geometry.chain() {
            break;
        }
        complete_record(&key_node, &record, memory.seed());
    }
    if !words.is_empty() {
        dead.clear_journal();
    }
    !words.is_empty()
}

/// Applies one record, unless the node is whole and is not the one that the journal replaces. Then the
/// journal is older than the node, as in a copy of a live cluster or after power loss.
fn complete_record(key_node: &KeyNode<'_>, record: &Record<'_>, seed: u64) {
    let Record { slot, before, image, .. } = *record;
    let tail = key_node.tail(slot);
    let Some(image) = image else {
        if tail == before {
            key_node.clear(slot);
        }
        key_node.mark_changed();
        return;
    };
    let mut found = image.to_vec();
    key_node.read(slot, &mut found);
    if tail != before && is_sealed(&mut found, seed) {
        // A whole node, but not the one to be replaced: newer, or written already, perhaps without its tag and hints.
        if found == image {
            key_node.install(slot, image);
        }
        return;
    }
    found.copy_from_slice(image);
    if is_sealed(&mut found, seed) {
        key_node.install(slot, image);
    }
}
