//! The store over heap memory: places, expiry, refusal, and kills in the middle of a call.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

/// One chain, so that every key competes with every other.
const HEADER: Header = Header { chain_count: 1, seed: 0x5eed };

fn one_chain() -> Store {
    Store::over(HEADER, Region::heap(HEADER.file_words()), None)
}

/// The store that the next process finds.
fn reopened(store: &Store) -> Store {
    Store::over(HEADER, Region::heap_from(&store.region.words()), None)
}

fn key(id: u64) -> Key {
    Key::from_hash(u128::from(id) << 64 | u128::from(id))
}

fn keys(ids: impl IntoIterator<Item = u64>) -> Vec<Key> {
    ids.into_iter().map(key).collect()
}

fn entry(id: u64, expires_at: u64) -> Entry {
    Entry { state: [id, id + 1, id + 2, id + 3], expires_at }
}

fn set(store: &Store, id: u64, now: u64, entry: Entry) -> Result<(), UpdateError> {
    store.update_many(&[key(id)], now, |entries| entries[0] = entry)
}

fn read(store: &Store, id: u64, now: u64) -> Result<Entry, UpdateError> {
    store.update_many(&[key(id)], now, |entries| entries[0])
}

fn full(id: u64) -> UpdateError {
    UpdateError::ChainFull { key: key(id), chain: 0, nodes: 16 }
}

#[test]
fn entries_come_in_the_order_of_the_keys() {
    let store = one_chain();
    store
        .update_many(&keys([3, 1, 2]), 10, |entries| {
            assert_eq!(entries, [Entry::default(); 3]);
            for (entry_, id) in entries.iter_mut().zip([3, 1, 2]) {
                *entry_ = entry(id, 100);
            }
        })
        .unwrap();
    let found = store.update_many(&keys([1, 2, 3]), 99, |entries| entries.to_vec()).unwrap();
    assert_eq!(found, [entry(1, 100), entry(2, 100), entry(3, 100)]);
}

#[test]
fn no_keys_just_run_the_closure() {
    let store = one_chain();
    assert_eq!(store.update_many(&[], 0, |entries| entries.len()), Ok(0));
}

#[test]
fn an_entry_expires_at_its_moment() {
    let store = one_chain();
    set(&store, 1, 10, entry(7, 100)).unwrap();
    assert_eq!(read(&store, 1, 99), Ok(entry(7, 100)));
    assert_eq!(read(&store, 1, 100), Ok(Entry::default()));
}

#[test]
fn a_key_without_anything_to_remember_takes_no_node() {
    let store = one_chain();
    let before = store.region.words();
    read(&store, 1, 10).unwrap();
    set(&store, 1, 10, Entry { state: [0; 4], expires_at: 100 }).unwrap();
    set(&store, 1, 10, entry(7, 10)).unwrap();
    assert_eq!(store.region.words(), before);
    assert_eq!(store.stats(), Stats { capacity: 16, ..Stats::default() });
}

#[test]
fn an_unchanged_entry_is_not_written() {
    let store = one_chain();
    set(&store, 1, 10, entry(7, 100)).unwrap();
    let before = store.region.words();
    set(&store, 1, 10, entry(7, 100)).unwrap();
    assert_eq!(store.region.words(), before);
    assert_eq!(store.stats().updates, 1);
}

#[test]
fn an_entry_that_is_let_expire_is_gone() {
    let store = one_chain();
    set(&store, 1, 10, entry(7, 100)).unwrap();
    set(&store, 1, 20, entry(7, 20)).unwrap();
    assert_eq!(read(&store, 1, 20), Ok(Entry::default()));
}

#[test]
fn a_full_chain_refuses_and_changes_nothing() {
    let store = one_chain();
    for id in 1..=15 {
        set(&store, id, 10, entry(id, 100)).unwrap();
    }
    let before = store.region.words();
    let mut is_called = false;
    // There is a node for the first new key and none for the second.
    let result = store.update_many(&keys([1, 20, 21]), 10, |_| is_called = true);
    assert_eq!(result, Err(full(21)));
    assert!(!is_called);
    assert_eq!(store.region.words(), before);
    assert_eq!(store.stats().refused, 1);
    assert_eq!(
        full(21).to_string(),
        "no place for key 00000000000000150000000000000015: all 16 nodes of chain 0 are live"
    );

    set(&store, 20, 10, entry(20, 100)).unwrap();
    assert_eq!(read(&store, 21, 99), Err(full(21)));
    assert_eq!(read(&store, 21, 100), Ok(Entry::default()));
    assert_eq!(store.stats().evicted_expired, 0);
}

