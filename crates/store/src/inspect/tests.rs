//! Views of clusters in files: at rest, at full speed, after a kill, and with every kind of damage.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::cluster::Cluster;
use crate::entry::EntryMut;
use crate::error::until_decided;
use crate::format::node::seal;
use crate::format::{HEADER_BYTES, Hashed, Layout, STATE_WORDS_NARROW, STATE_WORDS_WIDE};
use crate::memory::Region;
use crate::memory::control::{CONTROL_WORDS, RESTORING};
use crate::memory::sync::kill;
use crate::open::pointer::Pointer;
use crate::options::{Eviction, Options};
use crate::snapshot::SyncReport;
use crate::writers::WriterSlot;
use crate::writers::slot::owner_word;

const SECOND: u64 = 1_000_000_000;
const NOW: u64 = 1_000 * SECOND;
const LATER: u64 = NOW + 60 * SECOND;
const NARROW: &str = "narrow-000.tide";
const CONTROL: &str = "control.tide";
const WIDE: &str = "wide-000.tide";

/// Two narrow key-nodes of eight nodes, and one of three wide ones.
fn options() -> Options {
    Options {
        narrow: Geometry::by_count(1, 2, 8, STATE_WORDS_NARROW).unwrap(),
        wide: Some(Geometry::by_count(1, 1, 3, STATE_WORDS_WIDE).unwrap()),
        eviction: Eviction::Refuse,
        ..Options::default()
    }
}

fn layout() -> Layout {
    Layout::new(options().narrow)
}

/// A data directory. Removes the memory that is left on drop.
struct Dir(TempDir);

impl Dir {
    fn path(&self) -> &Path {
        self.0.path()
    }

    /// The directory of its cluster's memory.
    fn memory(&self) -> PathBuf {
        Pointer::read(&self.path().join("cluster")).expect("it is open").memory
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        if let Some(pointer) = Pointer::read(&self.path().join("cluster")) {
            let _ = fs::remove_dir_all(pointer.memory);
        }
    }
}

fn cluster() -> (Dir, Cluster) {
    let dir = Dir(TempDir::new().unwrap());
    let cluster = Cluster::open(dir.path(), &options()).unwrap();
    (dir, cluster)
}

/// A key whose home is key-node `home` of two, and whose alternate is the other one.
fn key_at(home: u64, number: u64) -> Hashed {
    let estimate = (0..)
        .map(|mix: u64| StoredKey { estimate: home << 63 | number << 20 | mix, identity: number })
        .find(|key| layout().home(key).number == home && layout().alternate(key).number != home)
        .unwrap();
    Hashed::narrow(estimate.bits())
}

fn add(entry: EntryMut<'_>, by: u64) {
    add_until(entry, by, LATER);
}

fn add_until(entry: EntryMut<'_>, by: u64, until: u64) {
    let EntryMut { state, expires_at, .. } = entry;
    state[0] = state[0].wrapping_add(by);
    let value = state[0];
    state[1..].fill(!value);
    *expires_at = until;
}

/// The value of an entry made by [`add`]; checks that the entry is whole.
fn value(entry: &Entry) -> u64 {
    assert!(entry.state[1..].iter().all(|word| *word == !entry.state[0]), "{entry:?}");
    entry.state[0]
}

fn entries(view: &View) -> BTreeMap<(Class, StoredKey), u64> {
    let mut entries = BTreeMap::new();
    let left_out = view.try_for_each(|class, key, entry| {
        entries.insert((class, key), value(&entry));
        Ok::<_, ()>(())
    });
    assert_eq!(left_out, Ok(0));
    entries
}

#[test]
fn a_view_finds_keys_that_are_displaced() {
    let (dir, cluster) = cluster();
    let keys: Vec<_> = (0..8).map(|number| key_at(0, number)).collect();
    for key in &keys {
        cluster.update(key, NOW, |entry| add(entry, 1)).unwrap();
    }
    let view = View::open(dir.path()).unwrap();
    let homes = view.memory.class(Class::Narrow).unwrap();
    assert!(get(homes.key_node(0).displaced()) > 0, "the home is crowded");
    for key in &keys {
        let found = view.find(key, NOW).unwrap();
        assert_eq!(found.map(|entry| value(&entry)), Some(1));
        assert_eq!(view.find(key, LATER), Ok(None), "it has expired");
    }
}

