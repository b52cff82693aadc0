//! One update in the making: which key-nodes it holds, where its keys live, and how it is written.
//!
//! Owns the order in which key-nodes are locked, the search for a place for a new key, and the order of
//! the writes. Nothing of any node changes before [`Step::commit`] but that expired ones are freed, and
//! locks are given back when the step is dropped, also by a panic.
//!
//! Invariant: a step waits for a key-node only while it holds none. With some held, it tries for the next
//! one for some microseconds; if that fails, it lets go of everything, waits, and starts again with the one that
//! it waited for.

use smallvec::SmallVec;

use crate::error::UpdateError;
use crate::format::key::{Key, StoredKey};
use crate::memory::key_node::{NARROW_WORDS, STATE, Slots, expires_secs};
use crate::memory::sync::{AtomicU64, add, get, put};
use crate::memory::{ClassMemory, Memory, Spot};
use crate::options::Eviction;
use crate::writers::Crew;
use crate::writers::backoff::{Patience, SPINS, SPINS_UNENCUMBERED};
use crate::writers::lock::{acquire_within, release, try_acquire};
use crate::writers::slot::{Record, Seat};
use crate::writers::stats::Count;

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

/// Why there is no place.
pub(crate) enum NoPlace<'a> {
    Blocked(Blocked<'a>),
    Full,
}

/// A key-node that a step has locked, and the slots there that are meant for keys of the step.
struct Held<'a> {
    spot: Spot<'a>,
    meant: Slots,
}

/// A change of one node: where it goes, the home of its key, and its sealed image. Without an image, the
/// slot becomes free.
#[derive(Clone, Copy)]
pub(crate) struct Change<'a, 'i> {
    pub(crate) place: Place<'a>,
    pub(crate) home: Spot<'a>,
    pub(crate) image: Option<&'i [u64]>,
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

    /// Finds a place for a key that has no node (docs/store-format.md, "A place for a new key"). All
    /// keys of the step have been looked for. Nodes that expire after `until_secs` are not freed.
    pub(crate) fn place(
        &mut self,
        ask: &Ask<'a>,
        until_secs: u32,
        eviction: Eviction,
    ) -> Result<Place<'a>, NoPlace<'a>> {
        let (preferred, chain) = (ask.class.layout.preferred, ask.class.layout.geometry.chain());
        let mut in_home = self.occupied(ask.home).len();
        if in_home >= preferred && self.free_expired(ask.class, ask.home, until_secs) {
            in_home = self.occupied(ask.home).len();
        }
        if in_home < preferred {
            return Ok(self.mean(self.free_place(ask.home, &ask.stored)));
        }
        // With room at home, the other one matters only if it has more.
        if let Some(other) = ask.alternate()
            && (in_home == chain || other.node.occupied().len() < in_home)
        {
            self.lock_now(other).map_err(NoPlace::Blocked)?;
            let mut in_other = self.occupied(other).len();
            if in_other == chain && self.free_expired(ask.class, other, until_secs) {
                in_other = self.occupied(other).len();
            }
            if in_other < in_home {
                return Ok(self.mean(self.free_place(other, &ask.stored)));
            }
        }
        if in_home < chain {
            return Ok(self.mean(self.free_place(ask.home, &ask.stored)));
        }
        match eviction {
            Eviction::Refuse => Err(NoPlace::Full),
            Eviction::EvictSoonestExpiry => {
                let home = ask.home.node;
                let candidates = home.occupied().without(self.meant(ask.home));
                let soonest = candidates.min_by_key(|&slot| expires_secs(home.tail(slot)));
                let slot = soonest.ok_or(NoPlace::Full)?;
                Ok(self.mean(Place { spot: ask.home, slot, was: Was::Victim }))
            }
        }
    }

    /// The slots that have a node, or are going to.
    fn occupied(&self, spot: Spot<'a>) -> Slots {
        Slots(spot.node.occupied().0 | self.meant(spot).0)
    }

