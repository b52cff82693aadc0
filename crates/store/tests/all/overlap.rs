//! Processes that share a cluster: upgrades, and holders that stop, panic or die in the middle.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tidegate_store::{
    Class, Cluster, Entries, Entry, EntryMut, Hashed, OpenFailure, Options, StoredKey, UpdateError,
};

use crate::common::child::{Child, hear, leave, raise, role, say};
use crate::common::format::{self, Layout, dropped, key_at, writer_word};
use crate::common::random::Random;
use crate::common::{
    SECOND, check_sound, directory, geometry, memory_file, narrow, narrow_and_wide, until_decided,
};

const SIGKILL: i32 = 9;
/// Far longer than a transaction waits.
const SHORT: Duration = Duration::from_millis(300);
/// Longer than any wait in here.
const LONG: Duration = Duration::from_secs(10);

fn open(dir: &Path, options: &Options) -> Cluster {
    Cluster::open(dir, options).unwrap()
}

/// Adds one to every word, and returns the previous value.
fn count(entry: &mut EntryMut<'_>) -> u64 {
    let before = entry.state[0];
    assert!(entry.state.iter().all(|word| *word == before), "a mixed entry: {:?}", entry.state);
    entry.state.fill(before + 1);
    *entry.expires_at = u64::MAX;
    before
}

fn counted(cluster: &Cluster, key: &Hashed) -> u64 {
    cluster.find(key, 1).unwrap().map_or(0, |entry| entry.state[0])
}

/// As [`key_at`], in a class.
fn hashed_at(layout: &Layout, random: &mut Random, home: u64, alternate: u64) -> Hashed {
    Hashed { hash: key_at(layout, random, home, alternate).bits(), class: layout.class }
}

#[test]
fn an_upgrade_carries_the_counts_over() {
    const TEST: &str = "overlap::an_upgrade_carries_the_counts_over";
    let options = narrow_and_wide((4, 8), (2, 3), 12);
    let keys = [Hashed::narrow(1 << 90), Hashed::wide(5 << 100)];
    if let Some((_, dir)) = role() {
        let cluster = open(&dir, &options);
        for step in 0_u64.. {
            let count_both = |entries: &mut Entries<'_>| {
                assert_eq!(count(&mut entries.get(0)), count(&mut entries.get(1)));
            };
            cluster.update_many(&keys, 1, count_both).unwrap();
            if step == 200 {
                say("at work");
                hear();
                let is_last = cluster.create("the last one", 1, &Entry::new(&[1], u64::MAX));
                if is_last.unwrap() {
                    say("the first has left");
                    drop(cluster);
                    leave();
                }
            }
            if step == 400 {
                say("the second has left");
                drop(cluster);
                leave();
            }
        }
    }
    let dir = directory();
    let mut first = Child::spawn(TEST, "", dir.path());
    first.expect("at work");
    let mut second = Child::spawn(TEST, "", dir.path());
    second.expect("at work");
    first.tell();
    first.expect("the first has left");
    assert!(first.wait().success());
    second.tell();
    second.expect("the second has left");
    assert!(second.wait().success());
    let cluster = open(dir.path(), &options);
    assert_eq!(keys.map(|key| counted(&cluster, &key)), [201 + 401; 2]);
    let stats = cluster.stats();
    assert_eq!((dropped(&stats), stats.recovered, stats.completed), (0, 0, 0));
}

