//! A pass: from memory to the snapshot, beside all updates.
//!
//! Reads memory without locks, unless a key-node is never at rest. Nothing counts before the checkpoint is written.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::PoisonError;

use bytemuck::cast_slice;

use super::copy::{
    CHECKPOINT_WORDS, CLOCK, COPIES, COUNTS, Checkpoint, CopyState, PASS, copy, offset, seed_at,
    stamp, try_copy,
};
use super::{PASS_BYTE, Snapshot};
use crate::format::HEADER_BYTES;
use crate::format::files::OpenFile;
use crate::format::node::is_sealed;
use crate::memory::control::{self, clock_words, unlocked, unlocked_word};
use crate::memory::sync::{get, put};
use crate::memory::{KeyNode, Memory};
use crate::writers::{Stats, byte_lock};

/// How much is read or written at a time.
pub(super) const BUFFER_BYTES: usize = 1 << 18;

/// What a pass did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncReport {
    /// Changed key-nodes that were copied.
    pub copied: u64,
    /// Changed key-nodes that could not be copied, as a stuck process holds their locks.
    pub locked: u64,
}

impl Snapshot {
    /// Makes a pass: copies the changes since the last one. `with_lock` runs its argument under the lock of
    /// a key-node, and returns whether it got the lock.
    ///
    /// Waits for another thread that makes a pass; returns nothing if another process makes one.
    pub(crate) fn save(
        &self,
        memory: &Memory,
        mut with_lock: impl FnMut(KeyNode<'_>, &mut dyn FnMut(KeyNode<'_>)) -> bool,
        check_memory: impl Fn() -> io::Result<()>,
    ) -> io::Result<Option<SyncReport>> {
        let _pass = self.pass.lock().unwrap_or_else(PoisonError::into_inner);
        if !byte_lock::try_lock(self.files.control(), PASS_BYTE)? {
            return Ok(None);
        }
        let report = self.run_pass(memory, &mut with_lock, check_memory);
        byte_lock::unlock(self.files.control(), PASS_BYTE);
        report.map(Some)
    }

    fn run_pass(
        &self,
        memory: &Memory,
        with_lock: &mut impl FnMut(KeyNode<'_>, &mut dyn FnMut(KeyNode<'_>)) -> bool,
        check_memory: impl Fn() -> io::Result<()>,
    ) -> io::Result<SyncReport> {
        let Some(pass) = get(control::word(&memory.control, control::PASS)).checked_add(1) else {
            return Err(damaged("the number of the last pass"));
        };
        let (mut synced, mut done, mut copies) = (SyncReport::default(), Vec::new(), 0);
        for class in memory.classes() {
            let mut image = vec![0; class.layout.key_node_words];
            // One per position.
            let mut buffers = [WriteBuffer::default(), WriteBuffer::default()];
            let total = class.layout.geometry.key_nodes_total();
            for number in 0..total {
                let copy_state = CopyState::from_word(get(class.copy_state(number)));
                copies += u64::from(copy_state.position.is_some());
                let key_node = class.key_node(number);
                let changes = key_node.changes();
                if changes == copy_state.changes && (copy_state.position.is_some() || changes == 0)
                {
                    continue;
                }
                let mut copied = try_copy(key_node, &mut image);
                if copied.is_none() {
                    with_lock(key_node, &mut |key_node| copied = Some(copy(key_node, &mut image)));
                }
                let Some(changes) = copied else {
                    synced.locked += 1;
                    continue;
                };
                check_nodes(key_node, &image, (unlocked_word(&memory.control), self.info.seed))?;
                let position = copy_state.next_position();
                let (file, index) = class.layout.file_and_index(number);
                for (to, buffer) in (0..).zip(&mut buffers) {
                    // The first copy goes to both positions, so that a lost one is noticed.
                    if to == position || copy_state.position.is_none() {
                        let at = offset(&class.layout.geometry, to, index);
                        stamp(&mut image, pass, seed_at(self.info.seed, class, number, to));
                        buffer.write(
                            self.files.nodes(class.class),
                            (file, at),
                            cast_slice(&image),
                        )?;
                    }
                }
                copies += u64::from(copy_state.position.is_none());
                done.push((class, number, CopyState { changes, position: Some(position) }));
                synced.copied += 1;
            }
            for buffer in &mut buffers {
                buffer.flush(self.files.nodes(class.class))?;
            }
        }
        let counts = Stats::of(&memory.control).named().map(|(_, count)| count);
        let clock = clock_words(&memory.control).map(get);
        let is_recorded = |(_, checkpoint): (u64, Checkpoint)| {
            checkpoint[COUNTS..].starts_with(&counts) && checkpoint[CLOCK..].starts_with(&clock)
        };
        let last = self.last_checkpoint(|_| {})?;
        if done.is_empty() && last.is_some_and(is_recorded) {
            return Ok(synced);
        }
        for nodes in &self.files.all()[1..] {
            nodes.file.sync_data()?;
        }
        // Copies are worthless if the memory was replaced meanwhile.
        check_memory()?;
        let mut checkpoint = [0; CHECKPOINT_WORDS];
        checkpoint[COUNTS..][..counts.len()].copy_from_slice(&counts);
        checkpoint[COPIES] = copies;
        checkpoint[CLOCK..][..clock.len()].copy_from_slice(&clock);
        // As with copies: not over the last one, and the first one to both positions.
        let last = last.filter(|(_, checkpoint)| checkpoint[PASS] > 0);
        for position in 0..2 {
            if last.is_none_or(|(of_last, _)| of_last != position) {
                stamp(&mut checkpoint, pass, self.info.seed ^ position);
                self.files
                    .control()
                    .write_all_at(cast_slice(&checkpoint), (1 + position) * HEADER_BYTES as u64)?;
            }
        }
        self.files.control().sync_data()?;
        for (class, number, copy_state) in done {
            put(class.copy_state(number), copy_state.to_word());
        }
        put(control::word(&memory.control, control::PASS), pass);
        Ok(synced)
    }
}

