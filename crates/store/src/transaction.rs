//! One update in the making: which key-nodes it holds, where its keys live, and how it is written.
//!
//! Owns the order in which key-nodes are locked, the search for a place for a new key, and the order of
//! the writes. Nothing of any node changes before [`Step::commit`] but that expired ones are freed, and
//! locks are given back when the step is dropped, also by a panic.
//!
//! Invariant: a step waits for a key-node only while it holds none. With some held, it tries for the next
//! one for some microseconds; if that fails, it lets go of everything, waits, and starts again with the one that
//! it waited for.

pub(crate) mod commit;
pub(crate) mod placement;

use smallvec::SmallVec;

use crate::error::UpdateError;
use crate::format::key::{Key, StoredKey};
use crate::format::node::expires_secs;
use crate::memory::key_node::Slots;
use crate::memory::sync::get;
use crate::memory::{ClassMemory, Memory, Spot};
use crate::writers::Crew;
use crate::writers::backoff::{Patience, SPINS, SPINS_UNENCUMBERED};
use crate::writers::lock::{acquire_within, release, try_acquire};
use crate::writers::slot::{Count, Seat};
use commit::{Change, commit};

/// A key of an update, as far as it is known before any lock is taken.
#[derive(Clone, Copy)]
pub(crate) struct Ask<'a> {
    pub(crate) class: &'a ClassMemory,
    pub(crate) stored: StoredKey,
    pub(crate) home: Spot<'a>,
}

impl<'a> Ask<'a> {
    #[inline]
    pub(crate) fn new(class: &'a ClassMemory, stored: StoredKey) -> Self {
        Self { class, stored, home: class.home(&stored) }
    }

    /// The other key-node in which the key may live, if it has one.
    fn alternate(&self) -> Option<Spot<'a>> {
        Some(self.class.alternate(&self.stored)).filter(|spot| spot.id != self.home.id)
    }

    /// How many nodes there are in which the key may live.
    pub(crate) fn nodes(&self) -> u32 {
        self.class.layout.geometry.chain() * (1 + u32::from(self.alternate().is_some()))
    }
}

/// Where the node of a key is, or is going to be.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) spot: Spot<'a>,
    pub(crate) slot: u32,
    pub(crate) was: Was,
}

/// What is in the slot of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Was {
    /// The key's own live node.
    Live,
    /// The key's own node, which has expired.
    Expired,
    /// Nothing.
    Free,
    /// A live node of another key, which has to give way.
    Victim,
}

/// A key-node that is needed could not be had without waiting.
pub(crate) struct Blocked<'a>(pub(crate) Spot<'a>);

/// A key-node that a step has locked, and the slots there that are meant for keys of the step.
struct Held<'a> {
    spot: Spot<'a>,
    meant: Slots,
}

/// One update in the making.
pub(crate) struct Step<'a> {
    memory: &'a Memory,
    crew: &'a Crew,
    seat: Seat<'a>,
    held: SmallVec<[Held<'a>; 4]>,
    /// For all that it waits for together.
    patience: Patience,
}

impl<'a> Step<'a> {
    #[inline]
    pub(crate) fn new(memory: &'a Memory, crew: &'a Crew, seat: Seat<'a>) -> Self {
        Self { memory, crew, seat, held: SmallVec::new(), patience: Patience::default() }
    }

