//! Whether a node is valid, whatever happened to the files.
//!
//! A valid node is sealed, has the tag of its key, is in one of the key's two key-nodes, and is the only node
//! of its key. Owns this judgement; changes nothing.

use super::sync::get;
use super::{ClassMemory, KeyNode};
use crate::format::node::{expires_secs, is_sealed, key_of};

/// Why a node is invalid by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeFlaw {
    /// The check does not match the words.
    Torn,
    /// The key belongs in other key-nodes, or the tag is not the key's.
    Foreign,
}

/// Checks the image of a node by itself.
pub(crate) fn check_node(
    key_node: KeyNode<'_>,
    tag: u8,
    image: &mut [u64],
    seed: u64,
) -> Result<(), NodeFlaw> {
    if !is_sealed(image, seed) {
        return Err(NodeFlaw::Torn);
    }
    let (key, layout) = (key_of(image), key_node.layout());
    let numbers = [layout.home(&key).number, layout.alternate(&key).number];
    let belongs = numbers.contains(&key_node.id.number);
    if belongs && tag == key.tag() { Ok(()) } else { Err(NodeFlaw::Foreign) }
}

/// Whether another valid node of the same key wins over the valid node in `slot`: the one that expires later,
/// then the one at home, then the lower slot.
pub(crate) fn is_duplicate(
    class: &ClassMemory,
    number: u64,
    slot: u32,
    image: &[u64],
    seed: u64,
) -> bool {
    let key = key_of(image);
    let (home, alternate) = (class.layout.home(&key).number, class.layout.alternate(&key).number);
    let rank = |at: u64, slot: u32, tail: u64| (expires_secs(tail), at == home, u32::MAX - slot);
    let own = rank(number, slot, image[image.len() - 1]);
    let mut others = vec![number];
    let other = if number == home { alternate } else { home };
    // From home, look at the alternate only if keys are displaced. By now that count is exact or an upper bound.
    if other != number && (number != home || get(class.key_node(home).displaced()) > 0) {
        others.push(other);
    }
    let mut found = image.to_vec();
    others.into_iter().any(|at| {
        let key_node = class.key_node(at);
        key_node.tagged(key.tag()).any(|other| {
            if (at, other) == (number, slot) || key_node.stored(other) != key {
                return false;
            }
            key_node.read(other, &mut found);
            is_sealed(&mut found, seed) && rank(at, other, found[found.len() - 1]) > own
        })
    })
}
