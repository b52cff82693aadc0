//! One key-node in memory: a head of one cache line, and its chain of nodes.
//!
//! Owns the meaning of the words (docs/internals/store-format.md, "Key-node"). Takes no lock: the caller holds the one
//! in the head, or wants only a hint. Does not choose the slot of a key, nor a node to evict.

use bytemuck::cast_slice;

use crate::format::geometry::HEAD_WORDS;
use crate::format::node::{ESTIMATE, IDENTITY, NARROW_WORDS, expires_secs, key_of};
use crate::format::{CHAIN_MAX, Key, KeyNodeId, Layout, StoredKey};
use crate::memory::sync::{AtomicU64, get, put};

/// Words of the head: the lock; the displaced keys of this home; hints; tags.
const LOCK: usize = 0;
const DISPLACED: usize = 1;
const HINTS: usize = 2;
const TAGS: usize = 3;
const TAG_WORDS: usize = HEAD_WORDS - TAGS;
const _: () = assert!(TAG_WORDS * 8 == CHAIN_MAX as usize);

/// A word of bytes 0x01, and one of bytes 0x7f.
const ONES: u64 = 0x0101_0101_0101_0101;
const LOW_BITS: u64 = 0x7f7f_7f7f_7f7f_7f7f;

/// A set of slots of one key-node: bit *i* is slot *i*.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slots(pub(crate) u64);

const _: () = assert!(CHAIN_MAX < 64);

impl Slots {
    #[inline]
    pub(crate) const fn first(self) -> Option<u32> {
        if self.0 == 0 { None } else { Some(self.0.trailing_zeros()) }
    }

    #[inline]
    pub(crate) const fn len(self) -> u32 {
        self.0.count_ones()
    }

    pub(crate) const fn contains(self, slot: u32) -> bool {
        self.0 >> slot & 1 == 1
    }

    pub(crate) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(crate) const fn with(self, slot: u32) -> Self {
        Self(self.0 | 1 << slot)
    }
}

impl Iterator for Slots {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        let first = self.first()?;
        self.0 &= self.0 - 1;
        Some(first)
    }
}

#[derive(Clone, Copy)]
pub(crate) struct KeyNode<'a> {
    pub(crate) id: KeyNodeId,
    words: &'a [AtomicU64],
    layout: &'a Layout,
}

impl<'a> KeyNode<'a> {
    /// `words` are all words of the key-node.
    #[inline]
    pub(crate) const fn new(id: KeyNodeId, words: &'a [AtomicU64], layout: &'a Layout) -> Self {
        Self { id, words, layout }
    }