#[test]
fn opening_and_leaving_disturbs_no_process() {
    let (dir, options) = (directory(), narrow(2, 8));
    let keys: Vec<_> = (0..12_u64).collect();
    let (is_over, updates) = (AtomicBool::new(false), AtomicU64::new(0));
    let cluster = open(dir.path(), &options);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                until_decided(|| {
                    cluster.update_many(&keys, 1, |entries| {
                        (0..keys.len()).for_each(|index| _ = count(&mut entries.get(index)));
                    })
                })
                .unwrap();
                updates.fetch_add(1, Ordering::Relaxed);
            }
        });
        for _ in 0..50 {
            let before = updates.load(Ordering::Relaxed);
            let other = open(dir.path(), &options);
            until_decided(|| other.update(&3_u64, 1, |mut entry| count(&mut entry))).unwrap();
            drop(other);
            while updates.load(Ordering::Relaxed) == before {
                thread::yield_now();
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let expected = updates.into_inner();
    for key in &keys {
        let extra = if *key == 3 { 50 } else { 0 };
        let found = cluster.find(key, 1).unwrap().unwrap();
        assert_eq!(found.state[..], [expected + extra; 4]);
    }
    let stats = cluster.stats();
    assert_eq!((dropped(&stats), stats.recovered, stats.completed), (0, 0, 0));
}

#[test]
fn a_process_too_many_is_refused() {
    let (dir, options) = (directory(), narrow(1, 8));
    let mut clusters: Vec<_> = (0..64).map(|_| open(dir.path(), &options)).collect();
    for cluster in &clusters {
        cluster.update(&1_u64, 1, |mut entry| count(&mut entry)).unwrap();
    }
    for _ in 0..2 {
        let error = Cluster::open(dir.path(), &options).unwrap_err();
        assert!(matches!(error.failure, OpenFailure::TooManyProcesses { .. }), "{error:?}");
        let text = "64 processes have this cluster open, the maximum; stop one of them";
        assert_eq!(error.to_string(), format!("{}: {text}", dir.path().display()));
    }
    clusters.remove(20);
    let cluster = open(dir.path(), &options);
    assert_eq!(cluster.update(&1_u64, 1, |mut entry| count(&mut entry)), Ok(64));
    assert!(Cluster::open(dir.path(), &options).is_err());
}

/// Writer slots are for threads inside an update. A process that once had many such threads must leave slots
/// for others.
#[test]
fn a_process_with_many_threads_leaves_slots_for_others() {
    const THREADS: u64 = 256;
    let (dir, options) = (directory(), narrow(THREADS, 4));
    let layout = Layout::new(Class::Narrow, options.narrow);
    let mut random = Random::new(1);
    let mut key_at_home = |home| loop {
        let key = StoredKey::from_bits(random.hash());
        if layout.home(&key) == home {
            return key;
        }
    };
    let keys: Vec<_> = (0..THREADS).map(&mut key_at_home).collect();
    let (first, second) = (open(dir.path(), &options), open(dir.path(), &options));
    let inside = AtomicU64::new(0);
    thread::scope(|scope| {
        for key in &keys {
            scope.spawn(|| {
                first.update(key, 1, |mut entry| {
                    // Until all threads are inside that can be, which may be fewer than all.
                    inside.fetch_add(1, Ordering::Relaxed);
                    let since = Instant::now();
                    while inside.load(Ordering::Relaxed) < THREADS && since.elapsed() < SHORT {
                        thread::yield_now();
                    }
                    count(&mut entry)
                })
            });
        }
    });
    // No thread is inside an update now.
    for cluster in [second, open(dir.path(), &options)] {
        for key in &keys {
            cluster.update(key, 1, |mut entry| count(&mut entry)).unwrap();
        }
    }
}

/// Stops this process. Other threads may run on for a moment, so also waits for the parent.
fn stop() {
    raise(Signal::STOP);
    hear();
}

#[track_caller]
fn check_names(error: &UpdateError, expected: u64) {
    let named = matches!(error, UpdateError::Busy { pid, .. } if *pid == expected);
    assert!(named, "expected process {expected}: {error:?}");
}

#[test]
fn a_stopped_process_is_named_and_goes_on() {
    const TEST: &str = "overlap::a_stopped_process_is_named_and_goes_on";
    let options = narrow_and_wide((4, 8), (2, 3), 12);
    let [narrow, wide] = format::layouts(&options)[..] else { unreachable!() };
    let mut random = Random::new(1);
    let held = hashed_at(&narrow, &mut random, 1, 2);
    let neighbour = hashed_at(&narrow, &mut random, 1, 3);
    let other = hashed_at(&narrow, &mut random, 2, 0);
    let held_wide = hashed_at(&wide, &mut random, 0, 1);
    if let Some((role, dir)) = role() {
        let cluster = open(&dir, &options);
        let result = match role.as_str() {
            "update" => cluster.update(&held, 1, |mut entry| {
                stop();
                count(&mut entry);
            }),
            _ => cluster.update_many(&[held_wide, held], 1, |entries| {
                count(&mut entries.get(0));
                stop();
                count(&mut entries.get(1));
            }),
        };
        result.unwrap();
        say("done");
        hear();
        leave();
    }
    for role in ["update", "update_many"] {
        let dir = directory();
        let cluster = open(dir.path(), &options);
        for key in [held, held_wide, neighbour, other] {
            cluster.update(&key, 1, |mut entry| count(&mut entry)).unwrap();
        }
        let mut child = Child::spawn(TEST, role, dir.path());
        child.wait_until_stopped();
        let pid = u64::from(child.id());
        // The first waiter waits a little, and names the holder.
        let error = cluster.update(&held, 1, |mut entry| count(&mut entry)).unwrap_err();
        check_names(&error, pid);
        let UpdateError::Busy { millis, .. } = error else { unreachable!() };
        let text = format!(
            "process {pid} holds a key-node and has not moved for {millis} ms; continue or kill it"
        );
        assert_eq!(error.to_string(), text);

        // Later ones are not delayed, and get the same error.
        let newcomer = open(dir.path(), &options);
        if role == "update" {
            check_names(&newcomer.find(&held, 1).unwrap_err(), pid);
            check_names(&newcomer.for_each(|_, _, _| {}).unwrap_err(), pid);
        }
        // The failed updates locked nothing and changed nothing.
        let result = cluster.update_many(&[other, neighbour], 1, |entries| {
            count(&mut entries.get(0));
        });
        check_names(&result.unwrap_err(), pid);
        let mut each = Vec::new();
        newcomer.update_each(&[other, held, other], 1, |_, entry| {
            each.push(entry.map(|mut entry| count(&mut entry)));
        });
        assert_eq!((&each[0], &each[2]), (&Ok(1), &Ok(2)));
        check_names(each[1].as_ref().unwrap_err(), pid);
        assert_eq!(cluster.update(&other, 1, |mut entry| count(&mut entry)), Ok(3));

        child.signal(Signal::CONT);
        child.tell();
        child.expect("done");
        assert_eq!(newcomer.update(&held, 1, |mut entry| count(&mut entry)), Ok(2));
        let expected = if role == "update" { 1 } else { 2 };
        assert_eq!(counted(&newcomer, &held_wide), expected);
        child.tell();
        assert!(child.wait().success());
        let stats = cluster.stats();
        assert_eq!((dropped(&stats), stats.recovered, stats.completed), (0, 0, 0));
    }
}

#[test]
fn a_panic_changes_nothing_and_holds_nothing() {
    let (dir, options) = (directory(), narrow_and_wide((2, 3), (1, 2), 12));
    let clusters = [open(dir.path(), &options), open(dir.path(), &options)];
    let keys = [Hashed::narrow(1 << 70), Hashed::wide(2), Hashed::narrow(3 << 120)];
    let new = Hashed::narrow(1 << 127);
    let damage = |entry: EntryMut<'_>| {
        entry.state.fill(99);
        *entry.expires_at = u64::MAX;
    };
    for round in 0..20_u64 {
        let cluster = &clusters[round as usize % 2];
        for key in &keys {
            assert_eq!(cluster.update(key, 1, |mut entry| count(&mut entry)), Ok(2 * round));
        }
        for key in keys.iter().chain([&new]) {
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                cluster.update(key, 1, |entry| {
                    damage(entry);
                    resume_unwind(Box::new("in update"))
                })
            }));
            assert!(panicked.is_err());
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                cluster.update_many(&[keys[0], *key, keys[1]], 1, |entries| {
                    (0..3).for_each(|index| damage(entries.get(index)));
                    resume_unwind(Box::new("in update_many"))
                })
            }));
            assert!(panicked.is_err());
        }
        // The keys before the panic are updated.
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            cluster.update_each(&[keys[0], keys[1], keys[2], new], 1, |index, entry| {
                count(&mut entry.unwrap());
                if index == 3 {
                    resume_unwind(Box::new("in update_each"));
                }
            });
        }));
        assert!(panicked.is_err());
        for cluster in &clusters {
            assert_eq!(keys.map(|key| counted(cluster, &key)), [2 * (round + 1); 3]);
            assert_eq!(cluster.find(&new, 1), Ok(None));
        }
    }
}