#[test]
fn a_process_is_listed_for_any_trace_of_it() {
    let (dir, cluster) = cluster();
    let found = || -> Vec<_> {
        let view = View::open(dir.path()).unwrap();
        let trace = |found: &Process| (found.number, found.pid, found.writer_slots, found.is_alive);
        view.processes().iter().map(trace).collect()
    };
    let pid = u64::from(std::process::id());
    cluster.update(&key_at(0, 1), NOW, |entry| add(entry, 1)).unwrap();
    assert_eq!(found(), [(0, pid, 1, true)], "it has a slot for updates");
    // A kill left the id of one, and a slot of another.
    let control = edit(&dir.memory(), CONTROL);
    put_word(&control, 512 + 1, 77);
    let region = Region::heap(&vec![0; CONTROL_WORDS]);
    let slot = WriterSlot::new(&region, 6);
    put_word(&control, slot.offset() / 8, owner_word(2));
    assert_eq!(found(), [(0, pid, 1, true), (1, 77, 0, false), (2, 0, 1, false)]);
}

/// The content of every file in `dir` and below.
fn bytes(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.append(&mut bytes(&path));
        } else {
            files.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    files
}

fn edit(dir: &Path, file: &str) -> File {
    OpenOptions::new().read(true).write(true).open(dir.join(file)).unwrap()
}

fn put_word(file: &File, word: u64, value: u64) {
    file.write_all_at(&value.to_le_bytes(), 8 * word).unwrap();
}

fn word(file: &File, word: u64) -> u64 {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, 8 * word).unwrap();
    u64::from_le_bytes(bytes)
}

#[test]
fn a_view_shows_what_is_there_and_changes_no_byte() {
    let (dir, cluster) = cluster();
    for number in 0..5 {
        cluster.update(&key_at(0, number), NOW, |entry| add(entry, number + 1)).unwrap();
    }
    cluster.update(&Hashed::wide(4), NOW, |entry| add(entry, 9)).unwrap();
    let expired = key_at(1, 1);
    cluster.update(&expired, NOW, |entry| add_until(entry, 7, NOW + 2 * SECOND)).unwrap();
    let now = NOW + 2 * SECOND;
    let before = (bytes(dir.path()), bytes(&dir.memory()));

    let view = View::open(dir.path()).unwrap();
    assert_eq!(view.seed(), cluster.seed());
    assert_eq!(view.stats(), cluster.stats());
    for class in Class::ALL {
        assert_eq!(view.geometry(class), cluster.geometry(class));
        assert_eq!(view.occupancy(class), cluster.occupancy(class));
    }
    assert_eq!(
        view.files(),
        [CONTROL, NARROW, WIDE].map(|file| dir.path().join("cluster").join(file))
    );
    assert_eq!(
        view.memory_files(),
        Some([CONTROL, NARROW, WIDE].map(|file| dir.memory().join(file)).to_vec())
    );
    let pid = u64::from(std::process::id());
    assert_eq!(view.processes(), [Process { number: 0, pid, writer_slots: 1, is_alive: true }]);
    assert_eq!(view.entry_counts(Class::Narrow, now), Some(EntryCounts { live: 5, expired: 1 }));
    let area = |occupied, updates| RangeStats { nodes: 8, occupied, updates };
    assert_eq!(view.range_stats(Class::Narrow, 100), Some(vec![area(5, 5), area(1, 1)]));
    assert_eq!(
        view.range_stats(Class::Narrow, 1),
        Some(vec![RangeStats { nodes: 16, occupied: 6, updates: 6 }])
    );
    let found = view.find(&key_at(0, 3), now).unwrap();
    assert_eq!(found.map(|entry| (value(&entry), entry.expires_at)), Some((4, LATER)));
    assert_eq!(view.find(&Hashed::wide(4), now).unwrap().map(|entry| value(&entry)), Some(9));
    assert_eq!(view.find(&expired, NOW).unwrap().map(|entry| value(&entry)), Some(7));
    assert_eq!(view.find(&expired, now).unwrap(), None);
    assert_eq!(view.find(&key_at(0, 6), now).unwrap(), None);
    assert_eq!(entries(&view).len(), 7);
    let findings = view.verify(now, |_, _| {});
    assert!(findings.is_sound(), "{findings:?}");
    assert_eq!((findings.key_nodes, findings.nodes, findings.sound), (3, 7, 7));
    assert_eq!((findings.live, findings.expired), (6, 1));
    view.check_files().unwrap();
    assert_eq!((bytes(dir.path()), bytes(&dir.memory())), before);

    // Once the last process has left, the snapshot contains everything.
    drop((view, cluster));
    let before = bytes(dir.path());
    let view = View::open(dir.path()).unwrap();
    assert_eq!(
        (view.memory_files(), view.is_served_elsewhere(), view.processes()),
        (None, false, vec![])
    );
    assert_eq!(view.entry_counts(Class::Narrow, now), Some(EntryCounts { live: 5, expired: 1 }));
    assert_eq!(view.find(&Hashed::wide(4), now).unwrap().map(|entry| value(&entry)), Some(9));
    assert_eq!(entries(&view).len(), 7);
    assert!(view.verify(now, |_, _| {}).is_sound());
    view.check_files().unwrap();
    assert_eq!(bytes(dir.path()), before);
}

