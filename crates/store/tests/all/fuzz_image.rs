//! Any bytes after a valid header: a cluster opens in bounded time, believes only sealed nodes, and works.

use std::collections::{BTreeMap, BTreeSet};
use std::process;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use tidegate_store::{Class, Cluster, Entry, EntryMut, Eviction, Hashed, Options, StoredKey, View};

use crate::common::format::{
    COMMITTED, CONTROL, COUNTS, ERASE, Image, JOURNAL, LOCK_COUNT, LOCKS, Layout, OWNER, PAGE,
    PROCESSES, WRITER_COUNT, key_node_word, layouts, sealed, tag, target_word, writer_word,
};
use crate::common::random::{Random, mixed};
use crate::common::{SECOND, check_sound, directory, geometry, narrow, repetitions, test_seed};

/// The number of images to open.
const CASES: &str = "TIDEGATE_STORE_TEST_IMAGES";
const CASES_DEFAULT: u64 = 600;
/// An image takes some milliseconds.
const LONG: Duration = Duration::from_secs(10);
const SEED: u64 = 77;

/// The entries that a cluster may contain.
type Known = BTreeMap<(Class, StoredKey), BTreeSet<(Vec<u64>, u64)>>;

/// A valid cluster, to be damaged.
struct Good {
    options: Options,
    layouts: Vec<Layout>,
    image: Image,
    known: Known,
}

fn key(number: u64) -> Hashed {
    let class = if number % 4 == 3 { Class::Wide } else { Class::Narrow };
    Hashed { hash: u128::from(mixed(number)) << 64 | u128::from(number), class }
}

impl Good {
    fn new(options: Options) -> Self {
        let options = Options { eviction: Eviction::EvictSoonestExpiry, ..options };
        let dir = directory();
        Image::new(&options, SEED).write(dir.path());
        let cluster = Cluster::open(dir.path(), &options).unwrap();
        let mut known = Known::new();
        let mut random = Random::new(1);
        let layouts = layouts(&options);
        // Until nearly every node was used, some of them several times.
        for step in 0..6 * layouts.iter().map(|layout| layout.geometry.nodes()).sum::<u64>() {
            let count = 1 + random.below(3);
            let mut keys: Vec<_> = (0..count).map(|_| key(random.below(60))).collect();
            keys.retain(|key| options.wide.is_some() || key.class == Class::Narrow);
            if random.once_in(8) {
                keys.iter().for_each(|key| _ = cluster.erase(key, SECOND).unwrap());
                continue;
            }
            let result = cluster.update_many(&keys, SECOND, |entries| {
                for (index, key) in keys.iter().enumerate() {
                    let entry = entries.get(index);
                    entry.state.fill(step + 1);
                    *entry.expires_at = SECOND * (2 + random.below(5));
                    let written = (entry.state.to_vec(), *entry.expires_at / SECOND);
                    let stored = StoredKey::from_bits(key.hash);
                    known.entry((key.class, stored)).or_default().insert(written);
                }
            });
            // Three keys may be too many for one chain, and two of them may be equal.
            assert!(result.is_ok() || keys.len() > layouts[0].chain(), "{result:?}");
        }
        let image = Image::read(dir.path());
        drop(cluster);
        Self { options, layouts, image, known }
    }

    /// A damaged copy, and the entries that may be found in it.
    fn damaged(&self, random: &mut Random) -> (Image, Known) {
        let (mut image, mut known) = (self.image.clone(), self.known.clone());
        for _ in 0..1 + random.below(30) {
            self.damage(&mut image, &mut known, random);
        }
        (image, known)
    }

