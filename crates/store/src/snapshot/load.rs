//! Loading: from the snapshot to memory. Decides which copies are valid, and notices missing ones.

use std::array;
use std::io;
use std::os::unix::fs::FileExt;

use bytemuck::cast_slice_mut;

use super::Snapshot;
use super::copy::{
    CHECKPOINT_WORDS, CLOCK, COPIES, COUNTS, Checkpoint, CopyStatus, PASS, choose_position, offset,
    restore_copy, seed_at, status_of,
};
use super::pass::BUFFER_BYTES;
use crate::format::{HEADER_BYTES, Role};
use crate::memory::control::{self, clock_words};
use crate::memory::sync::{get, put};
use crate::memory::{ClassMemory, Memory};
use crate::writers::{Count, WriterSlot};

/// By how many passes a directory copied while being written can be ahead of its checkpoint.
const PASSES_AHEAD_MAX: u64 = 1 << 32;

#[derive(Clone, Copy, Default)]
struct Loaded {
    /// The latest pass of any copy.
    last_pass: u64,
    /// Key-nodes with a copy, whole or damaged.
    copies: u64,
}

impl Snapshot {
    /// Fills `memory`, which is all zeros, with the valid copies. Calls `damaged` with the file, key-node and
    /// offset of each torn or damaged copy.
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
        let checkpoint_at = |position: u64| (1 + position) * HEADER_BYTES as u64;
        let checkpoint = self.last_checkpoint(|position| {
            damaged(Role::Control, position, checkpoint_at(position));
        })?;
        let (_, checkpoint) = checkpoint.unwrap_or((0, [0; CHECKPOINT_WORDS]));
        for (index, count) in checkpoint[COUNTS..][..Count::KINDS].iter().enumerate() {
            counts.set_counted(index, *count);
        }
        for (word, value) in clock_words(&memory.control).into_iter().zip(&checkpoint[CLOCK..]) {
            put(word, *value);
        }
        // Without a checkpoint, before the first pass or after damage, the latest whole copy counts.
        let complete = if checkpoint[PASS] == 0 { u64::MAX } else { checkpoint[PASS] };
        let mut loaded = Loaded { last_pass: checkpoint[PASS], copies: 0 };
        for class in memory.classes() {
            let of_class = self.load_class(class, complete, &mut damaged)?;
            loaded.last_pass = loaded.last_pass.max(of_class.last_pass);
            loaded.copies += of_class.copies;
        }
        // The next pass must be later than everything on disk.
        put(control::word(&memory.control, control::PASS), loaded.last_pass);
        // Some copies have vanished, or all checkpoints have.
        let missing = checkpoint[COPIES].saturating_sub(loaded.copies);
        let has_no_checkpoint = checkpoint[PASS] == 0 && loaded.last_pass > 1;
        if missing > 0 || has_no_checkpoint {
            damaged(Role::Control, 0, checkpoint_at(0));
        }
        counts.count(Count::DroppedTorn, torn + missing);
        Ok(())
    }

    fn load_class(
        &self,
        class: &ClassMemory,
        complete: u64,
        mut damaged: impl FnMut(Role, u64, u64),
    ) -> io::Result<Loaded> {
        let mut loaded = Loaded::default();
        let geometry = class.layout.geometry;
        let words = class.layout.key_node_words;
        let batch = (BUFFER_BYTES / (8 * words)).max(1) as u64;
        let mut buffers = [0, 1].map(|_| vec![0_u64; words * batch as usize]);
        for (file, opened) in self.files.nodes(class.class).iter().enumerate() {
            let role = Role::Nodes { class: class.class, file: file as u32 };
            let mut first = 0;
            while first < geometry.key_nodes() {
                let count = batch.min(geometry.key_nodes() - first) as usize;
                for (position, copies) in (0..).zip(&mut buffers) {
                    let bytes = cast_slice_mut(&mut copies[..count * words]);
                    opened.file.read_exact_at(bytes, offset(&geometry, position, first))?;
                }
                for index in 0..count {
                    let in_file = first + index as u64;
                    let number = file as u64 * geometry.key_nodes() + in_file;
                    let statuses = array::from_fn(|position| {
                        let copy = &mut buffers[position][index * words..][..words];
                        status_of(copy, seed_at(self.info.seed, class, number, position as u32))
                    });
                    let mut is_newest = true;
                    for (position, found) in (0..).zip(&statuses) {
                        match found {
                            // The first copy is written to both buffers.
                            CopyStatus::Empty if statuses == [CopyStatus::Empty; 2] => {}
                            CopyStatus::Whole(pass) => {
                                loaded.last_pass = loaded.last_pass.max(*pass);
                                is_newest &= *pass <= complete;
                            }
                            CopyStatus::Empty | CopyStatus::Damaged => {
                                is_newest = false;
                                damaged(role, number, offset(&geometry, position, in_file));
                            }
                        }
                    }
                    loaded.copies += u64::from(statuses != [CopyStatus::Empty; 2]);
                    if let Some(position) = choose_position(&statuses, complete) {
                        let copy = &buffers[position as usize][index * words..][..words];
                        restore_copy(class, number, copy, (position, is_newest));
                    }
                }
                first += count as u64;
            }
        }
        Ok(loaded)
    }

    /// The checkpoint of the last complete pass with its position; all zeros before the first pass, none if
    /// neither can be read. Calls `damaged` with the position of each torn or damaged checkpoint.
    pub(super) fn last_checkpoint(
        &self,
        mut damaged: impl FnMut(u64),
    ) -> io::Result<Option<(u64, Checkpoint)>> {
        let mut checkpoints = [[0_u64; CHECKPOINT_WORDS]; 2];
        for (position, checkpoint) in (1..).zip(&mut checkpoints) {
            self.files
                .control()
                .read_exact_at(cast_slice_mut(checkpoint), position * HEADER_BYTES as u64)?;
        }
        let seed = self.info.seed;
        let passes = array::from_fn(|position| {
            match status_of(&mut checkpoints[position], seed ^ position as u64) {
                CopyStatus::Empty => Some(0),
                CopyStatus::Whole(pass) => Some(pass),
                CopyStatus::Damaged => None,
            }
        });
        // Like copies, the first checkpoint is written to both buffers.
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

    /// Continues with the memory of killed processes, in which the number of the last pass may be damaged.
    pub(crate) fn resume(&self, memory: &Memory) -> io::Result<()> {
        let complete = self.last_checkpoint(|_| {})?.map_or(0, |(_, checkpoint)| checkpoint[PASS]);
        let known = get(control::word(&memory.control, control::PASS));
        if !(complete..complete.saturating_add(PASSES_AHEAD_MAX)).contains(&known) {
            put(control::word(&memory.control, control::PASS), complete);
        }
        Ok(())
    }
}