    #[inline]
    pub(crate) const fn layout(&self) -> &'a Layout {
        self.layout
    }

    #[inline]
    pub(crate) const fn words(&self) -> &'a [AtomicU64] {
        self.words
    }

    #[inline]
    pub(crate) fn lock(&self) -> &'a AtomicU64 {
        &self.words[LOCK]
    }

    /// An upper bound on the displaced keys: those whose home this is and whose node is in their alternate.
    #[inline]
    pub(crate) fn displaced(&self) -> &'a AtomicU64 {
        &self.words[DISPLACED]
    }

    /// No node expires before this second; 0 if unknown.
    #[inline]
    pub(crate) fn earliest_expiry(&self) -> u32 {
        get(&self.words[HINTS]) as u32
    }

    /// The number of changes, modulo 2^32.
    #[inline]
    pub(crate) fn changes(&self) -> u32 {
        (get(&self.words[HINTS]) >> 32) as u32
    }

    #[inline]
    fn set_hints(&self, earliest_expiry: u32, changes: u32) {
        put(&self.words[HINTS], u64::from(changes) << 32 | u64::from(earliest_expiry));
    }

    /// Records an update of a node that now expires at `expires_secs`.
    #[inline]
    pub(crate) fn mark_updated(&self, expires_secs: u32) {
        let earliest_expiry = self.earliest_expiry().min(expires_secs);
        self.set_hints(earliest_expiry, self.changes().wrapping_add(1));
    }

    /// Records that no node expires before `earliest_expiry`.
    pub(crate) fn set_earliest_expiry(&self, earliest_expiry: u32) {
        self.set_hints(earliest_expiry, self.changes());
    }

    /// The slots with this tag; 0 is the tag of a free slot.
    #[inline]
    pub(crate) fn tagged(&self, tag: u8) -> Slots {
        let mut slots = 0;
        for (index, word) in self.tags().iter().enumerate() {
            // Gathers the top bits of the eight bytes in the top byte.
            let equal = equal_bytes(get(word), tag) >> 7;
            slots |= (equal.wrapping_mul(0x0102_0408_1020_4080) >> 56) << (8 * index);
        }
        Slots(slots & self.all_slots())
    }

    #[inline]
    fn tags(&self) -> &'a [AtomicU64; TAG_WORDS] {
        match self.words[TAGS..].first_chunk() {
            Some(tags) => tags,
            None => unreachable!("a key-node has a whole head"),
        }
    }

    /// The first slot with this tag for which `is_it` holds. Faster than [`KeyNode::tagged`] if that is
    /// nearly always the first one.
    #[inline]
    pub(crate) fn first_tagged(&self, tag: u8, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        for (index, word) in self.tags().iter().enumerate() {
            let mut equal = equal_bytes(get(word), tag);
            while equal != 0 {
                let slot = (8 * index) as u32 + equal.trailing_zeros() / 8;
                // Tags beyond the chain are 0, unless the file was damaged.
                if slot < self.layout.geometry.chain() && is_it(slot) {
                    return Some(slot);
                }
                equal &= equal - 1;
            }
        }
        None
    }

    #[inline]
    pub(crate) fn free(&self) -> Slots {
        self.tagged(0)
    }

    /// The slots with a node in `image`, a copy of a whole key-node.
    pub(crate) fn occupied_in(image: &[u64], layout: &Layout) -> Slots {
        let tags: &[u8] = cast_slice(&image[TAGS..HEAD_WORDS]);
        let chain = layout.geometry.chain() as usize;
        let taken = tags[..chain].iter().enumerate().filter(|(_, tag)| **tag != 0);
        Slots(taken.fold(0, |slots, (slot, _)| slots | 1 << slot))
    }

    #[inline]
    pub(crate) fn occupied(&self) -> Slots {
        Slots(self.all_slots() & !self.free().0)
    }

    #[inline]
    const fn all_slots(&self) -> u64 {
        // The chain is 1 to 40 nodes long.
        (1 << self.layout.geometry.chain()) - 1
    }

    #[inline]
    pub(crate) fn tag(&self, slot: u32) -> u8 {
        let (word, shift) = tag_at(slot);
        (get(&self.words[word]) >> shift) as u8
    }

    /// Sets the tag of a slot; 0 frees it. One write.
    #[inline]
    pub(crate) fn set_tag(&self, slot: u32, tag: u8) {
        let (word, shift) = tag_at(slot);
        let others = get(&self.words[word]) & !(0xff << shift);
        put(&self.words[word], others | u64::from(tag) << shift);
    }

    /// Frees a slot and zeroes its tail, so that a stale copy of the node restored after power loss cannot
    /// pass for a newer one with the same tag.
    #[inline]
    pub(crate) fn clear(&self, slot: u32) {
        self.set_tag(slot, 0);
        let at = self.layout.node_at(slot);
        put(&self.words[at.first + (self.layout.node_words - 1) * at.stride], 0);
        self.mark_changed();
    }

    /// Records a change that the snapshot does not have.
    #[inline]
    pub(crate) fn mark_changed(&self) {
        self.set_hints(self.earliest_expiry(), self.changes().wrapping_add(1));
    }

    /// Zeroes the tags beyond the chain, unless they are zero.
    pub(crate) fn clear_tags_beyond_chain(&self) {
        for slot in self.layout.geometry.chain()..CHAIN_MAX {
            if self.tag(slot) != 0 {
                self.set_tag(slot, 0);
            }
        }
    }

    /// The slot of a key, live or expired.
    #[inline]
    pub(crate) fn find<K: Key + ?Sized>(&self, key: &K, own: &StoredKey) -> Option<u32> {
        self.first_tagged(own.tag(), |slot| key.compare(own, &self.stored(slot)))
    }

    /// The slot and the words of a key's node, if it is narrow and contiguous.
    #[inline]
    pub(crate) fn find_narrow<K: Key + ?Sized>(
        &self,
        key: &K,
        own: &StoredKey,
    ) -> Option<(u32, &'a [AtomicU64; NARROW_WORDS])> {
        let mut node = None;
        let slot = self.first_tagged(own.tag(), |slot| {
            node = self.narrow(slot);
            node.is_some_and(|words| {
                let found =
                    StoredKey { estimate: get(&words[ESTIMATE]), identity: get(&words[IDENTITY]) };
                key.compare(own, &found)
            })
        });
        Some((slot?, node?))
    }

    #[inline]
    pub(crate) fn stored(&self, slot: u32) -> StoredKey {
        let at = self.layout.node_at(slot);
        let words = &self.words[at.first..];
        StoredKey {
            estimate: get(&words[ESTIMATE * at.stride]),
            identity: get(&words[IDENTITY * at.stride]),
        }
    }

    /// The tail of a node: expiry and check.
    #[inline]
    pub(crate) fn tail(&self, slot: u32) -> u64 {
        let at = self.layout.node_at(slot);
        get(&self.words[at.first + (self.layout.node_words - 1) * at.stride])
    }

    /// Copies a node to `image`, which has the length of a node.
    #[inline]
    pub(crate) fn read(&self, slot: u32, image: &mut [u64]) {
        if let (Some(node), Some(image)) =
            (self.narrow(slot), image.first_chunk_mut::<NARROW_WORDS>())
        {
            for (word, to) in node.iter().zip(image) {
                *to = get(word);
            }
            return;
        }
        for (word, to) in self.node_words(slot).zip(image) {
            *to = get(word);
        }
    }

    /// Whether a node equals `image`, word for word.
    #[inline]
    pub(crate) fn equals(&self, slot: u32, image: &[u64]) -> bool {
        self.node_words(slot).zip(image).all(|(word, value)| get(word) == *value)
    }

    /// Writes a sealed image to a slot and sets its tag. Not atomic: see [`crate::transaction::commit`].
    #[inline(always)]
    pub(crate) fn install(&self, slot: u32, image: &[u64]) {
        if let (Some(node), Some(image)) = (self.narrow(slot), image.first_chunk::<NARROW_WORDS>())
        {
            for (word, value) in node.iter().zip(image) {
                put(word, *value);
            }
        } else {
            for (word, value) in self.node_words(slot).zip(image) {
                put(word, *value);
            }
        }
        let tag = key_of(image).tag();
        if self.tag(slot) != tag {
            self.set_tag(slot, tag);
        }
        self.mark_updated(expires_secs(image[image.len() - 1]));
    }

    /// The words of a contiguous narrow node. Their number is known at compile time, which makes loops over
    /// them fast.
    #[inline]
    pub(crate) fn narrow(&self, slot: u32) -> Option<&'a [AtomicU64; NARROW_WORDS]> {
        let at = self.layout.node_at(slot);
        if at.stride != 1 || self.layout.node_words != NARROW_WORDS {
            return None;
        }
        self.words[at.first..].first_chunk()
    }

    #[inline]
    fn node_words(&self, slot: u32) -> impl Iterator<Item = &'a AtomicU64> {
        let at = self.layout.node_at(slot);
        self.words[at.first..].iter().step_by(at.stride).take(self.layout.node_words)
    }
}

