//! From the snapshot to memory: which copies count, and what is missing.

use std::io;
use std::os::unix::fs::FileExt;

use bytemuck::cast_slice_mut;

use super::Snapshot;
use super::copy::{
    CLOCK, COPIES, COUNTS, Judged, NOTE_WORDS, Note, PASS, choose, judge, offset, put_copy, seed_at,
};
use super::pass::STRETCH_BYTES;
use crate::format::geometry::HEADER_BYTES;
use crate::format::header::Role;
use crate::memory::control::{clock_words, pass_word};
use crate::memory::sync::{get, put};
use crate::memory::{ClassMemory, Memory};
use crate::writers::slot::{Count, Seat};
use crate::writers::stats::Stats;

/// By how many passes a copy of a directory that was written meanwhile can be ahead of its own note.
const PASSES_AHEAD_MAX: u64 = 1 << 32;

/// What was found in a snapshot.
#[derive(Clone, Copy, Default)]
struct Loaded {
    /// The last one of which there is any copy.
    last_pass: u64,
    /// Key-nodes that have one, whole or damaged.
    copies: u64,
}

impl Snapshot {
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
    pub(super) fn last_note(
        &self,
        mut damaged: impl FnMut(u64),
    ) -> io::Result<Option<(u64, Note)>> {
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
}
