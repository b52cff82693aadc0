//! A transaction: one atomic change of one or several nodes.
//!
//! Owns the order in which key-nodes are locked, where keys are found, and when changes are committed. Before
//! [`Transaction::commit`], only expired nodes are freed. Dropping a transaction releases its locks, also on panic.
//!
//! Invariant: a transaction waits for a lock only while it holds none. While it holds some, it spins for the
//! next one for some microseconds. If that fails, it releases everything, waits, and starts again with the
//! lock it waited for. So waits form no cycle.

pub(crate) mod commit;
pub(crate) mod placement;

pub(crate) use commit::{Change, HomeLock, is_worth_keeping};
pub(crate) use placement::free_expired;

use smallvec::SmallVec;

use crate::error::UpdateError;
use crate::format::node::expires_secs;
use crate::format::{Key, StoredKey};
use crate::memory::sync::get;
use crate::memory::{ClassMemory, KeyNode, Memory, Slots};
use crate::writers::backoff::{Backoff, SPINS_WITH_LOCKS, SPINS_WITHOUT_LOCKS};
use crate::writers::lock::{acquire_within, release, try_acquire};
use crate::writers::{Count, WriterSlot, Writers};
use commit::commit;

/// A key of an update, as far as it is known before any lock is taken.
#[derive(Clone, Copy)]
pub(crate) struct Lookup<'a> {
    pub(crate) class: &'a ClassMemory,
    pub(crate) stored: StoredKey,
    pub(crate) home: KeyNode<'a>,
}

impl<'a> Lookup<'a> {
    #[inline]
    pub(crate) fn new(class: &'a ClassMemory, stored: StoredKey) -> Self {
        Self { class, stored, home: class.home(&stored) }
    }

    /// The other key-node where the key may be, if there is one.
    fn alternate(&self) -> Option<KeyNode<'a>> {
        Some(self.class.alternate(&self.stored)).filter(|key_node| key_node.id != self.home.id)
    }

    /// The number of nodes where the key may be.
    pub(crate) fn nodes(&self) -> u32 {
        self.class.layout.geometry.chain() * (1 + u32::from(self.alternate().is_some()))
    }
}

/// The slot of a key: where its node is, or will be.
#[derive(Clone, Copy)]
pub(crate) struct KeySlot<'a> {
    pub(crate) key_node: KeyNode<'a>,
    pub(crate) slot: u32,
    pub(crate) occupant: Occupant,
}

impl KeySlot<'_> {
    /// Whether the slot holds the key's own live node.
    #[inline]
    pub(crate) fn is_live(&self) -> bool {
        self.occupant == Occupant::Live
    }
}

/// The content of the slot before the update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Occupant {
    /// The key's own live node.
    Live,
    /// The key's own expired node.
    Expired,
    /// Nothing.
    Free,
    /// A live node of another key, to be evicted.
    Victim,
}

/// Locking this key-node would mean waiting.
pub(crate) struct WouldBlock<'a>(pub(crate) KeyNode<'a>);

/// A locked key-node, and its slots that are reserved for keys of this transaction.
struct LockedKeyNode<'a> {
    key_node: KeyNode<'a>,
    reserved: Slots,
}

pub(crate) struct Transaction<'a> {
    memory: &'a Memory,
    writers: &'a Writers,
    writer: WriterSlot<'a>,
    locked: SmallVec<[LockedKeyNode<'a>; 4]>,
    /// Shared by all waits of this transaction.
    backoff: Backoff,
}

impl<'a> Transaction<'a> {
    #[inline]
    pub(crate) fn new(memory: &'a Memory, writers: &'a Writers, writer: WriterSlot<'a>) -> Self {
        Self { memory, writers, writer, locked: SmallVec::new(), backoff: Backoff::default() }
    }

