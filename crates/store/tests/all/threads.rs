//! Threads that update overlapping sets of keys: nothing is lost, no partial update is visible, no thread
//! waits forever.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tidegate_store::{Class, Cluster, EntryMut, Eviction, Hashed, Options, StoredKey, UpdateError};

use crate::common::format::{dropped, key_at, layouts};
use crate::common::random::{Random, mixed};
use crate::common::{
    SECOND, check_sound, directory, narrow, narrow_and_wide, test_seed, until_decided,
};

const THREADS: u64 = 4;

fn key(number: u64) -> Hashed {
    let class = if number % 5 == 4 { Class::Wide } else { Class::Narrow };
    Hashed { hash: u128::from(mixed(number)) << 64 | u128::from(number), class }
}

/// One to twelve of the first `count` keys, in any order, some repeated.
fn some_keys(random: &mut Random, count: u64) -> Vec<u64> {
    (0..1 + random.below(12)).map(|_| random.below(count)).collect()
}

/// Every thread adds to sets of shared keys and to keys of its own; two handles share the work.
#[test]
fn sums_are_exact() {
    const ROUNDS: u64 = 8_000;
    const SHARED: u64 = 20;
    let dir = directory();
    let options = narrow_and_wide((4, 16), (2, 6), 9);
    let clusters = [0, 1].map(|_| Cluster::open(dir.path(), &options).unwrap());
    let seed = test_seed();
    let expected: Vec<_> = (0..SHARED + THREADS).map(|_| AtomicU64::new(0)).collect();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (clusters, expected) = (&clusters, &expected);
            scope.spawn(move || {
                let mut random = Random::new(seed ^ thread);
                for round in 0..ROUNDS {
                    let cluster = &clusters[random.below(2) as usize];
                    let mut ids = some_keys(&mut random, SHARED);
                    ids.push(SHARED + thread);
                    for id in &ids {
                        expected[*id as usize].fetch_add(1, Ordering::Relaxed);
                    }
                    let keys: Vec<_> = ids.iter().map(|id| key(*id)).collect();
                    let own = match round % 3 {
                        0 => {
                            let mut own = 0;
                            let mut again = Vec::new();
                            cluster.update_each(&keys, SECOND, |index, entry| match entry {
                                Ok(entry) => own = add(entry),
                                Err(error) => {
                                    assert!(error.is_contention(), "{error}");
                                    again.push(index);
                                }
                            });
                            for index in again {
                                let update = || cluster.update(&keys[index], SECOND, add);
                                let found = until_decided(update).unwrap();
                                own = if index + 1 == keys.len() { found } else { own };
                            }
                            own
                        }
                        1 => until_decided(|| {
                            cluster.update_many(&keys, SECOND, |entries| {
                                (0..keys.len()).map(|index| add(entries.get(index))).last().unwrap()
                            })
                        })
                        .unwrap(),
                        _ => {
                            let update = |key| until_decided(|| cluster.update(key, SECOND, add));
                            keys.iter().fold(0, |_, key| update(key).unwrap())
                        }
                    };
                    assert_eq!(own, round + 1);
                }
            });
        }
    });
    for (id, expected) in expected.into_iter().enumerate() {
        let found = clusters[0].find(&key(id as u64), SECOND).unwrap().unwrap();
        let expected = expected.into_inner();
        assert!(found.state.iter().all(|word| *word == expected), "{id}: {expected} {found:?}");
    }
    assert_eq!(clusters[0].stats().recovered, 0);
    check_sound(dir.path());
}

#[expect(clippy::needless_pass_by_value, reason = "as an update hands it over")]
fn add(entry: EntryMut<'_>) -> u64 {
    let before = entry.state[0];
    assert!(entry.state.iter().all(|word| *word == before), "a mixed entry: {:?}", entry.state);
    entry.state.fill(before + 1);
    *entry.expires_at = u64::MAX;
    before + 1
}

/// Two keys that are always updated together, in either order.
#[test]
fn opposite_orders_do_not_wait_for_each_other() {
    const ROUNDS: u64 = 24_000;
    let (dir, options) = (directory(), narrow_and_wide((8, 8), (2, 4), 12));
    let clusters = [0, 1].map(|_| Cluster::open(dir.path(), &options).unwrap());
    let keys: Vec<_> = (0..10).map(key).collect();
    let start = Barrier::new(THREADS as usize);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (cluster, start, mut keys) = (&clusters[thread as usize / 2], &start, keys.clone());
            if thread % 2 == 1 {
                keys.reverse();
            }
            scope.spawn(move || {
                start.wait();
                for _ in 0..ROUNDS / THREADS {
                    until_decided(|| {
                        cluster.update_many(&keys, SECOND, |entries| {
                            let first = add(entries.get(0));
                            for index in 1..keys.len() {
                                assert_eq!(add(entries.get(index)), first);
                            }
                        })
                    })
                    .unwrap();
                }
            });
        }
    });
    for key in &keys {
        let found = clusters[1].find(key, SECOND).unwrap().unwrap();
        assert!(found.state.iter().all(|word| *word == ROUNDS), "{found:?}");
    }
}