#[test]
fn a_process_that_dies_while_it_decides_has_done_nothing() {
    const TEST: &str = "overlap::a_process_that_dies_while_it_decides_has_done_nothing";
    let options = narrow_and_wide((4, 8), (2, 3), 12);
    let [narrow, wide] = format::layouts(&options)[..] else { unreachable!() };
    let mut random = Random::new(2);
    let keys = [
        hashed_at(&narrow, &mut random, 3, 0),
        hashed_at(&wide, &mut random, 1, 0),
        hashed_at(&narrow, &mut random, 0, 1),
    ];
    let new = hashed_at(&narrow, &mut random, 3, 2);
    let crowd: Vec<_> = (0..8).map(|_| hashed_at(&narrow, &mut random, 3, 2)).collect();
    if let Some((role, dir)) = role() {
        let cluster = open(&dir, &options);
        let die = |mut entry: EntryMut<'_>| {
            count(&mut entry);
            raise(Signal::KILL);
        };
        // One of them, and then nothing of the update that is killed.
        let _ = match role.as_str() {
            "narrow" => cluster.update(&keys[0], 1, die),
            "wide" => cluster.update(&keys[1], 1, die),
            "new" => cluster.update(&new, 1, die),
            "each" => {
                cluster.update_each(&[keys[0], keys[1]], 1, |index, entry| {
                    count(&mut entry.unwrap());
                    if index == 1 {
                        raise(Signal::KILL);
                    }
                });
                Ok(())
            }
            _ => cluster.update_many(&[keys[0], new, keys[1], keys[2]], 1, |entries| {
                (0..3).for_each(|index| _ = count(&mut entries.get(index)));
                die(entries.get(3));
            }),
        };
        unreachable!("killed");
    }
    for (role, is_crowded) in ["narrow", "wide", "new", "each", "many"]
        .into_iter()
        .flat_map(|role| [(role, false), (role, true)])
    {
        let dir = directory();
        let cluster = open(dir.path(), &options);
        for key in keys {
            cluster.update(&key, 1, |mut entry| count(&mut entry)).unwrap();
        }
        if is_crowded {
            // The new key then considers both of its key-nodes.
            for key in &crowd {
                cluster.update(key, 1, |mut entry| count(&mut entry)).unwrap();
            }
        }
        let mut child = Child::spawn(TEST, role, dir.path());
        assert_eq!(child.wait().signal(), Some(SIGKILL));
        let since = Instant::now();
        let first = if role == "each" { 2 } else { 1 };
        let found = keys.map(|key| cluster.update(&key, 1, |mut entry| count(&mut entry)));
        assert_eq!(found, [Ok(first), Ok(1), Ok(1)], "{role}");
        assert_eq!(cluster.update(&new, 1, |mut entry| count(&mut entry)), Ok(0));
        assert!(since.elapsed() < LONG);
        let stats = cluster.stats();
        assert_eq!((stats.recovered, stats.completed, dropped(&stats)), (1, 0, 0), "{role}");
        check_sound(dir.path());
        // Also for a process that opens the cluster alone.
        drop(cluster);
        let cluster = open(dir.path(), &options);
        assert_eq!(keys.map(|key| counted(&cluster, &key)), [first + 1, 2, 2]);
        assert_eq!(dropped(&cluster.stats()), 0);
    }
}