#[test]
fn a_visit_ends_when_the_visitor_fails() {
    let (dir, cluster) = cluster();
    for number in 0..5 {
        cluster.update(&key_at(0, number), NOW, |entry| add(entry, 1)).unwrap();
    }
    let mut visits = 0;
    let result = View::open(dir.path()).unwrap().try_for_each(|_, _, _| {
        visits += 1;
        if visits == 3 { Err("enough") } else { Ok(()) }
    });
    assert_eq!((result, visits), (Err("enough"), 3));
}

#[test]
fn what_is_no_cluster_is_refused_and_left_alone() {
    let dir = TempDir::new().unwrap();
    let error = View::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains("there is no cluster here"), "{error}");
    assert_eq!(bytes(dir.path()), BTreeMap::new());

    let (dir, cluster) = cluster();
    drop(cluster);
    put_word(&edit(&dir.path().join("cluster"), NARROW), 0, 5);
    let before = bytes(dir.path());
    let error = View::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains("narrow-000.tide: not a counter file"), "{error}");
    assert_eq!(bytes(dir.path()), before);
}

#[test]
fn a_file_truncated_during_a_view_is_reported() {
    let (dir, cluster) = cluster();
    cluster.update(&key_at(0, 1), NOW, |entry| add(entry, 1)).unwrap();
    let view = View::open(dir.path()).unwrap();
    edit(&dir.memory(), NARROW).set_len(HEADER_BYTES as u64).unwrap();
    assert_eq!(view.find(&key_at(0, 1), NOW), Err(UpdateError::DataLoss));
    assert_eq!(entries(&view).len(), 0);
    assert!(view.check_files().is_err());
}