/// Keys that crowd two key-nodes, each the other's alternate, come and go in both orders, so that threads
/// need the key-node that another one holds.
#[test]
fn keys_that_come_and_go_in_a_crowd_stay_whole() {
    const ROUNDS: u64 = 15_000;
    let dir = directory();
    let options = narrow(2, 3);
    let layout = layouts(&options)[0];
    let mut random = Random::new(test_seed());
    // Twelve keys for six nodes. Half of them have one key-node as home, half the other.
    let keys: Vec<StoredKey> =
        (0..12).map(|index| key_at(&layout, &mut random, index % 2, 1 - index % 2)).collect();
    let refused = AtomicU64::new(0);
    for eviction in [Eviction::Refuse, Eviction::EvictSoonestExpiry] {
        let options = Options { eviction, ..options.clone() };
        let clusters = [0, 1].map(|_| Cluster::open(dir.path(), &options).unwrap());
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (cluster, keys, refused) = (&clusters[thread as usize % 2], &keys, &refused);
                let mut random = Random::new(random.next() ^ thread);
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        let result = come_or_go(cluster, keys, &mut random);
                        match result {
                            Ok(()) => {}
                            Err(UpdateError::Full { .. }) => {
                                refused.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(error) => assert!(error.is_contention(), "{error}"),
                        }
                    }
                });
            }
        });
        check_sound(dir.path());
        // No key twice, none unreachable, and nothing to repair.
        let mut found = Vec::new();
        clusters[0].for_each(|_, key, _| found.push(key)).unwrap();
        for key in &found {
            assert!(clusters[1].find(key, 0).unwrap().is_some());
        }
        let count = found.len();
        found.sort();
        found.dedup();
        assert_eq!(found.len(), count);
        let stats = clusters[0].stats();
        assert_eq!(
            stats.created,
            stats.erased + stats.evicted_expired + stats.evicted_live + count as u64
        );
        drop(clusters);
        let cluster = Cluster::open(dir.path(), &options).unwrap();
        assert_eq!(dropped(&cluster.stats()), 0);
        let mut after = Vec::new();
        cluster.for_each(|_, key, _| after.push(key)).unwrap();
        after.sort();
        assert_eq!(after, found);
        let stats = cluster.stats();
        println!("{eviction:?}: {} refused, {stats:?}", refused.load(Ordering::Relaxed));
    }
    assert!(refused.into_inner() > 0);
}

fn come_or_go(
    cluster: &Cluster,
    keys: &[StoredKey],
    random: &mut Random,
) -> Result<(), UpdateError> {
    let now = SECOND * random.below(8);
    let mut some: Vec<_> = keys.to_vec();
    random.shuffle(&mut some);
    some.truncate(1 + random.below(3) as usize);
    let expires_at = SECOND * random.below(12);
    let change = |key: &StoredKey, entry: EntryMut<'_>| {
        // The entry identifies its key.
        assert!(entry.is_new() || entry.state[0] == key.identity);
        assert!(entry.is_new() || entry.state[1] == !key.identity, "{:?}", entry.state);
        (entry.state[0], entry.state[1]) = (key.identity, !key.identity);
        *entry.expires_at = expires_at;
    };
    match random.below(8) {
        0 => cluster.erase(&some[0], now).map(|_| ()),
        1 => cluster.sweep(now).map(|_| ()),
        2 => cluster.find(&some[0], now).map(|entry| {
            assert!(entry.is_none_or(|entry| entry.state[0] == some[0].identity));
        }),
        3 => cluster.for_each(|_, key, entry| assert_eq!(entry.state[0], key.identity)),
        4 => cluster.update(&some[0], now, |entry| change(&some[0], entry)),
        _ => cluster.update_many(&some, now, |entries| {
            for (index, key) in some.iter().enumerate() {
                change(key, entries.get(index));
            }
        }),
    }
}

/// More threads than writer slots, each under the lock of a key-node of its own.
#[test]
fn threads_without_a_slot_wait_for_one() {
    const MANY: u64 = 320;
    const WRITERS: u64 = 256;
    /// Longer than a transaction waits, so that threads without a slot try again.
    const SHORT: Duration = Duration::from_millis(300);
    let (dir, options) = (directory(), narrow(4 * MANY, 4));
    let cluster = Cluster::open(dir.path(), &options).unwrap();
    let layout = layouts(&options)[0];
    let mut random = Random::new(1);
    let key_at_home = |home| loop {
        let key = StoredKey::from_bits(random.hash());
        if layout.home(&key) == home {
            return key;
        }
    };
    let keys: Vec<_> = (0..MANY).map(key_at_home).collect();
    let inside = AtomicU64::new(0);
    thread::scope(|scope| {
        for key in &keys {
            scope.spawn(|| {
                let decide = |entry: EntryMut<'_>| {
                    inside.fetch_add(1, Ordering::Relaxed);
                    let since = Instant::now();
                    while inside.load(Ordering::Relaxed) < WRITERS && since.elapsed() < SHORT {
                        thread::yield_now();
                    }
                    add(entry)
                };
                assert_eq!(until_decided(|| cluster.update(key, SECOND, decide)), Ok(1));
            });
        }
    });
    assert_eq!(inside.into_inner(), MANY);
}
