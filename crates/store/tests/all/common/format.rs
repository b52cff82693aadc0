//! The twin of the format: where keys live, and the bytes of a cluster.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use tidegate_store::{Class, Cluster, Geometry, Options, Stats, StoredKey};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed, xxh3_128};

use super::directory;
use super::random::Random;

pub(crate) const PAGE: usize = 4096;

/// The position of each key in a class, as functions of its geometry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) class: Class,
    pub(crate) geometry: Geometry,
}

impl Layout {
    pub(crate) fn new(class: Class, geometry: Geometry) -> Self {
        Self { class, geometry }
    }

    pub(crate) fn chain(&self) -> usize {
        self.geometry.chain() as usize
    }

    /// How many slots are filled before the other key-node is considered: 7 of 8, rounded up.
    pub(crate) fn preferred(&self) -> usize {
        (7 * self.chain()).div_ceil(8)
    }

    fn scale(&self, estimate: u64) -> u64 {
        let product = u128::from(estimate) * u128::from(self.geometry.files());
        let (file, rest) = (product >> 64, product & u128::from(u64::MAX));
        let key_nodes = u128::from(self.geometry.key_nodes());
        (file * key_nodes + ((rest * key_nodes) >> 64)) as u64
    }

    pub(crate) fn home(&self, key: &StoredKey) -> u64 {
        self.scale(key.estimate)
    }

    /// The other key-node; the home if it is the only one.
    pub(crate) fn alternate(&self, key: &StoredKey) -> u64 {
        let folded = key.estimate ^ (key.estimate >> 32);
        let mixed = u128::from(folded.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let total = u128::from(self.geometry.key_nodes_total());
        let others_before = (mixed * (total - 1)) >> 64;
        ((u128::from(self.home(key)) + 1 + others_before) % total) as u64
    }

    /// The slots that a new key gets if they are free, in order. Memory lines 1 and 2, 3 and 4, and so on are
    /// fetched together, and slot 0 is in line 1.
    pub(crate) fn liked(&self, key: &StoredKey) -> [usize; 2] {
        let favourite = (((key.estimate & 0xFFFF_FFFF) * self.preferred() as u64) >> 32) as usize;
        let next = match favourite {
            0 => 0,
            odd if odd % 2 == 1 => odd + 1,
            even => even - 1,
        };
        [favourite, if next < self.preferred() { next } else { favourite }]
    }

    pub(crate) fn node_words(&self) -> usize {
        self.geometry.state_words() as usize + 3
    }

    /// The positions of a node's words in its key-node.
    pub(crate) fn word_indexes(&self, slot: usize) -> Vec<usize> {
        let words = 0..self.node_words();
        if self.node_words() != 7 {
            return words.map(|word| 8 + slot * self.node_words() + word).collect();
        }
        match slot.checked_sub(self.preferred()) {
            None => words.map(|word| 8 + slot * 8 + word).collect(),
            Some(spread) => words.map(|word| 8 + (7 * spread + word) * 8 + 7).collect(),
        }
    }

    /// The file of a key-node, and the index of its first word there.
    pub(crate) fn key_node_at(&self, number: u64) -> (String, usize) {
        let (file, rest) = (number / self.geometry.key_nodes(), number % self.geometry.key_nodes());
        let first = PAGE / 8 + rest as usize * (self.geometry.key_node_bytes() / 8) as usize;
        (format!("{}-{file:03}.tide", self.class.name()), first)
    }
}

/// A key with this home and this alternate.
pub(crate) fn key_at(layout: &Layout, random: &mut Random, home: u64, alternate: u64) -> StoredKey {
    loop {
        let key = StoredKey::from_bits(random.hash());
        if layout.home(&key) == home && layout.alternate(&key) == alternate {
            return key;
        }
    }
}

pub(crate) fn tag(key: &StoredKey) -> u8 {
    (key.estimate % 255) as u8 + 1
}

/// The check of a node, whose `image` is given without it.
pub(crate) fn check(image: &[u64], seed: u64) -> u32 {
    let mut words = image.to_vec();
    *words.last_mut().unwrap() &= 0xFFFF_FFFF_0000_0000;
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let hash = xxh3_64_with_seed(&bytes, seed);
    (hash ^ hash >> 32) as u32
}

pub(crate) fn sealed(key: &StoredKey, state: &[u64], expires_secs: u32, seed: u64) -> Vec<u64> {
    let mut image = vec![key.estimate, key.identity];
    image.extend_from_slice(state);
    image.push(u64::from(expires_secs) << 32);
    *image.last_mut().unwrap() |= u64::from(check(&image, seed));
    image
}

pub(crate) const CONTROL: &str = "control.tide";
/// Word indexes in the header.
pub(crate) const SEED: usize = 6;
pub(crate) const KIND: usize = 7;
pub(crate) const CHECKSUM: usize = 511;
/// Word indexes in the control file.
pub(crate) const PROCESSES: usize = 512;
/// Whether a process restores the cluster, and the boot in which the memory was made.
pub(crate) const RESTORING: usize = 576;
pub(crate) const BOOT: usize = 577;
/// Identity of the memory: a random number, and whether it was changed from outside.
pub(crate) const NONCE: usize = 592;
pub(crate) const SPOILED: usize = 593;
const WRITERS: usize = 1024;
pub(crate) const WRITER_COUNT: usize = 256;
const WRITER_WORDS: usize = 4096;

/// The index in the control file of a word of a writer slot.
pub(crate) fn writer_word(writer: usize, word: usize) -> usize {
    WRITERS + writer * WRITER_WORDS + word
}

/// Word indexes in a writer slot.
pub(crate) const OWNER: usize = 0;
pub(crate) const COMMITTED: usize = 1;
pub(crate) const LOCK_COUNT: usize = 2;
pub(crate) const COUNTS: usize = 8;
pub(crate) const LOCKS: usize = 32;
pub(crate) const JOURNAL: usize = 544;

/// The id of a key-node, as in lists of locks and journals.
pub(crate) fn key_node_word(class: Class, number: u64) -> u64 {
    number | if class == Class::Wide { 1 << 63 } else { 0 }
}

/// The first word of a journal record.
pub(crate) fn target_word(class: Class, number: u64, slot: usize) -> u64 {
    key_node_word(class, number) | (slot as u64) << 48
}

pub(crate) const ERASE: u64 = 1 << 62;

/// The bytes of all files of a memory, or of a snapshot.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Image(pub(crate) BTreeMap<String, Vec<u8>>);

/// The directory of the memory of the cluster in `dir`, which is open or was killed.
pub(crate) fn memory_dir(dir: &Path) -> Option<PathBuf> {
    let text = fs::read_to_string(dir.join("cluster/memory")).ok()?;
    Some(PathBuf::from(text.trim_end_matches('\n').split_once(' ')?.1))
}

impl Image {
    /// The image of the memory of the cluster in `dir`.
    pub(crate) fn read(dir: &Path) -> Self {
        Self::of_files(&memory_dir(dir).expect("it is open, or was killed"))
    }