#[test]
fn a_repeated_key_is_refused_by_name() {
    let store = one_chain();
    for ids in [vec![1, 2, 1], Vec::from_iter((3..=12).chain([1, 1]))] {
        let result = store.update_many(&keys(ids), 10, |_| unreachable!("not called"));
        assert_eq!(result, Err::<(), _>(UpdateError::RepeatedKey { key: key(1) }));
    }
}

#[test]
fn the_longest_expired_node_goes_first_and_free_nodes_before_it() {
    let store = one_chain();
    // Fifteen nodes, of which 5 expires first, then 9.
    for id in 1..=15 {
        let expires_at = match id {
            5 => 20,
            9 => 30,
            _ => 40 + id,
        };
        set(&store, id, 10, entry(id, expires_at)).unwrap();
    }
    let live_before = |store: &Store, id| read(store, id, 10).unwrap() != Entry::default();

    set(&store, 101, 1000, entry(101, 2000)).unwrap();
    assert!((1..=15).all(|id| live_before(&store, id)), "the free node was there");
    assert_eq!(store.stats().evicted_expired, 0);

    set(&store, 102, 35, entry(102, 2000)).unwrap();
    assert_eq!(read(&store, 5, 10), Err(full(5)));
    assert!(live_before(&store, 9));
    set(&store, 103, 35, entry(103, 2000)).unwrap();
    assert_eq!(read(&store, 9, 10), Err(full(9)));
    assert_eq!(set(&store, 104, 35, entry(104, 2000)), Err(full(104)));
    assert_eq!(store.stats().evicted_expired, 2);
    assert_eq!(store.stats().created, 18);
}

#[test]
fn a_call_never_evicts_the_expired_node_of_its_own_key() {
    for ids in [[1, 99], [99, 1]] {
        let store = one_chain();
        for id in 1..=16 {
            set(&store, id, 10, entry(id, if id == 1 { 20 } else { 100 })).unwrap();
        }
        // The only expired node is that of key 1, which this call needs itself.
        let result = store.update_many(&keys(ids), 50, |_| ());
        assert_eq!(result, Err(full(99)));
        assert_eq!(set(&store, 1, 50, entry(5, 100)), Ok(()));
        assert_eq!(read(&store, 1, 50), Ok(entry(5, 100)));
    }
}

#[test]
fn more_keys_than_fit_the_stack_are_the_same() {
    let store = one_chain();
    let ids = || keys(1..=16);
    store
        .update_many(&ids(), 10, |entries| {
            for (id, entry_) in entries.iter_mut().enumerate() {
                *entry_ = entry(id as u64, 100);
            }
        })
        .unwrap();
    let found = store.update_many(&ids(), 10, |entries| entries.to_vec()).unwrap();
    assert_eq!(found, Vec::from_iter((0..16).map(|id| entry(id, 100))));
}

#[test]
fn a_panic_in_the_closure_writes_nothing_and_frees_the_locks() {
    let store = one_chain();
    set(&store, 1, 10, entry(1, 100)).unwrap();
    let before = store.region.words();
    let result = catch_unwind(AssertUnwindSafe(|| {
        store.update_many(&keys([1, 2]), 10, |entries| {
            entries.fill(entry(50, 100));
            panic!("a test's panic");
        })
    }));
    assert!(result.is_err());
    assert_eq!(store.region.words(), before);
    set(&store, 1, 10, entry(2, 100)).unwrap();
    assert_eq!(read(&store, 1, 10), Ok(entry(2, 100)));
}

