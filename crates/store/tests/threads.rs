//! Threads that update overlapping sets of keys: nothing is lost, nothing is seen half done.

use std::sync::Barrier;
use std::thread;

use tidegate_store::{Entry, Key, Options, Store};
use xxhash_rust::xxh3::xxh3_128;

const THREADS: u64 = 4;
const ROUNDS: u64 = 4_000;

/// A small deterministic generator (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// A set of 1 to 12 of the first `key_count` keys, in any order.
fn some_keys(random: &mut Random, key_count: u64) -> Vec<u64> {
    let len = 1 + random.below(12);
    let mut ids = Vec::new();
    for _ in 0..len {
        let id = random.below(key_count);
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    ids
}

fn key(id: u64) -> Key {
    Key::from_hash(xxh3_128(&id.to_le_bytes()))
}

/// Every thread counts hits on random sets; each entry keeps its count twice, in two words, and a
/// third word which says how large a set it was last counted in.
fn check(capacity: u64, key_count: u64) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &Options { capacity }).unwrap();
    let start = Barrier::new(THREADS as usize);
    let count = |thread: u64| {
        let mut random = Random(0x5eed + thread);
        let mut hits = vec![0_u64; key_count as usize];
        start.wait();
        for _ in 0..ROUNDS {
            let ids = some_keys(&mut random, key_count);
            let keys: Vec<_> = ids.iter().map(|id| key(*id)).collect();
            let changed = |entries: &mut [Entry]| {
                for entry in &mut *entries {
                    assert_eq!(entry.state[0], entry.state[1], "half an update was seen");
                    entry.state[0] += 1;
                }
                // Others get a chance to see the first words without the second ones.
                thread::yield_now();
                for entry in entries {
                    entry.state[1] += 1;
                    entry.expires_at = u64::MAX;
                }
            };
            store.update_many(&keys, 1, changed).unwrap();
            ids.iter().for_each(|id| hits[*id as usize] += 1);
        }
        hits
    };
    let totals = thread::scope(|scope| {
        let count = &count;
        let threads: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || count(thread))).collect();
        let mut totals = vec![0; key_count as usize];
        for thread in threads {
            let hits = thread.join().unwrap();
            totals.iter_mut().zip(hits).for_each(|(total, hits)| *total += hits);
        }
        totals
    });

    let all: Vec<_> = (0..key_count).map(key).collect();
    let found = store.update_many(&all, 1, |entries| entries.to_vec()).unwrap();
    for (id, (entry, total)) in found.iter().zip(totals).enumerate() {
        assert_eq!(entry.state[..2], [total, total], "key {id}");
    }
    assert_eq!(store.stats().created, key_count);
}

#[test]
fn totals_are_exact_over_many_chains() {
    check(1 << 12, 24);
}

#[test]
fn totals_are_exact_when_all_keys_share_a_chain() {
    check(16, 16);
}

#[test]
fn totals_are_exact_when_different_chains_share_locks() {
    // 300 keys in 4096 chains under 1024 locks: about 30 pairs share a lock and not a chain.
    check(1 << 16, 300);
}