    /// The image of the snapshot in `dir`.
    pub(crate) fn of_snapshot(dir: &Path) -> Self {
        Self::of_files(&dir.join("cluster"))
    }

    fn of_files(dir: &Path) -> Self {
        let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        let files = entries.filter(|path| path.extension().is_some_and(|found| found == "tide"));
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        Self(files.map(|path| (name(&path), fs::read(&path).unwrap())).collect())
    }

    /// The image of the memory of a new cluster with this seed.
    pub(crate) fn new(options: &Options, seed: u64) -> Self {
        let dir = directory();
        let cluster = Cluster::open(dir.path(), options).unwrap();
        let mut image = Self::read(dir.path());
        drop(cluster);
        for name in image.names() {
            image.set(&name, SEED, seed);
            image.seal_header(&name);
        }
        image.end_processes();
        image
    }

    /// Forgets the processes that had the cluster open, as after their end.
    pub(crate) fn end_processes(&mut self) {
        (0..64).for_each(|process| self.set(CONTROL, PROCESSES + process, 0));
        (0..WRITER_COUNT).for_each(|writer| self.set(CONTROL, writer_word(writer, OWNER), 0));
    }

    /// Creates a cluster in `dir`, whose processes were killed and left this memory. Its snapshot is empty.
    pub(crate) fn write(&self, dir: &Path) {
        let cluster = dir.join("cluster");
        fs::create_dir(&cluster).unwrap();
        for (name, bytes) in &self.0 {
            let mut snapshot = Self(BTreeMap::from([(name.clone(), bytes[..PAGE].to_vec())]));
            snapshot.set(name, KIND, 1);
            snapshot.seal_header(name);
            write_file(&cluster.join(name), &snapshot.0[name], self.snapshot_bytes(name));
        }
        let memory = dir.join(self.memory_name(&cluster.join(CONTROL)));
        fs::create_dir(&memory).unwrap();
        for (name, bytes) in &self.0 {
            // All of it, zeros included: memory has no holes.
            fs::write(memory.join(name), bytes).unwrap();
        }
        let boot = fs::read("/proc/sys/kernel/random/boot_id").map_or(0, |id| xxh3_64(&id).max(1));
        let control = OpenOptions::new().write(true).open(memory.join(CONTROL)).unwrap();
        for (word, value) in [(BOOT, boot), (NONCE, 0x1234_u64), (SPOILED, 0)] {
            control.write_all_at(&value.to_le_bytes(), 8 * word as u64).unwrap();
        }
        fs::write(cluster.join("memory"), format!("{:016x} {}\n", 0x1234, memory.display()))
            .unwrap();
    }

