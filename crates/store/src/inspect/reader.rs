//! Reading a node that others may be writing, without a lock.
//!
//! A node is believed once it passes its check and belongs where it is. Writers change a node only
//! while they hold its key-node, and only once their journal says so. So a node that fails is a flaw if
//! nobody held the key-node while it was read. If somebody does, it is read again; and if that does not
//! end, as the writer was killed or stopped, the writer's journal tells what the node is going to be.
//!
//! Owns this patience, which is bounded for each node and for a whole pass. Writes nothing.

use std::thread;
use std::time::Duration;

use crate::format::journal::read_journal;
use crate::format::node::key_of;
use crate::memory::key_node::KeyNode;
use crate::memory::sync::{Ordering, fence, get};
use crate::memory::validity::{NodeFlaw, check_node};
use crate::memory::{ClassMemory, Memory};
use crate::writers::slot::WriterSlot;

/// An update takes less than a microsecond, so the next tries nearly always see its end.
const SPINS_MAX: u32 = 64;
/// Then the writer is not running. 400 pauses, each of which takes a quarter of a millisecond, are some
/// 100 ms: longer than a scheduler lets a thread wait that is ready.
const PAUSE: Duration = Duration::from_micros(200);
const PAUSES_MAX: u32 = 400;
/// Of one pass, so that a file in which nothing settles does not take for ever: some 0.5 seconds. Only
/// what a killed or stopped writer left takes any.
const PAUSES_TOTAL: u32 = 2_000;

/// What is in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    Free,
    /// A node, whole and where it belongs.
    Sound,
    /// A node half written, by somebody who did not go on. Its journal says what it becomes once
    /// somebody completes it.
    Pending,
    Flawed(NodeFlaw),
}

impl Reading {
    /// Whether the image that was read is that of a node which counts.
    pub(super) fn is_node(self) -> bool {
        matches!(self, Self::Sound | Self::Pending)
    }
}

/// Reads nodes, with so much patience left.
pub(super) struct Reader<'a> {
    memory: &'a Memory,
    pauses_left: u32,
}

/// How often something was tried.
#[derive(Default)]
pub(super) struct Attempts {
    attempts: u32,
    pauses: u32,
}

/// What changes in the head of a key-node whenever a node of it is being written.
#[derive(PartialEq, Eq)]
struct Version {
    lock: u64,
    changes: u32,
}

impl Version {
    /// Before reading nodes.
    fn begin_read(key_node: KeyNode<'_>) -> Self {
        let version = Self::now(key_node);
        // Acquire: nothing that is read after this is older than what was read before it.
        fence(Ordering::Acquire);
        version
    }

    /// Whether nobody wrote a node since. A slot may have been freed, which is not counted.
    fn is_unchanged(&self, key_node: KeyNode<'_>) -> bool {
        // Acquire: as above, for what was read in between.
        fence(Ordering::Acquire);
        self.lock as u32 == 0 && *self == Self::now(key_node)
    }

    fn now(key_node: KeyNode<'_>) -> Self {
        let lock = get(key_node.lock());
        // Acquire: if the lock was given back since, the count of changes is seen that came before.
        fence(Ordering::Acquire);
        Self { lock, changes: key_node.changes() }
    }
}

impl<'a> Reader<'a> {
    pub(super) fn new(memory: &'a Memory) -> Self {
        Self { memory, pauses_left: PAUSES_TOTAL }
    }

    /// Whether to try again, after a little.
    pub(super) fn retry(&mut self, attempts: &mut Attempts) -> bool {
        attempts.attempts += 1;
        if attempts.attempts <= SPINS_MAX {
            std::hint::spin_loop();
            return true;
        }
        if attempts.pauses == PAUSES_MAX || self.pauses_left == 0 {
            return false;
        }
        attempts.pauses += 1;
        self.pauses_left -= 1;
        thread::sleep(PAUSE);
        true
    }

    /// Copies the node in a slot to `image`, which is as long as one, and judges it.
    pub(super) fn read(
        &mut self,
        class: &ClassMemory,
        key_node: KeyNode<'_>,
        slot: u32,
        image: &mut [u64],
    ) -> Reading {
        let mut attempts = Attempts::default();
        loop {
            let version = Version::begin_read(key_node);
            let reading = self.read_once(class, key_node, slot, image);
            let Reading::Flawed(_) = reading else { return reading };
            if version.is_unchanged(key_node) {
                return reading;
            }
            if !self.retry(&mut attempts) {
                break;
            }
        }
        // On both sides of a last try, so that no writer which came to its end meanwhile is missed.
        let mut pending = vec![0; image.len()];
        let was_pending = self.read_pending(class, key_node, slot, &mut pending);
        let reading = self.read_once(class, key_node, slot, image);
        let Reading::Flawed(_) = reading else { return reading };
        if was_pending || self.read_pending(class, key_node, slot, &mut pending) {
            image.copy_from_slice(&pending);
            return Reading::Pending;
        }
        reading
    }

    fn read_once(
        &self,
        class: &ClassMemory,
        key_node: KeyNode<'_>,
        slot: u32,
        image: &mut [u64],
    ) -> Reading {
        let tag = key_node.tag(slot);
        if tag == 0 {
            return Reading::Free;
        }
        key_node.read(slot, image);
        let Err(flaw) = check_node(class, key_node.id.number, tag, image, self.memory.seed())
        else {
            return Reading::Sound;
        };
        // Who frees a slot changes the tag first, then the node.
        fence(Ordering::Acquire);
        if key_node.tag(slot) == 0 { Reading::Free } else { Reading::Flawed(flaw) }
    }

    /// Copies what the journal of the one who holds the key-node has for a slot. Says whether there is a
    /// whole node.
    fn read_pending(
        &self,
        class: &ClassMemory,
        key_node: KeyNode<'_>,
        slot: u32,
        image: &mut [u64],
    ) -> bool {
        let control = &self.memory.control;
        let Some(holder) = WriterSlot::of_lock(control, get(key_node.lock())) else { return false };
        let words = holder.committed_words();
        let node_words = |class| Some(self.memory.class(class)?.layout.node_words);
        let of_slot = read_journal(&words, node_words)
            .filter(|record| record.id == key_node.id && record.slot == slot)
            .last();
        let Some(found) = of_slot.and_then(|record| record.image) else { return false };
        image.copy_from_slice(found);
        let tag = key_of(image).tag();
        check_node(class, key_node.id.number, tag, image, self.memory.seed()).is_ok()
    }

    /// Whether something is wrong with the node in a slot, of which `image` is a copy, and not only seems
    /// so because somebody is writing. `is_wrong` looks at whatever else it takes.
    ///
    /// If the node changes, or its key-node does not come to rest, nothing is wrong.
    pub(super) fn confirm(
        &mut self,
        key_node: KeyNode<'_>,
        slot: u32,
        image: &[u64],
        is_wrong: impl Fn() -> bool,
    ) -> bool {
        let mut attempts = Attempts::default();
        let is_there = || key_node.tag(slot) != 0 && key_node.equals(slot, image);
        loop {
            let version = Version::begin_read(key_node);
            // There before and after, and nothing written: so it was there all along.
            if !is_there() || !is_wrong() || !is_there() {
                return false;
            }
            if version.is_unchanged(key_node) {
                return true;
            }
            if !self.retry(&mut attempts) {
                return false;
            }
        }
    }
}