    fn damage(&self, image: &mut Image, known: &mut Known, random: &mut Random) {
        let layout = *random.one_of(&self.layouts);
        let key_node = random.below(layout.geometry.key_nodes_total());
        let (name, head) = layout.key_node_at(key_node);
        let key_node_words = (layout.geometry.key_node_bytes() / 8) as usize;
        let writer = writer(random);
        match random.below(16) {
            // Heads: lock, displaced keys, hints, tags.
            0..3 => {
                let word = head + random.below(8) as usize;
                image.set(&name, word, any_word(image, random));
            }
            // One tag, possibly beyond the end of the chain.
            3 => {
                let (slot, tag) = (random.below(40) as usize, random.next() as u8);
                image.set_tag(&layout, key_node, slot, tag);
            }
            4 => {
                let slot = random.below(40) as usize;
                let estimate = known.keys().nth(random.below(known.len() as u64) as usize);
                image.set_tag(&layout, key_node, slot, tag(&estimate.unwrap().1));
            }
            // One bit of a node.
            5 => {
                let word = head + 8 + random.below(key_node_words as u64 - 8) as usize;
                image.set(&name, word, image.get(&name, word) ^ 1 << random.below(64));
            }
            6 => {
                let word = head + 8 + random.below(key_node_words as u64 - 8) as usize;
                image.set(&name, word, any_word(image, random));
            }
            // A whole node in another place.
            7..9 => {
                let from = random.below(layout.geometry.key_nodes_total());
                let slots = [0, 1].map(|_| random.below(layout.geometry.chain().into()) as usize);
                let node = image.node(&layout, from, slots[0]);
                image.set_node(&layout, key_node, slots[1], &node);
                let key = StoredKey { estimate: node[0], identity: node[1] };
                image.set_tag(&layout, key_node, slots[1], tag(&key));
            }
            // The first words of a writer slot, and its list of locks.
            9..11 => {
                let word =
                    *random.one_of(&[OWNER, OWNER, COMMITTED, LOCK_COUNT, COUNTS, LOCKS, 3, 7]);
                let word = word + random.below(3) as usize;
                image.set(CONTROL, writer_word(writer, word), any_word(image, random));
            }
            11 => {
                image.set(CONTROL, writer_word(writer, OWNER), 1 + random.below(64));
                let count = random.below(600) as usize;
                image.set(CONTROL, writer_word(writer, LOCK_COUNT), count as u64);
                for index in 0..count.min(512) {
                    let class = *random.one_of(&Class::ALL);
                    let lock = key_node_word(class, random.below(9));
                    image.set(CONTROL, writer_word(writer, LOCKS + index), lock);
                }
            }
            12..14 => self.forge_journal(image, known, writer, random),
            // Processes.
            14 => {
                let word = PROCESSES + random.below(512) as usize;
                image.set(CONTROL, word, any_word(image, random));
            }
            // A whole area of random bytes after the header.
            _ => {
                let is_control = random.once_in(4);
                let name = if is_control { CONTROL } else { name.as_str() };
                let words = image.0[name].len() / 8;
                let start = PAGE / 8 + random.below((words - PAGE / 8) as u64) as usize;
                let end = if random.once_in(8) { words } else { words.min(start + 5000) };
                let mask = if random.once_in(4) { 1 << random.below(64) } else { u64::MAX };
                for word in start..end {
                    image.set(name, word, random.next() & mask);
                }
            }
        }
    }

