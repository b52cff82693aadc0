//! From the snapshot to memory: which copies count, and what is missing.

use std::io;
use std::os::unix::fs::FileExt;

use bytemuck::cast_slice_mut;

use super::Snapshot;
use super::copy::{
    CHECKPOINT_WORDS, CLOCK, COPIES, COUNTS, Checkpoint, CopyStatus, PASS, choose_position, offset,
    restore_copy, seed_at, status_of,
};
use super::pass::BUFFER_BYTES;
use crate::format::geometry::HEADER_BYTES;
use crate::format::header::Role;
use crate::memory::control::{clock_words, pass_word};
use crate::memory::sync::{get, put};
use crate::memory::{ClassMemory, Memory};
use crate::writers::slot::{Count, WriterSlot};
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
        let counts = WriterSlot::new(&memory.control, 0);
        let mut torn = 0;
        let mut damaged = |role, number, offset| {
            torn += 1;
            damaged(role, number, offset);
        };
        let note_at = |position: u64| (1 + position) * HEADER_BYTES as u64;
        let checkpoint =
            self.last_checkpoint(|position| damaged(Role::Control, position, note_at(position)))?;
        let (_, checkpoint) = checkpoint.unwrap_or((0, [0; CHECKPOINT_WORDS]));
        for (index, count) in checkpoint[COUNTS..][..Stats::COUNTS].iter().enumerate() {
            counts.set_counted(index, *count);
        }
        for (word, value) in clock_words(&memory.control).into_iter().zip(&checkpoint[CLOCK..]) {
            put(word, *value);
        }
        // Before the first pass was complete, or where no note can be read, the last whole copy counts.
        let complete = if checkpoint[PASS] == 0 { u64::MAX } else { checkpoint[PASS] };
        let mut loaded = Loaded { last_pass: checkpoint[PASS], copies: 0 };
        for class in memory.classes() {
            let of_class = self.load_class(class, complete, &mut damaged)?;
            loaded.last_pass = loaded.last_pass.max(of_class.last_pass);
            loaded.copies += of_class.copies;
        }
        // So that the next pass is later than everything that is there.
        put(pass_word(&memory.control), loaded.last_pass);
        // Some are gone without a trace, or all notes are.
        let missing = checkpoint[COPIES].saturating_sub(loaded.copies);
        let is_note_missing = checkpoint[PASS] == 0 && loaded.last_pass > 1;
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
        let buffer = (BUFFER_BYTES / (8 * words)).max(1) as u64;
        let mut positions =
            [vec![0_u64; words * buffer as usize], vec![0_u64; words * buffer as usize]];
        for (file, opened) in self.files(class.class).iter().enumerate() {
            let role = Role::Nodes { class: class.class, file: file as u32 };
            let mut first = 0;
            while first < geometry.key_nodes() {
                let count = buffer.min(geometry.key_nodes() - first) as usize;
                for (position, copies) in (0..).zip(&mut positions) {
                    let bytes = cast_slice_mut(&mut copies[..count * words]);
                    opened.read_exact_at(bytes, offset(&geometry, position, first))?;
                }
                for index in 0..count {
                    let rest = first + index as u64;
                    let number = file as u64 * geometry.key_nodes() + rest;
                    let copies =
                        positions.each_mut().map(|copies| &mut copies[index * words..][..words]);
                    let mut position = 0..;
                    let statuses = copies.map(|copy| {
                        let position = position.next().unwrap_or(0);
                        status_of(copy, seed_at(self.info.seed, class, number, position))
                    });
                    let mut is_newest = true;
                    for (position, found) in (0..).zip(&statuses) {
                        match found {
                            // The first copy went to both.
                            CopyStatus::Empty if statuses == [CopyStatus::Empty; 2] => {}
                            CopyStatus::Whole(pass) => {
                                loaded.last_pass = loaded.last_pass.max(*pass);
                                is_newest &= *pass <= complete;
                            }
                            CopyStatus::Empty | CopyStatus::Damaged => {
                                is_newest = false;
                                damaged(role, number, offset(&geometry, position, rest));
                            }
                        }
                    }
                    loaded.copies += u64::from(statuses != [CopyStatus::Empty; 2]);
                    if let Some(position) = choose_position(&statuses, complete) {
                        let copy = &positions[position as usize][index * words..][..words];
                        restore_copy(class, number, copy, (position, is_newest));
                    }
                }
                first += count as u64;
            }
        }
        Ok(loaded)
    }

    /// The note of the last pass that is complete, if one can be read. All zeros before the first pass.
    /// With its place. `damaged` gets the place of each note that is torn or damaged.
    pub(super) fn last_checkpoint(
        &self,
        mut damaged: impl FnMut(u64),
    ) -> io::Result<Option<(u64, Checkpoint)>> {
        let mut checkpoints = [[0_u64; CHECKPOINT_WORDS]; 2];
        for (position, checkpoint) in (1..).zip(&mut checkpoints) {
            self.control
                .read_exact_at(cast_slice_mut(checkpoint), position * HEADER_BYTES as u64)?;
        }
        let seed = self.info.seed;
        let mut position = 0..;
        let passes = checkpoints.each_mut().map(|checkpoint| {
            match status_of(checkpoint, seed ^ position.next().unwrap_or(0)) {
                CopyStatus::Empty => Some(0),
                CopyStatus::Whole(pass) => Some(pass),
                CopyStatus::Damaged => None,
            }
        });
        // As with copies, the first note went to both places.
        let is_new = passes == [Some(0); 2];
        for (position, pass) in (0..).zip(passes) {
            if pass.is_none_or(|pass| pass == 0 && !is_new) {
                damaged(position);
            }
        }
        let [first, second] = checkpoints;
        Ok(match passes {
            [None, None] => None,
            [a, b] if b > a => Some((1, second)),
            _ => Some((0, first)),
        })
    }

    /// Goes on with memory that killed processes left. Its number of the last pass may be damaged.
    pub(crate) fn resume(&self, memory: &Memory) -> io::Result<()> {
        let complete = self.last_checkpoint(|_| {})?.map_or(0, |(_, checkpoint)| checkpoint[PASS]);
        let known = get(pass_word(&memory.control));
        if !(complete..complete.saturating_add(PASSES_AHEAD_MAX)).contains(&known) {
            put(pass_word(&memory.control), complete);
        }
        Ok(())
    }
}
