//! Copies of key-nodes, and checkpoints: their words, positions and validity.
//!
//! Owns their checksums. Accesses no file.

use bytemuck::cast_slice;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::format::{Class, Geometry, HEADER_BYTES};
use crate::memory::sync::{Ordering, fence, get, put};
use crate::memory::{ClassMemory, KeyNode};
use crate::writers::Count;

pub(super) const CHECKPOINT_WORDS: usize = HEADER_BYTES / 8;
pub(super) type Checkpoint = [u64; CHECKPOINT_WORDS];
/// Words that copies and checkpoints have in common. In a copy they replace the lock and the count of
/// displaced keys, which have no meaning there.
pub(super) const PASS: usize = 0;
pub(super) const CHECKSUM: usize = 1;
pub(super) const COUNTS: usize = 2;
/// In a checkpoint: the number of key-nodes that have a copy.
pub(super) const COPIES: usize = COUNTS + Count::KINDS;
/// In a checkpoint: the clock words of this boot.
pub(super) const CLOCK: usize = COPIES + 1;
/// How often a copy is tried while others change the key-node, before it is locked.
const TRIES: u32 = if cfg!(loom) { 1 } else { 20 };

/// The position of a key-node's latest copy, and the changes in it. As a word: the count of changes in the
/// low half, and in the high half the position plus 1, or 0 if there is no copy.
#[derive(Clone, Copy)]
pub(super) struct CopyState {
    pub(super) changes: u32,
    pub(super) position: Option<u32>,
}

impl CopyState {
    pub(super) fn from_word(word: u64) -> Self {
        let position = (word >> 32) as u32;
        Self {
            changes: word as u32,
            position: position.checked_sub(1).map(|position| position & 1),
        }
    }

    pub(super) fn to_word(self) -> u64 {
        let position = self.position.map_or(0, |position| position + 1);
        u64::from(position) << 32 | u64::from(self.changes)
    }

    pub(super) fn next_position(self) -> u32 {
        self.position.map_or(0, |position| 1 - position)
    }
}

/// The offset of a copy of key-node `index` of a file. All first positions precede all second ones, so that
/// the two are far apart on disk.
pub(super) fn offset(geometry: &Geometry, position: u32, index: u64) -> u64 {
    let copy = u64::from(position) * geometry.key_nodes() + index;
    HEADER_BYTES as u64 + copy * geometry.key_node_bytes()
}

/// The offset in its file of a key-node's copy in a loaded snapshot.
pub(crate) fn copy_offset(class: &ClassMemory, number: u64) -> u64 {
    let copy_state = CopyState::from_word(get(class.copy_state(number)));
    let (_, index) = class.layout.file_and_index(number);
    offset(&class.layout.geometry, copy_state.position.unwrap_or(0), index)
}

/// The validity of a copy or a checkpoint by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyStatus {
    Empty,
    /// Written in this pass.
    Whole(u64),
    Damaged,
}

