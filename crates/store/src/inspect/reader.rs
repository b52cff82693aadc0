//! Reading a node that others may be writing, without a lock.
//!
//! A node is believed once it passes its check and is in the right place. Writers change a node only while
//! they hold the lock of its key-node, and after committing their journal. So a failing node is flawed if the
//! lock was free while it was read. Otherwise it is read again. If that does not help, as the writer was
//! killed or stopped, the writer's journal contains the new node.
//!
//! Owns the retries, which are bounded for each node and for a whole pass. Writes nothing.

use std::thread;
use std::time::Duration;

use crate::format::node::key_of;
use crate::format::read_journal;
use crate::memory::sync::{Ordering, fence, get};
use crate::memory::validity::{NodeFlaw, check_node};
use crate::memory::{KeyNode, Memory};
use crate::writers::WriterSlot;

/// An update takes less than a microsecond, so these attempts nearly always see its end.
const SPINS_MAX: u32 = 64;
/// Otherwise the writer is not running. 400 pauses of a quarter of a millisecond each are some 100 ms, longer
/// than a ready thread waits for a processor.
const PAUSE: Duration = Duration::from_micros(200);
const PAUSES_MAX: u32 = 400;
/// The limit of a whole pass, some 0.5 seconds, for files in which nothing comes to rest. Only killed or
/// stopped writers use it up.
const PAUSES_TOTAL: u32 = 2_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    Free,
    /// A whole node in the right place.
    Sound,
    /// A half-written node whose writer does not continue. The image is that of the writer's journal.
    Pending,
    Flawed(NodeFlaw),
}

impl Reading {
    /// Whether the image is that of a valid node.
    pub(super) fn is_node(self) -> bool {
        matches!(self, Self::Sound | Self::Pending)
    }
}

/// Reads nodes with a limited number of pauses.
pub(super) struct Reader<'a> {
    memory: &'a Memory,
    pauses_left: u32,
}

/// The words of a head that change whenever a node of the key-node is written.
#[derive(PartialEq, Eq)]
struct Version {
    lock: u64,
    changes: u32,
}

impl Version {
    /// The version before reading nodes.
    fn begin_read(key_node: KeyNode<'_>) -> Self {
        let version = Self::now(key_node);
        // Acquire: later reads are no older than the version.
        fence(Ordering::Acquire);
        version
    }

    /// Whether the lock was free and nothing was written since.
    fn is_unchanged(&self, key_node: KeyNode<'_>) -> bool {
        // Acquire: earlier reads are no newer than the version below.
        fence(Ordering::Acquire);
        self.lock as u32 == 0 && *self == Self::now(key_node)
    }

    fn now(key_node: KeyNode<'_>) -> Self {
        let lock = get(key_node.lock());
        // Acquire: if the lock was released since, the changes made before are visible.
        fence(Ordering::Acquire);
        Self { lock, changes: key_node.changes() }
    }
}

impl<'a> Reader<'a> {
    pub(super) fn new(memory: &'a Memory) -> Self {
        Self { memory, pauses_left: PAUSES_TOTAL }
    }

    /// Whether to try again, after a short wait. Counts the attempts.
    pub(super) fn retry(&mut self, attempts: &mut u32) -> bool {
        *attempts += 1;
        if *attempts <= SPINS_MAX {
            std::hint::spin_loop();
            return true;
        }
        if *attempts > SPINS_MAX + PAUSES_MAX || self.pauses_left == 0 {
            return false;
        }
        self.pauses_left -= 1;
        thread::sleep(PAUSE);
        true
    }

    /// Copies the node in a slot to `image`, which has the length of a node, and checks it.
    pub(super) fn read(&mut self, key_node: KeyNode<'_>, slot: u32, image: &mut [u64]) -> Reading {
        let mut attempts = 0;
        loop {
            let version = Version::begin_read(key_node);
            let reading = self.read_once(key_node, slot, image);
            let Reading::Flawed(_) = reading else { return reading };
            if version.is_unchanged(key_node) {
                return reading;
            }
            if !self.retry(&mut attempts) {
                break;
            }
        }
        // Look at the journal on both sides of a last attempt, so that a writer that finishes meanwhile is
        // not missed.
        let mut pending = vec![0; image.len()];
        let was_pending = self.read_pending(key_node, slot, &mut pending);
        let reading = self.read_once(key_node, slot, image);
        let Reading::Flawed(_) = reading else { return reading };
        if was_pending || self.read_pending(key_node, slot, &mut pending) {
            image.copy_from_slice(&pending);
            return Reading::Pending;
        }
        reading
    }

    fn read_once(&self, key_node: KeyNode<'_>, slot: u32, image: &mut [u64]) -> Reading {
        let tag = key_node.tag(slot);
        if tag == 0 {
            return Reading::Free;
        }
        key_node.read(slot, image);
        let Err(flaw) = check_node(key_node, tag, image, self.memory.seed()) else {
            return Reading::Sound;
        };
        // Freeing a slot changes the tag first, then the node.
        fence(Ordering::Acquire);
        if key_node.tag(slot) == 0 { Reading::Free } else { Reading::Flawed(flaw) }
    }

    /// Copies the node that the journal of the lock's holder has for a slot. Returns whether it is valid.
    fn read_pending(&self, key_node: KeyNode<'_>, slot: u32, image: &mut [u64]) -> bool {
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
        check_node(key_node, tag, image, self.memory.seed()).is_ok()
    }

