//! One copy of a key-node, and one note about a pass: where they are, when they count, how they come to be.
//!
//! Owns their words and checksums. Reads and writes no file.

use bytemuck::cast_slice;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::format::geometry::{Class, Geometry, HEADER_BYTES};
use crate::memory::ClassMemory;
use crate::memory::key_node::KeyNode;
use crate::memory::sync::{Ordering, fence, get, put};
use crate::writers::stats::Stats;

pub(super) const CHECKPOINT_WORDS: usize = HEADER_BYTES / 8;
pub(super) type Checkpoint = [u64; CHECKPOINT_WORDS];
/// Words of a note besides the counts, and of a copy: in the place of the lock and of `away`, which mean
/// nothing there.
pub(super) const PASS: usize = 0;
pub(super) const CHECKSUM: usize = 1;
pub(super) const COUNTS: usize = 2;
/// Of a note: how many key-nodes have a copy.
pub(super) const COPIES: usize = COUNTS + Stats::COUNTS;
/// Of a note: what processes know of the clock, as long as the machine runs.
pub(super) const CLOCK: usize = COPIES + 1;
/// How often a key-node is copied in vain, as somebody changes it meanwhile, before it is locked.
const TRIES: u32 = if cfg!(loom) { 1 } else { 20 };

/// The place that has the last copy of a key-node, and the changes that are in it: the low half of a word is
/// the count of changes, the high half the place plus 1, or 0 where there is no copy.
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

    /// Where the next copy goes.
    pub(super) fn next_position(self) -> u32 {
        self.position.map_or(0, |position| 1 - position)
    }
}

/// Where the copy of the key-node `rest` of a file is: all first places, then all second ones, so that
/// they are far apart on the disk.
pub(super) fn offset(geometry: &Geometry, position: u32, index: u64) -> u64 {
    let copy = u64::from(position) * geometry.key_nodes() + index;
    HEADER_BYTES as u64 + copy * geometry.key_node_bytes()
}

/// Where the copy of a key-node of a loaded snapshot is, in its file.
pub(crate) fn copy_offset(class: &ClassMemory, number: u64) -> u64 {
    let copy_state = CopyState::from_word(get(class.copy_state(number)));
    let (_, index) = class.layout.file_and_index(number);
    offset(&class.layout.geometry, copy_state.position.unwrap_or(0), index)
}

/// A copy, as far as it tells by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyStatus {
    Empty,
    /// Made in this pass.
    Whole(u64),
    Damaged,
}

/// What the checksum of a copy is made with besides the seed of the cluster: where it is, so that it does not count
/// elsewhere.
pub(super) fn seed_at(seed: u64, class: &ClassMemory, number: u64, position: u32) -> u64 {
    let class = if class.class == Class::Wide { 2 } else { 1 };
    let at = number.wrapping_mul(8).wrapping_add(2 * class + u64::from(position));
    seed ^ at.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Judges a copy or a note.
pub(super) fn status_of(words: &mut [u64], seed: u64) -> CopyStatus {
    if words.iter().all(|word| *word == 0) {
        return CopyStatus::Empty;
    }
    let found = std::mem::take(&mut words[CHECKSUM]);
    let check_memory = found == xxh3_64_with_seed(cast_slice(words), seed);
    words[CHECKSUM] = found;
    if check_memory { CopyStatus::Whole(words[PASS]) } else { CopyStatus::Damaged }
}

/// Makes a copy or a note one of `pass`.
pub(super) fn stamp(words: &mut [u64], pass: u64, seed: u64) {
    words[PASS] = pass;
    words[CHECKSUM] = 0;
    words[CHECKSUM] = xxh3_64_with_seed(cast_slice(words), seed);
}

/// The place of the copy that counts: the last one of a complete pass. If there is none, as in the copy of a
/// directory that was being written all along, the earliest later one.
pub(super) fn choose_position(statuses: &[CopyStatus; 2], complete: u64) -> Option<u32> {
    let pass = |position: u32| match statuses[position as usize] {
        CopyStatus::Whole(pass) => Some(pass),
        CopyStatus::Empty | CopyStatus::Damaged => None,
    };
    let whole = || [0, 1].into_iter().filter_map(|position| Some((pass(position)?, position)));
    let of_complete = whole().filter(|(pass, _)| *pass <= complete).max();
    of_complete.or_else(|| whole().min()).map(|(_, position)| position)
}

/// Puts a copy into memory, and notes where it is from. If the other place has something that must not count
/// once the next pass is complete, the key-node counts as changed, so that this pass replaces it.
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

/// Copies a key-node, and says which changes are in it.
pub(super) fn copy(key_node: KeyNode<'_>, image: &mut [u64]) -> u32 {
    for (word, to) in key_node.words().iter().zip(image) {
        *to = get(word);
    }
    key_node.changes()
}

/// Copies a key-node if nobody changes it meanwhile.
pub(super) fn try_copy(key_node: KeyNode<'_>, image: &mut [u64]) -> Option<u32> {
    for _ in 0..TRIES {
        let before = (get(key_node.lock()) as u32, key_node.changes());
        // Acquire: what is copied is no older than this look.
        fence(Ordering::Acquire);
        let changes = copy(key_node, image);
        // Acquire: if any of it is of an update under way, its lock is seen, or what came after.
        fence(Ordering::Acquire);
        let lock = get(key_node.lock()) as u32;
        // Acquire: if the lock was given back since, the count of changes is seen that came before.
        fence(Ordering::Acquire);
        if before == (0, changes) && lock == 0 && key_node.changes() == changes {
            return Some(changes);
        }
        std::hint::spin_loop();
    }
    None
}

#[cfg(loom)]
mod loom_tests {
    //! Every interleaving of a copy with an update of the same key-node. Run by `make test-loom`.

    use super::*;
    use crate::format::layout::{KeyNodeId, Layout};
    use crate::format::node::STATE;
    use crate::memory::sync::AtomicU64;
    use crate::writers::lock::{release, try_acquire};
    use loom::sync::Arc;
    use loom::thread;

    const ID: KeyNodeId = KeyNodeId { class: Class::Narrow, number: 0 };

    /// A copy that counts is of one moment: all of an update, or nothing, and it says which changes are in it.
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
