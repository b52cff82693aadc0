//! Loss of power: of every page, sector or word of the snapshot, the disk has what was written before the
//! last sync or what was written after it.
//!
//! Counters only grow here, so wrong ones are recognized: none may be below its value when the last complete
//! pass began, and none above its last value. A snapshot with further damage may have lost more, and says so.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use tidegate_store::{Class, Cluster, EntryMut, Eviction, Hashed, Options, StoredKey, View};

use crate::common::format::{
    BOOT, COMMITTED, CONTROL, Image, JOURNAL, LOCK_COUNT, LOCKS, OWNER, PAGE,
};
use crate::common::format::{key_node_word, layouts, memory_dir, sealed, target_word, writer_word};
use crate::common::random::{Random, mixed};
use crate::common::{
    Directory, SECOND, check_sound, directory, geometry, memory_file, repetitions, test_seed,
};

/// The number of pairs of moments to mix.
const PAIRS: &str = "TIDEGATE_STORE_TEST_IMAGE_PAIRS";
const PAIRS_DEFAULT: u64 = 60;
/// The number of mixtures per pair.
const MIXES: u64 = 40;
/// The number of injuries per pair.
const INJURIES: u64 = 40;
const KEYS: u64 = 150;
const NOW: u64 = 1000 * SECOND;

/// Wide nodes of 33 words, so that key-nodes and nodes cross sectors and pages.
fn options() -> Options {
    Options {
        narrow: geometry(2, 5, 35, 4),
        wide: Some(geometry(1, 4, 28, 33)),
        eviction: Eviction::Refuse,
        ..Options::default()
    }
}

fn key(number: u64) -> Hashed {
    let class = if number.is_multiple_of(3) { Class::Wide } else { Class::Narrow };
    Hashed { hash: u128::from(mixed(number)) << 64 | u128::from(number), class }
}

type Values = BTreeMap<(Class, StoredKey), u64>;

#[expect(clippy::needless_pass_by_value, reason = "as an update hands it over")]
fn count(entry: EntryMut<'_>) {
    let value = entry.state[0] + 1;
    entry.state.fill(value);
    *entry.expires_at = u64::MAX;
}

/// Some updates, of one key and of several.
fn update(cluster: &Cluster, random: &mut Random, updates: u64) {
    for _ in 0..updates {
        let keys: Vec<_> = (0..1 + random.below(4)).map(|_| key(random.below(KEYS))).collect();
        if random.once_in(3) {
            cluster
                .update_many(&keys, NOW, |entries| {
                    (0..keys.len()).for_each(|index| count(entries.get(index)));
                })
                .unwrap();
        } else {
            cluster.update(&keys[0], NOW, count).unwrap();
        }
    }
}

fn values(cluster: &Cluster) -> Values {
    let mut values = Values::new();
    cluster.for_each(|class, key, entry| _ = values.insert((class, key), entry.state[0])).unwrap();
    values
}

/// What a view of a snapshot at rest finds. Each state must come from one update.
fn look(dir: &Path) -> (Values, View) {
    let view = View::open(dir).unwrap();
    assert_eq!(view.memory_files(), None, "it is at rest");
    let mut values = Values::new();
    let left_out = view.try_for_each(|class, key, entry| {
        assert!(entry.state.iter().all(|word| *word == entry.state[0]), "{entry:?}");
        assert_eq!(values.insert((class, key), entry.state[0]), None, "{key} is there twice");
        Ok::<_, ()>(())
    });
    assert_eq!(left_out, Ok(0));
    (values, view)
}

/// The size of the pieces. Each is from one of the two times.
fn piece(random: &mut Random) -> usize {
    *random.one_of(&[PAGE, PAGE, 512, 512, 8])
}

/// The disk when power is lost in a pass from `before` to `after`: any mixture of the nodes, and the old
/// checkpoint. Or, later in the pass, all of the nodes and any mixture of the checkpoint.
fn power_loss(before: &Image, after: &Image, random: &mut Random) -> Image {
    let (piece, share, is_late) = (piece(random), random.below(16) + 1, random.once_in(4));
    let mut disk = before.clone();
    for (name, bytes) in &mut disk.0 {
        let is_note = name == CONTROL;
        if !is_note && is_late {
            bytes.clone_from(&after.0[name]);
        }
        if is_note != is_late {
            continue;
        }
        let others = after.0[name].chunks(piece);
        for (bytes, other) in bytes.chunks_mut(piece).zip(others) {
            if random.below(17) < share {
                bytes.copy_from_slice(other);
            }
        }
    }
    disk
}

