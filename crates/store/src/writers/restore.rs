//! Restoration of a whole cluster that no other process has open, whatever happened to its files.
//!
//! Completes committed updates, frees all locks, drops invalid nodes ([`crate::memory::validity`]), and
//! recounts the displaced keys. Bounded by the size of the files, whatever bytes are in them.

use crate::format::StoredKey;
use crate::format::node::{expires_secs, key_of};
use crate::memory::control::{PROCESSES_MAX, RESTORING, unlocked, word};
use crate::memory::sync::{get, put, put_if_different};
use crate::memory::validity::{NodeFlaw, check_node, is_duplicate};
use crate::memory::{ClassMemory, KeyNode, Memory};
use crate::writers::recovery::recover;
use crate::writers::{Count, WriterSlot};

/// Whether a restoration has begun and not ended.
pub(crate) fn is_being_restored(memory: &Memory) -> bool {
    get(word(&memory.control, RESTORING)) != 0
}

/// Restores a cluster that no other process has open. Must be repeated after a kill in the middle.
pub(crate) fn restore(memory: &Memory) {
    put(word(&memory.control, RESTORING), 1);
    let counts = WriterSlot::new(&memory.control, 0);
    recover(memory, 0..PROCESSES_MAX).count(&counts);
    for writer in WriterSlot::all(&memory.control) {
        // Its owner cannot exist: the file was damaged.
        if writer.owner() != 0 || writer.committed() != 0 {
            writer.clear_journal();
            writer.clear_locks();
            writer.release();
        }
    }
    for class in memory.classes() {
        restore_class(class, memory.seed(), &counts);
    }
    put(word(&memory.control, RESTORING), 0);
}

fn restore_class(class: &ClassMemory, seed: u64, counts: &WriterSlot<'_>) {
    let mut image = vec![0; class.layout.node_words];
    // First each node by itself, then the displaced keys.
    let mut with_displaced = Vec::new();
    for key_node in class.key_nodes() {
        if restore_key_node(class, key_node, &mut image, seed, counts) {
            with_displaced.push(key_node.id.number);
        }
    }
    for number in with_displaced {
        let key_node = class.key_node(number);
        for slot in key_node.occupied() {
            let key = key_node.stored(slot);
            let home = class.home(&key);
            if home.id == key_node.id {
                continue;
            }
            key_node.read(slot, &mut image);
            if is_duplicate(class, number, slot, &image, seed) {
                drop_node(key_node, slot, Count::DroppedDuplicate, counts);
                continue;
            }
            if let Some(double) = find_stored(home, &key) {
                drop_node(home, double, Count::DroppedDuplicate, counts);
            }
            put(home.displaced(), get(home.displaced()) + 1);
        }
    }
}

/// Restores one key-node by itself. Returns whether it holds displaced keys.
fn restore_key_node(
    class: &ClassMemory,
    key_node: KeyNode<'_>,
    image: &mut [u64],
    seed: u64,
    counts: &WriterSlot<'_>,
) -> bool {
    let mark = unlocked(counts.lock_word());
    if unlocked(get(key_node.lock())) != mark {
        // The page was lost or replaced, and its content with it.
        counts.count(Count::DroppedTorn, 1);
    }
    put_if_different(key_node.lock(), mark);
    put_if_different(key_node.displaced(), 0);
    key_node.clear_tags_beyond_chain();
    let (mut earliest_expiry, mut has_displaced) = (u32::MAX, false);
    for slot in key_node.occupied() {
        key_node.read(slot, image);
        match check_node(key_node, key_node.tag(slot), image, seed) {
            Ok(()) => {
                has_displaced |= class.layout.home(&key_of(image)).number != key_node.id.number;
                earliest_expiry = earliest_expiry.min(expires_secs(image[image.len() - 1]));
            }
            Err(NodeFlaw::Torn) => drop_node(key_node, slot, Count::DroppedTorn, counts),
            Err(NodeFlaw::Foreign) => drop_node(key_node, slot, Count::DroppedForeign, counts),
        }
    }
    if key_node.earliest_expiry() > earliest_expiry {
        key_node.set_earliest_expiry(earliest_expiry);
    }
    drop_duplicates(class, key_node, image, seed, counts);
    has_displaced
}

/// Drops all but one of the nodes with the same key in one key-node.
fn drop_duplicates(
    class: &ClassMemory,
    key_node: KeyNode<'_>,
    image: &mut [u64],
    seed: u64,
    counts: &WriterSlot<'_>,
) {
    // Different tags mean different keys, which nearly always settles it. One bit per tag.
    let (mut seen, mut repeated) = ([0_u64; 4], [0_u64; 4]);
    for slot in key_node.occupied() {
        let tag = key_node.tag(slot);
        let (word, bit) = (usize::from(tag / 64), 1 << (tag % 64));
        if seen[word] & bit != 0 && repeated[word] & bit == 0 {
            repeated[word] |= bit;
            for slot in key_node.tagged(tag) {
                key_node.read(slot, image);
                if is_duplicate(class, key_node.id.number, slot, image, seed) {
                    drop_node(key_node, slot, Count::DroppedDuplicate, counts);
                }
            }
        }
        seen[word] |= bit;
    }
}

fn find_stored(key_node: KeyNode<'_>, key: &StoredKey) -> Option<u32> {
    key_node.tagged(key.tag()).find(|&slot| key_node.stored(slot) == *key)
}

fn drop_node(key_node: KeyNode<'_>, slot: u32, count: Count, counts: &WriterSlot<'_>) {
    key_node.set_tag(slot, 0);
    key_node.mark_changed();
    counts.count(count, 1);
}
