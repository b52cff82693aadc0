//! The check of every node: what is trusted after whatever happened to the files.
//!
//! A node counts only if it is sealed, marked by its own tag, in one of the two key-nodes of its key,
//! and the only one of its key. Owns this judgement, and the restoration of a cluster that nobody else
//! has open: complete what was committed, free all locks, drop what does not count, count anew which
//! keys are away. Bounded by the size of the files, whatever bytes are in them.

use crate::format::key::StoredKey;
use crate::format::node::{expires_secs, key_of};
use crate::memory::control::{PROCESSES_MAX, free, restoring_word};
use crate::memory::key_node::KeyNode;
use crate::memory::sync::{AtomicU64, get, put};
use crate::memory::{ClassMemory, Memory, Spot};
use crate::writers::slot::{Count, Seat};

use crate::memory::validity::{Fault, is_duplicate, judge};
use crate::writers::recovery::clean_up_after;

/// Whether a restoration has begun and not come to its end.
pub(crate) fn is_being_restored(memory: &Memory) -> bool {
    get(restoring_word(&memory.control)) != 0
}

/// Restores a cluster that no other process has open. Killed in the middle, it has to be done again.
pub(crate) fn restore(memory: &Memory) {
    put(restoring_word(&memory.control), 1);
    let counts = Seat::new(&memory.control, 0);
    for process in 0..PROCESSES_MAX {
        clean_up_after(memory, process).count(&counts);
    }
    for seat in Seat::all(&memory.control) {
        // What is left has an owner that cannot be: the file was damaged.
        if seat.owner() != 0 || seat.committed() != 0 {
            seat.clear_journal();
            seat.clear_locks();
            seat.give_back();
        }
    }
    for class in memory.classes() {
        restore_class(class, memory.seed(), &counts);
    }
    put(restoring_word(&memory.control), 0);
}

fn restore_class(class: &ClassMemory, seed: u64, counts: &Seat<'_>) {
    let mut image = vec![0; class.layout.node_words];
    // First every node by itself, then the keys that are away from home.
    let mut with_strangers = Vec::new();
    for spot in class.spots() {
        if restore_key_node(class, spot, &mut image, seed, counts) {
            with_strangers.push(spot.id.key_node);
        }
    }
    for number in with_strangers {
        let spot = class.spot(number);
        for slot in spot.node.occupied() {
            let key = spot.node.stored(slot);
            let home = class.home(&key);
            if home.id == spot.id {
                continue;
            }
            spot.node.read(slot, &mut image);
            if is_duplicate(class, number, slot, &image, seed) {
                drop_node(spot.node, slot, Fault::Duplicate, counts);
                continue;
            }
            if let Some(double) = find_stored(home.node, &key) {
                drop_node(home.node, double, Fault::Duplicate, counts);
            }
            put(home.node.away(), get(home.node.away()) + 1);
        }
    }
}

/// Restores one key-node, as far as it tells by itself. Says whether keys of another home live in it.
fn restore_key_node(
    class: &ClassMemory,
    Spot { id, node }: Spot<'_>,
    image: &mut [u64],
    seed: u64,
    counts: &Seat<'_>,
) -> bool {
    let mark = free(counts.lock_word());
    if free(get(node.lock())) != mark {
        // The page is not as it was made: what was there is gone.
        counts.count(Count::DroppedTorn, 1);
    }
    put_if_other(node.lock(), mark);
    put_if_other(node.away(), 0);
    node.clear_tags_beyond_chain();
    let (mut earliest, mut has_strangers) = (u32::MAX, false);
    for slot in node.occupied() {
        node.read(slot, image);
        match judge(class, id.key_node, node.tag(slot), image, seed) {
            Ok(()) => {
                has_strangers |= class.layout.home(&key_of(image)).number != id.key_node;
                earliest = earliest.min(expires_secs(image[image.len() - 1]));
            }
            Err(fault) => drop_node(node, slot, fault, counts),
        }
    }
    if node.earliest() > earliest {
        node.set_earliest(earliest);
    }
    drop_repeated(class, id.key_node, node, image, seed, counts);
    has_strangers
}

/// Drops all but one of the nodes that have the same key in one key-node.
fn drop_repeated(
    class: &ClassMemory,
    number: u64,
    node: KeyNode<'_>,
    image: &mut [u64],
    seed: u64,
    counts: &Seat<'_>,
) {
    // No two tags alike, no two keys alike: nearly always the end of it. A bit for each tag.
    let (mut seen, mut repeated) = ([0_u64; 4], [0_u64; 4]);
    for slot in node.occupied() {
        let tag = node.tag(slot);
        let (word, bit) = (usize::from(tag / 64), 1 << (tag % 64));
        if seen[word] & bit != 0 && repeated[word] & bit == 0 {
            repeated[word] |= bit;
            for slot in node.tagged(tag) {
                node.read(slot, image);
                if is_duplicate(class, number, slot, image, seed) {
                    drop_node(node, slot, Fault::Duplicate, counts);
                }
            }
        }
        seen[word] |= bit;
    }
}

fn find_stored(node: KeyNode<'_>, key: &StoredKey) -> Option<u32> {
    node.tagged(key.tag()).find(|&slot| node.stored(slot) == *key)
}

fn drop_node(node: KeyNode<'_>, slot: u32, fault: Fault, counts: &Seat<'_>) {
    node.set_tag(slot, 0);
    node.note_change();
    let count = match fault {
        Fault::Torn => Count::DroppedTorn,
        Fault::Foreign => Count::DroppedForeign,
        Fault::Duplicate => Count::DroppedDuplicate,
    };
    counts.count(count, 1);
}

/// Sets a word unless it is so already, so that the pages of a healthy cluster stay clean.
fn put_if_other(word: &AtomicU64, value: u64) {
    if get(word) != value {
        put(word, value);
    }
}
