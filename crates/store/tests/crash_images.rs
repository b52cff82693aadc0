//! Loss of power: of every page, or sector, or word, the disk has what it was at one time or at another.
//!
//! Whatever the mixture, a cluster opens, and what it has under a key is something that the key really
//! had at some time. What is torn is dropped, and counted.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use tidegate_store::{Class, Cluster, Entry, EntryMut, Eviction, Hashed, Options, StoredKey};

use common::format::{
    BOOT, COMMITTED, CONTROL, Image, JOURNAL, LOCK_COUNT, LOCKS, OWNER, PAGE, SEAT_COUNT,
    key_node_word, layouts, place_word, sealed, seat_word,
};
use common::random::{Random, mixed};
use common::{SECOND, check_sound, directory, geometry, is_in_the_way, repetitions, test_seed};

/// How many pairs of images to mix, for each kind of pair.
const PAIRS: &str = "TIDEGATE_STORE_TEST_IMAGE_PAIRS";
const PAIRS_DEFAULT: u64 = 14;
/// How often each pair is mixed.
const MIXES: u64 = 8;
/// More keys than nodes.
const KEYS: u64 = 180;

fn options() -> Options {
    Options {
        narrow: geometry(2, 4, 16, 4),
        wide: Some(geometry(1, 3, 4, 50)),
        eviction: Eviction::EvictOldest,
    }
}

fn key(number: u64) -> Hashed {
    let class = if number % 9 == 8 { Class::Wide } else { Class::Narrow };
    Hashed { hash: u128::from(mixed(number)) << 64 | u128::from(number), class }
}

/// Of every key, each entry that it ever had: state, and second of expiry.
type History = BTreeMap<(Class, StoredKey), BTreeSet<(Vec<u64>, u64)>>;

/// One random step; what it writes is in the history before it is in the file.
fn step(cluster: &Cluster, history: &Mutex<History>, now: u64, random: &mut Random) {
    let keys: Vec<_> = (0..1 + random.below(6)).map(|_| key(random.below(KEYS))).collect();
    let change = |random: &mut Random, key: Hashed, entry: EntryMut<'_>| {
        match random.below(8) {
            0 => entry.state.fill(0),
            1 => *entry.expires_at = now,
            2 => *entry.expires_at = now + SECOND * random.below(50),
            _ => {
                let value = random.next();
                for (index, word) in entry.state.iter_mut().enumerate() {
                    *word = value.wrapping_add(index as u64);
                }
                *entry.expires_at = now + SECOND * (1 + random.below(50));
            }
        }
        let written = (entry.state.to_vec(), entry.expires_at.div_ceil(SECOND));
        let stored = StoredKey::from_bits(key.hash);
        history.lock().unwrap().entry((key.class, stored)).or_default().insert(written);
    };
    let result = match random.below(10) {
        0 => cluster.erase(&keys[0], now).map(|_| ()),
        1 if random.once_in(10) => cluster.sweep(now).map(|_| ()),
        2..6 => cluster.update_many(&keys, now, |entries| {
            for (index, key) in keys.iter().enumerate() {
                change(random, *key, entries.get(index));
            }
        }),
        _ => cluster.update(&keys[0], now, |entry| change(random, keys[0], entry)),
    };
    assert!(result.as_ref().err().is_none_or(is_in_the_way), "{result:?}");
}

/// How large the pieces are of which each is from one time.
#[derive(Clone, Copy, Debug)]
enum Piece {
    Page,
    Sector,
    Word,
}

impl Piece {
    fn bytes(self) -> usize {
        match self {
            Self::Page => PAGE,
            Self::Sector => 512,
            Self::Word => 8,
        }
    }
}

/// A mixture of two images. Some have most pieces from one of them.
fn mix(one: &Image, other: &Image, piece: Piece, random: &mut Random) -> Image {
    let mut mixture = one.clone();
    let share = random.below(16) + 1;
    for (name, bytes) in &mut mixture.0 {
        let others = other.0[name].chunks(piece.bytes());
        for (bytes, other) in bytes.chunks_mut(piece.bytes()).zip(others) {
            if bytes != other && random.below(17) < share {
                bytes.copy_from_slice(other);
            }
        }
    }
    if random.once_in(3) {
        wake_journals(&mut mixture, random);
    }
    // After a loss of power it is another boot; a copy of a live cluster may be opened in the same.
    if random.once_in(2) {
        mixture.set(CONTROL, BOOT, random.next());
    }
    mixture
}