#[test]
fn an_invalid_node_is_dropped_once_and_used_again() {
    let store = one_chain();
    set(&store, 1, 10, entry(1, 100)).unwrap();
    // The first state word of the only valid copy.
    let word = Header::node_base(0, 0) + 4;
    store.region.store(word, store.region.load(word) ^ 1);

    let store = reopened(&store);
    assert_eq!(read(&store, 1, 10), Ok(Entry::default()));
    assert_eq!(read(&store, 1, 10), Ok(Entry::default()));
    assert_eq!(store.stats().dropped_invalid, 1);
    set(&store, 2, 10, entry(2, 100)).unwrap();
    assert!(store.node(0, 0).is_of(key(2)));
}

/// As a loss of power may leave it: of two nodes of one key, the first is torn.
#[test]
fn an_invalid_node_does_not_hide_a_valid_one_of_its_key() {
    let store = one_chain();
    set(&store, 1, 10, entry(1, 100)).unwrap();
    for word in 0..16 {
        let value = store.region.load(Header::node_base(0, 0) + word);
        store.region.store(Header::node_base(0, 5) + word, value);
    }
    let word = Header::node_base(0, 0) + 4;
    store.region.store(word, store.region.load(word) ^ 1);
    assert_eq!(read(&store, 1, 10), Ok(entry(1, 100)));
    assert_eq!(store.stats().dropped_invalid, 1);
}

#[test]
fn an_invalid_node_is_free_to_other_keys() {
    let store = one_chain();
    for id in 1..=16 {
        set(&store, id, 10, entry(id, if id == 1 { 11 } else { 100 })).unwrap();
    }
    let word = Header::node_base(0, 15) + 4;
    store.region.store(word, store.region.load(word) ^ 1);
    // Rather than the node of key 1, which has expired but is whole.
    set(&store, 50, 20, entry(50, 100)).unwrap();
    assert!(store.node(0, 15).is_of(key(50)));
    assert_eq!((store.stats().dropped_invalid, store.stats().evicted_expired), (1, 0));
}

/// Kills a call of three keys (one live, one new in a free node, one that displaces an expired key)
/// after each number of stores.
#[test]
fn a_killed_call_leaves_each_key_as_before_or_after() {
    let prepared = one_chain();
    for id in 1..=15 {
        set(&prepared, id, 10, entry(id, if id == 9 { 20 } else { 1000 })).unwrap();
    }
    let call = |store: &Store| {
        store.update_many(&keys([3, 40, 41]), 50, |entries| {
            entries[0] = entry(300, 2000);
            entries[1] = entry(400, 2000);
            entries[2] = entry(410, 2000);
        })
    };
    let nothing = Ok(Entry::default());
    // 7 for the update, 11 for each claim.
    for stores in 0..=29 {
        let killed = reopened(&prepared);
        killed.region.kill_after(stores);
        call(&killed).unwrap();
        assert_eq!(killed.region.stores_left(), 0);
        let left = reopened(&killed);

        let expect = |is_done, before, after| if is_done { Ok(after) } else { before };
        let found = read(&left, 3, 50);
        assert_eq!(found, expect(stores >= 7, Ok(entry(3, 1000)), entry(300, 2000)), "{stores}");
        let found = read(&left, 40, 50);
        assert_eq!(found, expect(stores >= 18, nothing.clone(), entry(400, 2000)), "{stores}");
        let found = read(&left, 41, 50);
        assert_eq!(found, expect(stores >= 29, nothing.clone(), entry(410, 2000)), "{stores}");
        for id in (1..=15).filter(|id| ![3, 9].contains(id)) {
            assert_eq!(read(&left, id, 50), Ok(entry(id, 1000)), "{stores}, key {id}");
        }
        // The expired entry goes with the second of the two checks that the last claim clears.
        let is_back = read(&left, 9, 10) == Ok(entry(9, 20));
        assert_eq!(is_back, stores < 20, "{stores}");

        // The survivors carry on: the same call again has its full effect.
        call(&left).unwrap();
        let left = reopened(&left);
        for (id, value) in [(3, 300), (40, 400), (41, 410)] {
            assert_eq!(read(&left, id, 50), Ok(entry(value, 2000)), "{stores}, key {id}");
        }
    }
}

#[test]
fn debug_output_hides_the_seed() {
    let text = format!("{:?}", one_chain());
    assert!(text.contains("capacity: 16"), "{text}");
    assert!(!text.contains("24301") && !text.contains("5eed"), "{text}");
}
