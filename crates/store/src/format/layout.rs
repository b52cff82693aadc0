//! The layout of a class: where the words of each key-node and node are.
//!
//! Pure arithmetic over a [`Geometry`]. Touches no file.

use crate::format::geometry::{HEAD_WORDS, HEADER_WORDS, LINE_WORDS};
use crate::format::{Class, Geometry, StoredKey};

/// The numbers of a geometry that every access needs, computed once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) geometry: Geometry,
    /// See [`Geometry::primary_slots`].
    pub(crate) primary_slots: u32,
    pub(crate) node_words: usize,
    pub(crate) key_node_words: usize,
    has_spread_nodes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyNodeAt {
    /// Counted over all files.
    pub(crate) number: u64,
    pub(crate) file: usize,
    /// The index in the file of its first word.
    pub(crate) first: usize,
}

impl Layout {
    pub(crate) const fn new(geometry: Geometry) -> Self {
        Self {
            geometry,
            primary_slots: geometry.primary_slots(),
            node_words: geometry.node_words(),
            key_node_words: geometry.key_node_words(),
            has_spread_nodes: geometry.has_spread_nodes(),
        }
    }

    #[inline]
    pub(crate) const fn node_at(&self, slot: u32) -> NodeAt {
        let (slot, primary_slots) = (slot as usize, self.primary_slots as usize);
        if !self.has_spread_nodes {
            return NodeAt { first: HEAD_WORDS + slot * self.node_words, stride: 1 };
        }
        let line = LINE_WORDS as usize;
        if slot < primary_slots {
            NodeAt { first: HEAD_WORDS + slot * line, stride: 1 }
        } else {
            // The last words of seven lines, starting at line 7 × (slot - primary slots).
            let first_line = (slot - primary_slots) * (line - 1);
            NodeAt { first: HEAD_WORDS + first_line * line + line - 1, stride: line }
        }
    }

    pub(crate) const fn key_node(&self, number: u64) -> KeyNodeAt {
        let (file, index) = self.file_and_index(number);
        self.key_node_of(file as u64, index)
    }

    /// The file of a key-node, and its index in that file.
    pub(crate) const fn file_and_index(&self, number: u64) -> (usize, u64) {
        ((number / self.geometry.key_nodes()) as usize, number % self.geometry.key_nodes())
    }

    /// The position of the word about a key-node's snapshot copy: its file, and its index there.
    pub(crate) const fn copy_state_at(&self, number: u64) -> (usize, usize) {
        let (file, index) = self.file_and_index(number);
        let key_nodes = self.geometry.key_nodes() as usize * self.key_node_words;
        (file, HEADER_WORDS + key_nodes + index as usize)
    }

    /// The home of a key: its estimate scaled to the files, and the remainder scaled to the key-nodes of a file.
    #[inline]
    pub(crate) const fn home(&self, stored: &StoredKey) -> KeyNodeAt {
        let in_files = stored.estimate as u128 * self.geometry.files() as u128;
        let (file, index) = ((in_files >> 64) as u64, in_files as u64);
        self.key_node_of(file, ((index as u128 * self.geometry.key_nodes() as u128) >> 64) as u64)
    }

    /// The alternate of a key, for when its home is crowded: never the home, unless that is the only key-node.
    ///
    /// The multiplier (2^64 divided by the golden ratio, made odd) moves the low bits of the estimate to the
    /// top, so that keys that share a home do not share their alternate.
    #[inline]
    pub(crate) const fn alternate(&self, stored: &StoredKey) -> KeyNodeAt {
        let (home, total) = (self.home(stored).number, self.geometry.key_nodes_total());
        let folded = stored.estimate ^ (stored.estimate >> 32);
        let mixed = folded.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let others_before = ((mixed as u128 * (total - 1) as u128) >> 64) as u64;
        let number = home + (1 + others_before) % total;
        self.key_node(if number < total { number } else { number - total })
    }

    /// The slot that a new key gets if it is free.
    #[inline]
    pub(crate) const fn first_choice(&self, stored: &StoredKey) -> u32 {
        let low = stored.estimate & u32::MAX as u64;
        ((low * self.primary_slots as u64) >> 32) as u32
    }

    /// The slot that a new key gets if its first choice is taken. Of narrow nodes, the one in the line that
    /// processors prefetch together with the first choice's.
    #[inline]
    pub(crate) const fn second_choice(&self, first_choice: u32) -> u32 {
        // Slot 0 is in line 1, behind the head.
        let next = ((first_choice + 1) ^ 1).saturating_sub(1);
        if next < self.primary_slots { next } else { first_choice }
    }