    /// Locks key-nodes, sorted by id, while none is held.
    #[inline(always)]
    pub(crate) fn lock_all(&mut self, key_nodes: &[KeyNode<'a>]) -> Result<(), UpdateError> {
        debug_assert!(self.locked.is_empty() && key_nodes.is_sorted_by(|a, b| a.id < b.id));
        match key_nodes.iter().try_for_each(|key_node| self.try_lock(*key_node)) {
            Ok(()) => Ok(()),
            Err(blocked) => self.lock_all_slow(key_nodes, blocked),
        }
    }

    /// Waits for the missing lock and takes it first, then tries the others. In the fixed order, a contended
    /// lock would have to be free at the very moment of its turn.
    #[cold]
    fn lock_all_slow(
        &mut self,
        key_nodes: &[KeyNode<'a>],
        mut blocked: WouldBlock<'a>,
    ) -> Result<(), UpdateError> {
        loop {
            let WouldBlock(missing) = blocked;
            self.unlock_all();
            let lock = missing.lock();
            self.writers.wait(self.memory, &self.writer, lock, &mut self.backoff)?;
            let others = key_nodes.iter().filter(|key_node| key_node.id != missing.id);
            let mut all = std::iter::once(&missing).chain(others);
            match all.try_for_each(|key_node| self.try_lock(*key_node)) {
                Ok(()) => return Ok(()),
                Err(next) => blocked = next,
            }
        }
    }

    #[inline(always)]
    fn try_lock(&mut self, key_node: KeyNode<'a>) -> Result<(), WouldBlock<'a>> {
        self.writer.list_lock(self.locked.len(), key_node.id);
        if let Err(holder) = try_acquire(key_node.lock(), self.writer.lock_word()) {
            self.spin(key_node, holder)?;
        }
        self.locked.push(LockedKeyNode { key_node, reserved: Slots::default() });
        Ok(())
    }

    #[cold]
    fn spin(&self, key_node: KeyNode<'a>, holder: u64) -> Result<(), WouldBlock<'a>> {
        let tries = match self.locked.is_empty() {
            _ if self.writers.is_stalled(self.memory, holder) => 0,
            true => SPINS_WITHOUT_LOCKS,
            false => SPINS_WITH_LOCKS,
        };
        acquire_within(key_node.lock(), self.writer.lock_word(), tries)
            .map_err(|_| WouldBlock(key_node))
    }

    /// Locks a key-node without waiting, unless this transaction holds it already.
    fn try_lock_unless_held(&mut self, key_node: KeyNode<'a>) -> Result<(), WouldBlock<'a>> {
        if self.locked.iter().any(|locked| locked.key_node.id == key_node.id) {
            return Ok(());
        }
        self.writer.list_lock(self.locked.len(), key_node.id);
        try_acquire(key_node.lock(), self.writer.lock_word()).map_err(|_| WouldBlock(key_node))?;
        self.locked.push(LockedKeyNode { key_node, reserved: Slots::default() });
        Ok(())
    }

    #[inline]
    pub(crate) fn unlock_all(&mut self) {
        for locked in &self.locked {
            release(locked.key_node.lock(), self.writer.lock_word());
        }
        self.locked.clear();
        self.writer.clear_locks();
    }

    /// Counts an update that found no room.
    pub(crate) fn count_refused(&self) {
        self.writer.count(Count::Refused, 1);
    }

    /// Finds the node of a key whose home is locked.
    #[inline]
    pub(crate) fn find<K: Key + ?Sized>(
        &mut self,
        key: &K,
        lookup: &Lookup<'a>,
        now_secs: u32,
    ) -> Result<Option<KeySlot<'a>>, WouldBlock<'a>> {
        if let Some(slot) = lookup.home.find(key, &lookup.stored) {
            return Ok(Some(self.key_slot_at(lookup.home, slot, now_secs)));
        }
        if get(lookup.home.displaced()) == 0 {
            return Ok(None);
        }
        self.find_away(key, lookup, now_secs)
    }

    #[cold]
    fn find_away<K: Key + ?Sized>(
        &mut self,
        key: &K,
        lookup: &Lookup<'a>,
        now_secs: u32,
    ) -> Result<Option<KeySlot<'a>>, WouldBlock<'a>> {
        let Some(alternate) = lookup.alternate() else { return Ok(None) };
        self.try_lock_unless_held(alternate)?;
        let slot = alternate.find(key, &lookup.stored);
        Ok(slot.map(|slot| self.key_slot_at(alternate, slot, now_secs)))
    }

    #[inline]
    fn key_slot_at(&mut self, key_node: KeyNode<'a>, slot: u32, now_secs: u32) -> KeySlot<'a> {
        let is_expired = expires_secs(key_node.tail(slot)) <= now_secs;
        let occupant = if is_expired { Occupant::Expired } else { Occupant::Live };
        self.reserve(KeySlot { key_node, slot, occupant })
    }

    /// Reserves a slot, so that no other key of this transaction gets it.
    #[inline]
    fn reserve(&mut self, key_slot: KeySlot<'a>) -> KeySlot<'a> {
        let id = key_slot.key_node.id;
        if let Some(locked) = self.locked.iter_mut().find(|locked| locked.key_node.id == id) {
            locked.reserved = locked.reserved.with(key_slot.slot);
        }
        key_slot
    }

    fn reserved(&self, key_node: KeyNode<'a>) -> Slots {
        let locked = self.locked.iter().find(|locked| locked.key_node.id == key_node.id);
        locked.map_or(Slots::default(), |locked| locked.reserved)
    }

    /// Writes changes of locked key-nodes, all or none.
    pub(crate) fn commit<'i>(&mut self, changes: impl Iterator<Item = Change<'a, 'i>> + Clone) {
        commit(self.memory, &self.writer, changes);
    }
}

impl Drop for Transaction<'_> {
    #[inline]
    fn drop(&mut self) {
        self.unlock_all();
    }
}
