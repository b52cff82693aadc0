//! Whether a node counts, after whatever happened to the files.
//!
//! A node counts only if it is sealed, marked by its own tag, in one of the two key-nodes of its key,
//! and the only one of its key. Owns this judgement; changes nothing.

use super::ClassMemory;
use super::sync::get;
use crate::format::node::{expires_secs, is_sealed, key_of};

/// Why a node does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeFlaw {
    /// Its check does not match its words.
    Torn,
    /// Its key does not belong into this key-node, or its tag is not that of its key.
    Foreign,
    /// Another node, which is kept, has the same key.
    Duplicate,
}

/// Judges the image of the node in `slot`, as far as it tells by itself.
pub(crate) fn check_node(
    class: &ClassMemory,
    number: u64,
    tag: u8,
    image: &mut [u64],
    seed: u64,
) -> Result<(), NodeFlaw> {
    if !is_sealed(image, seed) {
        return Err(NodeFlaw::Torn);
    }
    let key = key_of(image);
    let belongs =
        number == class.layout.home(&key).number || number == class.layout.alternate(&key).number;
    if belongs && tag == key.tag() { Ok(()) } else { Err(NodeFlaw::Foreign) }
}

/// Whether the node in `slot`, which is sealed and belongs, has to give way to another one of its key.
/// Of two, the one that expires later is kept; of equals the one at home, then the lower slot.
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
    // From home, the other one matters only if keys are away; that count is right again by now, or a
    // bound from above.
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