/// Old journals, which nobody needs any more, count again: the page that says so is older than the rest.
fn wake_journals(image: &mut Image, random: &mut Random) {
    for seat in 0..SEAT_COUNT {
        if image.get(CONTROL, seat_word(seat, JOURNAL)) != 0 {
            image.set(CONTROL, seat_word(seat, OWNER), 1 + random.below(64));
            image.set(CONTROL, seat_word(seat, COMMITTED), 1 + random.below(400));
        }
    }
}

/// What was met, over all images.
#[derive(Debug, Default)]
struct Met {
    images: u64,
    entries: u64,
    dropped: [u64; 3],
    journals: u64,
}

/// Opens an image: whatever is found is in the history, and everything works.
fn check(image: &Image, history: &History, met: &mut Met) {
    let dir = directory();
    image.write(dir.path());
    let tagged = image.tagged(&layouts(&options()));
    let journals = (0..SEAT_COUNT)
        .filter(|seat| image.get(CONTROL, seat_word(*seat, COMMITTED)) != 0)
        .count() as u64;
    let cluster = Cluster::open(dir.path(), &options()).unwrap();
    check_sound(dir.path());
    let stats = cluster.stats();
    let before = image.stats();
    let counts = [stats.dropped_torn, stats.dropped_foreign, stats.dropped_duplicate];
    let counts: [u64; 3] = std::array::from_fn(|index| counts[index] - before[6 + index]);

    let mut found = Vec::new();
    cluster.for_each(|class, key, entry| found.push((class, key, entry))).unwrap();
    let mut keys = BTreeSet::new();
    for (class, key, Entry { state, expires_at, .. }) in &found {
        let entry = (state.to_vec(), expires_at / SECOND);
        let known = history.get(&(*class, *key)).is_some_and(|known| known.contains(&entry));
        assert!(known, "{key} never had {entry:?}");
        assert!(keys.insert((*class, *key)), "{key} is there twice");
        let hashed = Hashed { hash: key.bits(), class: *class };
        let again = cluster.find(&hashed, 0).unwrap().unwrap();
        assert_eq!((again.state.to_vec(), again.expires_at / SECOND), entry);
    }
    if journals == 0 {
        assert_eq!(counts.iter().sum::<u64>(), tagged - found.len() as u64, "{counts:?}");
    }
    met.images += 1;
    met.journals += journals;
    met.entries += found.len() as u64;
    for (met, count) in met.dropped.iter_mut().zip(counts) {
        *met += count;
    }

    // Then updating works, and nothing is left that anybody would drop.
    for number in 0..KEYS {
        let count = |entry: EntryMut<'_>| {
            entry.state.fill(number + 1);
            *entry.expires_at = u64::MAX;
        };
        cluster.update(&key(number), SECOND, count).unwrap();
        let entry = cluster.find(&key(number), SECOND).unwrap().unwrap();
        assert!(entry.state.iter().all(|word| *word == number + 1));
    }
    let entries = |cluster: &Cluster| {
        let mut found = Vec::new();
        cluster.for_each(|class, key, entry| found.push((class, key, entry))).unwrap();
        found
    };
    check_sound(dir.path());
    let (stats, found) = (cluster.stats(), entries(&cluster));
    drop(cluster);
    let cluster = Cluster::open(dir.path(), &options()).unwrap();
    assert_eq!((cluster.stats(), entries(&cluster)), (stats, found));
}

/// Checks mixtures of a pair of images.
fn check_mixes(one: &Image, other: &Image, history: &History, seed: u64, met: &mut Met) {
    for number in 0..MIXES {
        let mut random = Random(seed ^ number);
        let piece = *random.one_of(&[Piece::Page, Piece::Page, Piece::Sector, Piece::Word]);
        println!("seed {seed:#x}, mix {number} of a {piece:?}");
        check(&mix(one, other, piece, &mut random), history, met);
    }
}

#[test]
fn images_of_two_quiet_moments_mix() {
    let mut random = Random(test_seed());
    let mut met = Met::default();
    for _ in 0..repetitions(PAIRS, PAIRS_DEFAULT) {
        let seed = random.next();
        let mut random = Random(seed);
        let dir = directory();
        Image::new(&options(), mixed(seed)).write(dir.path());
        let history = Mutex::default();
        let cluster = Cluster::open(dir.path(), &options()).unwrap();
        let mut now = SECOND * 1000;
        let mut run = |steps: u64, random: &mut Random| {
            for _ in 0..steps {
                now += SECOND * random.below(2);
                step(&cluster, &history, now, random);
            }
        };
        run(400, &mut random);
        let one = Image::read(dir.path());
        if random.once_in(3) {
            // The keys come again in another order, and get other places.
            cluster.reset_all().unwrap();
        }
        run(*random.one_of(&[1, 5, 50, 400]), &mut random);
        let other = Image::read(dir.path());
        let history = history.into_inner().unwrap();
        for image in [&one, &other] {
            let before = met.dropped;
            check(image, &history, &mut met);
            assert_eq!(met.dropped, before, "there is nothing to drop");
        }
        check_mixes(&one, &other, &history, seed, &mut met);
    }
    println!("{met:?}");
    assert!(met.entries > met.images && met.dropped[..2].iter().all(|count| *count > 0), "{met:?}");
    assert!(met.journals > 0, "{met:?}");
}

