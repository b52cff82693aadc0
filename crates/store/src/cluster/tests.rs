//! Clusters on the heap: a kill before every write, and races between threads. Miri runs these too.

// These tests wait for timeouts, which takes too long under Miri.
#[cfg(not(miri))]
mod recoveries;
mod regressions;
#[cfg(not(miri))]
mod slow_holders;

use super::*;
use crate::error::until_decided;
use crate::format::{ClusterInfo, Hashed, Role, STATE_WORDS_NARROW, STATE_WORDS_WIDE};
use crate::memory::Region;
use crate::memory::control::CONTROL_WORDS;
use crate::memory::sync::{get, kill};
use crate::writers::liveness::LivenessLocks;
use crate::writers::recovery::recover;
use crate::writers::{Stats, WriterSlot, restore};
use std::sync::atomic::AtomicBool;

const SECOND: u64 = 1_000_000_000;
const NOW: u64 = 1_000 * SECOND;
const LATER: u64 = NOW + 60 * SECOND;

/// The memory of a cluster on the heap, and the liveness flags of its processes.
struct Heap {
    memory: Arc<Memory>,
    flags: Arc<Vec<AtomicBool>>,
}

/// Narrow nodes in `key_nodes` chains of eight, and wide ones of 33 words in one chain of three.
fn info(key_nodes: u64) -> ClusterInfo {
    let narrow = Geometry::by_count(1, key_nodes, 8, STATE_WORDS_NARROW).unwrap();
    let wide = Geometry::by_count(1, 1, 3, STATE_WORDS_WIDE).unwrap();
    ClusterInfo { cluster: 1, seed: 7, narrow, wide: Some(wide) }
}

impl Heap {
    fn new(key_nodes: u64) -> Self {
        let info = info(key_nodes);
        let zeros = |geometry: Geometry| vec![0; (geometry.file_bytes() / 8) as usize];
        let wide = info.wide.unwrap();
        Self::from_words(info, &vec![0; CONTROL_WORDS], &zeros(info.narrow), &zeros(wide))
    }

    fn from_words(info: ClusterInfo, control: &[u64], narrow: &[u64], wide: &[u64]) -> Self {
        let words = |role| match role {
            Role::Control => Ok::<_, ()>(Region::heap(control)),
            Role::Nodes { class: Class::Narrow, .. } => Ok(Region::heap(narrow)),
            Role::Nodes { class: Class::Wide, .. } => Ok(Region::heap(wide)),
        };
        let memory = Memory::new(info, words).unwrap();
        let flags = (0..64).map(|_| AtomicBool::new(false)).collect();
        Self { memory: Arc::new(memory), flags: Arc::new(flags) }
    }

    /// Opens the cluster as process number `process`.
    fn open(&self, process: u32, eviction: Eviction) -> Cluster {
        let flags = LivenessLocks::Flags(self.flags.clone());
        let claim = flags.try_acquire(process).unwrap().expect("no other process has this number");
        let writers = Writers::join(&self.memory, flags, claim, process);
        Cluster::over(self.memory.clone(), writers, eviction, None)
    }

    /// Kills a process, leaving everything as it is.
    fn kill_process(&self, process: u32, cluster: Cluster) {
        std::mem::forget(cluster);
        self.flags[process as usize].store(false, Ordering::SeqCst);
    }

    /// A copy of the memory as the next process restores it, after the only process has ended.
    fn reopened(&self) -> Self {
        let words = |class| self.memory.class(class).unwrap().words();
        let copy = Self::from_words(
            self.memory.info,
            &self.memory.control.words(),
            &words(Class::Narrow),
            &words(Class::Wide),
        );
        restore::restore(&copy.memory);
        copy
    }
}

/// A key with a chosen home: key-node `home` of two. The other one is its alternate.
fn key_at(home: u64, number: u64) -> Hashed {
    let layout = crate::format::layout::Layout::new(info(2).narrow);
    let estimates = (0..).map(|mix: u64| (home << 63) | (number << 20) | mix);
    let estimate = estimates
        .map(|estimate| StoredKey { estimate, identity: number })
        .find(|key| layout.home(key).number == home && layout.alternate(key).number != home)
        .unwrap();
    Hashed::narrow(estimate.bits())
}

#[expect(clippy::needless_pass_by_value, reason = "as an update hands it over")]
fn add(entry: EntryMut<'_>, by: u64) {
    entry.state[0] += by;
    entry.state[1] = !entry.state[0];
    *entry.expires_at = LATER;
}