    /// Whether a node really has a fault, rather than appearing so during a write. `image` is a copy of the
    /// node, `is_wrong` evaluates the fault.
    ///
    /// If the node changes, or its key-node is never at rest, there is no fault.
    pub(super) fn confirm(
        &mut self,
        key_node: KeyNode<'_>,
        slot: u32,
        image: &[u64],
        is_wrong: impl Fn() -> bool,
    ) -> bool {
        let mut attempts = 0;
        let is_there = || key_node.tag(slot) != 0 && key_node.equals(slot, image);
        loop {
            let version = Version::begin_read(key_node);
            // Present before and after, and nothing written: present all along.
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

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::format::node::{NARROW_WORDS, seal};
    use crate::format::{Class, ClusterInfo, Geometry, Record};
    use crate::memory::sync::put;
    use crate::open::segment::anonymous;

    const SEED: u64 = 7;

    /// One key-node of one node.
    fn memory() -> Memory {
        let narrow = Geometry::by_count(1, 1, 1, 4).unwrap();
        anonymous(ClusterInfo { cluster: 1, seed: SEED, narrow, wide: None }).unwrap()
    }

    #[test]
    fn attempts_at_a_node_are_bounded_and_so_are_the_pauses_of_a_pass() {
        let memory = memory();
        let mut reader = Reader::new(&memory);
        let attempts = |reader: &mut Reader<'_>| {
            let mut attempts = 0;
            while reader.retry(&mut attempts) {}
            attempts - 1
        };
        assert_eq!(attempts(&mut reader), SPINS_MAX + PAUSES_MAX);
        reader.pauses_left = 3;
        assert_eq!(attempts(&mut reader), SPINS_MAX + 3);
        assert_eq!(attempts(&mut reader), SPINS_MAX);
    }

    /// Faults are looked for while others write.
    #[test]
    fn a_fault_is_confirmed_if_nothing_was_written_meanwhile() {
        let memory = memory();
        let key_node = memory.class(Class::Narrow).unwrap().key_node(0);
        let mut image = [5, 5, 1, 1, 1, 1, 0];
        seal(&mut image, 50, SEED);
        key_node.install(0, &image);
        let mut reader = Reader::new(&memory);
        let mut confirm = |image: &[u64; NARROW_WORDS], is_wrong: &dyn Fn() -> bool| {
            reader.confirm(key_node, 0, image, is_wrong)
        };
        assert!(confirm(&image, &|| true));
        assert!(!confirm(&image, &|| false));
        assert!(!confirm(&[5, 5, 2, 1, 1, 1, 0], &|| true), "the node has changed before");
        let asked = Cell::new(0);
        let ask = |changes_until: u32| {
            asked.set(asked.get() + 1);
            if asked.get() <= changes_until {
                key_node.mark_changed();
            }
            true
        };
        assert!(confirm(&image, &|| ask(3)));
        assert_eq!(asked.get(), 4, "again after each change");
        let writes_node = || {
            put(&key_node.words()[8 + 2], 9);
            true
        };
        assert!(!confirm(&image, &writes_node), "the node has changed meanwhile");
        key_node.install(0, &image);
        let frees_node = || {
            key_node.set_tag(0, 0);
            true
        };
        assert!(!confirm(&image, &frees_node), "the node has gone meanwhile");
        key_node.install(0, &image);
        put(key_node.lock(), 1);
        reader.pauses_left = 0;
        assert!(!reader.confirm(key_node, 0, &image, || true), "a writer is at it");
    }

    /// The holder of the locks was killed in an update of several nodes, and one node was torn before.
    #[test]
    fn a_torn_node_is_that_of_its_record_in_the_journal() {
        let narrow = Geometry::by_count(1, 2, 2, 4).unwrap();
        let memory = anonymous(ClusterInfo { cluster: 1, seed: SEED, narrow, wide: None }).unwrap();
        let class = memory.class(Class::Narrow).unwrap();
        let sealed = |number: u64, slot: u32, value| {
            let mut image = [number << 63, slot.into(), value, value, value, value, 0];
            seal(&mut image, 50, SEED);
            image
        };
        let writer = WriterSlot::new(&memory.control, 1);
        let mut journal = writer.journal();
        let places = [(0, 0), (0, 1), (1, 0), (1, 1)];
        for (number, slot) in places {
            let key_node = class.key_node(number);
            key_node.install(slot, &sealed(number, slot, 1));
            let at = class.layout.node_at(slot);
            put(&key_node.words()[at.first + 2 * at.stride], 9);
            put(key_node.lock(), writer.lock_word());
            if (number, slot) != (1, 1) {
                let (image, id) = (sealed(number, slot, 2), key_node.id);
                journal.push(&Record { id, slot, before: 0, image: Some(&image) });
            }
        }
        journal.commit();
        let mut reader = Reader::new(&memory);
        for (number, slot) in places {
            let mut found = [0; NARROW_WORDS];
            reader.pauses_left = 2;
            let reading = reader.read(class.key_node(number), slot, &mut found);
            assert_eq!(reader.pauses_left, 0, "the holder may go on");
            if (number, slot) == (1, 1) {
                assert_eq!(reading, Reading::Flawed(NodeFlaw::Torn));
            } else {
                assert_eq!((reading, found), (Reading::Pending, sealed(number, slot, 2)));
            }
        }
    }
}