/// Stops the writers even if the test fails, which would otherwise wait for them.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Four threads write at full speed, while keys come, go and move. No view finds a flaw or part of an entry,
/// or misses a key that is always there.
#[test]
fn a_view_at_full_speed_finds_whole_entries_and_no_flaw() {
    let (dir, first) = cluster();
    let evicting = Options { eviction: Eviction::EvictSoonestExpiry, ..options() };
    let second = Cluster::open(dir.path(), &evicting).unwrap();
    // Never evicted first.
    let keep = |entry: EntryMut<'_>| add_until(entry, 1, LATER + SECOND);
    let stays = [key_at(0, 1), key_at(1, 1), Hashed::wide(1)];
    stays.iter().for_each(|key| first.update(key, NOW, keep).unwrap());
    let (stop, seed) = (AtomicBool::new(false), AtomicU64::new(1));
    std::thread::scope(|scope| {
        for cluster in [&first, &second, &first, &second] {
            let (stop, seed) = (&stop, &seed);
            scope.spawn(move || {
                let mut number = seed.fetch_add(1, Ordering::Relaxed);
                while !stop.load(Ordering::Relaxed) {
                    number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let stays_too = &stays[number as usize >> 40 & 1];
                    until_decided(|| cluster.update(stays_too, NOW, keep));
                    until_decided(|| cluster.update(&stays[2], NOW, keep));
                    // More keys than fit at home, so that some are displaced; erased, so that they return.
                    let passing = key_at(number >> 33 & 1, 2 + (number >> 50) % 14);
                    let until = LATER - (number >> 20 & 31) * SECOND;
                    let _ = cluster.update(&passing, NOW, |entry| add_until(entry, 1, until));
                    let erased = key_at(number >> 34 & 1, 2 + (number >> 45) % 14);
                    until_decided(|| cluster.erase(&erased, NOW));
                    if number >> 60 == 0 {
                        // So that the heads have hints about the next expiry.
                        until_decided(|| cluster.sweep(NOW));
                    }
                }
            });
        }
        let _stop = StopOnDrop(&stop);
        let view = View::open(dir.path()).unwrap();
        let verified = || {
            let findings = view.verify(NOW, |_, _| {});
            assert!(findings.is_sound(), "{:?}", findings.flaws);
            assert_eq!(findings.locks_left, 0, "{findings:?}");
            findings
        };
        for _ in 0..300 {
            let (begun, mut findings) = (Instant::now(), verified());
            // The update of a writer without a processor is pending, until it has one again.
            while (findings.pending, findings.updates_pending) != (0, 0) {
                assert!(begun.elapsed() < Duration::from_secs(60), "{findings:?}");
                findings = verified();
            }
            for key in &stays {
                assert!(view.find(key, NOW).unwrap().is_some_and(|entry| value(&entry) > 0));
            }
            assert!(entries(&view).len() >= 3);
        }
    });
}

/// Before whatever write an update was killed, a view finds the entry before or after the update, and no flaw.
#[test]
fn what_a_killed_update_left_is_pending_and_no_flaw() {
    let mut pending = 0;
    // A view waits for a stopped writer, so test only a sample of the many writes of a wide node.
    for (key, step) in [(key_at(0, 1), 1), (Hashed::wide(1), 11)] {
        for writes in (0..).step_by(step) {
            let (dir, victim) = cluster();
            victim.update(&key, NOW, |entry| add(entry, 5)).unwrap();
            let survived = kill::before_write(writes, || {
                victim.update(&key, NOW, |entry| add(entry, 1)).unwrap();
            });
            // The locks are held and the journal exists until the victim is dropped.
            let view = View::open(dir.path()).unwrap();
            let findings = view.verify(NOW, |_, _| {});
            assert!(findings.is_sound(), "killed before write {writes}: {findings:?}");
            let found = view.find(&key, NOW).unwrap().map(|entry| value(&entry));
            assert!(matches!(found, Some(5 | 6)), "killed before write {writes}: {found:?}");
            if findings.pending > 0 {
                assert_eq!((findings.updates_pending, found), (1, Some(6)));
                pending += 1;
            }
            if survived.is_some() {
                assert_eq!(findings.updates_pending, 0);
                break;
            }
            assert!(writes < 1000, "does not end");
        }
    }
    assert!(pending > 5, "{pending}: most writes of a node leave it torn");
}

#[test]
fn locks_of_the_dead_are_distinguished_from_invalid_locks() {
    let (dir, cluster) = cluster();
    cluster.update(&key_at(0, 1), NOW, |entry| add(entry, 5)).unwrap();
    let key = key_at(0, 1);
    kill::before_write(3, || cluster.update(&key, NOW, |entry| add(entry, 1)));
    let control = edit(&dir.memory(), CONTROL);
    let view = View::open(dir.path()).unwrap();
    assert_eq!(view.verify(NOW, |_, _| {}).locks_left, 0);
    // There is no process number 1.
    put_word(&control, 1024, 2);
    let findings = view.verify(NOW, |_, _| {});
    assert_eq!(
        (findings.locks_left, findings.writer_slots_left, findings.is_sound()),
        (1, 1, true)
    );
    assert_eq!(view.holders(), [], "nor does the dead one hold it");
    // The slot belongs to another process, which does not list the lock.
    put_word(&control, 1024 + 2, 0);
    let findings = view.verify(NOW, |_, _| {});
    assert_eq!((findings.locks_left, findings.flaws_of(FlawKind::Lock)), (0, 1));
}

