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
use crate::memory::validity::{Fault, judge};
use crate::memory::{ClassMemory, Memory, Spot};
use crate::writers::slot::Seat;

/// An update takes less than a microsecond, so the next tries nearly always see its end.
const TRIES_AT_ONCE: u32 = 64;
/// Then the writer is not running. 400 pauses, each of which takes a quarter of a millisecond, are some
/// 100 ms: longer than a scheduler lets a thread wait that is ready.
const PAUSE: Duration = Duration::from_micros(200);
const PAUSES_MAX: u32 = 400;
/// Of one pass, so that a file in which nothing settles does not take for ever: some 0.5 seconds. Only
/// what a killed or stopped writer left takes any.
const PAUSES_TOTAL: u32 = 2_000;

/// What is in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    Free,
    /// A node, whole and where it belongs.
    Sound,
    /// A node half written, by somebody who did not go on. Its journal says what it becomes once
    /// somebody completes it.
    Pending,
    Flawed(Fault),
}

impl Settled {
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
pub(super) struct Tries {
    tries: u32,
    pauses: u32,
}

/// What changes in the head of a key-node whenever a node of it is being written.
#[derive(PartialEq, Eq)]
struct Moment {
    lock: u64,
    activity: u32,
}

impl Moment {
    /// Before reading nodes.
    fn before(node: KeyNode<'_>) -> Self {
        let moment = Self::now(node);
        // Acquire: nothing that is read after this is older than what was read before it.
        fence(Ordering::Acquire);
        moment
    }

    /// Whether nobody wrote a node since. A slot may have been freed, which is not counted.
    fn is_still(&self, node: KeyNode<'_>) -> bool {
        // Acquire: as above, for what was read in between.
        fence(Ordering::Acquire);
        self.lock as u32 == 0 && *self == Self::now(node)
    }

    fn now(node: KeyNode<'_>) -> Self {
        let lock = get(node.lock());
        // Acquire: if the lock was given back since, the count of changes is seen that came before.
        fence(Ordering::Acquire);
        Self { lock, activity: node.activity() }
    }
}

impl<'a> Reader<'a> {
    pub(super) fn new(memory: &'a Memory) -> Self {
        Self { memory, pauses_left: PAUSES_TOTAL }
    }

    /// Whether to try again, after a little.
    pub(super) fn again(&mut self, tries: &mut Tries) -> bool {
        tries.tries += 1;
        if tries.tries <= TRIES_AT_ONCE {
            std::hint::spin_loop();
            return true;
        }
        if tries.pauses == PAUSES_MAX || self.pauses_left == 0 {
            return false;
        }
        tries.pauses += 1;
        self.pauses_left -= 1;
        thread::sleep(PAUSE);
        true
    }

    /// Copies the node in a slot to `image`, which is as long as one, and judges it.
    pub(super) fn read(
        &mut self,
        class: &ClassMemory,
        spot: Spot<'_>,
        slot: u32,
        image: &mut [u64],
    ) -> Settled {
        let mut tries = Tries::default();
        loop {
            let moment = Moment::before(spot.node);
            let settled = self.read_once(class, spot, slot, image);
            let Settled::Flawed(_) = settled else { return settled };
            if moment.is_still(spot.node) {
                return settled;
            }
            if !self.again(&mut tries) {
                break;
            }
        }
        // On both sides of a last try, so that no writer which came to its end meanwhile is missed.
        let mut pending = vec![0; image.len()];
        let was_pending = self.read_pending(class, spot, slot, &mut pending);
        let settled = self.read_once(class, spot, slot, image);
        let Settled::Flawed(_) = settled else { return settled };
        if was_pending || self.read_pending(class, spot, slot, &mut pending) {
            image.copy_from_slice(&pending);
            return Settled::Pending;
        }
        settled
    }

    fn read_once(
        &self,
        class: &ClassMemory,
        spot: Spot<'_>,
        slot: u32,
        image: &mut [u64],
    ) -> Settled {
        let tag = spot.node.tag(slot);
        if tag == 0 {
            return Settled::Free;
        }
        spot.node.read(slot, image);
        let Err(fault) = judge(class, spot.id.key_node, tag, image, self.memory.seed()) else {
            return Settled::Sound;
        };
        // Who frees a slot changes the tag first, then the node.
        fence(Ordering::Acquire);
        if spot.node.tag(slot) == 0 { Settled::Free } else { Settled::Flawed(fault) }
    }

    /// Copies what the journal of the one who holds the key-node has for a slot. Says whether there is a
    /// whole node.
    fn read_pending(
        &self,
        class: &ClassMemory,
        spot: Spot<'_>,
        slot: u32,
        image: &mut [u64],
    ) -> bool {
        let control = &self.memory.control;
        let Some(holder) = Seat::of_lock(control, get(spot.node.lock())) else { return false };
        let words = holder.committed_words();
        let node_words = |class| Some(self.memory.class(class)?.layout.node_words);
        let of_slot = read_journal(&words, node_words)
            .filter(|record| record.id == spot.id && record.slot == slot)
            .last();
        let Some(found) = of_slot.and_then(|record| record.image) else { return false };
        image.copy_from_slice(found);
        let tag = key_of(image).tag();
        judge(class, spot.id.key_node, tag, image, self.memory.seed()).is_ok()
    }

    /// Whether something is wrong with the node in a slot, of which `image` is a copy, and not only seems
    /// so because somebody is writing. `is_wrong` looks at whatever else it takes.
    ///
    /// If the node changes, or its key-node does not come to rest, nothing is wrong.
    pub(super) fn confirm(
        &mut self,
        spot: Spot<'_>,
        slot: u32,
        image: &[u64],
        is_wrong: impl Fn() -> bool,
    ) -> bool {
        let mut tries = Tries::default();
        let is_there = || spot.node.tag(slot) != 0 && spot.node.is(slot, image);
        loop {
            let moment = Moment::before(spot.node);
            // There before and after, and nothing written: so it was there all along.
            if !is_there() || !is_wrong() || !is_there() {
                return false;
            }
            if moment.is_still(spot.node) {
                return true;
            }
            if !self.again(&mut tries) {
                return false;
            }
        }
    }
}
