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

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use crate::format::node::{NARROW_WORDS, seal};
    use crate::format::{Class, ClusterInfo, Geometry};
    use crate::memory::Memory;
    use crate::memory::sync::put;
    use crate::open::segment::anonymous;

    const SEED: u64 = 7;
    const KEY: u64 = 5;

    /// Two narrow key-nodes of eight nodes. The key's home is the first one.
    fn memory() -> Memory {
        let narrow = Geometry::by_count(1, 2, 8, 4).unwrap();
        anonymous(ClusterInfo { cluster: 1, seed: SEED, narrow, wide: None }).unwrap()
    }

    /// A node of the key in this slot of a key-node, which expires at this second.
    #[derive(Clone, Copy)]
    struct Node(u64, u32, u32);

    impl Node {
        fn put(self, class: &ClassMemory, identity: u64) -> [u64; NARROW_WORDS] {
            let Self(number, slot, expires_secs) = self;
            let mut image = [KEY, identity, 1, 1, 1, 1, 0];
            seal(&mut image, expires_secs, SEED);
            class.key_node(number).install(slot, &image);
            image
        }
    }

    /// Whether the first node is a duplicate beside the second, with this number of displaced keys.
    #[track_caller]
    fn check(own: Node, other: Node, displaced: u64, expected: bool) {
        let memory = memory();
        let class = memory.class(Class::Narrow).unwrap();
        put(class.key_node(0).displaced(), displaced);
        let image = own.put(class, KEY);
        let is_own_duplicate = || is_duplicate(class, own.0, own.1, &image, SEED);
        assert!(!is_own_duplicate(), "alone");
        other.put(class, KEY + 1);
        assert!(!is_own_duplicate(), "beside another key of the same tag");
        other.put(class, KEY);
        assert_eq!(is_own_duplicate(), expected);
        let at = class.layout.node_at(other.1);
        put(&class.key_node(other.0).words()[at.first + 2 * at.stride], 99);
        assert!(!is_own_duplicate(), "beside a torn node");
    }

    #[test]
    fn of_two_nodes_of_a_key_the_later_expiry_wins_then_the_home_then_the_lower_slot() {
        for (first, second) in [(0, 1), (1, 0), (0, 0), (1, 1)] {
            for (slot, other_slot) in [(2, 6), (6, 2)] {
                let (own, other) = (Node(first, slot, 50), Node(second, other_slot, 50));
                check(own, Node(second, other_slot, 51), 1, true);
                check(own, Node(second, other_slot, 49), 1, false);
                let is_first_better = if first == second { slot == 2 } else { first == 0 };
                check(own, other, 1, !is_first_better);
            }
        }
    }

    #[test]
    fn a_home_without_displaced_keys_has_no_duplicate_elsewhere() {
        check(Node(0, 2, 50), Node(1, 2, 51), 0, false);
        check(Node(1, 2, 50), Node(0, 2, 51), 0, true);
        check(Node(0, 2, 50), Node(0, 3, 51), 0, true);
    }

    #[test]
    fn a_node_is_flawed_by_its_words_its_place_or_its_tag() {
        let narrow = Geometry::by_count(1, 8, 8, 4).unwrap();
        let memory = anonymous(ClusterInfo { cluster: 1, seed: SEED, narrow, wide: None }).unwrap();
        let class = memory.class(Class::Narrow).unwrap();
        let mut image = Node(0, 2, 50).put(class, KEY);
        let key = key_of(&image);
        let (home, alternate) = (class.home(&key), class.alternate(&key));
        for key_node in class.key_nodes() {
            let belongs = [home.id, alternate.id].contains(&key_node.id);
            let mut found = |tag, seed| check_node(key_node, tag, &mut image, seed);
            assert_eq!(found(key.tag(), SEED).is_ok(), belongs);
            assert_eq!(found(key.tag() + 1, SEED), Err(NodeFlaw::Foreign));
            assert_eq!(found(key.tag(), SEED + 1), Err(NodeFlaw::Torn));
        }
    }
}
