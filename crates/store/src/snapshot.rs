//! The snapshot: the files of a cluster on a disk, a copy of its memory that outlives the machine.
//!
//! Each key-node has two places in its file. A pass copies the key-nodes that changed since the one before,
//! each to the place that does not have its last copy, syncs, and then notes that it is complete. So
//! whatever a loss of power makes of the places that were just being written, there is a whole copy of
//! every key-node from the last complete pass. A copy has a checksum, and is of one moment: no update of
//! its key-node is half in it.
//!
//! Owns these files, their places, and the rules by which a copy counts (docs/store-format.md, "Snapshot").
//! Nobody who decides a request waits for it: it reads memory without locks, unless a key-node never rests.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, lchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering, fence};

use bytemuck::{cast_slice, cast_slice_mut};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::byte_lock;
use crate::error::OpenError;
use crate::files::{self, Access, Origin, io_error};
use crate::geometry::{Class, Geometry, HEADER_BYTES};
use crate::header::{Identity, Kind, Role};
use crate::key_node::{KeyNode, is_sealed};
use crate::lock::free;
use crate::memory::{ClassMemory, Memory, Spot};
use crate::seat::{Seat, clock_words, free_lock, pass_word};
use crate::stats::{Count, Stats};
use crate::sync::{get, put};

/// The control file: a header, and two places for what is said of a pass.
const CONTROL_BYTES: u64 = 3 * HEADER_BYTES as u64;
const NOTE_WORDS: usize = HEADER_BYTES / 8;
type Note = [u64; NOTE_WORDS];
/// Words of a note besides the counts, and of a copy: in the place of the lock and of `away`, which mean
/// nothing there.
const PASS: usize = 0;
const CHECKSUM: usize = 1;
const COUNTS: usize = 2;
/// Of a note: how many key-nodes have a copy.
const COPIES: usize = COUNTS + Stats::COUNTS;
/// Of a note: what processes know of the clock, as long as the machine runs.
const CLOCK: usize = COPIES + 1;
/// Bytes of the control file, behind its end: held by every process that has the cluster open, and by the
/// one that makes a pass.
const USERS: u64 = CONTROL_BYTES;
const WRITER: u64 = CONTROL_BYTES + 1;
/// How often a key-node is copied in vain, as somebody changes it meanwhile, before it is locked.
const TRIES: u32 = 20;
/// By how many passes a copy of a directory that was written meanwhile can be ahead of its own note.
const PASSES_AHEAD_MAX: u64 = 1 << 32;
/// What is read or written at a time.
const STRETCH_BYTES: usize = 1 << 18;

/// The snapshot of a cluster.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) identity: Identity,
    dir: PathBuf,
    control: File,
    narrow: Vec<File>,
    wide: Vec<File>,
    origin: Origin,
}

/// What was found in a snapshot.
#[derive(Clone, Copy, Default)]
struct Loaded {
    /// The last one of which there is any copy.
    last_pass: u64,
    /// Key-nodes that have one, whole or damaged.
    copies: u64,
}

/// What a pass came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Synced {
    /// Key-nodes that had changed, and were copied.
    pub copied: u64,
    /// Key-nodes that had changed and could not be copied, as a process that does not move holds them.
    pub held: u64,
}

/// The place that has the last copy of a key-node, and the changes that are in it: the low half of a word is
/// the count of changes, the high half the place plus 1, or 0 where there is no copy.
#[derive(Clone, Copy)]
struct Saved {
    activity: u32,
    place: Option<u32>,
}

impl Saved {
    fn from_word(word: u64) -> Self {
        let place = (word >> 32) as u32;
        Self { activity: word as u32, place: place.checked_sub(1).map(|place| place & 1) }
    }

    fn to_word(self) -> u64 {
        let place = self.place.map_or(0, |place| place + 1);
        u64::from(place) << 32 | u64::from(self.activity)
    }

    /// Where the next copy goes.
    fn other_place(self) -> u32 {
        self.place.map_or(0, |place| 1 - place)
    }
}

impl Snapshot {
    /// Makes the files in `dir`, a new directory, and writes them to the disk.
    pub(crate) fn make(dir: &Path, identity: &Identity) -> Result<(), OpenError> {
        for role in files::roles(identity) {
            let bytes = file_bytes(identity, role);
            let file = files::make(dir, identity, (Kind::Snapshot, role), bytes)?;
            let path = dir.join(role.file_name());
            file.sync_all().map_err(io_error("write the file to the disk", &path))?;
        }
        Pointer::clear(dir).map_err(io_error("make room for the pointer to memory", dir))?;
        files::sync_directory(dir)
    }