/// None is below its floor or above its last value.
#[track_caller]
fn check_between(floors: &Values, found: &Values, last: &Values) {
    for (key, floor) in floors {
        let found = found.get(key).copied().unwrap_or(0);
        assert!(found >= *floor, "{key:?}: {found}, though {floor} was saved");
    }
    check_not_above(found, last);
}

#[track_caller]
fn check_not_above(found: &Values, last: &Values) {
    for (key, found) in found {
        let last = last.get(key).copied().unwrap_or(0);
        assert!(*found <= last, "{key:?}: {found}, though it never was above {last}");
    }
}

/// Moments of a cluster: saved, changed, saved again.
struct Pair {
    before: Image,
    floors: Values,
    after: Image,
    last: Values,
    /// The number of copies dropped before.
    dropped: u64,
}

/// Continues with the cluster in `dir` for several passes.
fn pair(dir: &Path, random: &mut Random) -> Pair {
    let cluster = Cluster::open(dir, &options()).unwrap();
    for _ in 0..random.below(4) {
        let updates = 1 + random.below(200);
        update(&cluster, random, updates);
        cluster.sync().unwrap().expect("no other process saves it");
    }
    let updates = 1 + random.below(200);
    update(&cluster, random, updates);
    let floors = values(&cluster);
    cluster.sync().unwrap().expect("no other process saves it");
    let before = Image::of_snapshot(dir);
    let updates = *random.one_of(&[1, 20, 400]);
    update(&cluster, random, updates);
    let (last, dropped) = (values(&cluster), cluster.stats().dropped_torn);
    let memory = memory_dir(dir).unwrap();
    cluster.sync().unwrap().expect("no other process saves it");
    let after = Image::of_snapshot(dir);
    // As at the end of the machine: no memory, and nothing saved on leaving.
    drop(cluster);
    assert!(!memory.exists());
    Pair { before, floors, after, last, dropped }
}

fn disk(image: &Image) -> Directory {
    let dir = directory();
    image.write_snapshot(dir.path());
    dir
}

#[test]
fn no_counter_falls_below_the_last_pass() {
    let mut random = Random::new(test_seed());
    let (mut dir, mut mixes) = (directory(), 0);
    for _ in 0..repetitions(PAIRS, PAIRS_DEFAULT) {
        let seed = random.next();
        println!("seed {seed:#x}");
        let mut random = Random::new(seed);
        let Pair { before, floors, after, last, dropped } = pair(dir.path(), &mut random);
        for (image, values) in [(&before, &floors), (&after, &last)] {
            let (found, view) = look(disk(image).path());
            assert!(found == *values && view.stats().dropped_torn == dropped, "nothing is dropped");
        }
        for number in 0..MIXES {
            let mixture = disk(&power_loss(&before, &after, &mut random));
            let (found, _) = look(mixture.path());
            check_between(&floors, &found, &last);
            mixes += 1;
            if number == 0 {
                // The machine restarts with this disk and loses power again in the same way: nothing of the
                // lost time returns.
                assert_eq!(values(&Cluster::open(mixture.path(), &options()).unwrap()), found);
                dir = mixture;
            }
        }
    }
    println!("{mixes} mixes");
}

/// Whatever happens to the bytes of a snapshot after its headers, nothing is invented. If a counter is below
/// its floor, that is counted as dropped.
#[test]
fn what_an_injury_takes_is_counted() {
    let mut random = Random::new(test_seed() ^ 1);
    let dir = directory();
    let (mut injuries, mut lost, mut unseen) = (0, 0, 0);
    for _ in 0..repetitions(PAIRS, PAIRS_DEFAULT) / 2 {
        let seed = random.next();
        println!("seed {seed:#x}");
        let mut random = Random::new(seed);
        let Pair { after, last, dropped, .. } = pair(dir.path(), &mut random);
        for _ in 0..INJURIES {
            let mut image = after.clone();
            for _ in 0..1 + random.below(4) {
                injure(&mut image, &mut random);
                injuries += 1;
            }
            let (found, view) = look(disk(&image).path());
            check_not_above(&found, &last);
            let is_below =
                image != after && last.iter().any(|(key, last)| found.get(key) < Some(last));
            let is_counted = view.stats().dropped_torn > dropped;
            assert!(!is_below || is_counted, "a counter fell, and nothing says so");
            assert_eq!(view.verify(NOW, |_, _| {}).is_sound(), !is_counted);
            lost += u64::from(is_below);
            unseen += u64::from(image != after && !is_counted);
        }
    }
    println!("{injuries} injuries: {lost} took something, {unseen} changed nothing that counts");
    assert!(lost > 0 && unseen < injuries / 2);
}