/// The top bits of those bytes of a word that equal `byte`.
///
/// A byte of the difference is zero where they are equal. Adding 0x7f to a non-zero byte carries into its top
/// bit. No byte carries into the next one, so there are no false matches.
#[inline]
const fn equal_bytes(word: u64, byte: u8) -> u64 {
    let difference = word ^ (ONES * byte as u64);
    let unequal = ((difference & LOW_BITS) + LOW_BITS) | difference;
    !unequal & !LOW_BITS
}

#[inline]
const fn tag_at(slot: u32) -> (usize, u32) {
    (TAGS + slot as usize / 8, slot % 8 * 8)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::format::node::{is_sealed, seal};
    use crate::format::{Class, Geometry};
    use crate::memory::Region;
    use proptest::prelude::*;

    const SEED: u64 = 9;
    const ID: KeyNodeId = KeyNodeId { class: Class::Narrow, number: 0 };

    fn narrow(chain: u32) -> Layout {
        Layout::new(Geometry::by_count(1, 1, chain, 4).unwrap())
    }

    fn image(number: u64) -> [u64; 7] {
        let mut image = [number.wrapping_mul(0x9E37_79B9_7F4A_7C15), number, 1, 2, 3, 4, 0];
        seal(&mut image, 77, SEED);
        image
    }

    proptest! {
        #[test]
        fn tags_are_found_exactly_where_they_are(
            tags in prop::collection::vec(prop_oneof![Just(0), Just(1), Just(0x80), Just(0xff), any::<u8>()], 1..=40),
        ) {
            let layout = narrow(tags.len() as u32);
            let region = Region::heap(&vec![0; layout.key_node_words]);
            let node = KeyNode::new(ID, region.slice(0, layout.key_node_words), &layout);
            for (slot, &tag) in tags.iter().enumerate() {
                node.set_tag(slot as u32, tag);
            }
            for wanted in 0..=255 {
                let found: Vec<_> = node.tagged(wanted).collect();
                let expected: Vec<_> =
                    (0..tags.len()).filter(|&slot| tags[slot] == wanted).map(|slot| slot as u32).collect();
                prop_assert_eq!(found, expected);
            }
            prop_assert_eq!(node.occupied().len() + node.free().len(), tags.len() as u32);
        }
    }

    #[test]
    fn every_slot_keeps_its_node() {
        let layout = narrow(35);
        let region = Region::heap(&vec![0; layout.key_node_words]);
        let node = KeyNode::new(ID, region.slice(0, layout.key_node_words), &layout);
        for slot in 0..35 {
            node.install(slot, &image(u64::from(slot) + 1));
        }
        for slot in 0..35 {
            let mut found = [0; 7];
            node.read(slot, &mut found);
            assert_eq!(found, image(u64::from(slot) + 1));
            assert!(is_sealed(&mut found, SEED) && node.equals(slot, &found));
            assert_eq!(node.find(&key_of(&found), &key_of(&found)), Some(slot));
        }
        assert_eq!(node.free(), Slots(0));
        assert_eq!(node.changes(), 35);
        // Some nodes are contiguous, others are spread.
        for cleared in 0..35 {
            node.clear(cleared);
            assert_eq!((node.tag(cleared), node.tail(cleared)), (0, 0));
            for slot in cleared + 1..35 {
                assert!(node.equals(slot, &image(u64::from(slot) + 1)));
            }
            let mut left = [0; 7];
            node.read(cleared, &mut left);
            assert_eq!(left[..6], image(u64::from(cleared) + 1)[..6], "only the tail is zeroed");
        }
    }

    #[test]
    fn the_earliest_expiry_stays_unknown_until_it_is_set() {
        let layout = narrow(8);
        let region = Region::heap(&vec![0; layout.key_node_words]);
        let node = KeyNode::new(ID, region.slice(0, layout.key_node_words), &layout);
        node.mark_updated(50);
        assert_eq!(node.earliest_expiry(), 0);
        node.set_earliest_expiry(90);
        node.mark_updated(100);
        assert_eq!(node.earliest_expiry(), 90);
        node.mark_updated(50);
        assert_eq!((node.earliest_expiry(), node.changes()), (50, 3));
    }
}