    /// Locks key-nodes, which are in the order of their names, while none is held.
    #[inline(always)]
    pub(crate) fn lock_all(&mut self, spots: &[Spot<'a>]) -> Result<(), UpdateError> {
        debug_assert!(self.held.is_empty() && spots.is_sorted_by(|a, b| a.id < b.id));
        match self.try_lock_all(spots) {
            Ok(()) => Ok(()),
            Err(blocked) => self.lock_all_slowly(spots, blocked),
        }
    }

    /// Waits for what was missing, takes that first, and then tries for the others. Else the one that everybody
    /// wants would have to be free just when its turn comes.
    #[cold]
    fn lock_all_slowly(
        &mut self,
        spots: &[Spot<'a>],
        mut blocked: Blocked<'a>,
    ) -> Result<(), UpdateError> {
        loop {
            let Blocked(missing) = blocked;
            self.let_go();
            let lock = missing.node.lock();
            self.crew.wait_for(self.memory, &self.seat, lock, &mut self.patience)?;
            let others = spots.iter().filter(|spot| spot.id != missing.id);
            let mut all = std::iter::once(&missing).chain(others);
            match all.try_for_each(|spot| self.try_lock(*spot)) {
                Ok(()) => return Ok(()),
                Err(next) => blocked = next,
            }
        }
    }

    #[inline(always)]
    fn try_lock_all(&mut self, spots: &[Spot<'a>]) -> Result<(), Blocked<'a>> {
        spots.iter().try_for_each(|spot| self.try_lock(*spot))
    }

    #[inline(always)]
    fn try_lock(&mut self, spot: Spot<'a>) -> Result<(), Blocked<'a>> {
        self.seat.list_lock(self.held.len(), spot.id);
        if let Err(holder) = try_acquire(spot.node.lock(), self.seat.lock_word()) {
            self.spin_for(spot, holder)?;
        }
        self.held.push(Held { spot, meant: Slots::default() });
        Ok(())
    }

    #[cold]
    fn spin_for(&self, spot: Spot<'a>, holder: u64) -> Result<(), Blocked<'a>> {
        let looks = match self.held.is_empty() {
            _ if self.crew.is_waited_for(self.memory, holder) => 0,
            true => SPINS_UNENCUMBERED,
            false => SPINS,
        };
        acquire_within(spot.node.lock(), self.seat.lock_word(), looks).map_err(|_| Blocked(spot))
    }

    /// Locks a key-node if it is free or held by this step already.
    fn lock_now(&mut self, spot: Spot<'a>) -> Result<(), Blocked<'a>> {
        if self.held.iter().any(|held| held.spot.id == spot.id) {
            return Ok(());
        }
        self.seat.list_lock(self.held.len(), spot.id);
        try_acquire(spot.node.lock(), self.seat.lock_word()).map_err(|_| Blocked(spot))?;
        self.held.push(Held { spot, meant: Slots::default() });
        Ok(())
    }

    /// Lets go of all key-nodes.
    #[inline]
    pub(crate) fn let_go(&mut self) {
        for held in &self.held {
            release(held.spot.node.lock(), self.seat.lock_word());
        }
        self.held.clear();
        self.seat.clear_locks();
    }

    pub(crate) fn count(&self, count: Count) {
        self.seat.count(count, 1);
    }

    /// Finds the node of a key, whose home is held.
    #[inline]
    pub(crate) fn find<K: Key + ?Sized>(
        &mut self,
        key: &K,
        ask: &Ask<'a>,
        now_secs: u32,
    ) -> Result<Option<Place<'a>>, Blocked<'a>> {
        if let Some(slot) = ask.home.node.find(key, &ask.stored) {
            return Ok(Some(self.found(ask.home, slot, now_secs)));
        }
        if get(ask.home.node.away()) == 0 {
            return Ok(None);
        }
        self.find_away(key, ask, now_secs)
    }

    #[cold]
    fn find_away<K: Key + ?Sized>(
        &mut self,
        key: &K,
        ask: &Ask<'a>,
        now_secs: u32,
    ) -> Result<Option<Place<'a>>, Blocked<'a>> {
        let Some(alternate) = ask.alternate() else { return Ok(None) };
        self.lock_now(alternate)?;
        let slot = alternate.node.find(key, &ask.stored);
        Ok(slot.map(|slot| self.found(alternate, slot, now_secs)))
    }

    #[inline]
    fn found(&mut self, spot: Spot<'a>, slot: u32, now_secs: u32) -> Place<'a> {
        let is_expired = expires_secs(spot.node.tail(slot)) <= now_secs;
        let was = if is_expired { Was::Expired } else { Was::Live };
        self.mean(Place { spot, slot, was })
    }

    /// Keeps a slot for its key, so that no other key of this step gets it.
    #[inline]
    fn mean(&mut self, place: Place<'a>) -> Place<'a> {
        if let Some(held) = self.held.iter_mut().find(|held| held.spot.id == place.spot.id) {
            held.meant = held.meant.and(place.slot);
        }
        place
    }

    fn meant(&self, spot: Spot<'a>) -> Slots {
        let held = self.held.iter().find(|held| held.spot.id == spot.id);
        held.map_or(Slots::default(), |held| held.meant)
    }

    /// Makes changes to key-nodes that are held, all or none of them.
    pub(crate) fn commit<'i>(&mut self, changes: impl Iterator<Item = Change<'a, 'i>> + Clone) {
        commit(self.memory, &self.seat, changes);
    }
}

impl Drop for Step<'_> {
    #[inline]
    fn drop(&mut self) {
        self.let_go();
    }
}