/// Damages one piece after the headers.
fn injure(image: &mut Image, random: &mut Random) {
    let names = image.names();
    let name = random.one_of(&names).clone();
    let bytes = image.0.get_mut(&name).unwrap();
    let length = *random.one_of(&[1, 8, 64, 512, PAGE, 2 * PAGE]);
    let places = (bytes.len() - PAGE) / length;
    let at = PAGE + random.below(places as u64) as usize * length;
    let place = &mut bytes[at..at + length];
    match random.below(4) {
        0 => place.fill(0),
        1 => place.fill_with(|| random.next() as u8),
        2 => place[0] ^= 1 << random.below(8),
        _ => {
            let from = PAGE + random.below(places as u64) as usize * length;
            let other = bytes[from..from + length].to_vec();
            bytes[at..at + length].copy_from_slice(&other);
        }
    }
}

/// A process was killed in an update. Recovery uses its journal in the same boot; in another boot that memory
/// does not exist, and the snapshot is used.
#[test]
fn a_journal_counts_in_its_own_boot() {
    let options = Options::narrow(geometry(1, 1, 8, 4));
    let layout = layouts(&options)[0];
    let key = StoredKey::from_bits(5);
    let set = |entry: EntryMut<'_>| {
        entry.state.fill(1);
        *entry.expires_at = SECOND * 100;
    };
    let dir = directory();
    let cluster = Cluster::open(dir.path(), &options).unwrap();
    cluster.update(&key, SECOND, set).unwrap();
    let whole = Image::read(dir.path());
    drop(cluster);
    let slot = (0..8).find(|slot| whole.tag(&layout, 0, *slot) != 0).unwrap();
    let before = whole.node(&layout, 0, slot);
    let after = sealed(&key, &[2; 4], 200, whole.seed());

    let mut committed = whole;
    // The process that made the image had a writer slot.
    committed.set(CONTROL, writer_word(0, OWNER), 0);
    let mut set_writer = |word, value| committed.set(CONTROL, writer_word(70, word), value);
    set_writer(OWNER, 4);
    set_writer(LOCK_COUNT, 1);
    set_writer(LOCKS, key_node_word(Class::Narrow, 0));
    set_writer(JOURNAL, target_word(Class::Narrow, 0, slot));
    set_writer(JOURNAL + 1, before[6]);
    (0..7).for_each(|word| set_writer(JOURNAL + 2 + word, after[word]));
    set_writer(COMMITTED, 9);
    let (name, head) = layout.key_node_at(0);
    committed.set(&name, head, 71 | committed.get(&name, head));

    // This many words of the node are written.
    for written in 0..=7 {
        for is_same_boot in [true, false] {
            let mut image = committed.clone();
            let node = [&after[..written], &before[written..]].concat();
            image.set_node(&layout, 0, slot, &node);
            let dir = directory();
            image.write(dir.path());
            if !is_same_boot {
                let path = memory_file(dir.path(), CONTROL);
                let mut bytes = fs::read(&path).unwrap();
                bytes[8 * BOOT] ^= 1;
                fs::write(&path, bytes).unwrap();
            }
            let cluster = Cluster::open(dir.path(), &options).unwrap();
            let found = cluster.find(&key, SECOND).unwrap().map(|entry| entry.state[0]);
            assert_eq!(found, is_same_boot.then_some(2), "{written} words");
            let stats = cluster.stats();
            let counts = (stats.recovered, stats.completed, stats.dropped_torn);
            assert_eq!(counts, (u64::from(is_same_boot), u64::from(is_same_boot), 0));
            check_sound(dir.path());
            cluster.update(&key, SECOND, set).unwrap();
        }
    }
}
