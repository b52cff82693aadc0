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

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use crate::format::node::{NARROW_WORDS, seal};
    use crate::format::{Class, ClusterInfo, Geometry, KeyNodeId};
    use crate::memory::sync::{get, put};
    use crate::open::segment::anonymous;

    type Node = [u64; NARROW_WORDS];
    const SEED: u64 = 7;
    const SLOT: u32 = 1;

    /// A node of the same key for each value.
    fn node(value: u64) -> Node {
        let mut image = [5, 5, value, value, value, value, 0];
        seal(&mut image, 50 + value as u32, SEED);
        image
    }

    fn tail(node: Node) -> u64 {
        node[NARROW_WORDS - 1]
    }

    /// The state of one node and the last words of another.
    fn torn(state: Node, rest: Node) -> Node {
        [&state[..4], &rest[4..]].concat().try_into().unwrap()
    }

    /// A cluster of one key-node of four nodes.
    fn memory() -> Memory {
        let narrow = Geometry::by_count(1, 1, 4, 4).unwrap();
        anonymous(ClusterInfo { cluster: 1, seed: SEED, narrow, wide: None }).unwrap()
    }

    /// Recovers process 2, which held the lock and had committed this record when the slot held `found`. Checks that
    /// nothing is left of it, that a change of the node is marked, and that another recovery changes nothing.
    /// Returns the node, none if it is erased.
    fn recovered(found: Node, record: &Record<'_>) -> Option<Node> {
        let memory = memory();
        let key_node = memory.class(Class::Narrow).unwrap().key_node(0);
        key_node.install(SLOT, &node(1));
        let at = key_node.layout().node_at(SLOT).first;
        key_node.words()[at..].iter().zip(found).for_each(|(word, value)| put(word, value));
        let dead = WriterSlot::new(&memory.control, 6);
        assert!(dead.try_claim(owner_word(2)));
        dead.list_lock(0, key_node.id);
        put(key_node.lock(), dead.lock_word());
        let mut journal = dead.journal();
        journal.push(record);
        journal.commit();
        let mut after = None;
        for works in [1, 0] {
            let changes = key_node.changes();
            let Recovered { writers, completed } = recover(&memory, [0, 1, 2]);
            assert_eq!((writers, completed), (works, works));
            assert_eq!((dead.owner(), dead.committed(), get(key_node.lock())), (0, 0, 0));
            assert!(!dead.has_listed_locks());
            let mut left = [0; NARROW_WORDS];
            key_node.read(SLOT, &mut left);
            assert!(left == after.unwrap_or(found) || key_node.changes() > changes);
            after = Some(left);
        }
        assert!(key_node.tag(SLOT) != 0 || after.is_some_and(|after| tail(after) == 0));
        after.filter(|_| key_node.tag(SLOT) != 0)
    }

    #[test]
    fn a_committed_node_replaces_the_one_before_it_and_no_other() {
        let (id, old, new, other) =
            (KeyNodeId { class: Class::Narrow, number: 0 }, node(1), node(2), node(3));
        let record = Record { id, slot: SLOT, before: tail(old), image: Some(&new) };
        assert_eq!(recovered(old, &record), Some(new), "nothing was written");
        assert_eq!(recovered(torn(new, old), &record), Some(new));
        assert_eq!(recovered(torn(old, new), &record), Some(new));
        assert_eq!(recovered(new, &record), Some(new), "all was written");
        assert_eq!(recovered(other, &record), Some(other), "the journal is older");
        assert_eq!(recovered(torn(old, other), &record), Some(new), "nothing whole is lost");
        let erasure = Record { image: None, ..record };
        assert_eq!(recovered(old, &erasure), None);
        assert_eq!(recovered(other, &erasure), Some(other), "the journal is older");
    }

    #[test]
    fn a_record_that_makes_no_sense_changes_nothing() {
        let (id, old, new) = (KeyNodeId { class: Class::Narrow, number: 0 }, node(1), node(2));
        let damaged = torn(new, node(3));
        let record = Record { id, slot: SLOT, before: tail(old), image: Some(&new) };
        assert_eq!(recovered(old, &Record { image: Some(&damaged), ..record }), Some(old));
        let nowhere = KeyNodeId { number: 1, ..id };
        for (id, slot) in [(id, 4), (id, 39), (nowhere, SLOT)] {
            for image in [None, Some(&new[..])] {
                let before = tail(old);
                assert_eq!(recovered(old, &Record { id, slot, before, image }), Some(old));
            }
        }
    }
}
