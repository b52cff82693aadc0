//! The records of a journal.
//!
//! Owns their encoding (docs/store-format.md, "Control file"). Knows no seat.

use crate::format::geometry::Class;
use crate::format::layout::{KeyNodeId, SLOT_SHIFT};

const ERASE_BIT: u64 = 1 << 62;
/// Words of a record besides the image of the node.
pub(crate) const RECORD_WORDS_BESIDES_IMAGE: usize = 2;

/// A change of one node, as a journal has it.
pub(crate) struct Record<'a> {
    pub(crate) id: KeyNodeId,
    pub(crate) slot: u32,
    /// The tail that the slot had before, whether there was a node or not.
    pub(crate) before: u64,
    /// The new node; nothing if the slot becomes free.
    pub(crate) image: Option<&'a [u64]>,
}

impl Record<'_> {
    /// The first word: which slot changes, and how.
    #[inline(always)]
    pub(crate) fn target_word(&self) -> u64 {
        let erase = if self.image.is_none() { ERASE_BIT } else { 0 };
        self.id.to_word() | u64::from(self.slot) << SLOT_SHIFT | erase
    }
}

/// Reads the records of a committed journal. `node_words` says how long an image is, and whether there
/// is such a class. Stops where the words make no sense: they are not ours then.
pub(crate) fn read_journal<'a>(
    mut words: &'a [u64],
    node_words: impl Fn(Class) -> Option<usize>,
) -> impl Iterator<Item = Record<'a>> {
    std::iter::from_fn(move || {
        let [place, before, rest @ ..] = words else { return None };
        let id = KeyNodeId::from_word(*place);
        let slot = (place >> SLOT_SHIFT) as u32 & 0x3f;
        let node_words = node_words(id.class)?;
        let image = if place & ERASE_BIT == 0 {
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