    /// Opens the files in `dir`.
    pub(crate) fn open(dir: &Path, access: Access) -> Result<Self, OpenError> {
        let path = dir.join(Role::Control.file_name());
        let control = files::open(&path, access)?;
        let identity = files::read_header(&control, Kind::Snapshot, Role::Control, &path)?;
        let (mut origin, mut narrow, mut wide) = (Origin::default(), Vec::new(), Vec::new());
        for role in files::roles(&identity) {
            let path = dir.join(role.file_name());
            let of_role =
                if role == Role::Control { None } else { Some(files::open(&path, access)?) };
            let file = of_role.as_ref().unwrap_or(&control);
            files::check_header(file, &identity, (Kind::Snapshot, role), &path)?;
            let bytes = file_bytes(&identity, role);
            files::check_length(file, bytes, &path)?;
            if access == Access::Write {
                // A copy of a cluster, as from a backup, may have holes where the cluster had zeros.
                files::set_aside(file, bytes, &path)?;
            }
            origin.note(file, path)?;
            match (role, of_role) {
                (Role::Nodes { class: Class::Narrow, .. }, Some(file)) => narrow.push(file),
                (Role::Nodes { class: Class::Wide, .. }, Some(file)) => wide.push(file),
                _ => {}
            }
        }
        Ok(Self { identity, dir: dir.to_owned(), control, narrow, wide, origin })
    }

