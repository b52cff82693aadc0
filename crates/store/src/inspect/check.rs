//! The check of a whole cluster from outside.
//!
//! Judges nodes as [`crate::writers::restore`] does, which would drop what is flawed here; and heads, locks and
//! seats besides. Whatever may only seem wrong, as somebody is writing, is looked at again. Repairs
//! nothing.

use std::path::PathBuf;

use crate::format::geometry::WORD_BYTES;
use crate::format::header::Role;
use crate::format::key::StoredKey;
use crate::format::layout::KeyNodeId;
use crate::format::node::{expires_secs, key_of};
use crate::memory::control::free_lock;
use crate::memory::sync::get;
use crate::memory::validity::{Fault, is_duplicate};
use crate::memory::{ClassMemory, Memory, Spot};
use crate::snapshot;
use crate::writers::liveness::is_alive;
use crate::writers::restore::is_being_restored;
use crate::writers::slot::{Seat, process_of};

use super::View;
use super::findings::{Findings, Flaw, FlawKind};
use super::reader::{Reader, Settled, Tries};

/// How many key-nodes are checked between two reports of progress: about a millisecond.
const STRETCH: u64 = 1024;

/// A check under way.
pub(super) struct Check<'a> {
    pub(super) view: &'a View,
    pub(super) memory: &'a Memory,
    pub(super) now_secs: u32,
    pub(super) reader: Reader<'a>,
    pub(super) findings: Findings,
}

/// Who holds a lock.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holder {
    Nobody,
    Alive,
    Gone,
    /// A number that is nobody's.
    Stray,
}