fn count(cluster: &Cluster, key: &Hashed) -> Option<u64> {
    let entry = cluster.find(key, NOW).expect("the cluster can be used")?;
    assert_eq!(entry.state[1], !entry.state[0], "half an entry");
    Some(entry.state[0])
}

/// An update, and the keys that it affects.
struct Case {
    name: &'static str,
    eviction: Eviction,
    prepare: fn(&Cluster),
    update: fn(&Cluster),
    keys: fn() -> Vec<Hashed>,
}

fn fill_home(cluster: &Cluster) {
    for number in 0..7 {
        cluster.update(&key_at(0, number), NOW, |entry| add(entry, 1)).unwrap();
    }
}

fn fill_both(cluster: &Cluster) {
    for number in 0..8 {
        for home in 0..2 {
            cluster.update(&key_at(home, number), NOW, |entry| add(entry, 1)).unwrap();
        }
    }
}

const CASES: &[Case] = &[
    Case {
        name: "an update of a live key",
        eviction: Eviction::Refuse,
        prepare: |cluster| cluster.update(&key_at(0, 1), NOW, |entry| add(entry, 5)).unwrap(),
        update: |cluster| cluster.update(&key_at(0, 1), NOW, |entry| add(entry, 1)).unwrap(),
        keys: || vec![key_at(0, 1)],
    },
    Case {
        name: "a new key",
        eviction: Eviction::Refuse,
        prepare: |_| {},
        update: |cluster| cluster.update(&key_at(1, 1), NOW, |entry| add(entry, 1)).unwrap(),
        keys: || vec![key_at(1, 1)],
    },
    Case {
        name: "a new key displaced from its crowded home",
        eviction: Eviction::Refuse,
        prepare: fill_home,
        update: |cluster| cluster.update(&key_at(0, 9), NOW, |entry| add(entry, 1)).unwrap(),
        keys: || vec![key_at(0, 9)],
    },
    Case {
        name: "an erasure of a displaced key",
        eviction: Eviction::Refuse,
        prepare: |cluster| {
            fill_home(cluster);
            cluster.update(&key_at(0, 9), NOW, |entry| add(entry, 1)).unwrap();
        },
        update: |cluster| assert!(cluster.erase(&key_at(0, 9), NOW).unwrap()),
        keys: || vec![key_at(0, 9)],
    },
    Case {
        name: "a key that takes the node of another",
        eviction: Eviction::EvictSoonestExpiry,
        prepare: fill_both,
        update: |cluster| cluster.update(&key_at(0, 20), NOW, |entry| add(entry, 1)).unwrap(),
        keys: || vec![key_at(0, 20)],
    },
    Case {
        name: "keys of both classes, one new, one live, one left empty, one twice",
        eviction: Eviction::Refuse,
        prepare: |cluster| {
            for key in [key_at(0, 1), key_at(1, 3)] {
                cluster.update(&key, NOW, |entry| add(entry, 5)).unwrap();
            }
        },
        update: |cluster| {
            let keys = [key_at(0, 1), key_at(1, 2), key_at(1, 3), Hashed::wide(4), key_at(0, 1)];
            cluster
                .update_many(&keys, NOW, |entries| {
                    for index in [0, 1, 3, 4] {
                        add(entries.get(index), 1);
                    }
                    entries.get(2).state.fill(0);
                })
                .unwrap();
        },
        keys: || vec![key_at(0, 1), key_at(1, 2), key_at(1, 3), Hashed::wide(4)],
    },
];

/// Kills the update before each of its writes. The next process, after a restart or not, finds all of it or
/// nothing, does not wait, and can continue.
#[test]
fn a_kill_between_any_two_writes_leaves_an_update_whole() {
    // Miri is slow: it runs a sample of the most complex case.
    for case in &CASES[if cfg!(miri) { 5 } else { 0 }..] {
        let untouched = counts_of(case, |_| {});
        let updated = counts_of(case, case.update);
        assert_ne!(untouched, updated, "{}", case.name);
        let mut completed = 0;
        for writes in (0..).step_by(if cfg!(miri) { 67 } else { 1 }) {
            let heap = Heap::new(2);
            (case.prepare)(&heap.open(1, case.eviction));
            let victim = heap.open(0, case.eviction);
            let survived = kill::before_write(writes, || (case.update)(&victim)).is_some();
            heap.kill_process(0, victim);

            let story = format!("{}, killed before write {writes}", case.name);
            let next = heap.reopened();
            check(&next, case, &untouched, &updated, &format!("{story}, restarted"));
            check(&heap, case, &untouched, &updated, &story);
            completed += heap.open(0, case.eviction).stats().completed;
            if survived {
                break;
            }
            assert!(writes < 1000, "{story}: does not end");
        }
        assert!(
            completed > 0 || cfg!(miri),
            "{}: no kill fell between commit and completion",
            case.name
        );
    }
}