/// A torn node in a key-node at rest was damaged in memory: it must not get a valid checksum.
fn check_nodes(key_node: KeyNode<'_>, image: &[u64], (mark, seed): (u64, u64)) -> io::Result<()> {
    let (class, number) = (key_node.id.class.name(), key_node.id.number);
    if unlocked(get(key_node.lock())) != mark {
        return Err(damaged(&format!("{class} key-node {number}")));
    }
    let layout = key_node.layout();
    let mut node = vec![0; layout.node_words];
    for slot in KeyNode::occupied_in(image, layout) {
        let at = layout.node_at(slot);
        for (to, from) in node.iter_mut().zip(image[at.first..].iter().step_by(at.stride)) {
            *to = *from;
        }
        if !is_sealed(&mut node, seed) {
            return Err(damaged(&format!("node {slot} of {class} key-node {number}")));
        }
    }
    Ok(())
}

fn damaged(part: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{part} was damaged in memory"))
}

/// Adjacent copies of a file, written in one go.
#[derive(Default)]
struct WriteBuffer {
    file: usize,
    at: u64,
    bytes: Vec<u8>,
}

impl WriteBuffer {
    fn write(
        &mut self,
        files: &[OpenFile],
        (file, at): (usize, u64),
        bytes: &[u8],
    ) -> io::Result<()> {
        let follows = file == self.file && at == self.at + self.bytes.len() as u64;
        if !follows || self.bytes.len() >= BUFFER_BYTES {
            self.flush(files)?;
            (self.file, self.at) = (file, at);
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self, files: &[OpenFile]) -> io::Result<()> {
        if !self.bytes.is_empty() {
            files[self.file].file.write_all_at(&self.bytes, self.at)?;
            self.bytes.clear();
        }
        Ok(())
    }
}
