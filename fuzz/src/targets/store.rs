//! Arbitrarily damaged files of a cluster: no panic, no signal, and no value that was never written.
//!
//! The twin of the format is that of the store's own tests. If only nodes were damaged, no more keys are lost
//! than the counts of dropped nodes allow.

use super::Target;
use crate::input::Input;
use crate::twin::format::{
    COMMITTED, CONTROL, COUNTS, ERASE, Image, JOURNAL, LOCK_COUNT, Layout, OWNER, PAGE, PROCESSES,
    WRITER_COUNT, dropped, layouts, memory_dir, sealed, target_word, writer_word,
};
use crate::twin::{Directory, directory};
use crate::work::Bound;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;
use tidegate_store::{
    Class, Cluster, Entry, EntryMut, Eviction, Geometry, Hashed, OpenError, Options, StoredKey,
    View,
};

pub(super) const TARGET: Target = Target { name: "store", run, seeds };

/// A few milliseconds, mostly the system's, to open and close files.
const WORK: Bound = Bound { fixed: Duration::from_millis(300), nanos_per_byte: 0 };
const SECOND: u64 = 1_000_000_000;
const NOW: u64 = 10 * SECOND;
const SEED: u64 = 77;
const KEYS: u64 = 24;
const DAMAGES_MAX: usize = 24;

/// The possible states and expiries of a key.
type Known = BTreeMap<(Class, StoredKey), BTreeSet<(Vec<u64>, u64)>>;

/// An undamaged cluster, as killed processes leave it in memory.
struct Sound {
    options: Options,
    layouts: Vec<Layout>,
    image: Image,
    known: Known,
    live: BTreeSet<(Class, StoredKey)>,
}

fn key(number: u64) -> Hashed {
    let class = if number % 4 == 3 { Class::Wide } else { Class::Narrow };
    let hash = (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    Hashed { hash: u128::from(hash) << 64 | u128::from(number), class }
}

fn sound() -> &'static Sound {
    static SOUND: OnceLock<Sound> = OnceLock::new();
    SOUND.get_or_init(|| {
        let geometry = |key_nodes, chain, words| Geometry::by_count(1, key_nodes, chain, words);
        let options = Options {
            narrow: geometry(3, 8, 4).expect("a geometry"),
            wide: Some(geometry(2, 4, 5).expect("a geometry")),
            eviction: Eviction::Refuse,
            ..Options::default()
        };
        let dir = directory();
        Image::new(&options, SEED).write(dir.path());
        let cluster = Cluster::open(dir.path(), &options).expect("a new cluster opens");
        let mut known = Known::new();
        for step in 0..3 * KEYS {
            let key = key(step % KEYS);
            let _ = cluster.update(&key, SECOND, |entry| {
                entry.state.fill(step + 1);
                *entry.expires_at = SECOND * (100 + step);
                let written = (entry.state.to_vec(), 100 + step);
                let stored = StoredKey::from_bits(key.hash);
                known.entry((key.class, stored)).or_default().insert(written);
            });
        }
        let live = entries(&cluster).into_iter().map(|(class, key, _)| (class, key)).collect();
        let mut image = Image::read(dir.path());
        drop(cluster);
        // Its process has left.
        image.set(CONTROL, PROCESSES, 0);
        image.set(CONTROL, writer_word(0, OWNER), 0);
        Sound { layouts: layouts(&options), options, image, known, live }
    })
}

/// The damaged parts.
#[derive(Debug, PartialEq, Eq, Clone, Copy, PartialOrd, Ord)]
enum Damaged {
    Nodes,
    More,
    Headers,
}

/// The words of an image that differ from the undamaged one.
struct Spoiled<'a> {
    sound: &'a Sound,
    words: BTreeMap<(String, u64), u64>,
    lengths: BTreeMap<String, u64>,
    known: Known,
    damaged: Damaged,
}

