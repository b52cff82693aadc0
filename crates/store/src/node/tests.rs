//! Torn writes: every operation is stopped after each number of stores, and what is left is read.

use super::*;

const SEED: u64 = 0x5eed;
const OLD: Key = Key::from_hash(0x0000_00a1_0000_00a2_0000_00a3_0000_00a4);
const NEW: Key = Key::from_hash(0x0000_00b1_0000_00b2_0000_00b3_0000_00b4);

/// Different in every word for a different `id`.
fn entry(id: u64) -> Entry {
    Entry { state: [id, id + 10, id + 20, id + 30], expires_at: id + 40 }
}

fn node(region: &Region) -> Node<'_> {
    Node::new(region, 0, SEED)
}

/// A node of `OLD` which has seen `updates` updates; the last one wrote `entry(updates)`.
fn node_after(updates: u64) -> Region {
    let region = Region::heap(NODE_WORDS);
    node(&region).claim(OLD, &entry(1));
    for id in 2..=updates {
        update(&region, id);
    }
    region
}

fn update(region: &Region, id: u64) {
    let held = node(region).read().unwrap();
    node(region).update(&held, &entry(id));
}

/// What a lookup of `key` finds.
fn entry_of(region: &Region, key: Key) -> Option<Entry> {
    let node = node(region);
    if node.is_of(key) { node.read().map(|held| held.entry) } else { None }
}

/// Runs `change` on copies of `before`, killed after 0, 1, 2... stores until it is complete, and
/// gives every state that is left behind to `check`, with the number of stores made. Returns how
/// many stores the whole change makes.
fn for_each_kill(before: &Region, change: impl Fn(&Region), check: impl Fn(&Region, u64)) -> u64 {
    for stores in 0.. {
        let region = Region::heap_from(&before.words());
        // One more than is looked at: if it is not used, the change was complete.
        region.kill_after(stores + 1);
        change(&region);
        let is_complete = region.stores_left() > 0;

        let region = Region::heap_from(&before.words());
        region.kill_after(stores);
        change(&region);
        check(&Region::heap_from(&region.words()), stores);
        if is_complete {
            return stores;
        }
    }
    unreachable!("the loop ends with the change")
}

#[test]
fn a_fresh_node_is_free_and_has_no_entry() {
    let region = Region::heap(NODE_WORDS);
    assert!(node(&region).is_free());
    assert_eq!(node(&region).read(), None);
}

#[test]
fn updates_alternate_between_the_copies() {
    let region = node_after(1);
    for id in 2..6 {
        let before = region.words();
        update(&region, id);
        let after = region.words();
        let changed: Vec<_> = (0..NODE_WORDS).filter(|&at| before[at] != after[at]).collect();
        let copy = (id as usize + 1) % 2;
        assert_eq!(changed, Vec::from_iter(COPIES[copy]..COPIES[copy] + COPY_WORDS));
        assert_eq!(node(&region).read().unwrap(), Held { copy, version: id, entry: entry(id) });
    }
}

#[test]
fn a_killed_update_leaves_the_old_or_the_new_entry() {
    for updates in 1..4 {
        let before = node_after(updates);
        let stores = for_each_kill(
            &before,
            |region| update(region, updates + 1),
            |left, stores| {
                let expected = if stores < 7 { entry(updates) } else { entry(updates + 1) };
                assert_eq!(entry_of(left, OLD), Some(expected), "{stores} stores");
                assert_eq!(entry_of(left, NEW), None);
            },
        );
        assert_eq!(stores, 7);
    }
}

#[test]
fn an_update_after_a_killed_update_is_as_safe() {
    let before = node_after(3);
    for_each_kill(
        &before,
        |region| update(region, 4),
        |left, first| {
            let survivor = entry_of(left, OLD).unwrap();
            let stores = for_each_kill(
                left,
                |region| update(region, 5),
                |left, second| {
                    let expected = if second < 7 { survivor } else { entry(5) };
                    assert_eq!(entry_of(left, OLD), Some(expected), "{first} + {second} stores");
                },
            );
            assert_eq!(stores, 7);
        },
    );
}

#[test]
fn a_killed_claim_leaves_the_old_entry_or_none_or_the_new_one() {
    for updates in 1..4 {
        let before = node_after(updates);
        let stores = for_each_kill(
            &before,
            |region| node(region).claim(NEW, &entry(100)),
            |left, stores| {
                // Not the entry before the last one either: it may expire later.
                let old = (stores < 2).then_some(entry(updates));
                assert_eq!(entry_of(left, OLD), old, "{stores} stores");
                let new = (stores == 11).then_some(entry(100));
                assert_eq!(entry_of(left, NEW), new, "{stores} stores");
                assert_eq!(node(left).read().is_some(), stores < 2 || stores == 11);
            },
        );
        // Two checks, two words of key, one copy.
        assert_eq!(stores, 11);
    }
}

#[test]
fn a_key_that_returns_to_a_half_claimed_node_does_not_get_its_old_entry_back() {
    let before = node_after(3);
    for_each_kill(
        &before,
        |region| node(region).claim(NEW, &entry(100)),
        |left, first| {
            for_each_kill(
                left,
                |region| node(region).claim(OLD, &entry(200)),
                |left, second| {
                    let allowed = match (first, second) {
                        (_, 11) => [Some(entry(200)), Some(entry(200))],
                        (0 | 1, 0 | 1) => [Some(entry(3)), Some(entry(3))],
                        _ => [None, None],
                    };
                    let found = entry_of(left, OLD);
                    assert!(allowed.contains(&found), "{first} + {second} stores: {found:?}");
                },
            );
        },
    );
}

#[test]
fn a_killed_release_leaves_nothing_to_read() {
    let before = node_after(2);
    // Neither copy is valid: as after a torn page.
    before.store(COPIES[0] + STATE, 999);
    before.store(COPIES[1] + STATE, 999);
    assert_eq!(node(&before).read(), None);
    let stores = for_each_kill(
        &before,
        |region| node(region).free(),
        |left, stores| {
            assert_eq!(node(left).read(), None);
            assert_eq!(node(left).is_free(), stores == 4);
        },
    );
    assert_eq!(stores, 4);
}

#[test]
fn one_changed_bit_makes_a_copy_invalid() {
    let before = node_after(2);
    for word in 0..NODE_WORDS {
        for bit in 0..64 {
            let region = Region::heap_from(&before.words());
            region.store(word, region.load(word) ^ (1 << bit));
            let found = node(&region).read().map(|held| held.entry);
            // The second update is in the second copy.
            let expected = match word {
                KEY_LOW | KEY_HIGH => None,
                _ if word < COPIES[1] => Some(entry(2)),
                _ => Some(entry(1)),
            };
            assert_eq!(found, expected, "word {word}, bit {bit}");
        }
    }
}

#[test]
fn a_node_of_another_store_is_invalid() {
    let region = node_after(2);
    assert_eq!(Node::new(&region, 0, SEED + 1).read(), None);
}