    /// The directory of the files.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// All files, the control file first.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.origin.paths()
    }

    /// Whether every file is still where it was.
    pub(crate) fn check(&self) -> io::Result<()> {
        self.origin.check()
    }

    pub(crate) fn control(&self) -> &File {
        &self.control
    }

    /// Takes the right to make memory for this snapshot: nobody else, on any machine, has any. Once taken,
    /// [`Snapshot::share`] lets others in.
    pub(crate) fn claim(&self) -> io::Result<bool> {
        byte_lock::try_lock(&self.control, USERS)
    }

    /// Shows, for as long as this process lives, that there is memory for this snapshot.
    pub(crate) fn share(&self) -> io::Result<bool> {
        byte_lock::try_share(&self.control, USERS)
    }

    /// Whether some process has the cluster open.
    pub(crate) fn is_used(&self) -> bool {
        byte_lock::is_locked(&self.control, USERS).unwrap_or(true)
    }

    /// Gives a file to the owner of the snapshot: root may open what a sidecar that is another user then joins.
    pub(crate) fn give(&self, path: &Path) -> Result<(), OpenError> {
        let give = || {
            let owner = self.control.metadata()?;
            if fs::symlink_metadata(path)?.uid() == owner.uid() {
                return Ok(());
            }
            lchown(path, Some(owner.uid()), Some(owner.gid()))
        };
        give().map_err(io_error("give the file to the owner of the data directory", path))
    }

    fn files(&self, class: Class) -> &[File] {
        match class {
            Class::Narrow => &self.narrow,
            Class::Wide => &self.wide,
        }
    }

    /// Fills `memory`, which is all zeros, with the copies that count. `damaged` gets each place whose copy
    /// is torn or damaged: the file, and where in it.
    pub(crate) fn load(
        &self,
        memory: &Memory,
        mut damaged: impl FnMut(Role, u64, u64),
    ) -> io::Result<()> {
        let counts = Seat::new(&memory.control, 0);
        let mut torn = 0;
        let mut damaged = |role, number, offset| {
            torn += 1;
            damaged(role, number, offset);
        };
        let note_at = |place: u64| (1 + place) * HEADER_BYTES as u64;
        let note = self.last_note(|place| damaged(Role::Control, place, note_at(place)))?;
        let (_, note) = note.unwrap_or((0, [0; NOTE_WORDS]));
        for (index, count) in note[COUNTS..][..Stats::COUNTS].iter().enumerate() {
            counts.set_counted(index, *count);
        }
        for (word, value) in clock_words(&memory.control).into_iter().zip(&note[CLOCK..]) {
            put(word, *value);
        }
        // Before the first pass was complete, or where no note can be read, the last whole copy counts.
        let complete = if note[PASS] == 0 { u64::MAX } else { note[PASS] };
        let mut loaded = Loaded { last_pass: note[PASS], copies: 0 };
        for class in memory.classes() {
            let of_class = self.load_class(class, complete, &mut damaged)?;
            loaded.last_pass = loaded.last_pass.max(of_class.last_pass);
            loaded.copies += of_class.copies;
        }
        // So that the next pass is later than everything that is there.
        put(pass_word(&memory.control), loaded.last_pass);
        // Some are gone without a trace, or all notes are.
        let missing = note[COPIES].saturating_sub(loaded.copies);
        let is_note_missing = note[PASS] == 0 && loaded.last_pass > 1;
        if missing > 0 || is_note_missing {
            damaged(Role::Control, 0, note_at(0));
        }
        counts.count(Count::DroppedTorn, torn + missing);
        Ok(())
    }

    /// Puts the copies of one class into memory.
    fn load_class(
        &self,
        class: &ClassMemory,
        complete: u64,
        mut damaged: impl FnMut(Role, u64, u64),
    ) -> io::Result<Loaded> {
        let mut loaded = Loaded::default();
        let geometry = class.layout.geometry;
        let words = class.layout.key_node_words;
        let stretch = (STRETCH_BYTES / (8 * words)).max(1) as u64;
        let mut places =
            [vec![0_u64; words * stretch as usize], vec![0_u64; words * stretch as usize]];
        for (file, opened) in self.files(class.class).iter().enumerate() {
            let role = Role::Nodes { class: class.class, file: file as u32 };
            let mut first = 0;
            while first < geometry.key_nodes() {
                let count = stretch.min(geometry.key_nodes() - first) as usize;
                for (place, copies) in (0..).zip(&mut places) {
                    let bytes = cast_slice_mut(&mut copies[..count * words]);
                    opened.read_exact_at(bytes, offset(&geometry, place, first))?;
                }
                for index in 0..count {
                    let rest = first + index as u64;
                    let number = file as u64 * geometry.key_nodes() + rest;
                    let copies =
                        places.each_mut().map(|copies| &mut copies[index * words..][..words]);
                    let mut place = 0..;
                    let judged = copies.map(|copy| {
                        let place = place.next().unwrap_or(0);
                        judge(copy, seed_at(self.identity.seed, class, number, place))
                    });
                    let mut is_last = true;
                    for (place, found) in (0..).zip(&judged) {
                        match found {
                            // The first copy went to both.
                            Judged::Empty if judged == [Judged::Empty; 2] => {}
                            Judged::Whole(pass) => {
                                loaded.last_pass = loaded.last_pass.max(*pass);
                                is_last &= *pass <= complete;
                            }
                            Judged::Empty | Judged::Damaged => {
                                is_last = false;
                                damaged(role, number, offset(&geometry, place, rest));
                            }
                        }
                    }
                    loaded.copies += u64::from(judged != [Judged::Empty; 2]);
                    if let Some(place) = choose(&judged, complete) {
                        let copy = &places[place as usize][index * words..][..words];
                        put_copy(class, number, copy, (place, is_last));
                    }
                }
                first += count as u64;
            }
        }
        Ok(loaded)
    }

    /// The note of the last pass that is complete, if one can be read. All zeros before the first pass.
    /// With its place. `damaged` gets the place of each note that is torn or damaged.
    fn last_note(&self, mut damaged: impl FnMut(u64)) -> io::Result<Option<(u64, Note)>> {
        let mut notes = [[0_u64; NOTE_WORDS]; 2];
        for (place, note) in (1..).zip(&mut notes) {
            self.control.read_exact_at(cast_slice_mut(note), place * HEADER_BYTES as u64)?;
        }
        let seed = self.identity.seed;
        let mut place = 0..;
        let passes =
            notes.each_mut().map(|note| match judge(note, seed ^ place.next().unwrap_or(0)) {
                Judged::Empty => Some(0),
                Judged::Whole(pass) => Some(pass),
                Judged::Damaged => None,
            });
        // As with copies, the first note went to both places.
        let is_new = passes == [Some(0); 2];
        for (place, pass) in (0..).zip(passes) {
            if pass.is_none_or(|pass| pass == 0 && !is_new) {
                damaged(place);
            }
        }
        let [first, second] = notes;
        Ok(match passes {
            [None, None] => None,
            [a, b] if b > a => Some((1, second)),
            _ => Some((0, first)),
        })
    }

    /// Goes on with memory that killed processes left. Its number of the last pass may be damaged.
    pub(crate) fn resume(&self, memory: &Memory) -> io::Result<()> {
        let complete = self.last_note(|_| {})?.map_or(0, |(_, note)| note[PASS]);
        let known = get(pass_word(&memory.control));
        if !(complete..complete.saturating_add(PASSES_AHEAD_MAX)).contains(&known) {
            put(pass_word(&memory.control), complete);
        }
        Ok(())
    }

    /// Makes a pass: copies what changed since the last one. `hold` copies a key-node under its lock, and says
    /// whether it could have it.
    ///
    /// Says nothing if another process is making one.
    pub(crate) fn save(
        &self,
        memory: &Memory,
        mut hold: impl FnMut(Spot<'_>, &mut dyn FnMut(KeyNode<'_>)) -> bool,
        is_whole: impl Fn() -> io::Result<()>,
    ) -> io::Result<Option<Synced>> {
        if !byte_lock::try_lock(&self.control, WRITER)? {
            return Ok(None);
        }
        let saved = self.make_pass(memory, &mut hold, is_whole);
        byte_lock::unlock(&self.control, WRITER);
        saved.map(Some)
    }

    fn make_pass(
        &self,
        memory: &Memory,
        hold: &mut impl FnMut(Spot<'_>, &mut dyn FnMut(KeyNode<'_>)) -> bool,
        is_whole: impl Fn() -> io::Result<()>,
    ) -> io::Result<Synced> {
        let Some(pass) = get(pass_word(&memory.control)).checked_add(1) else {
            let text = "the number of the last pass was damaged in memory";
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        };
        let (mut synced, mut done, mut copies) = (Synced::default(), Vec::new(), 0);
        for class in memory.classes() {
            let mut image = vec![0; class.layout.key_node_words];
            // One for each place.
            let mut stretches = [Stretch::default(), Stretch::default()];
            let total = class.layout.geometry.key_nodes_total();
            for number in 0..total {
                let saved = Saved::from_word(get(class.saved(number)));
                copies += u64::from(saved.place.is_some());
                let spot = class.spot(number);
                let activity = spot.node.activity();
                if activity == saved.activity && (saved.place.is_some() || activity == 0) {
                    continue;
                }
                let mut copied = copy_at_rest(spot.node, &mut image);
                if copied.is_none() {
                    hold(spot, &mut |node| copied = Some(copy(node, &mut image)));
                }
                let Some(activity) = copied else {
                    synced.held += 1;
                    continue;
                };
                check_nodes(spot, &image, (free_lock(&memory.control), self.identity.seed))?;
                let place = saved.other_place();
                let (file, rest) = class.layout.split(number);
                for (to, stretch) in (0..).zip(&mut stretches) {
                    // The first copy goes to both, so that one that is gone is missed.
                    if to == place || saved.place.is_none() {
                        let at = offset(&class.layout.geometry, to, rest);
                        stamp(&mut image, pass, seed_at(self.identity.seed, class, number, to));
                        stretch.write(self.files(class.class), (file, at), cast_slice(&image))?;
                    }
                }
                copies += u64::from(saved.place.is_none());
                done.push((class, number, Saved { activity, place: Some(place) }));
                synced.copied += 1;
            }
            for stretch in &mut stretches {
                stretch.flush(self.files(class.class))?;
            }
        }
        let counts = Stats::of(&memory.control).named().map(|(_, count)| count);
        let clock = clock_words(&memory.control).map(get);
        let is_said = |(_, note): (u64, Note)| {
            note[COUNTS..].starts_with(&counts) && note[CLOCK..].starts_with(&clock)
        };
        if done.is_empty() && self.last_note(|_| {})?.is_some_and(is_said) {
            return Ok(synced);
        }
        for file in self.narrow.iter().chain(&self.wide) {
            file.sync_data()?;
        }
        // What was copied counts only if nobody put something else in the place of the memory meanwhile.
        is_whole()?;
        let mut note = [0; NOTE_WORDS];
        note[COUNTS..][..counts.len()].copy_from_slice(&counts);
        note[COPIES] = copies;
        note[CLOCK..][..clock.len()].copy_from_slice(&clock);
        // As with copies: not where the last one is, and the first one to both places.
        let last = self.last_note(|_| {})?.filter(|(_, note)| note[PASS] > 0);
        for place in 0..2 {
            if last.is_none_or(|(of_last, _)| of_last != place) {
                stamp(&mut note, pass, self.identity.seed ^ place);
                self.control.write_all_at(cast_slice(&note), (1 + place) * HEADER_BYTES as u64)?;
            }
        }
        self.control.sync_data()?;
        for (class, number, saved) in done {
            put(class.saved(number), saved.to_word());
        }
        put(pass_word(&memory.control), pass);
        Ok(synced)
    }
}

