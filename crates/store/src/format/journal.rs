//! The records of a journal: the changes of a committed transaction.
//!
//! Owns their encoding (docs/internals/store-format.md, "Control file"). Where a journal is, is for [`crate::writers::slot`].

use crate::format::layout::SLOT_SHIFT;
use crate::format::{Class, KeyNodeId};

const ERASE_BIT: u64 = 1 << 62;
/// Words of a record besides the image of the node.
pub(crate) const RECORD_WORDS_BESIDES_IMAGE: usize = 2;

pub(crate) struct Record<'a> {
    pub(crate) id: KeyNodeId,
    pub(crate) slot: u32,
    /// The tail of the slot before the change, whether it held a node or not.
    pub(crate) before: u64,
    /// The new node; none if the slot is freed.
    pub(crate) image: Option<&'a [u64]>,
}

impl Record<'_> {
    /// The first word: the slot and the kind of the change.
    #[inline(always)]
    pub(crate) fn target_word(&self) -> u64 {
        let erase = if self.image.is_none() { ERASE_BIT } else { 0 };
        self.id.to_word() | u64::from(self.slot) << SLOT_SHIFT | erase
    }
}

/// Reads the records of a committed journal. `node_words` returns the length of an image, or none if the
/// cluster has no such class. Stops at words that make no sense, which only damage explains.
pub(crate) fn read_journal<'a>(
    mut words: &'a [u64],
    node_words: impl Fn(Class) -> Option<usize>,
) -> impl Iterator<Item = Record<'a>> {
    std::iter::from_fn(move || {
        let [target, before, rest @ ..] = words else { return None };
        let id = KeyNodeId::from_word(*target);
        let slot = (target >> SLOT_SHIFT) as u32 & 0x3f;
        let node_words = node_words(id.class)?;
        let image = if target & ERASE_BIT == 0 {
            let (image, after) = rest.split_at_checked(node_words)?;
            words = after;
            Some(image)
        } else {
            words = rest;
            None
        };
        Some(Record { id, slot, before: *before, image })
    })
}