impl Check<'_> {
    /// Checks everything. See [`super::View::verify`].
    pub(super) fn run(mut self, mut progress: impl FnMut(u64, u64)) -> Findings {
        self.findings.is_being_restored = is_being_restored(self.memory);
        self.seats();
        self.copies();
        let classes = self.memory.classes();
        let total = classes.map(|class| class.layout.geometry.key_nodes_total()).sum();
        for class in self.memory.classes() {
            let mut image = vec![0; class.layout.node_words];
            for spot in class.spots() {
                self.key_node(class, spot, &mut image);
                self.findings.key_nodes += 1;
                if self.findings.key_nodes.is_multiple_of(STRETCH) {
                    progress(self.findings.key_nodes, total);
                }
            }
        }
        self.findings.is_being_restored |= is_being_restored(self.memory);
        self.findings
    }

    /// The copies of a snapshot that are torn or damaged.
    fn copies(&mut self) {
        for (role, key_node, offset) in &self.view.damaged {
            let file = self.view.snapshot.dir().join(role.file_name());
            let key_node = (*role != Role::Control).then_some(*key_node);
            let (kind, offset) = (FlawKind::Torn, *offset);
            self.findings.add(Flaw { kind, file, offset, key_node, slot: None, key: None });
        }
    }

    /// Where the key-node `number` of a class starts: a file, and an offset in bytes.
    fn place_of(&self, class: &ClassMemory, number: u64) -> (PathBuf, u64) {
        let at = class.layout.key_node(number);
        let name = Role::Nodes { class: class.class, file: at.file as u32 }.file_name();
        match self.memory_dir() {
            Some(dir) => (dir.join(name), at.first as u64 * WORD_BYTES),
            None => (self.view.snapshot.dir().join(name), snapshot::place_of(class, number)),
        }
    }

    fn memory_dir(&self) -> Option<PathBuf> {
        let (_, files) = self.view.live.as_ref()?;
        Some(files.dir.clone())
    }

    fn is_alive(&self, process: u32) -> bool {
        self.view.live.as_ref().is_some_and(|(control, _)| is_alive(control, process))
    }

    fn seats(&mut self) {
        let control = &self.memory.control;
        for seat in Seat::all(control) {
            // Read once: a process may take the seat meanwhile.
            let owner = seat.owner();
            match process_of(owner) {
                None if owner == 0 => {}
                None => self.findings.add(Flaw {
                    kind: FlawKind::Seat,
                    file: self.memory_dir().unwrap_or_default().join(Role::Control.file_name()),
                    offset: seat.offset(),
                    key_node: None,
                    slot: None,
                    key: None,
                }),
                Some(process) => {
                    self.findings.seats_left += u64::from(!self.is_alive(process));
                }
            }
            let mut tries = Tries::default();
            while seat.committed() != 0 {
                if !self.reader.again(&mut tries) {
                    self.findings.updates_pending += 1;
                    break;
                }
            }
        }
    }

    fn key_node(&mut self, class: &ClassMemory, spot: Spot<'_>, image: &mut [u64]) {
        match self.holder(spot) {
            Holder::Nobody | Holder::Alive => {}
            Holder::Gone => self.findings.locks_left += 1,
            Holder::Stray => self.flaw(FlawKind::Lock, class, spot.id, None, None),
        }
        for slot in spot.node.occupied() {
            let settled = self.reader.read(class, spot, slot, image);
            let flaw = match settled {
                Settled::Free => continue,
                Settled::Sound => self.flaw_among_others(class, spot, slot, image),
                Settled::Pending => None,
                Settled::Flawed(fault) => Some(kind_of(fault)),
            };
            self.findings.nodes += 1;
            self.findings.pending += u64::from(settled == Settled::Pending);
            if settled.is_node() {
                let is_live = expires_secs(image[image.len() - 1]) > self.now_secs;
                self.findings.live += u64::from(is_live);
                self.findings.expired += u64::from(!is_live);
            }
            match flaw {
                None => self.findings.sound += u64::from(settled == Settled::Sound),
                Some(kind) => {
                    let key = (kind != FlawKind::Torn).then(|| key_of(image));
                    self.flaw(kind, class, spot.id, Some(slot), key);
                }
            }
        }
    }

    /// What is wrong with a node that is sound by itself.
    fn flaw_among_others(
        &mut self,
        class: &ClassMemory,
        spot: Spot<'_>,
        slot: u32,
        image: &[u64],
    ) -> Option<FlawKind> {
        let (node, number, seed) = (spot.node, spot.id.key_node, self.memory.seed());
        let key = key_of(image);
        let home = class.home(&key);
        let is_away = home.id != spot.id;
        // The same key can be here under the same tag, or in the other key-node of the key.
        let may_be_twice = node.tagged(key.tag()).len() > 1 || is_away || get(home.node.away()) > 0;
        let duplicate = || is_duplicate(class, number, slot, image, seed);
        if may_be_twice && duplicate() && self.reader.confirm(spot, slot, image, duplicate) {
            return Some(FlawKind::Duplicate);
        }
        let unreachable = || is_away && get(home.node.away()) == 0;
        if unreachable() && self.reader.confirm(spot, slot, image, unreachable) {
            return Some(FlawKind::Unreachable);
        }
        let late = || node.earliest() > expires_secs(image[image.len() - 1]);
        if late() && self.reader.confirm(spot, slot, image, late) {
            return Some(FlawKind::Late);
        }
        None
    }

    fn holder(&mut self, spot: Spot<'_>) -> Holder {
        let mut tries = Tries::default();
        loop {
            let holder = self.holder_now(spot);
            // The others may be a moment's look at somebody who comes or goes.
            if matches!(holder, Holder::Nobody | Holder::Alive) || !self.reader.again(&mut tries) {
                return holder;
            }
        }
    }

    fn holder_now(&self, spot: Spot<'_>) -> Holder {
        let control = &self.memory.control;
        let word = get(spot.node.lock());
        if word == free_lock(control) {
            return Holder::Nobody;
        }
        // A holder lists the lock in its seat before it takes it.
        let seat = Seat::of_lock(control, word)
            .filter(|seat| seat.locks().any(|listed| listed == spot.id));
        match seat.and_then(|seat| seat.process()) {
            None => Holder::Stray,
            Some(process) if self.is_alive(process) => Holder::Alive,
            Some(_) => Holder::Gone,
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
        let (file, start) = self.place_of(class, id.key_node);
        let word = slot.map_or(0, |slot| class.layout.node_at(slot).first);
        self.findings.add(Flaw {
            kind,
            file,
            offset: start + word as u64 * WORD_BYTES,
            key_node: Some(id.key_node),
            slot,
            key,
        });
    }
}

fn kind_of(fault: Fault) -> FlawKind {
    match fault {
        Fault::Torn => FlawKind::Torn,
        Fault::Foreign => FlawKind::Foreign,
        Fault::Duplicate => FlawKind::Duplicate,
    }
}