/// The seed of a copy's checksum: that of the cluster, mixed with the position, so that a copy is invalid elsewhere.
pub(super) fn seed_at(seed: u64, class: &ClassMemory, number: u64, position: u32) -> u64 {
    let class = if class.class == Class::Wide { 2 } else { 1 };
    let at = number.wrapping_mul(8).wrapping_add(2 * class + u64::from(position));
    seed ^ at.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

pub(super) fn status_of(words: &mut [u64], seed: u64) -> CopyStatus {
    if words.iter().all(|word| *word == 0) {
        return CopyStatus::Empty;
    }
    let found = std::mem::take(&mut words[CHECKSUM]);
    let is_whole = found == xxh3_64_with_seed(cast_slice(words), seed);
    words[CHECKSUM] = found;
    if is_whole { CopyStatus::Whole(words[PASS]) } else { CopyStatus::Damaged }
}

/// Completes a copy or a checkpoint with the number of its pass and its checksum.
pub(super) fn stamp(words: &mut [u64], pass: u64, seed: u64) {
    words[PASS] = pass;
    words[CHECKSUM] = 0;
    words[CHECKSUM] = xxh3_64_with_seed(cast_slice(words), seed);
}

/// The position of the valid copy: the latest of a complete pass. If there is none, as in a directory copied
/// while being written, the earliest later one.
pub(super) fn choose_position(statuses: &[CopyStatus; 2], complete: u64) -> Option<u32> {
    let pass = |position: u32| match statuses[position as usize] {
        CopyStatus::Whole(pass) => Some(pass),
        CopyStatus::Empty | CopyStatus::Damaged => None,
    };
    let whole = || [0, 1].into_iter().filter_map(|position| Some((pass(position)?, position)));
    let of_complete = whole().filter(|(pass, _)| *pass <= complete).max();
    of_complete.or_else(|| whole().min()).map(|(_, position)| position)
}

/// Puts a copy into memory and records its position. If the other position must not count after the next
/// pass, marks the key-node as changed, so that the pass overwrites it.
pub(super) fn restore_copy(
    class: &ClassMemory,
    number: u64,
    copy: &[u64],
    (position, is_newest): (u32, bool),
) {
    let key_node = class.key_node(number);
    for (word, value) in key_node.words().iter().zip(copy).skip(CHECKSUM + 1) {
        put(word, *value);
    }
    let changes = key_node.changes().wrapping_sub(u32::from(!is_newest));
    put(class.copy_state(number), CopyState { changes, position: Some(position) }.to_word());
}

/// Copies a key-node, and returns the changes in the copy.
pub(super) fn copy(key_node: KeyNode<'_>, image: &mut [u64]) -> u32 {
    for (word, to) in key_node.words().iter().zip(image) {
        *to = get(word);
    }
    key_node.changes()
}

/// Copies a key-node if it does not change meanwhile.
pub(super) fn try_copy(key_node: KeyNode<'_>, image: &mut [u64]) -> Option<u32> {
    for _ in 0..TRIES {
        let before = (get(key_node.lock()) as u32, key_node.changes());
        // Acquire: the copy is no older than these loads.
        fence(Ordering::Acquire);
        let changes = copy(key_node, image);
        // Acquire: if the copy contains part of an update, the load below sees its lock, or something later.
        fence(Ordering::Acquire);
        let lock = get(key_node.lock()) as u32;
        // Acquire: if the lock was released since, the changes made before are visible.
        fence(Ordering::Acquire);
        if before == (0, changes) && lock == 0 && key_node.changes() == changes {
            return Some(changes);
        }
        std::hint::spin_loop();
    }
    None
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use crate::format::ClusterInfo;
    use crate::memory::Memory;
    use crate::open::segment::anonymous;
    use std::collections::BTreeSet;

    const SEED: u64 = 7;

    fn memory() -> Memory {
        let geometry = |state_words| Geometry::by_count(1, 4, 2, state_words).unwrap();
        let (narrow, wide) = (geometry(4), Some(geometry(33)));
        anonymous(ClusterInfo { cluster: 1, seed: SEED, narrow, wide }).unwrap()
    }

    #[test]
    fn a_copy_is_valid_at_its_own_position_only() {
        let memory = memory();
        let (mut seeds, mut count) = (BTreeSet::new(), 0);
        for class in memory.classes() {
            for number in 0..1_000 {
                for position in [0, 1] {
                    seeds.insert(seed_at(SEED, class, number, position));
                    count += 1;
                }
            }
        }
        assert_eq!(seeds.len(), count);
        // Part of the format: another release must find the copies of this one valid.
        let narrow = memory.class(Class::Narrow).unwrap();
        assert_eq!(seed_at(SEED, narrow, 0, 0), SEED ^ 2u64.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        assert_eq!(seed_at(SEED, narrow, 3, 1), SEED ^ 27u64.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    }

    #[test]
    fn a_copy_is_where_its_key_node_and_its_position_say() {
        let memory = memory();
        for class in memory.classes() {
            let key_node_bytes = class.layout.geometry.key_node_bytes();
            for (number, position, index) in [(0, 0, 0), (3, 0, 3), (0, 1, 4), (2, 1, 6)] {
                let state = CopyState { changes: 5, position: Some(position) };
                put(class.copy_state(number), state.to_word());
                assert_eq!(copy_offset(class, number), 4096 + index * key_node_bytes);
            }
            assert_eq!(
                copy_offset(class, 1),
                4096 + key_node_bytes,
                "without a copy, the first one"
            );
        }
    }

    #[test]
    fn a_restored_key_node_is_copied_again_unless_its_other_copy_may_count() {
        let memory = memory();
        let class = memory.class(Class::Narrow).unwrap();
        let mut image = vec![0; class.layout.key_node_words];
        copy(class.key_node(1), &mut image);
        // Only the fields of the head that have a meaning in memory.
        (image[CHECKSUM], image[CHECKSUM + 1]) = (0x55, 0x77);
        for is_newest in [true, false] {
            restore_copy(class, 1, &image, (1, is_newest));
            let (key_node, state) = (class.key_node(1), class.copy_state(1));
            let state = CopyState::from_word(get(state));
            assert_eq!(get(&key_node.words()[CHECKSUM]), 0);
            assert_eq!(get(&key_node.words()[CHECKSUM + 1]), 0x77);
            assert_eq!((state.position, state.next_position()), (Some(1), 0));
            assert_eq!(state.changes == key_node.changes(), is_newest);
        }
    }

    #[test]
    fn a_key_node_that_is_locked_is_not_copied() {
        let memory = memory();
        let class = memory.class(Class::Narrow).unwrap();
        let key_node = class.key_node(2);
        let mut image = vec![0; class.layout.key_node_words];
        key_node.mark_changed();
        assert_eq!(try_copy(key_node, &mut image), Some(key_node.changes()));
        put(key_node.lock(), 5);
        assert_eq!(try_copy(key_node, &mut image), None);
    }
}

#[cfg(loom)]
mod loom_tests {
    //! Every interleaving of a copy with an update of the same key-node. Run by `make test-loom`.

    use super::*;
    use crate::format::node::STATE;
    use crate::format::{KeyNodeId, Layout};
    use crate::memory::sync::AtomicU64;
    use crate::writers::lock::{release, try_acquire};
    use loom::sync::Arc;
    use loom::thread;

    const ID: KeyNodeId = KeyNodeId { class: Class::Narrow, number: 0 };

    /// A valid copy contains all of an update or nothing, and reports exactly the changes in it.
    #[test]
    fn no_copy_has_half_an_update() {
        loom::model(|| {
            let layout = Layout::new(Geometry::by_count(1, 1, 1, 2).unwrap());
            let words: Vec<AtomicU64> =
                (0..layout.key_node_words).map(|_| AtomicU64::new(0)).collect();
            let words = Arc::new(words);
            let writer = thread::spawn({
                let words = words.clone();
                move || {
                    let key_node = KeyNode::new(ID, &words, &layout);
                    try_acquire(key_node.lock(), 5).unwrap();
                    let first = layout.node_at(0).first + STATE;
                    put(&words[first], 1);
                    put(&words[first + 1], 1);
                    key_node.mark_changed();
                    release(key_node.lock(), 5);
                }
            });
            let key_node = KeyNode::new(ID, &words, &layout);
            let mut image = vec![0; layout.key_node_words];
            if let Some(changes) = try_copy(key_node, &mut image) {
                let first = layout.node_at(0).first + STATE;
                let state = (image[first], image[first + 1]);
                assert!(state == (0, 0) || state == (1, 1), "half an update: {state:?}");
                assert_eq!(u64::from(changes), state.0, "a copy that says what is not in it");
            }
            writer.join().unwrap();
        });
    }
}