fn counts_of(case: &Case, update: fn(&Cluster)) -> Vec<Option<u64>> {
    let heap = Heap::new(2);
    let cluster = heap.open(0, case.eviction);
    (case.prepare)(&cluster);
    update(&cluster);
    (case.keys)().iter().map(|key| count(&cluster, key)).collect()
}

#[track_caller]
fn check(heap: &Heap, case: &Case, before: &[Option<u64>], after: &[Option<u64>], story: &str) {
    let cluster = heap.open(2, case.eviction);
    let found: Vec<_> = (case.keys)().iter().map(|key| count(&cluster, key)).collect();
    assert!(found == before || found == after, "{story}: {found:?}");
    // Another process can update the same keys, and nothing is found torn afterwards.
    (case.update_again(&cluster))();
    drop(cluster);
    let stats = Stats::of(&heap.reopened().memory.control);
    let dropped = stats.dropped_torn + stats.dropped_foreign + stats.dropped_duplicate;
    assert_eq!(dropped, 0, "{story}: {stats:?}");
}

impl Case {
    fn update_again<'a>(&self, cluster: &'a Cluster) -> impl FnOnce() + use<'a> {
        let keys = (self.keys)();
        move || {
            for key in &keys {
                let before = count(cluster, key).unwrap_or(0);
                cluster.update(key, NOW, |entry| add(entry, 1)).unwrap();
                assert_eq!(count(cluster, key), Some(before + 1));
            }
        }
    }
}

/// A process that is killed during a recovery is itself recovered.
#[test]
fn a_kill_in_the_middle_of_a_recovery_does_no_harm() {
    let case = &CASES[5];
    let (untouched, updated) = (counts_of(case, |_| {}), counts_of(case, case.update));
    let kills: &[u64] = if cfg!(miri) { &[200] } else { &[40, 120, 200, 250, 280] };
    for &writes in kills {
        for recovering in (0..120).step_by(if cfg!(miri) { 37 } else { 1 }) {
            let heap = Heap::new(2);
            (case.prepare)(&heap.open(1, case.eviction));
            let victim = heap.open(0, case.eviction);
            kill::before_write(writes, || (case.update)(&victim));
            heap.kill_process(0, victim);
            let cleaner = heap.open(1, case.eviction);
            kill::before_write(recovering, || {
                let _life = claim_of(&heap, 0);
                let _ = recover(&heap.memory, [0]);
            });
            heap.kill_process(1, cleaner);
            let story = format!("killed before write {writes}, recovery before {recovering}");
            check(&heap, case, &untouched, &updated, &story);
        }
    }
}

fn claim_of(heap: &Heap, process: u32) -> Option<crate::writers::liveness::LivenessLock> {
    LivenessLocks::Flags(heap.flags.clone()).try_acquire(process).unwrap()
}

#[test]
fn threads_of_two_processes_count_every_hit() {
    const HITS: u64 = if cfg!(miri) { 20 } else { 5_000 };
    let heap = Heap::new(2);
    let clusters = [heap.open(0, Eviction::Refuse), heap.open(1, Eviction::Refuse)];
    let keys = [key_at(0, 1), key_at(1, 2), Hashed::wide(3)];
    thread::scope(|scope| {
        for (index, cluster) in clusters.iter().chain(&clusters).enumerate() {
            let mut keys = keys;
            keys.rotate_left(index % 3);
            scope.spawn(move || {
                for _ in 0..HITS {
                    until_decided(|| {
                        cluster.update_many(&keys, NOW, |entries| {
                            (0..3).for_each(|index| add(entries.get(index), 1));
                        })
                    });
                    until_decided(|| cluster.update(&keys[0], NOW, |entry| add(entry, 1)));
                }
            });
        }
    });
    let total: u64 = keys.iter().map(|key| count(&clusters[0], key).unwrap()).sum();
    assert_eq!(total, 4 * HITS * 4);
}

