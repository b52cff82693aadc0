//! The verification of a whole cluster from outside.
//!
//! Checks nodes as [`crate::writers::restore`] does, and also heads, locks and writer slots. Rechecks flaws
//! that a concurrent write may have caused. Repairs nothing.

use std::path::{Path, PathBuf};

use crate::format::node::{expires_secs, key_of};
use crate::format::{KeyNodeId, Role, StoredKey, WORD_BYTES};
use crate::memory::control::unlocked_word;
use crate::memory::sync::get;
use crate::memory::validity::{NodeFlaw, is_duplicate};
use crate::memory::{ClassMemory, KeyNode, Memory};
use crate::snapshot;
use crate::writers::WriterSlot;
use crate::writers::liveness::is_alive;
use crate::writers::restore::is_being_restored;
use crate::writers::slot::process_of;

use super::View;
use super::findings::{Findings, Flaw, FlawKind};
use super::reader::{Reader, Reading};

/// How many key-nodes are checked between two reports of progress: about a millisecond's worth.
const PROGRESS_INTERVAL: u64 = 1024;

pub(super) struct Verifier<'a> {
    pub(super) view: &'a View,
    pub(super) memory: &'a Memory,
    pub(super) now_secs: u32,
    pub(super) reader: Reader<'a>,
    pub(super) findings: Findings,
}