/// Copies are made while several threads update, so that they are torn by themselves.
#[test]
fn images_of_a_busy_cluster_mix() {
    let mut random = Random(test_seed());
    let mut met = Met::default();
    for _ in 0..repetitions(PAIRS, PAIRS_DEFAULT) {
        let seed = random.next();
        println!("seed {seed:#x}");
        let dir = directory();
        Image::new(&options(), mixed(seed)).write(dir.path());
        let (history, is_over) = (Mutex::default(), AtomicBool::new(false));
        let steps = AtomicU64::new(0);
        let cluster = Cluster::open(dir.path(), &options()).unwrap();
        let run = |thread: u64| {
            let mut random = Random(seed ^ thread);
            while !is_over.load(Ordering::Relaxed) {
                let now = SECOND * (1000 + steps.fetch_add(1, Ordering::Relaxed) / 2);
                step(&cluster, &history, now, &mut random);
            }
        };
        let images = thread::scope(|scope| {
            let run = &run;
            (1..3).for_each(|thread| _ = scope.spawn(move || run(thread)));
            let images = [100, 200].map(|after| {
                while steps.load(Ordering::Relaxed) < after {
                    thread::yield_now();
                }
                Image::read(dir.path())
            });
            is_over.store(true, Ordering::Relaxed);
            images
        });
        let history = history.into_inner().unwrap();
        images.iter().for_each(|image| check(image, &history, &mut met));
        check_mixes(&images[0], &images[1], &history, seed, &mut met);
    }
    println!("{met:?}");
    assert!(met.entries > met.images && met.dropped.iter().sum::<u64>() > 0, "{met:?}");
}

/// A process was killed in an update, and the machine went on, or was started anew. In the first case its
/// journal is what the update needs; in the second, nobody knows of when its pages are.
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
    Cluster::open(dir.path(), &options).unwrap().update(&key, SECOND, set).unwrap();
    let whole = Image::read(dir.path());
    let slot = (0..8).find(|slot| whole.tag(&layout, 0, *slot) != 0).unwrap();
    let before = whole.node(&layout, 0, slot);
    let after = sealed(&key, &[2; 4], 200, whole.seed());

    let mut committed = whole;
    let mut set_seat = |word, value| committed.set(CONTROL, seat_word(70, word), value);
    set_seat(OWNER, 4);
    set_seat(LOCK_COUNT, 1);
    set_seat(LOCKS, key_node_word(Class::Narrow, 0));
    set_seat(JOURNAL, place_word(Class::Narrow, 0, slot));
    set_seat(JOURNAL + 1, before[6]);
    (0..7).for_each(|word| set_seat(JOURNAL + 2 + word, after[word]));
    set_seat(COMMITTED, 9);
    let (name, head) = layout.key_node_at(0);
    committed.set(&name, head, 71);

    // So many words of the node are written.
    for written in 0..=7 {
        for is_same_boot in [true, false] {
            let mut image = committed.clone();
            let node = [&after[..written], &before[written..]].concat();
            image.set_node(&layout, 0, slot, &node);
            if !is_same_boot {
                image.set(CONTROL, BOOT, image.get(CONTROL, BOOT) ^ 1);
            }
            let dir = directory();
            image.write(dir.path());
            let cluster = Cluster::open(dir.path(), &options).unwrap();
            let found = cluster.find(&key, SECOND).unwrap().map(|entry| entry.state[0]);
            // The key is the same before and after.
            let expected = match written {
                _ if is_same_boot => Some(2),
                0..=2 => Some(1),
                // Torn, and mended by the journal.
                _ => Some(2),
            };
            assert_eq!(found, expected, "{written} words, same boot: {is_same_boot}");
            let stats = cluster.stats();
            assert_eq!(stats.recovered, 1);
            assert_eq!(stats.completed, u64::from(is_same_boot));
            assert_eq!(stats.dropped_torn, 0);
            check_sound(dir.path());
            cluster.update(&key, SECOND, set).unwrap();
        }
    }
}