    /// A committed journal of whole nodes, with any targets.
    fn forge_journal(
        &self,
        image: &mut Image,
        known: &mut Known,
        writer: usize,
        random: &mut Random,
    ) {
        let mut words = Vec::new();
        for _ in 0..1 + random.below(5) {
            let layout = *random.one_of(&self.layouts);
            let class = if random.once_in(4) { *random.one_of(&Class::ALL) } else { layout.class };
            let number = key(random.below(60));
            let stored = StoredKey::from_bits(number.hash);
            let somewhere = random.below(layout.geometry.key_nodes_total() + 1);
            let key_node = *random.one_of(&[
                layout.home(&stored),
                layout.alternate(&stored),
                somewhere,
                random.clone().next() & 0xFFFF_FFFF_FFFF,
            ]);
            let slots = *random.one_of(&[8, 64]);
            let slot = random.below(slots) as usize;
            let erase = if random.once_in(4) { ERASE } else { 0 };
            words.push(target_word(class, key_node, slot) | erase);
            // The tail that is there, or another one.
            let is_there = class == layout.class
                && key_node < layout.geometry.key_nodes_total()
                && slot < layout.chain();
            words.push(if is_there && !random.once_in(4) {
                *image.node(&layout, key_node, slot).last().unwrap()
            } else {
                random.next()
            });
            if erase == 0 {
                let state = vec![random.next(); layout.geometry.state_words() as usize];
                let expires = 2 + random.below(100);
                words.extend(sealed(&stored, &state, expires as u32, SEED));
                // If nodes of both classes have one size, it is whole in either.
                for class in Class::ALL {
                    known.entry((class, stored)).or_default().insert((state.clone(), expires));
                }
            }
        }
        image.set(CONTROL, writer_word(writer, OWNER), 1 + random.below(65));
        let missing = if random.once_in(4) { random.below(9) } else { 0 };
        let committed = (words.len() as u64).saturating_sub(missing);
        image.set(CONTROL, writer_word(writer, COMMITTED), committed);
        for (index, word) in words.into_iter().enumerate() {
            image.set(CONTROL, writer_word(writer, JOURNAL + index), word);
        }
    }
}

fn writer(random: &mut Random) -> usize {
    let among = *random.one_of(&[1, 4, WRITER_COUNT as u64]);
    random.below(among) as usize
}

/// Words that are valid somewhere, or nowhere.
fn any_word(image: &Image, random: &mut Random) -> u64 {
    let names = image.names();
    let name = random.one_of(&names).clone();
    let words = image.0[&name].len() as u64 / 8;
    match random.below(8) {
        0 => 0,
        1 => u64::MAX,
        2 => random.below(300),
        3 => 1 << random.below(64),
        4 => image.get(&name, random.below(words) as usize),
        5 => random.next() & random.next() & random.next(),
        6 => u64::from(random.next() as u8) * 0x0101_0101_0101_0101,
        _ => random.next(),
    }
}

/// Views an image. Whatever that finds, it takes bounded time and changes nothing.
fn look(image: &Image) {
    let dir = directory();
    image.write(dir.path());
    let before = Image::read(dir.path());
    let view = View::open(dir.path()).unwrap();
    println!("{} flaws", view.verify(SECOND, |_, _| {}).flaws_total());
    for number in 0..4 {
        let _ = view.find(&key(number), SECOND);
    }
    let _ = (
        view.processes(),
        view.entry_counts(Class::Narrow, SECOND),
        view.range_stats(Class::Narrow, 3),
    );
    assert!(Image::read(dir.path()) == before);
}

/// Opens an image and uses the cluster.
fn check(good: &Good, image: &Image, known: &Known) {
    let dir = directory();
    image.write(dir.path());
    let cluster = Cluster::open(dir.path(), &good.options).unwrap();
    check_sound(dir.path());
    check_entries(&cluster, known, good);
    // The counts can be read, whatever they were.
    println!("{:?}", cluster.stats().named());
    for number in 0..60 {
        let key = key(number);
        if key.class == Class::Wide && good.options.wide.is_none() {
            continue;
        }
        cluster.find(&key, SECOND).unwrap();
        let count = |entry: EntryMut<'_>| {
            entry.state.fill(number + 1);
            *entry.expires_at = SECOND * 100;
        };
        match number % 3 {
            0 => _ = cluster.erase(&key, SECOND).unwrap(),
            1 => cluster.update(&key, SECOND, count).unwrap(),
            _ => {
                let other = Hashed { hash: mixed(number).into(), class: key.class };
                let result = cluster.update_many(&[key, other], SECOND, |entries| {
                    (0..2).for_each(|index| count(entries.get(index)));
                });
                // Both need the only node of a chain of one.
                assert!(result.is_ok() || good.options.narrow.chain() == 1, "{result:?}");
            }
        }
    }
    cluster.for_each(|_, _, _| {}).unwrap();
    // From here on, it is as healthy as any cluster.
    check_sound(dir.path());
    let (stats, before) = (cluster.stats(), all(&cluster));
    let crowded = |cluster: &Cluster| {
        let classes = good.layouts.iter().map(|layout| layout.class);
        classes.map(|class| cluster.occupancy(class).unwrap()).collect::<Vec<_>>()
    };
    let occupancy = crowded(&cluster);
    drop(cluster);
    let cluster = Cluster::open(dir.path(), &good.options).unwrap();
    // Words about copies may have been damaged. Then some copies are missed, and counted as torn.
    let (mut again, torn) = (cluster.stats(), stats.dropped_torn);
    assert!(std::mem::replace(&mut again.dropped_torn, torn) >= torn, "{again:?}");
    assert_eq!(again, stats);
    assert!(all(&cluster) == before, "entries changed");
    assert_eq!(crowded(&cluster), occupancy);
    cluster.sweep(SECOND * 100).unwrap();
    cluster.reset_all().unwrap();
    assert!(all(&cluster).is_empty());
    assert!(crowded(&cluster).iter().all(|class| class.occupied == 0 && class.crowded == 0));
}

