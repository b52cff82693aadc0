//! What a killed process left: committed updates to complete, locks and seats to give back.

use crate::format::journal::read_journal;
use crate::format::node::is_sealed;
use crate::memory::Memory;
use crate::memory::control::pid_word;
use crate::memory::key_node::KeyNode;
use crate::memory::sync::{get, put};
use crate::writers::lock::release_dead;
use crate::writers::slot::{Count, WriterSlot, owner_word};

/// What there was to clean up after the dead.
#[derive(Clone, Copy, Default)]
#[must_use = "it is to be counted"]
pub(crate) struct Recovered {
    writers: u64,
    completed: u64,
}

impl Recovered {
    pub(crate) const fn and(self, other: Self) -> Self {
        Self { writers: self.writers + other.writers, completed: self.completed + other.completed }
    }

    /// Counts it as done from `seat`.
    pub(crate) fn count(self, writer: &WriterSlot<'_>) {
        writer.count(Count::Recovered, self.writers);
        writer.count(Count::Completed, self.completed);
    }
}

/// Cleans up after process number `process`, which is dead: completes its committed updates and gives
/// back its locks and seats. The caller has the right to.
///
/// Killed in the middle, it can be done again.
pub(crate) fn recover(memory: &Memory, process: u32) -> Recovered {
    let owner = owner_word(process);
    let mut recovered = Recovered::default();
    for dead in WriterSlot::all(&memory.control).filter(|dead| dead.owner() == owner) {
        recovered.completed += u64::from(complete(memory, &dead));
        for id in dead.locks() {
            if let Some(key_node) = memory.key_node(id) {
                release_dead(key_node.lock(), dead.lock_word());
            }
        }
        dead.clear_locks();
        dead.release();
        recovered.writers += 1;
    }
    if get(pid_word(&memory.control, process)) != 0 {
        put(pid_word(&memory.control, process), 0);
    }
    recovered
}

/// Does what a committed journal says, up to a record that makes no sense, then forgets it. Says whether there
/// was one.
fn complete(memory: &Memory, dead: &WriterSlot<'_>) -> bool {
    let words = dead.committed_words();
    let node_words = |class| Some(memory.class(class)?.layout.node_words);
    for record in read_journal(&words, node_words) {
        let Some(key_node) = memory.key_node(record.id) else { break };
        if record.slot >= key_node.layout().geometry.chain() {
            break;
        }
        complete_record(&key_node, record.slot, record.before, record.image, memory.seed());
    }
    if !words.is_empty() {
        dead.clear_journal();
    }
    !words.is_empty()
}

/// Makes one change of a journal, unless the node is neither as the journal found it nor torn. Then
/// the journal is older than the node: a copy of a live cluster, or a loss of power.
fn complete_record(
    key_node: &KeyNode<'_>,
    slot: u32,
    before: u64,
    image: Option<&[u64]>,
    seed: u64,
) {
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
        // Whole, and not what was to be replaced: newer, or done already, though perhaps not yet
        // marked and noted in the head.
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