    /// The directory name for the memory of a snapshot with this control file.
    fn memory_name(&self, control: &Path) -> String {
        let found = fs::metadata(control).unwrap();
        let words = [self.get(CONTROL, 4), self.get(CONTROL, 5), found.dev(), found.ino()];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        format!("tidegate-{:032x}", xxh3_128(&bytes))
    }

    /// The length of a snapshot file, from its header in memory. The file of a header without a geometry ends after it.
    fn snapshot_bytes(&self, name: &str) -> usize {
        if name == CONTROL {
            return 3 * PAGE;
        }
        let at = if name.starts_with("wide") { 12 } else { 8 };
        let geometry = Geometry::by_count(
            self.get(name, at) as u32,
            self.get(name, at + 1),
            self.get(name, at + 2) as u32,
            self.get(name, at + 3) as u32,
        );
        let key_nodes = |geometry: Geometry| geometry.key_nodes() * geometry.key_node_bytes();
        PAGE + 2 * geometry.map_or(0, key_nodes) as usize
    }

    /// Writes the files of a snapshot into `dir`, which has no cluster. Pages of zeros become holes.
    pub(crate) fn write_snapshot(&self, dir: &Path) {
        fs::create_dir(dir.join("cluster")).unwrap();
        for (name, bytes) in &self.0 {
            write_file(&dir.join("cluster").join(name), bytes, bytes.len());
        }
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    pub(crate) fn get(&self, name: &str, word: usize) -> u64 {
        u64::from_le_bytes(self.0[name][8 * word..][..8].try_into().unwrap())
    }

    pub(crate) fn set(&mut self, name: &str, word: usize, value: u64) {
        self.0.get_mut(name).unwrap()[8 * word..][..8].copy_from_slice(&value.to_le_bytes());
    }

    /// Corrects the checksum of a header.
    pub(crate) fn seal_header(&mut self, name: &str) {
        let checksum = xxh3_64(&self.0[name][..8 * CHECKSUM]);
        self.set(name, CHECKSUM, checksum);
    }

    pub(crate) fn seed(&self) -> u64 {
        self.get(CONTROL, SEED)
    }

    pub(crate) fn tag(&self, layout: &Layout, key_node: u64, slot: usize) -> u8 {
        let (name, first) = layout.key_node_at(key_node);
        self.0[&name][8 * (first + 3) + slot]
    }

    pub(crate) fn set_tag(&mut self, layout: &Layout, key_node: u64, slot: usize, tag: u8) {
        let (name, first) = layout.key_node_at(key_node);
        self.0.get_mut(&name).unwrap()[8 * (first + 3) + slot] = tag;
    }

    pub(crate) fn node(&self, layout: &Layout, key_node: u64, slot: usize) -> Vec<u64> {
        let (name, first) = layout.key_node_at(key_node);
        layout.word_indexes(slot).into_iter().map(|word| self.get(&name, first + word)).collect()
    }

    pub(crate) fn set_node(&mut self, layout: &Layout, key_node: u64, slot: usize, node: &[u64]) {
        let (name, first) = layout.key_node_at(key_node);
        for (word, value) in layout.word_indexes(slot).into_iter().zip(node) {
            self.set(&name, first + word, *value);
        }
    }
}

fn write_file(path: &Path, bytes: &[u8], length: usize) {
    let file = File::create(path).unwrap();
    file.set_len(length as u64).unwrap();
    for (page, bytes) in bytes.chunks(PAGE).enumerate() {
        if bytes != [0; PAGE] {
            file.write_all_at(bytes, (page * PAGE) as u64).unwrap();
        }
    }
}

/// The sum of the counts of dropped nodes.
pub(crate) fn dropped(stats: &Stats) -> u64 {
    stats.dropped_torn + stats.dropped_foreign + stats.dropped_duplicate
}

/// The classes of a cluster.
pub(crate) fn layouts(options: &Options) -> Vec<Layout> {
    let wide = options.wide.map(|geometry| Layout::new(Class::Wide, geometry));
    std::iter::once(Layout::new(Class::Narrow, options.narrow)).chain(wide).collect()
}