/// A recovery is counted, whether by a process that waits, by one that joins others, or by one that is alone.
#[test]
fn every_recovery_is_counted() {
    const TEST: &str = "overlap::every_recovery_is_counted";
    let options = narrow(1, 8);
    let key = Hashed::narrow(1 << 70);
    if let Some((_, dir)) = role() {
        let cluster = open(&dir, &options);
        let _ = cluster.update(&key, 1, |_| raise(Signal::KILL));
        unreachable!("killed");
    }
    let dir = directory();
    let die = || assert_eq!(Child::spawn(TEST, "", dir.path()).wait().signal(), Some(SIGKILL));
    die();
    let cluster = open(dir.path(), &options);
    assert_eq!(cluster.stats().recovered, 1, "by one that is alone");
    die();
    cluster.update(&key, 1, |mut entry| count(&mut entry)).unwrap();
    assert_eq!(cluster.stats().recovered, 2, "by one that waits");
    die();
    let other = open(dir.path(), &options);
    assert_eq!(other.stats().recovered, 3, "by one that joins");
}

/// Writes words into a file of a live cluster, as another process would.
fn write_words(path: &Path, words: &[(usize, u64)]) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    for (word, value) in words {
        file.write_all_at(&value.to_le_bytes(), 8 * *word as u64).unwrap();
    }
}

fn read_word(path: &Path, word: usize) -> u64 {
    let mut bytes = [0; 8];
    OpenOptions::new()
        .read(true)
        .open(path)
        .unwrap()
        .read_exact_at(&mut bytes, 8 * word as u64)
        .unwrap();
    u64::from_le_bytes(bytes)
}