/// Damages a cluster, and checks that exactly this flaw is found, at this word of the file, and is not repaired.
#[track_caller]
fn check_flaw(kind: FlawKind, file: &str, damage: impl FnOnce(&File) -> u64) {
    let (dir, cluster) = cluster();
    // Eight keys of one home: the last one is displaced.
    for number in 0..8 {
        cluster.update(&key_at(0, number), NOW, |entry| add(entry, 1)).unwrap();
    }
    let view = View::open(dir.path()).unwrap();
    assert_eq!(view.verify(NOW, |_, _| {}).sound, 8);

    let at = damage(&edit(&dir.memory(), file));
    let before = bytes(&dir.memory());
    let findings = view.verify(NOW, |_, _| {});
    let [flaw] = &findings.flaws[..] else { panic!("{:?}", findings.flaws) };
    assert_eq!((flaw.kind, flaw.offset), (kind, 8 * at), "{flaw}");
    // A node is named by its slot, and by its key unless that is torn too.
    let has_slot = !matches!(kind, FlawKind::Lock | FlawKind::WriterSlot);
    assert_eq!(
        (flaw.slot.is_some(), flaw.key.is_some()),
        (has_slot, has_slot && kind != FlawKind::Torn)
    );
    assert_eq!(flaw.file, dir.memory().join(file));
    assert_eq!((findings.flaws_total(), findings.flaws_of(kind)), (1, 1));
    assert!(!findings.is_sound());
    assert_eq!(bytes(&dir.memory()), before);
}

/// A damaged copy in the snapshot is found, and the previous one is used.
#[test]
fn a_damaged_copy_is_found_and_the_previous_one_is_used() {
    let (dir, cluster) = cluster();
    for expected in [1, 2] {
        cluster.update(&key_at(0, 1), NOW, |entry| add(entry, 1)).unwrap();
        let synced = cluster.sync().unwrap();
        assert_eq!(synced, Some(SyncReport { copied: 1, locked: 0 }), "{expected}");
    }
    drop(cluster);
    let file = edit(&dir.path().join("cluster"), NARROW);
    // The second copy is at the second position, after the first positions of both key-nodes.
    let at = (HEADER_BYTES as u64 + 2 * options().narrow.key_node_bytes()) / 8;
    let found = |expected: u64| {
        let view = View::open(dir.path()).unwrap();
        assert_eq!(
            view.find(&key_at(0, 1), NOW).unwrap().map(|entry| value(&entry)),
            Some(expected)
        );
        view.verify(NOW, |_, _| {})
    };
    assert!(found(2).is_sound());
    put_word(&file, at + 9, word(&file, at + 9) ^ 1 << 40);
    let findings = found(1);
    let [flaw] = &findings.flaws[..] else { panic!("{:?}", findings.flaws) };
    assert_eq!((flaw.kind, flaw.offset, flaw.key_node), (FlawKind::Torn, 8 * at, Some(0)));
    assert_eq!(flaw.file, dir.path().join("cluster").join(NARROW));
}

/// Word offsets of a key-node and of a node, and the slots with a node.
fn key_node_at(number: u64) -> u64 {
    layout().key_node(number).first as u64
}

fn node_at(key_node: u64, slot: u32) -> u64 {
    key_node_at(key_node) + layout().node_at(slot).first as u64
}

fn occupied(file: &File, key_node: u64) -> impl Iterator<Item = u32> {
    let tags = word(file, key_node_at(key_node) + 3);
    (0..8).filter(move |slot| tags >> (8 * slot) & 0xff != 0)
}