/// Recovery would look at the locks of a list that stays, and waiters would take its slot for one that makes no
/// progress.
#[test]
fn an_operation_releases_its_locks_and_clears_their_list() {
    type Operation = fn(&Cluster);
    let operations: [(&str, Operation); 3] = [
        ("a search", |cluster| assert_eq!(count(cluster, &key_at(0, 30)), None)),
        ("a visit", |cluster| cluster.for_each(|_, _, _| {}).unwrap()),
        ("a sweep", |cluster| assert_eq!(cluster.sweep(NOW), Ok(0))),
    ];
    let updates = CASES.iter().map(|case| (case.name, case.eviction, case.prepare, case.update));
    let others =
        operations.map(|(name, act)| (name, Eviction::Refuse, fill_home as Operation, act));
    for (name, eviction, prepare, act) in updates.chain(others) {
        let heap = Heap::new(2);
        let cluster = heap.open(0, eviction);
        prepare(&cluster);
        let slots = || WriterSlot::all(&heap.memory.control);
        let releases = || slots().map(|slot| slot.progress()).sum::<u64>();
        let before = releases();
        act(&cluster);
        assert!(releases() > before, "{name}");
        assert!(slots().all(|slot| !slot.has_listed_locks()), "{name}");
        let mut key_nodes = heap.memory.classes().flat_map(ClassMemory::key_nodes);
        assert!(key_nodes.all(|key_node| get(key_node.lock()) == 0), "{name}");
    }
}

/// From the second of its expiry on, at home or in the alternate.
#[test]
fn a_new_key_takes_an_expired_node_wherever_there_is_one() {
    for expired in 0..2 {
        let heap = Heap::new(2);
        let cluster = heap.open(0, Eviction::Refuse);
        // So that the heads have hints about the next expiry.
        cluster.sweep(NOW).unwrap();
        let at = NOW + 10 * SECOND;
        for number in 0..8 {
            for home in 0..2 {
                let until = if home == expired { at } else { LATER };
                let fill = |entry: EntryMut<'_>| {
                    entry.state[0] = 1;
                    *entry.expires_at = until;
                };
                cluster.update(&key_at(home, number), NOW, fill).unwrap();
            }
        }
        let new = key_at(0, 9);
        let refused = cluster.update(&new, at - SECOND, |entry| add(entry, 1));
        assert!(matches!(refused, Err(UpdateError::Full { .. })), "{refused:?}");
        assert_eq!(cluster.update(&new, at, |entry| add(entry, 1)), Ok(()), "{expired}");
        assert_eq!(count(&cluster, &new), Some(1));
    }
}

/// Keys are prefetched in batches. The caller does not see where one ends.
#[test]
fn each_of_many_keys_is_decided_under_its_own_index() {
    let heap = Heap::new(2);
    let cluster = heap.open(0, Eviction::Refuse);
    let keys: Vec<_> = (0..3 * BATCH as u128 - 1).map(|key| Hashed::narrow(key << 90)).collect();
    let mut indexes = Vec::new();
    // Two chains of eight have no room for most of them, which is an answer too.
    cluster.update_each(&keys, NOW, |index, entry| {
        indexes.push(index);
        if let Ok(entry) = entry {
            add(entry, 1);
        }
    });
    assert_eq!(indexes, (0..keys.len()).collect::<Vec<_>>());
}

#[test]
fn a_panic_in_decide_changes_nothing_and_blocks_nobody() {
    let heap = Heap::new(2);
    let cluster = heap.open(0, Eviction::Refuse);
    let key = key_at(0, 1);
    cluster.update(&key, NOW, |entry| add(entry, 1)).unwrap();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        cluster.update(&key, NOW, |entry| -> () {
            entry.state[0] = 100;
            std::panic::resume_unwind(Box::new("no"));
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(count(&cluster, &key), Some(1));
    cluster.update(&key, NOW, |entry| add(entry, 1)).unwrap();
    assert_eq!(count(&cluster, &key), Some(2));
}

#[test]
fn what_is_too_much_is_refused_by_name() {
    let heap = Heap::new(2);
    let cluster = heap.open(0, Eviction::Refuse);
    let keys: Vec<_> = (0..257).map(Hashed::narrow).collect();
    let error = cluster.update_many(&keys, NOW, |_| ()).unwrap_err().to_string();
    assert!(error.starts_with("257 keys of 2313 words are too much for one update"), "{error}");
    let keys: Vec<_> = (0..94).map(Hashed::wide).collect();
    let error = cluster.update_many(&keys, NOW, |_| ()).unwrap_err().to_string();
    assert!(error.starts_with("94 keys of 3572 words are too much for one update"), "{error}");
}
