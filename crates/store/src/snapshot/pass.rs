//! A pass: from memory to the snapshot, beside everybody who updates.
//!
//! Reads memory without locks, unless a key-node never rests. Nothing counts before its last write.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::PoisonError;

use bytemuck::cast_slice;

use super::copy::{
    CLOCK, COPIES, COUNTS, NOTE_WORDS, Note, PASS, Saved, copy, copy_at_rest, offset, seed_at,
    stamp,
};
use super::{Snapshot, WRITER};
use crate::format::geometry::HEADER_BYTES;
use crate::format::node::is_sealed;
use crate::memory::control::{clock_words, free, free_lock, pass_word};
use crate::memory::key_node::KeyNode;
use crate::memory::sync::{get, put};
use crate::memory::{Memory, Spot};
use crate::writers::byte_lock;
use crate::writers::stats::Stats;

/// What is read or written at a time.
pub(super) const STRETCH_BYTES: usize = 1 << 18;

/// What a pass came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Synced {
    /// Key-nodes that had changed, and were copied.
    pub copied: u64,
    /// Key-nodes that had changed and could not be copied, as a process that does not move holds them.
    pub held: u64,
}

impl Snapshot {
    /// Makes a pass: copies what changed since the last one. `hold` copies a key-node under its lock, and says
    /// whether it could have it.
    ///
    /// Waits for another thread that makes one; says nothing if another process does.
    pub(crate) fn save(
        &self,
        memory: &Memory,
        mut hold: impl FnMut(Spot<'_>, &mut dyn FnMut(KeyNode<'_>)) -> bool,
        is_whole: impl Fn() -> io::Result<()>,
    ) -> io::Result<Option<Synced>> {
        let _pass = self.pass.lock().unwrap_or_else(PoisonError::into_inner);
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
        let last = self.last_note(|_| {})?;
        if done.is_empty() && last.is_some_and(is_said) {
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
        let last = last.filter(|(_, note)| note[PASS] > 0);
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