impl Spoiled<'_> {
    fn set(&mut self, name: &str, word: usize, value: u64) {
        if word * 8 < self.sound.image.0[name].len() {
            self.words.insert((name.to_owned(), word as u64), value);
        }
    }

    fn get(&self, name: &str, word: usize) -> u64 {
        let set = self.words.get(&(name.to_owned(), word as u64));
        set.copied().unwrap_or_else(|| self.sound.image.get(name, word))
    }

    fn write(&self, dir: &Path) {
        let mut image = self.sound.image.clone();
        for ((name, word), value) in &self.words {
            image.set(name, *word as usize, *value);
        }
        image.write(dir);
        let memory = memory_dir(dir).expect("it was just written");
        for (name, length) in &self.lengths {
            let file = File::options().write(true).open(memory.join(name)).expect("a file");
            file.set_len(*length).expect("its length");
        }
    }

    fn damage(&mut self, input: &mut Input<'_>) {
        let layout = self.sound.layouts[usize::from(input.byte()) % self.sound.layouts.len()];
        let key_node = u64::from(input.byte()) % layout.geometry.key_nodes_total();
        let slot = usize::from(input.byte()) % layout.chain();
        let (name, head) = layout.key_node_at(key_node);
        let writer = usize::from(input.byte()) % WRITER_COUNT;
        let indexes = layout.word_indexes(slot);
        match input.byte() % 12 {
            0..=2 => {
                let word = head + indexes[usize::from(input.byte()) % indexes.len()];
                let value = self.value(input, &name, word);
                self.set(&name, word, value);
                return;
            }
            3 => {
                let word = head + usize::from(input.byte() % 8);
                let value = self.value(input, &name, word);
                self.set(&name, word, value);
            }
            // A whole node at another position, with its tag.
            4 => {
                let from = u64::from(input.byte()) % layout.geometry.key_nodes_total();
                let (other, first) = layout.key_node_at(from);
                let slot = usize::from(input.byte()) % layout.chain();
                let words = layout.word_indexes(slot);
                let node: Vec<u64> = words.iter().map(|w| self.get(&other, first + w)).collect();
                for (word, value) in indexes.iter().zip(node) {
                    self.set(&name, head + word, value);
                }
                let tags = self.get(&name, head + 3);
                self.set(&name, head + 3, tags ^ u64::from(input.byte()) << (8 * (slot % 8)));
            }
            5 => {
                let word =
                    [OWNER, COMMITTED, LOCK_COUNT, COUNTS, JOURNAL][usize::from(input.byte() % 5)];
                let word = writer_word(writer, word + usize::from(input.byte() % 4));
                let value = self.value(input, CONTROL, word);
                self.set(CONTROL, word, value);
            }
            6 => {
                let word = PROCESSES + usize::from(input.word()) % 512;
                let value = self.value(input, CONTROL, word);
                self.set(CONTROL, word, value);
            }
            7 | 8 => self.forge_journal(input, writer, layout, key_node, slot),
            9 => {
                let (name, word) =
                    (input.one_of(&[CONTROL, name.as_str()]).to_owned(), input.byte());
                let value = self.value(input, &name, word.into());
                self.set(&name, word.into(), value);
                self.damaged = Damaged::Headers;
            }
            10 => {
                let length = u64::from(input.word()) * input.one_of(&[1, 64, 128]);
                self.lengths.insert(input.one_of(&[CONTROL, name.as_str()]).to_owned(), length);
                self.damaged = Damaged::Headers;
            }
            _ => {
                let word = usize::from(input.word());
                let value = self.value(input, &name, word);
                self.set(&name, PAGE / 8 + word, value);
            }
        }
        self.damaged = self.damaged.max(Damaged::More);
    }

    fn value(&self, input: &mut Input<'_>, name: &str, word: usize) -> u64 {
        let is_there = word * 8 < self.sound.image.0[name].len();
        let now = if is_there { self.get(name, word) } else { 0 };
        match input.byte() % 6 {
            0 => 0,
            1 => u64::MAX,
            2 => now ^ 1 << (input.byte() % 64),
            3 => now.wrapping_add_signed(i64::from(input.byte()) - 128),
            4 => input.byte().into(),
            _ => input.long(),
        }
    }

    /// A committed journal of a whole node with an arbitrary target.
    fn forge_journal(
        &mut self,
        input: &mut Input<'_>,
        writer: usize,
        layout: Layout,
        key_node: u64,
        slot: usize,
    ) {
        let stored = StoredKey::from_bits(key(u64::from(input.byte()) % KEYS).hash);
        let at = match input.byte() % 4 {
            0 => key_node,
            1 => layout.home(&stored),
            2 => layout.alternate(&stored),
            _ => input.long() & 0xFFFF_FFFF_FFFF,
        };
        let is_erase = input.byte() % 4 == 3;
        let erase = if is_erase { ERASE } else { 0 };
        let mut words = vec![target_word(layout.class, at, slot) | erase, input.byte().into()];
        if !is_erase {
            let state = vec![7; layout.geometry.state_words() as usize];
            words.extend(sealed(&stored, &state, 500, SEED));
            for class in Class::ALL {
                self.known.entry((class, stored)).or_default().insert((state.clone(), 500));
            }
        }
        self.set(CONTROL, writer_word(writer, OWNER), 1 + u64::from(input.byte() % 65));
        let missing = if input.byte() % 4 == 3 { 1 } else { 0 };
        self.set(CONTROL, writer_word(writer, COMMITTED), words.len() as u64 - missing);
        for (index, word) in words.into_iter().enumerate() {
            self.set(CONTROL, writer_word(writer, JOURNAL + index), word);
        }
    }
}