    #[inline]
    const fn key_node_of(&self, file: u64, index: u64) -> KeyNodeAt {
        KeyNodeAt {
            number: file * self.geometry.key_nodes() + index,
            file: file as usize,
            first: HEADER_WORDS + index as usize * self.key_node_words,
        }
    }
}

/// The position of a node's words within its key-node: every `stride`th word from `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeAt {
    pub(crate) first: usize,
    pub(crate) stride: usize,
}

/// The identity of a key-node in its cluster; encoded in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KeyNodeId {
    pub(crate) class: Class,
    pub(crate) number: u64,
}

const CLASS_BIT: u64 = 1 << 63;
pub(super) const SLOT_SHIFT: u32 = 48;
pub(crate) const KEY_NODE_MASK: u64 = (1 << SLOT_SHIFT) - 1;

impl KeyNodeId {
    pub(crate) fn to_word(self) -> u64 {
        let class = if self.class == Class::Wide { CLASS_BIT } else { 0 };
        class | self.number
    }

    /// Decodes a word. The key-node need not exist.
    pub(crate) fn from_word(word: u64) -> Self {
        let class = if word & CLASS_BIT == 0 { Class::Narrow } else { Class::Wide };
        Self { class, number: word & KEY_NODE_MASK }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::format::geometry::FILES_MAX;
    use crate::format::{CHAIN_MAX, WORD_BYTES};
    use proptest::prelude::*;
    use std::collections::HashSet;

    proptest! {
        #[test]
        fn nodes_do_not_overlap_and_fill_their_key_node(
            chain in 1..=CHAIN_MAX,
            state_words in prop_oneof![Just(4_u32), 1..=90_u32],
        ) {
            let layout = Layout::new(Geometry::by_count(2, 10, chain, state_words).unwrap());
            let mut seen = HashSet::new();
            for slot in 0..chain {
                let at = layout.node_at(slot);
                for word in 0..layout.node_words {
                    let index = at.first + word * at.stride;
                    prop_assert!(index >= HEAD_WORDS && index < layout.key_node_words);
                    prop_assert!(seen.insert(index), "word {} of slot {}", word, slot);
                }
            }
            let unused = layout.key_node_words - HEAD_WORDS - seen.len();
            prop_assert!(unused <= 14, "{} words unused", unused);
        }

        #[test]
        fn every_estimate_has_a_home_and_an_alternate_in_range(
            estimate: u64,
            files in 1..=FILES_MAX,
            key_nodes in 1..10_000_u64,
        ) {
            let layout = Layout::new(Geometry::by_count(files, key_nodes, 8, 4).unwrap());
            let file_words = (layout.geometry.file_bytes() / WORD_BYTES) as usize;
            let key = StoredKey { estimate, identity: 0 };
            let first_choice = layout.first_choice(&key);
            prop_assert!(first_choice < layout.primary_slots);
            prop_assert!(layout.second_choice(first_choice) < layout.primary_slots);
            for at in [layout.home(&key), layout.alternate(&key)] {
                prop_assert!(at.number < layout.geometry.key_nodes_total());
                prop_assert!(at.file < files as usize);
                prop_assert!(at.first + layout.key_node_words <= file_words);
                prop_assert_eq!(layout.key_node(at.number), at);
            }
        }
    }

    #[test]
    fn homes_and_alternates_spread_evenly_and_apart() {
        // 64,000 keys over 64 key-nodes: 1,000 each; uniform hashing stays within ±5 sigma (160). An
        // alternate is never the home.
        let layout = Layout::new(Geometry::by_count(4, 16, 8, 4).unwrap());
        let (mut homes, mut alternates, mut same) = ([0_u32; 64], [0_u32; 64], 0);
        for number in 0..64_000_u64 {
            let key = crate::format::key::Key::stored(&number, 7);
            let (home, alternate) = (layout.home(&key).number, layout.alternate(&key).number);
            homes[home as usize] += 1;
            alternates[alternate as usize] += 1;
            same += u32::from(home == alternate);
        }
        for counts in [homes, alternates] {
            assert!(counts.iter().all(|count| (840..=1160).contains(count)), "{counts:?}");
        }
        assert_eq!(same, 0);
    }
}