#[test]
fn every_flaw_is_found_where_it_is() {
    check_flaw(FlawKind::Torn, NARROW, |file| {
        let slot = occupied(file, 0).nth(2).unwrap();
        let at = node_at(0, slot);
        let step = layout().node_at(slot).stride as u64;
        put_word(file, at + 2 * step, word(file, at + 2 * step) ^ 1 << 17);
        at
    });
    check_flaw(FlawKind::Foreign, NARROW, |file| {
        // Tags are 1 to 255, so the next one is another key's.
        let slot = occupied(file, 0).next().unwrap();
        let (at, shift) = (key_node_at(0) + 3, 8 * slot);
        let tags = word(file, at);
        let tag = tags >> shift & 0xff;
        put_word(file, at, tags & !(0xff << shift) | (tag % 255 + 1) << shift);
        node_at(0, slot)
    });
    check_flaw(FlawKind::Duplicate, NARROW, |file| {
        let (from, tags_at) = (node_at(1, 0), key_node_at(1) + 3);
        let [only] = occupied(file, 1).collect::<Vec<_>>()[..] else { panic!("one is displaced") };
        let to = (only + 1) % 7;
        for index in 0..7 {
            put_word(file, node_at(1, to) + index, word(file, from + 8 * u64::from(only) + index));
        }
        let tags = word(file, tags_at);
        put_word(file, tags_at, tags | (tags >> (8 * only) & 0xff) << (8 * to));
        node_at(1, only.max(to))
    });
    check_flaw(FlawKind::Unreachable, NARROW, |file| {
        put_word(file, key_node_at(0) + 1, 0);
        node_at(1, occupied(file, 1).next().unwrap())
    });
    check_flaw(FlawKind::Late, NARROW, |file| {
        let hints = word(file, key_node_at(1) + 2);
        put_word(file, key_node_at(1) + 2, hints & !0xffff_ffff | (LATER / SECOND + 1));
        node_at(1, occupied(file, 1).next().unwrap())
    });
    check_flaw(FlawKind::Lock, NARROW, |file| {
        put_word(file, key_node_at(1), 77);
        key_node_at(1)
    });
    check_flaw(FlawKind::WriterSlot, CONTROL, |file| {
        put_word(file, 1024 + 4096, 65);
        1024 + 4096
    });
}

/// Of two nodes of a key, the flawed one expires sooner, or is not at home, or is in the higher slot.
#[test]
fn a_key_that_is_twice_is_a_duplicate_in_one_place() {
    for (key_node, secs, is_second_flawed) in
        [(0, 60, true), (0, 59, true), (0, 61, false), (1, 60, true), (1, 59, true), (1, 61, false)]
    {
        let (dir, cluster) = cluster();
        cluster.update(&key_at(0, 1), NOW, |entry| add(entry, 1)).unwrap();
        let file = edit(&dir.memory(), NARROW);
        assert_eq!(occupied(&file, 0).collect::<Vec<_>>(), [0]);
        let mut image: Vec<_> = (0..7).map(|index| word(&file, node_at(0, 0) + index)).collect();
        seal(&mut image, (NOW / SECOND) as u32 + secs, cluster.seed());
        let second = node_at(key_node, 3);
        for (index, value) in (0..).zip(&image) {
            put_word(&file, second + index, *value);
        }
        let tag = word(&file, key_node_at(0) + 3);
        put_word(
            &file,
            key_node_at(key_node) + 3,
            word(&file, key_node_at(key_node) + 3) | tag << 24,
        );
        // The number of keys of this home that are in the other key-node.
        put_word(&file, key_node_at(0) + 1, key_node);
        let view = View::open(dir.path()).unwrap();
        let findings = view.verify(NOW, |_, _| {});
        let flawed = if is_second_flawed { second } else { node_at(0, 0) };
        let places: Vec<_> = findings.flaws.iter().map(|flaw| (flaw.kind, flaw.offset)).collect();
        assert_eq!(places, [(FlawKind::Duplicate, 8 * flawed)], "{key_node}, {secs}");
        assert_eq!((findings.nodes, findings.sound), (2, 1));
    }
}

/// It may repair what a verification finds.
#[test]
fn a_restoration_that_begins_or_ends_during_a_verification_is_reported() {
    let dir = Dir(TempDir::new().unwrap());
    let options = Options::narrow(Geometry::by_count(1, 1024, 1, STATE_WORDS_NARROW).unwrap());
    let _cluster = Cluster::open(dir.path(), &options).unwrap();
    let (view, control) = (View::open(dir.path()).unwrap(), edit(&dir.memory(), CONTROL));
    for (before, after) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
        put_word(&control, RESTORING as u64, before);
        let mut progress = Vec::new();
        let findings = view.verify(NOW, |done, total| {
            progress.push((done, total));
            put_word(&control, RESTORING as u64, after);
        });
        assert_eq!(progress, [(1024, 1024)]);
        assert_eq!(findings.is_being_restored, before + after > 0);
    }
    put_word(&control, RESTORING as u64, 0);
}