fn all(cluster: &Cluster) -> Vec<(Class, StoredKey, Entry)> {
    let mut found = Vec::new();
    cluster.for_each(|class, key, entry| found.push((class, key, entry))).unwrap();
    found
}

/// Every entry was sealed with the seed, exists once, and is found by its key.
fn check_entries(cluster: &Cluster, known: &Known, good: &Good) {
    let mut keys = BTreeSet::new();
    for (class, key, entry) in all(cluster) {
        assert!(keys.insert((class, key)), "{key} is there twice");
        let found = (entry.state.to_vec(), entry.expires_at / SECOND);
        let is_known = known.get(&(class, key)).is_some_and(|known| known.contains(&found));
        assert!(is_known, "{key} never had {found:?}");
        let hashed = Hashed { hash: key.bits(), class };
        assert_eq!(cluster.find(&hashed, 0).unwrap(), Some(entry));
    }
    for layout in &good.layouts {
        let occupancy = cluster.occupancy(layout.class).unwrap();
        let expected = keys.iter().filter(|(class, _)| *class == layout.class).count() as u64;
        assert_eq!(occupancy.occupied, expected);
    }
}

/// Ends the process, and so the test, if a case takes too long.
fn watch() -> Sender<String> {
    let (started, cases) = channel::<String>();
    thread::spawn(move || {
        let mut case = String::new();
        loop {
            match cases.recv_timeout(LONG) {
                Ok(next) => case = next,
                Err(RecvTimeoutError::Timeout) => {
                    eprintln!("{case} takes more than {LONG:?}");
                    process::exit(1);
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    });
    started
}

fn run(options: &Options, salt: u64) {
    let mut random = Random::new(test_seed() ^ salt);
    let watched = watch();
    let good = Good::new(options.clone());
    check(&good, &good.image, &good.known);
    for _ in 0..repetitions(CASES, CASES_DEFAULT) / 4 {
        let seed = random.next();
        println!("seed {seed:#x}");
        watched.send(format!("seed {seed:#x} of {options:?}")).unwrap();
        let mut random = Random::new(seed);
        let (image, known) = good.damaged(&mut random);
        check(&good, &image, &known);
        // It waits a little for nodes that appear to be being written.
        if random.once_in(40) {
            look(&image);
        }
    }
}

#[test]
fn any_bytes_of_chains_of_eight() {
    run(&Options { wide: Some(geometry(1, 2, 3, 12)), ..Options::narrow(geometry(2, 3, 8, 4)) }, 1);
}

#[test]
fn any_bytes_of_long_chains() {
    run(&narrow(2, 35), 2);
}

#[test]
fn any_bytes_of_full_heads() {
    run(
        &Options { wide: Some(geometry(2, 1, 40, 4)), ..Options::narrow(geometry(1, 2, 40, 4)) },
        3,
    );
}

#[test]
fn any_bytes_of_single_nodes() {
    run(&Options { wide: Some(geometry(1, 1, 1, 1)), ..Options::narrow(geometry(1, 1, 1, 4)) }, 4);
}