/// A process was killed after writing the last word of a node and before the hint about the first expiry. Recovery
/// must correct the hint, or an expired node is not found when it is needed, and a new key is refused.
#[test]
fn a_completed_update_is_known_to_expire() {
    let (dir, options) = (directory(), narrow(1, 8));
    let layout = Layout::new(Class::Narrow, options.narrow);
    let cluster = open(dir.path(), &options);
    let keys: Vec<_> = (1..=9_u64).map(|number| StoredKey::from_bits(u128::from(number))).collect();
    let update = |key: &StoredKey, now: u64, expires: u64| {
        cluster.update(key, now * SECOND, |mut entry| {
            count(&mut entry);
            *entry.expires_at = expires * SECOND;
        })
    };
    for key in &keys[..8] {
        update(key, 1, 1000).unwrap();
    }
    // The chain is full, and the hint says that nothing has expired.
    assert!(matches!(update(&keys[8], 1, 1000), Err(UpdateError::Full { .. })));

    // The killed process number 9 had writer slot number 200.
    let (data, control) =
        (memory_file(dir.path(), "narrow-000.tide"), memory_file(dir.path(), format::CONTROL));
    let (_, head) = layout.key_node_at(0);
    let slot = (0..8)
        .find(|&slot| read_word(&data, head + layout.word_indexes(slot)[1]) == 1)
        .expect("the first key is somewhere");
    let indexes: Vec<_> = layout.word_indexes(slot).iter().map(|word| head + word).collect();
    let before = read_word(&data, indexes[6]);
    let image = format::sealed(&keys[0], &[7; 4], 100, cluster.seed());
    let mut writer = vec![
        (format::OWNER, 10),
        (format::LOCK_COUNT, 1),
        (format::LOCKS, format::key_node_word(Class::Narrow, 0)),
        (format::JOURNAL, format::target_word(Class::Narrow, 0, slot)),
        (format::JOURNAL + 1, before),
        (format::COMMITTED, 9),
    ];
    writer.extend(image.iter().enumerate().map(|(at, word)| (format::JOURNAL + 2 + at, *word)));
    let writer: Vec<_> =
        writer.into_iter().map(|(at, word)| (writer_word(200, at), word)).collect();
    write_words(&control, &writer);
    write_words(&data, &[(head, 201 | read_word(&data, head))]);
    write_words(&data, &indexes.iter().copied().zip(image).collect::<Vec<_>>());

    let found = cluster.find(&keys[0], SECOND).unwrap().unwrap();
    assert_eq!(found, Entry::new(&[7; 4], 100 * SECOND));
    let stats = cluster.stats();
    assert_eq!((stats.recovered, stats.completed), (1, 1));
    check_sound(dir.path());
    update(&keys[8], 200, 1000).unwrap();
    let stats = cluster.stats();
    assert_eq!((stats.evicted_expired, stats.evicted_live), (1, 0));
}

/// A relative directory is found again after the process has changed its own.
#[test]
fn a_relative_directory_stays_where_it_was() {
    const TEST: &str = "overlap::a_relative_directory_stays_where_it_was";
    let options = narrow(1, 8);
    let key = Hashed::narrow(1 << 70);
    if let Some((role, dir)) = role() {
        std::env::set_current_dir(&dir).unwrap();
        let cluster = open(Path::new("relative"), &options);
        if role == "die" {
            let _ = cluster.update(&key, 1, |_| raise(Signal::KILL));
            process::exit(1);
        }
        std::env::set_current_dir("/").unwrap();
        say("moved");
        hear();
        cluster.update(&key, 1, |mut entry| count(&mut entry)).unwrap();
        cluster.check_files().unwrap();
        say("done");
        leave();
    }
    let dir = directory();
    let mut mover = Child::spawn(TEST, "move", dir.path());
    mover.expect("moved");
    assert_eq!(Child::spawn(TEST, "die", dir.path()).wait().signal(), Some(SIGKILL));
    mover.tell();
    mover.expect("done");
    assert!(mover.wait().success());
}

/// As many files as a geometry allows can be opened, twice in one process.
#[test]
fn the_most_files_can_be_open() {
    let dir = directory();
    let options =
        Options { wide: Some(geometry(128, 1, 1, 5)), ..Options::narrow(geometry(128, 1, 1, 4)) };
    let clusters = [open(dir.path(), &options), open(dir.path(), &options)];
    for cluster in &clusters {
        cluster.update(&Hashed::wide(1), 1, |mut entry| count(&mut entry)).unwrap();
    }
    assert_eq!(counted(&clusters[0], &Hashed::wide(1)), 2);
}