#[test]
fn shared_words_are_seen_while_there_is_memory() {
    let (dir, cluster) = cluster();
    cluster.shared_words("marks", 2).unwrap().put(1, 7);
    let view = View::open(dir.path()).unwrap();
    assert_eq!(view.shared_words("marks").unwrap(), Some(vec![0, 7]));
    assert_eq!(view.shared_words("others").unwrap(), None);
    drop((view, cluster));
    assert_eq!(View::open(dir.path()).unwrap().shared_words("marks").unwrap(), None);
}

/// A process is listed once, with the locks of all its threads.
#[test]
fn the_holders_of_locks_are_listed_once_each() {
    let (dir, first) = cluster();
    let second = Cluster::open(dir.path(), &options()).unwrap();
    let view = View::open(dir.path()).unwrap();
    assert_eq!(view.holders(), []);
    let found = first.update(&key_at(0, 1), NOW, |_| {
        let other_thread = || {
            first.update(&key_at(1, 1), NOW, |_| {
                second.update(&Hashed::wide(1), NOW, |_| view.holders()).unwrap()
            })
        };
        std::thread::scope(|scope| scope.spawn(other_thread).join().unwrap().unwrap())
    });
    let pid = u64::from(std::process::id());
    let holder = |process, locks| LockHolder { process, pid, locks, since: None };
    assert_eq!(found, Ok(vec![holder(0, 2), holder(1, 1)]));
    assert_eq!(view.holders(), []);
}

#[test]
fn a_flawed_node_is_no_entry() {
    let (dir, cluster) = cluster();
    cluster.update(&key_at(0, 1), NOW, |entry| add(entry, 1)).unwrap();
    let file = edit(&dir.memory(), NARROW);
    let at = node_at(0, occupied(&file, 0).next().unwrap());
    put_word(&file, at + 6, word(&file, at + 6) ^ 1);
    let view = View::open(dir.path()).unwrap();
    assert_eq!(view.find(&key_at(0, 1), NOW).unwrap(), None);
    assert_eq!(view.try_for_each(|_, _, _| Err(())), Ok(1));
}

/// Overwrites everything after the header of a file.
fn scramble(dir: &Path, file: &str, mut next: impl FnMut() -> u64) {
    let file = edit(dir, file);
    let words = file.metadata().unwrap().len() / 8;
    let bytes: Vec<u8> =
        (HEADER_BYTES as u64 / 8..words).flat_map(|_| next().to_le_bytes()).collect();
    file.write_all_at(&bytes, HEADER_BYTES as u64).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_a_view_panic_or_run_forever(
        seed: u64,
        mask in prop_oneof![Just(u64::MAX), Just(0xff), Just(0x1ff_0000_0000_01ff)],
    ) {
        let (dir, cluster) = cluster();
        let is_memory = seed.is_multiple_of(2);
        let of = if is_memory { dir.memory() } else { dir.path().join("cluster") };
        // Scramble the snapshot after its last writer has left.
        let _cluster = is_memory.then_some(cluster);
        let opened = is_memory.then(|| View::open(dir.path()).unwrap());
        for (index, file) in [CONTROL, NARROW, WIDE].into_iter().enumerate() {
            let mut state = seed.wrapping_add(index as u64) | 1;
            scramble(&of, file, || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state ^ state >> 29) & mask
            });
        }
        let view = opened.unwrap_or_else(|| View::open(dir.path()).unwrap());
        let findings = view.verify(NOW, |_, _| {});
        prop_assert!(!findings.is_sound() && findings.flaws.len() <= 1000);
        prop_assert_eq!(findings.key_nodes, 3);
        let _ = view.try_for_each(|_, _, _| Ok::<_, ()>(()));
        let _ = view.find(&key_at(0, 1), NOW);
        let _ = view.processes();
        let _ = view.stats();
        for class in Class::ALL {
            let _ = (view.entry_counts(class, NOW), view.range_stats(class, 80), view.occupancy(class));
        }
    }
}