impl Verifier<'_> {
    /// Checks everything; see [`super::View::verify`].
    pub(super) fn run(mut self, mut progress: impl FnMut(u64, u64)) -> Findings {
        self.findings.is_being_restored = is_being_restored(self.memory);
        self.writers();
        self.copies();
        let classes = self.memory.classes();
        let total = classes.map(|class| class.layout.geometry.key_nodes_total()).sum();
        for class in self.memory.classes() {
            let mut image = vec![0; class.layout.node_words];
            for key_node in class.key_nodes() {
                self.key_node(class, key_node, &mut image);
                self.findings.key_nodes += 1;
                if self.findings.key_nodes.is_multiple_of(PROGRESS_INTERVAL) {
                    progress(self.findings.key_nodes, total);
                }
            }
        }
        self.findings.is_being_restored |= is_being_restored(self.memory);
        self.findings
    }

    /// The torn or damaged copies of a snapshot.
    fn copies(&mut self) {
        for (role, key_node, offset) in &self.view.damaged {
            let file = self.view.snapshot.files.dir.join(role.file_name());
            let key_node = (*role != Role::Control).then_some(*key_node);
            let (kind, offset) = (FlawKind::Torn, *offset);
            self.findings.add(Flaw { kind, file, offset, key_node, slot: None, key: None });
        }
    }

    fn location(&self, class: &ClassMemory, number: u64) -> (PathBuf, u64) {
        let at = class.layout.key_node(number);
        let name = Role::Nodes { class: class.class, file: at.file as u32 }.file_name();
        match self.memory_dir() {
            Some(dir) => (dir.join(name), at.first as u64 * WORD_BYTES),
            None => (self.view.snapshot.files.dir.join(name), snapshot::copy_offset(class, number)),
        }
    }

    fn memory_dir(&self) -> Option<&Path> {
        Some(&self.view.live.as_ref()?.dir)
    }

    fn is_alive(&self, process: u32) -> bool {
        self.view.live.as_ref().is_some_and(|files| is_alive(files.control(), process))
    }

    fn writers(&mut self) {
        let control = &self.memory.control;
        for writer in WriterSlot::all(control) {
            // Read once: a process may claim the slot meanwhile.
            let owner = writer.owner();
            match process_of(owner) {
                None if owner == 0 => {}
                None => {
                    let dir = self.memory_dir().unwrap_or(Path::new(""));
                    let (kind, file) = (FlawKind::WriterSlot, dir.join(Role::Control.file_name()));
                    let offset = writer.offset();
                    self.findings.add(Flaw {
                        kind,
                        file,
                        offset,
                        key_node: None,
                        slot: None,
                        key: None,
                    });
                }
                Some(process) => {
                    self.findings.writer_slots_left += u64::from(!self.is_alive(process));
                }
            }
            let mut attempts = 0;
            while writer.committed() != 0 {
                if !self.reader.retry(&mut attempts) {
                    self.findings.updates_pending += 1;
                    break;
                }
            }
        }
    }

    fn key_node(&mut self, class: &ClassMemory, key_node: KeyNode<'_>, image: &mut [u64]) {
        self.lock(class, key_node);
        for slot in key_node.occupied() {
            let reading = self.reader.read(key_node, slot, image);
            let flaw = match reading {
                Reading::Free => continue,
                Reading::Sound => self.flaw_among_others(class, key_node, slot, image),
                Reading::Pending => None,
                Reading::Flawed(NodeFlaw::Torn) => Some(FlawKind::Torn),
                Reading::Flawed(NodeFlaw::Foreign) => Some(FlawKind::Foreign),
            };
            self.findings.nodes += 1;
            self.findings.pending += u64::from(reading == Reading::Pending);
            if reading.is_node() {
                let is_live = expires_secs(image[image.len() - 1]) > self.now_secs;
                self.findings.live += u64::from(is_live);
                self.findings.expired += u64::from(!is_live);
            }
            match flaw {
                None => self.findings.sound += u64::from(reading == Reading::Sound),
                Some(kind) => {
                    let key = (kind != FlawKind::Torn).then(|| key_of(image));
                    self.flaw(kind, class, key_node.id, Some(slot), key);
                }
            }
        }
    }

    /// The flaw of a node that is sound by itself, in relation to other nodes and its heads.
    fn flaw_among_others(
        &mut self,
        class: &ClassMemory,
        key_node: KeyNode<'_>,
        slot: u32,
        image: &[u64],
    ) -> Option<FlawKind> {
        let (number, seed) = (key_node.id.number, self.memory.seed());
        let key = key_of(image);
        let home = class.home(&key);
        let is_displaced = home.id != key_node.id;
        // The same key can be here under the same tag, or in the other key-node of the key.
        let may_be_twice =
            key_node.tagged(key.tag()).len() > 1 || is_displaced || get(home.displaced()) > 0;
        let duplicate = || is_duplicate(class, number, slot, image, seed);
        if may_be_twice && duplicate() && self.reader.confirm(key_node, slot, image, duplicate) {
            return Some(FlawKind::Duplicate);
        }
        let unreachable = || is_displaced && get(home.displaced()) == 0;
        if unreachable() && self.reader.confirm(key_node, slot, image, unreachable) {
            return Some(FlawKind::Unreachable);
        }
        let is_late = || key_node.earliest_expiry() > expires_secs(image[image.len() - 1]);
        if is_late() && self.reader.confirm(key_node, slot, image, is_late) {
            return Some(FlawKind::Late);
        }
        None
    }

    /// Checks whether a live process holds the lock, if it is held.
    fn lock(&mut self, class: &ClassMemory, key_node: KeyNode<'_>) {
        let (control, mut attempts) = (&self.memory.control, 0);
        loop {
            let word = get(key_node.lock());
            // A holder lists the lock in its slot before it takes it.
            let holder = WriterSlot::of_lock(control, word)
                .filter(|writer| writer.locks().any(|listed| listed == key_node.id))
                .and_then(|writer| writer.process());
            let is_alive = holder.is_some_and(|process| self.is_alive(process));
            if is_alive || word == unlocked_word(control) {
                return;
            }
            // This may be a glimpse of a process that is joining or leaving.
            if !self.reader.retry(&mut attempts) {
                return match holder {
                    Some(_) => self.findings.locks_left += 1,
                    None => self.flaw(FlawKind::Lock, class, key_node.id, None, None),
                };
            }
        }
    }

    fn flaw(
        &mut self,
        kind: FlawKind,
        class: &ClassMemory,
        id: KeyNodeId,
        slot: Option<u32>,
        key: Option<StoredKey>,
    ) {
        let (file, start) = self.location(class, id.number);
        let word = slot.map_or(0, |slot| class.layout.node_at(slot).first);
        let (offset, key_node) = (start + word as u64 * WORD_BYTES, Some(id.number));
        self.findings.add(Flaw { kind, file, offset, key_node, slot, key });
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use crate::cluster::Cluster;
    use crate::format::node::{NARROW_WORDS, seal};
    use crate::format::{Class, Geometry, Hashed};
    use crate::options::Options;

    const SECOND: u64 = 1_000_000_000;
    const NOW: u64 = 1_000 * SECOND;

    /// A node was read, and looks wrong beside others that were written since, as others write at full speed.
    #[test]
    fn a_node_that_has_changed_since_has_no_flaw_among_others() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options::narrow(Geometry::by_count(1, 2, 8, 4).unwrap());
        let cluster = Cluster::open(dir.path(), &options).unwrap();
        // So that the heads have hints about the next expiry.
        cluster.sweep(NOW).unwrap();
        let key = |home: u64, number: u64| StoredKey { estimate: home << 63, identity: number };
        // The last one is displaced.
        for number in 0..8 {
            let key = Hashed::narrow(key(0, number).bits());
            let set = |entry: crate::EntryMut<'_>| {
                entry.state[0] = 1;
                *entry.expires_at = NOW + 60 * SECOND;
            };
            cluster.update(&key, NOW, set).unwrap();
        }
        let view = View::open(dir.path()).unwrap();
        let class = view.memory.class(Class::Narrow).unwrap();
        let key_node = class.key_node(0);
        let (now_secs, reader) = (1_000, Reader::new(&view.memory));
        let findings = Findings::default();
        let mut verifier =
            Verifier { view: &view, memory: &view.memory, now_secs, reader, findings };
        let mut flaw = |slot, key: StoredKey, expires_secs| {
            let mut image: [u64; NARROW_WORDS] = [key.estimate, key.identity, 1, 0, 0, 0, 0];
            seal(&mut image, expires_secs, view.seed());
            verifier.flaw_among_others(class, key_node, slot, &image)
        };
        let slots: Vec<_> = key_node.occupied().collect();
        let (first, last) = (slots[0], slots[slots.len() - 1]);
        assert_eq!(flaw(first, key_node.stored(first), 1_060), None);
        assert_eq!(flaw(last, key_node.stored(first), 1_060), None, "a duplicate");
        assert_eq!(flaw(first, key(1, 9), 1_060), None, "unreachable");
        assert_eq!(flaw(first, key_node.stored(first), 1_059), None, "late");
    }
}
