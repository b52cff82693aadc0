//! How changes of nodes are written: all or none.
//!
//! Owns the order of the writes (docs/internals/store-format.md, "Updates"), and the fast path for one key at home.
//! Waits for nothing.

use super::{KeySlot, Occupant};
use crate::format::Record;
use crate::format::node::{NARROW_WORDS, STATE, expires_secs};
use crate::memory::sync::{AtomicU64, add, get, put};
use crate::memory::{KeyNode, Memory};
use crate::writers::lock::{release, try_acquire};
use crate::writers::{Count, WriterSlot};

/// A change of one node: its slot, the home of its key, and its sealed image. Without an image, the slot is freed.
#[derive(Clone, Copy)]
pub(crate) struct Change<'a, 'i> {
    pub(crate) key_slot: KeySlot<'a>,
    pub(crate) home: KeyNode<'a>,
    pub(crate) image: Option<&'i [u64]>,
}

/// Writes changes of key-nodes that `writer` has locked, all or none.
pub(super) fn commit<'a, 'i>(
    memory: &'a Memory,
    writer: &WriterSlot<'_>,
    changes: impl Iterator<Item = Change<'a, 'i>> + Clone,
) {
    let mut journal = writer.journal();
    for Change { key_slot, home, image } in changes.clone() {
        let before = key_slot.key_node.tail(key_slot.slot);
        journal.push(&Record { id: key_slot.key_node.id, slot: key_slot.slot, before, image });
        if key_slot.occupant == Occupant::Free && key_slot.key_node.id != home.id {
            // Before the node exists: the count must never be 0 while a key is displaced.
            add(home.displaced(), 1);
        }
    }
    journal.commit();
    for change in changes {
        apply(memory, writer, change);
    }
    writer.clear_journal();
}

#[inline(always)]
fn apply<'a>(memory: &'a Memory, writer: &WriterSlot<'_>, change: Change<'a, '_>) {
    let Change { key_slot: KeySlot { key_node, slot, occupant }, home, image } = change;
    let mut home_of_victim = None;
    let Some(image) = image else {
        key_node.clear(slot);
        if key_node.id != home.id {
            add(home.displaced(), u64::MAX);
        }
        writer.count(Count::Erased, 1);
        return;
    };
    writer.count(Count::Updates, 1);
    match occupant {
        Occupant::Live => {}
        Occupant::Free => writer.count(Count::Created, 1),
        Occupant::Expired => {
            writer.count(Count::Created, 1);
            writer.count(Count::EvictedExpired, 1);
        }
        Occupant::Victim => {
            writer.count(Count::Created, 1);
            writer.count(Count::EvictedLive, 1);
            let class = memory.class(key_node.id.class);
            home_of_victim = class.map(|class| class.home(&key_node.stored(slot)));
        }
    }
    key_node.install(slot, image);
    // After the node is gone, just as the count rose before the node existed.
    if let Some(home) = home_of_victim.filter(|home| home.id != key_node.id) {
        add(home.displaced(), u64::MAX);
    }
}

/// The lock of a key's home alone, which is all that most updates need. Dropping it releases the lock.
pub(crate) struct HomeLock<'a> {
    writer: WriterSlot<'a>,
    home: KeyNode<'a>,
}

impl<'a> HomeLock<'a> {
    #[inline]
    pub(crate) fn try_acquire(writer: WriterSlot<'a>, home: KeyNode<'a>) -> Option<Self> {
        writer.list_lock(0, home.id);
        try_acquire(home.lock(), writer.lock_word()).ok()?;
        Some(Self { writer, home })
    }

    /// Replaces the live narrow node in `slot`, whose words are `words`, unless it equals `image`. The fast
    /// form of [`commit`].
    #[inline(always)]
    pub(crate) fn replace(
        &self,
        slot: u32,
        words: &[AtomicU64; NARROW_WORDS],
        image: &[u64; NARROW_WORDS],
    ) {
        // The key and its tag do not change.
        let changes = || words[STATE..].iter().zip(&image[STATE..]);
        if changes().fold(0, |difference, (word, value)| difference | (get(word) ^ value)) == 0 {
            return;
        }
        let mut journal = self.writer.journal();
        let before = get(&words[NARROW_WORDS - 1]);
        journal.push(&Record { id: self.home.id, slot, before, image: Some(image) });
        journal.commit();
        changes().for_each(|(word, value)| put(word, *value));
        self.home.mark_updated(expires_secs(image[NARROW_WORDS - 1]));
        self.writer.count(Count::Updates, 1);
        self.writer.clear_journal();
    }

    #[cold]
    pub(crate) fn erase(&self, memory: &'a Memory, slot: u32) {
        let key_slot = KeySlot { key_node: self.home, slot, occupant: Occupant::Live };
        let change = Change { key_slot, home: self.home, image: None };
        commit(memory, &self.writer, std::iter::once(change));
    }
}

impl Drop for HomeLock<'_> {
    #[inline]
    fn drop(&mut self) {
        release(self.home.lock(), self.writer.lock_word());
        self.writer.clear_locks();
    }
}

/// Whether an image deserves a node: it has state, and expires in the future.
#[inline]
pub(crate) fn is_worth_keeping(image: &[u64], expires_secs: u32, now_secs: u32) -> bool {
    expires_secs > now_secs && image[STATE..image.len() - 1].iter().any(|word| *word != 0)
}