/// The size of a file of the snapshot.
fn file_bytes(identity: &Identity, role: Role) -> u64 {
    match role {
        Role::Control => CONTROL_BYTES,
        Role::Nodes { class, .. } => {
            identity.geometry(class).map_or(0, |geometry| geometry.snapshot_file_bytes())
        }
    }
}

/// Where the copy of the key-node `rest` of a file is: all first places, then all second ones, so that
/// they are far apart on the disk.
fn offset(geometry: &Geometry, place: u32, rest: u64) -> u64 {
    let index = u64::from(place) * geometry.key_nodes() + rest;
    HEADER_BYTES as u64 + index * geometry.key_node_bytes()
}

/// Where the copy of a key-node of a loaded snapshot is, in its file.
pub(crate) fn place_of(class: &ClassMemory, number: u64) -> u64 {
    let saved = Saved::from_word(get(class.saved(number)));
    let (_, rest) = class.layout.split(number);
    offset(&class.layout.geometry, saved.place.unwrap_or(0), rest)
}

/// A copy, as far as it tells by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judged {
    Empty,
    /// Made in this pass.
    Whole(u64),
    Damaged,
}

/// What the checksum of a copy is made with besides the seed of the cluster: where it is, so that it does not count
/// elsewhere.
fn seed_at(seed: u64, class: &ClassMemory, number: u64, place: u32) -> u64 {
    let class = if class.class == Class::Wide { 2 } else { 1 };
    let at = number.wrapping_mul(8).wrapping_add(2 * class + u64::from(place));
    seed ^ at.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Judges a copy or a note.
fn judge(words: &mut [u64], seed: u64) -> Judged {
    if words.iter().all(|word| *word == 0) {
        return Judged::Empty;
    }
    let found = std::mem::take(&mut words[CHECKSUM]);
    let is_whole = found == xxh3_64_with_seed(cast_slice(words), seed);
    words[CHECKSUM] = found;
    if is_whole { Judged::Whole(words[PASS]) } else { Judged::Damaged }
}

/// Makes a copy or a note one of `pass`.
fn stamp(words: &mut [u64], pass: u64, seed: u64) {
    words[PASS] = pass;
    words[CHECKSUM] = 0;
    words[CHECKSUM] = xxh3_64_with_seed(cast_slice(words), seed);
}

/// The place of the copy that counts: the last one of a complete pass. If there is none, as in the copy of a
/// directory that was being written all along, the earliest later one.
fn choose(judged: &[Judged; 2], complete: u64) -> Option<u32> {
    let pass = |place: u32| match judged[place as usize] {
        Judged::Whole(pass) => Some(pass),
        Judged::Empty | Judged::Damaged => None,
    };
    let whole = || [0, 1].into_iter().filter_map(|place| Some((pass(place)?, place)));
    let of_complete = whole().filter(|(pass, _)| *pass <= complete).max();
    of_complete.or_else(|| whole().min()).map(|(_, place)| place)
}

/// Puts a copy into memory, and notes where it is from. If the other place has something that must not count
/// once the next pass is complete, the key-node counts as changed, so that this pass replaces it.
fn put_copy(class: &ClassMemory, number: u64, copy: &[u64], (place, is_last): (u32, bool)) {
    let node = class.spot(number).node;
    for (word, value) in node.words().iter().zip(copy).skip(CHECKSUM + 1) {
        put(word, *value);
    }
    let activity = node.activity().wrapping_sub(u32::from(!is_last));
    put(class.saved(number), Saved { activity, place: Some(place) }.to_word());
}

/// Copies a key-node, and says which changes are in it.
fn copy(node: KeyNode<'_>, image: &mut [u64]) -> u32 {
    for (word, to) in node.words().iter().zip(image) {
        *to = get(word);
    }
    node.activity()
}

/// Copies a key-node if nobody changes it meanwhile.
fn copy_at_rest(node: KeyNode<'_>, image: &mut [u64]) -> Option<u32> {
    for _ in 0..TRIES {
        let before = (get(node.lock()) as u32, node.activity());
        // Acquire, both: what is read in between is no older than the first look and no newer than the
        // second.
        fence(Ordering::Acquire);
        let activity = copy(node, image);
        fence(Ordering::Acquire);
        if before == (0, activity) && get(node.lock()) as u32 == 0 && node.activity() == activity {
            return Some(activity);
        }
        std::hint::spin_loop();
    }
    None
}

/// A node that is not whole in a key-node at rest was damaged in memory: it must not get a checksum.
fn check_nodes(spot: Spot<'_>, image: &[u64], (mark, seed): (u64, u64)) -> io::Result<()> {
    let (class, number) = (spot.id.class.name(), spot.id.key_node);
    if free(get(spot.node.lock())) != mark {
        let text = format!("{class} key-node {number} was damaged in memory");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    let layout = spot.node.layout();
    let mut node = vec![0; layout.node_words];
    for slot in KeyNode::occupied_in(image, layout) {
        let at = layout.node_at(slot);
        for (to, from) in node.iter_mut().zip(image[at.first..].iter().step_by(at.step)) {
            *to = *from;
        }
        if !is_sealed(&mut node, seed) {
            let text = format!("node {slot} of {class} key-node {number} was damaged in memory");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
    }
    Ok(())
}

/// Copies that follow one another in a file, written as one.
#[derive(Default)]
struct Stretch {
    file: usize,
    at: u64,
    bytes: Vec<u8>,
}

impl Stretch {
    fn write(&mut self, files: &[File], (file, at): (usize, u64), bytes: &[u8]) -> io::Result<()> {
        let follows = file == self.file && at == self.at + self.bytes.len() as u64;
        if !follows || self.bytes.len() >= STRETCH_BYTES {
            self.flush(files)?;
            (self.file, self.at) = (file, at);
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self, files: &[File]) -> io::Result<()> {
        if !self.bytes.is_empty() {
            files[self.file].write_all_at(&self.bytes, self.at)?;
            self.bytes.clear();
        }
        Ok(())
    }
}

/// Where the memory of a cluster is, as the directory of its snapshot says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pointer {
    pub(crate) memory: PathBuf,
    pub(crate) nonce: u64,
}

const POINTER: &str = "memory";
/// A line, and empty lines up to this length: so that it can be written where there is no space left.
const POINTER_BYTES: usize = 4096;

impl Pointer {
    /// Nothing if there is none that makes sense: then there is no memory either.
    pub(crate) fn read(dir: &Path) -> Option<Self> {
        let path = dir.join(POINTER);
        let is_pointer =
            |found: fs::Metadata| found.is_file() && found.len() <= POINTER_BYTES as u64;
        let bytes = fs::metadata(&path).is_ok_and(is_pointer).then(|| fs::read(path).ok())??;
        let line = bytes.split(|byte| *byte == b'\n').next()?;
        let (nonce, memory) = line.split_at_checked(17)?;
        let nonce = u64::from_str_radix(std::str::from_utf8(nonce).ok()?.trim_end(), 16).ok()?;
        Some(Self { memory: PathBuf::from(OsStr::from_bytes(memory)), nonce })
    }

    pub(crate) fn write(&self, snapshot: &Snapshot) -> Result<(), OpenError> {
        let path = snapshot.dir().join(POINTER);
        let mut line = format!("{:016x} ", self.nonce).into_bytes();
        line.extend_from_slice(self.memory.as_os_str().as_bytes());
        if line.len() >= POINTER_BYTES || line.contains(&b'\n') {
            return Err(OpenError::NotInMemory { path: self.memory.clone() });
        }
        Self::write_line(&path, line).map_err(io_error("note where the memory is", &path))?;
        snapshot.give(&path)
    }

    /// There is no memory any more.
    pub(crate) fn clear(dir: &Path) -> io::Result<()> {
        Self::write_line(&dir.join(POINTER), Vec::new())
    }

    fn write_line(path: &Path, mut line: Vec<u8>) -> io::Result<()> {
        line.resize(POINTER_BYTES, b'\n');
        let file =
            OpenOptions::new().create(true).write(true).truncate(false).mode(0o600).open(path)?;
        file.write_all_at(&line, 0)
    }
}