    /// A free slot; there is one. If possible one of the two that the key would like best, which are
    /// fetched before the tags are known; else the first.
    fn free_place(&self, spot: Spot<'a>, stored: &StoredKey) -> Place<'a> {
        let free = spot.node.free().without(self.meant(spot));
        let layout = spot.node.layout();
        let favourite = layout.favourite(stored);
        let likes = [favourite, layout.next_to(favourite)];
        let liked = likes.into_iter().find(|&slot| free.has(slot));
        Place { spot, slot: liked.or(free.first()).unwrap_or(0), was: Was::Free }
    }

    /// Frees the nodes that have expired by then, unless nothing can have. Says whether it freed any.
    ///
    /// All of them and not one, so that a key-node is seldom searched.
    fn free_expired(&mut self, class: &ClassMemory, spot: Spot<'a>, until_secs: u32) -> bool {
        if spot.node.earliest() > until_secs {
            return false;
        }
        let freed = free_expired(class, spot, self.meant(spot), until_secs);
        self.seat.count(Count::EvictedExpired, freed);
        freed > 0
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

/// Makes changes to key-nodes that are held from `seat`, all or none of them.
fn commit<'a, 'i>(
    memory: &'a Memory,
    seat: &Seat<'_>,
    changes: impl Iterator<Item = Change<'a, 'i>> + Clone,
) {
    let mut journal = seat.journal();
    for Change { place, home, image } in changes.clone() {
        let before = place.spot.node.tail(place.slot);
        journal.push(&Record { id: place.spot.id, slot: place.slot, before, image });
        if place.was == Was::Free && place.spot.id != home.id {
            // Before the node is there: the home must never say 0 while a key is away.
            add(home.node.away(), 1);
        }
    }
    journal.commit();
    for change in changes {
        make(memory, seat, change);
    }
    seat.clear_journal();
}

#[inline(always)]
fn make<'a>(memory: &'a Memory, seat: &Seat<'_>, Change { place, home, image }: Change<'a, '_>) {
    let node = place.spot.node;
    let mut left = None;
    let Some(image) = image else {
        node.clear(place.slot);
        if place.spot.id != home.id {
            add(home.node.away(), u64::MAX);
        }
        seat.count(Count::Erased, 1);
        return;
    };
    seat.count(Count::Updates, 1);
    match place.was {
        Was::Live => {}
        Was::Free => seat.count(Count::Created, 1),
        Was::Expired => {
            seat.count(Count::Created, 1);
            seat.count(Count::EvictedExpired, 1);
        }
        Was::Victim => {
            seat.count(Count::Created, 1);
            seat.count(Count::EvictedLive, 1);
            let class = memory.class(place.spot.id.class);
            left = class.map(|class| class.home(&node.stored(place.slot)));
        }
    }
    node.install(place.slot, image);
    // After the node is gone, as it came before the node was there.
    if let Some(home) = left.filter(|home| home.id != place.spot.id) {
        add(home.node.away(), u64::MAX);
    }
}

/// The home of a key, held by itself: all that most updates need. Given back when dropped.
pub(crate) struct AtHome<'a> {
    seat: Seat<'a>,
    home: Spot<'a>,
}

impl<'a> AtHome<'a> {
    /// Locks the home of a key, if that is possible at once.
    #[inline]
    pub(crate) fn try_hold(seat: Seat<'a>, home: Spot<'a>) -> Option<Self> {
        seat.list_lock(0, home.id);
        try_acquire(home.node.lock(), seat.lock_word()).ok()?;
        Some(Self { seat, home })
    }

    /// Replaces the live narrow node in `slot`, whose words these are, unless it is `image` already. As
    /// [`commit`], which does the same for whatever else can happen.
    #[inline(always)]
    pub(crate) fn replace(
        &self,
        slot: u32,
        words: &[AtomicU64; NARROW_WORDS],
        image: &[u64; NARROW_WORDS],
    ) {
        // Key and tag stay as they are.
        let changes = || words[STATE..].iter().zip(&image[STATE..]);
        if changes().fold(0, |difference, (word, value)| difference | (get(word) ^ value)) == 0 {
            return;
        }
        let mut journal = self.seat.journal();
        let before = get(&words[NARROW_WORDS - 1]);
        journal.push(&Record { id: self.home.id, slot, before, image: Some(image) });
        journal.commit();
        changes().for_each(|(word, value)| put(word, *value));
        self.home.node.note_update(expires_secs(image[NARROW_WORDS - 1]));
        self.seat.count(Count::Updates, 1);
        self.seat.clear_journal();
    }

    /// Frees the slot of a live node.
    #[cold]
    pub(crate) fn erase(&self, memory: &'a Memory, slot: u32) {
        let place = Place { spot: self.home, slot, was: Was::Live };
        let change = Change { place, home: self.home, image: None };
        commit(memory, &self.seat, std::iter::once(change));
    }
}

impl Drop for AtHome<'_> {
    #[inline]
    fn drop(&mut self) {
        release(self.home.node.lock(), self.seat.lock_word());
        self.seat.clear_locks();
    }
}

/// Frees the nodes of a key-node, which is held, that have expired by then, but for those in `meant`.
/// Returns how many.
pub(crate) fn free_expired(
    class: &ClassMemory,
    spot: Spot<'_>,
    meant: Slots,
    until_secs: u32,
) -> u64 {
    let (mut freed, mut earliest) = (0, u32::MAX);
    for slot in spot.node.occupied() {
        let expires = expires_secs(spot.node.tail(slot));
        if expires > until_secs || meant.has(slot) {
            earliest = earliest.min(expires);
            continue;
        }
        let home = class.home(&spot.node.stored(slot));
        spot.node.clear(slot);
        if home.id != spot.id {
            add(home.node.away(), u64::MAX);
        }
        freed += 1;
    }
    // 0 says that nothing is known.
    spot.node.set_earliest(earliest.max(1));
    freed
}

/// Whether an image is worth a node: something to remember, for longer than now.
#[inline]
pub(crate) fn is_worth_keeping(image: &[u64], expires_secs: u32, now_secs: u32) -> bool {
    expires_secs > now_secs && image[STATE..image.len() - 1].iter().any(|word| *word != 0)
}