fn run(input: &[u8]) {
    let mut input = Input(input);
    let sound = sound();
    let mut image = Spoiled {
        sound,
        words: BTreeMap::new(),
        lengths: BTreeMap::new(),
        known: sound.known.clone(),
        damaged: Damaged::Nodes,
    };
    let cut = input.byte();
    for _ in 0..DAMAGES_MAX {
        if input.is_empty() {
            break;
        }
        image.damage(&mut input);
    }
    WORK.check(0, || {
        let dir = directory();
        image.write(dir.path());
        look(dir.path());
        match Cluster::open(dir.path(), &sound.options) {
            Ok(cluster) => check(&cluster, &image, &dir, cut),
            Err(error) => assert_eq!(image.damaged, Damaged::Headers, "{error}"),
        }
    });
}

fn look(dir: &Path) {
    let view = match View::open(dir) {
        Ok(view) => view,
        Err(error) => return drop::<OpenError>(error),
    };
    let _ = view.verify(NOW, |_, _| {});
    for number in 0..KEYS {
        let _ = view.find(&key(number), NOW);
    }
    let _ =
        (view.processes(), view.entry_counts(Class::Narrow, NOW), view.range_stats(Class::Wide, 2));
}

fn entries(cluster: &Cluster) -> Vec<(Class, StoredKey, Entry)> {
    let mut found = Vec::new();
    let _ = cluster.for_each(|class, key, entry| found.push((class, key, entry)));
    found
}

/// Every value was written once, and every missing one is counted.
fn check(cluster: &Cluster, image: &Spoiled<'_>, dir: &Directory, cut: u8) {
    let is_whole = image.damaged < Damaged::Headers;
    let mut keys = BTreeSet::new();
    for (class, key, entry) in entries(cluster) {
        assert!(keys.insert((class, key)), "{key} is there twice");
        let found = (entry.state.to_vec(), entry.expires_at / SECOND);
        let is_known = image.known.get(&(class, key)).is_some_and(|known| known.contains(&found));
        assert!(is_known || !is_whole, "{key} never had {found:?}");
        let hashed = Hashed { hash: key.bits(), class };
        let again = cluster.find(&hashed, 0);
        assert!(!is_whole || again.as_ref().ok() == Some(&Some(entry)), "{again:?}");
    }
    if image.damaged == Damaged::Nodes {
        let lost = image.sound.live.difference(&keys).count() as u64;
        let counted = dropped(&cluster.stats());
        assert!(lost <= counted, "{lost} keys are lost, {counted} nodes counted");
    }
    if cut > 192 {
        cut_short(image, dir, cut);
    }
    for number in 0..KEYS {
        let count = |entry: EntryMut<'_>| {
            entry.state.fill(number + 1);
            *entry.expires_at = SECOND * 900;
        };
        let key = key(number);
        let _ = match number % 3 {
            0 => cluster.erase(&key, NOW).map(drop),
            1 => cluster.update(&key, NOW, count),
            _ => cluster.update_many(&[key], NOW, |entries| count(entries.get(0))),
        };
        let found = cluster.find(&key, NOW);
        if let (Ok(Some(entry)), 1, true) = (found, number % 3, cut <= 192 && is_whole) {
            assert!(entry.state.iter().all(|word| *word == number + 1));
        }
    }
    let _ = cluster.sweep(SECOND * 800);
    if cut <= 192 && is_whole {
        let findings = View::open(dir.path()).expect("it opens").verify(NOW, |_, _| {});
        assert!(findings.is_sound(), "{findings:?}");
    }
}

/// Truncates a file while the cluster has it open.
fn cut_short(image: &Spoiled<'_>, dir: &Directory, cut: u8) {
    let names = image.sound.image.names();
    let name = &names[usize::from(cut) % names.len()];
    let length = image.sound.image.0[name].len() as u64;
    let Some(memory) = memory_dir(dir.path()) else { return };
    let file = File::options().write(true).open(memory.join(name)).expect("the file is there");
    file.set_len(length / 64 * u64::from(cut - 192)).expect("it is cut");
}

fn seeds() -> Vec<Vec<u8>> {
    vec![
        vec![0],
        // A bit of a node, a word of a head, a misplaced node.
        vec![0, 0, 1, 2, 0, 0, 3, 2, 5],
        vec![0, 0, 1, 2, 0, 3, 0, 5, 1, 2, 3, 4, 5, 6, 7, 8],
        vec![0, 0, 1, 2, 0, 4, 2, 1, 7],
        vec![0, 1, 1, 1, 0, 4, 0, 2, 9],
        // A writer slot, a process, a journal, an erasure.
        vec![0, 0, 0, 0, 3, 5, 0, 0, 4, 9],
        vec![0, 0, 0, 0, 3, 6, 0, 0, 1],
        vec![0, 0, 1, 1, 2, 7, 5, 1, 0, 9, 3, 0],
        vec![0, 0, 1, 1, 2, 7, 5, 1, 3, 9, 3, 0],
        // A header, a length, a file truncated under the cluster.
        vec![0, 0, 0, 0, 0, 9, 0, 6, 2, 3],
        vec![0, 0, 0, 0, 0, 10, 200, 0, 1, 1],
        vec![210],
        vec![230, 0, 1, 2, 0, 0, 3, 2, 5],
    ]
}
