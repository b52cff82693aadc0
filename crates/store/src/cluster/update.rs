//! The update of one key or of several: from keys to slots, to the caller, to the commit.
//!
//! Owns the two paths of an update: the fast one, which nearly all take, and the slow one, which handles
//! everything. Where a new key goes and how nodes are written is in [`crate::transaction`].

use smallvec::SmallVec;

use super::Cluster;
use crate::entry::{Entries, EntryMut, Outcome, PendingEntry, Room, nanos, secs_down, secs_up};
use crate::error::UpdateError;
use crate::format::node::{ESTIMATE, IDENTITY, NARROW_WORDS, STATE, expires_secs, is_sealed, seal};
use crate::format::{Key, RECORD_WORDS_BESIDES_IMAGE, StoredKey};
use crate::memory::KeyNode;
use crate::memory::region::{prefetch, prefetch_run};
use crate::memory::sync::{AtomicU64, get};
use crate::transaction::{
    Change, HomeLock, KeySlot, Lookup, Occupant, Transaction, WouldBlock, is_worth_keeping,
};
use crate::writers::HeldSlot;
use crate::writers::slot::{JOURNAL_WORDS, KEYS_MAX};

/// Updates of up to this many keys do not allocate. Few requests meet more limits.
const KEYS_INLINE: usize = 4;

impl Cluster {
    #[inline]
    pub(super) fn lookup<K: Key + ?Sized>(&self, key: &K) -> Result<Lookup<'_>, UpdateError> {
        self.try_lookup(key).ok_or_else(|| self.no_class(key))
    }

    /// None if the cluster has no nodes of the key's class.
    #[inline]
    pub(super) fn try_lookup<K: Key + ?Sized>(&self, key: &K) -> Option<Lookup<'_>> {
        Some(Lookup::new(self.memory.class(key.class())?, key.stored(self.seed())))
    }

    #[cold]
    pub(super) fn no_class<K: Key + ?Sized>(&self, key: &K) -> UpdateError {
        UpdateError::NoClass { key: key.stored(self.seed()), class: key.class() }
    }

    /// Updates one key. The fast path of nearly all updates is for a live narrow node, contiguous, at home, with
    /// the lock free.
    #[inline]
    pub(super) fn update_one<'a, K: Key + ?Sized, T>(
        &'a self,
        held: &HeldSlot<'a>,
        key: &K,
        lookup: &Lookup<'a>,
        now_secs: u32,
        decide: impl FnOnce(EntryMut<'_>) -> T,
    ) -> Result<T, UpdateError> {
        let Some(mut live) = self.find_live_at_home(held, key, lookup, now_secs) else {
            return self.update_slow(held, key, lookup, now_secs, decide);
        };
        let answer = decide(EntryMut {
            state: &mut live.image[STATE..NARROW_WORDS - 1],
            expires_at: &mut live.expires_at,
            is_new: false,
            room: Room::Available,
        });
        self.write_back(live, now_secs)?;
        Ok(answer)
    }

    /// The live narrow node of a key, if it is contiguous, at home, and its lock is free.
    #[inline(always)]
    fn find_live_at_home<'a, K: Key + ?Sized>(
        &'a self,
        held: &HeldSlot<'a>,
        key: &K,
        lookup: &Lookup<'a>,
        now_secs: u32,
    ) -> Option<LiveNode<'a>> {
        let lock = HomeLock::try_acquire(held.writer, lookup.home)?;
        let (slot, words) = lookup.home.find_narrow(key, &lookup.stored)?;
        let mut image = words.each_ref().map(get);
        let expires = expires_secs(image[NARROW_WORDS - 1]);
        let expires_at = nanos(expires);
        // The slow path also handles damaged nodes.
        let is_live = expires > now_secs && is_sealed(&mut image, self.seed());
        is_live.then_some(LiveNode { lock, slot, words, image, expires_at })
    }

    #[inline(always)]
    fn write_back(&self, live: LiveNode<'_>, now_secs: u32) -> Result<(), UpdateError> {
        let LiveNode { lock, slot, words, mut image, expires_at } = live;
        let expires = secs_up(expires_at);
        if is_worth_keeping(&image, expires, now_secs) {
            seal(&mut image, expires, self.seed());
            lock.replace(slot, words, &image);
        } else {
            lock.erase(&self.memory, slot);
        }
        drop(lock);
        self.check_intact()
    }

    #[cold]
    fn update_slow<'a, K: Key + ?Sized, T>(
        &'a self,
        held: &HeldSlot<'a>,
        key: &K,
        lookup: &Lookup<'a>,
        now_secs: u32,
        decide: impl FnOnce(EntryMut<'_>) -> T,
    ) -> Result<T, UpdateError> {
        let mut transaction = Transaction::new(&self.memory, &self.writers, held.writer);
        let freed_until = self.freed_until(now_secs);
        let key_slot = lock_one(&mut transaction, lookup, |transaction| {
            match transaction.find(key, lookup, now_secs)? {
                Some(key_slot) => Ok(Some(key_slot)),
                None => transaction.allocate(lookup, freed_until, self.eviction),
            }
        })?;
        let Some(key_slot) = key_slot else { return Err(self.full(&transaction, lookup)) };
        let words = lookup.class.layout.node_words;
        let image = &mut SmallVec::<[u64; NARROW_WORDS]>::from_elem(0, words)[..];
        let (is_new, mut expires_at) = self.load(Some(&key_slot), &lookup.stored, image)?;
        let state = &mut image[STATE..words - 1];
        let answer = decide(EntryMut {
            state,
            expires_at: &mut expires_at,
            is_new,
            room: room(Some(&key_slot)),
        });
        let change = Change { key_slot, home: lookup.home, image: None };
        match self.outcome(Some(&key_slot), expires_at, now_secs, image) {
            Outcome::Keep => {}
            Outcome::Write => {
                transaction.commit(std::iter::once(Change { image: Some(image), ..change }));
            }
            Outcome::Erase => transaction.commit(std::iter::once(change)),
        }
        drop(transaction);
        self.check_intact()?;
        Ok(answer)
    }

    /// Locks the key-nodes of all keys and finds the slot of each, or allocates one if there is room. A
    /// repeated key shares the slot of its first occurrence.
    fn lock_many<'a, K: Key>(
        &'a self,
        transaction: &mut Transaction<'a>,
        keys: &[K],
        lookups: &[Lookup<'a>],
        entries: &[PendingEntry],
        now_secs: u32,
    ) -> Result<KeySlots<'a>, UpdateError> {
        let mut key_nodes: SmallVec<[KeyNode<'a>; KEYS_INLINE]> =
            lookups.iter().map(|lookup| lookup.home).collect();
        loop {
            key_nodes.sort_unstable_by_key(|key_node| key_node.id);
            key_nodes.dedup_by_key(|key_node| key_node.id);
            transaction.lock_all(&key_nodes)?;
            match self.find_slots(transaction, keys, lookups, entries, now_secs) {
                Ok(key_slots) => return Ok(key_slots),
                Err(WouldBlock(key_node)) => {
                    transaction.unlock_all();
                    key_nodes.push(key_node);
                }
            }
        }
    }

    fn find_slots<'a, K: Key>(
        &'a self,
        transaction: &mut Transaction<'a>,
        keys: &[K],
        lookups: &[Lookup<'a>],
        entries: &[PendingEntry],
        now_secs: u32,
    ) -> Result<KeySlots<'a>, WouldBlock<'a>> {
        // Find all keys before allocating any slot: an expired node of a later key must not go to an earlier one.
        let mut found = KeySlots::with_capacity(keys.len());
        for (index, (key, lookup)) in keys.iter().zip(lookups).enumerate() {
            let first = entries[index].first;
            let is_first = first == index;
            found.push(if is_first {
                transaction.find(key, lookup, now_secs)?
            } else {
                found[first]
            });
        }
        let freed_until = self.freed_until(now_secs);
        let mut key_slots = KeySlots::with_capacity(keys.len());
        for (index, (lookup, found)) in lookups.iter().zip(found).enumerate() {
            let first = entries[index].first;
            let key_slot = match found {
                Some(key_slot) => Some(key_slot),
                None if first < index => key_slots[first],
                None => transaction.allocate(lookup, freed_until, self.eviction)?,
            };
            key_slots.push(key_slot);
        }
        Ok(key_slots)
    }

    /// Fills in the image of the node before the update. Returns whether the key is new, and its expiry. A
    /// damaged node poisons the memory: sealing it again would hide the damage.
    #[inline]
    fn load(
        &self,
        key_slot: Option<&KeySlot<'_>>,
        stored: &StoredKey,
        image: &mut [u64],
    ) -> Result<(bool, u64), UpdateError> {
        if let Some(key_slot) = key_slot.filter(|key_slot| key_slot.is_live()) {
            key_slot.key_node.read(key_slot.slot, image);
            if !is_sealed(image, self.seed()) {
                self.memory.poison();
                return Err(UpdateError::DataLoss);
            }
            return Ok((false, nanos(expires_secs(image[image.len() - 1]))));
        }
        image.fill(0);
        (image[ESTIMATE], image[IDENTITY]) = (stored.estimate, stored.identity);
        Ok((true, 0))
    }

    /// The error for a key to be written that has no slot.
    #[cold]
    fn full(&self, transaction: &Transaction<'_>, lookup: &Lookup<'_>) -> UpdateError {
        transaction.count_refused();
        let (key, class) = (lookup.stored, lookup.home.id.class);
        UpdateError::Full { key, class, nodes: lookup.nodes() }
    }

    /// Completes the image of a node, and decides whether to write it.
    #[inline]
    fn outcome(
        &self,
        key_slot: Option<&KeySlot<'_>>,
        expires_at: u64,
        now_secs: u32,
        image: &mut [u64],
    ) -> Outcome {
        let expires = secs_up(expires_at);
        let live = key_slot.filter(|key_slot| key_slot.is_live());
        if !is_worth_keeping(image, expires, now_secs) {
            return if live.is_some() { Outcome::Erase } else { Outcome::Keep };
        }
        seal(image, expires, self.seed());
        let is_same = live.is_some_and(|key_slot| key_slot.key_node.equals(key_slot.slot, image));
        if is_same { Outcome::Keep } else { Outcome::Write }
    }

    /// Passes the entries of `keys`, in their order, to `decide`, then writes the changed ones: all or none, for
    /// other threads and processes and after a kill. A repeated key has one entry. Keys of both classes may be mixed.
    ///
    /// A new key without room has an entry of zeros as well, so that a caller can find out from the other
    /// keys that there is nothing to remember. The update fails only if `decide` leaves something in it.
    ///
    /// Otherwise as [`Cluster::update`]. One update takes at most 256 narrow keys, or some 90 wide ones.
    ///
    /// # Errors
    ///
    /// As [`Cluster::update`], and if there are too many keys.
    pub fn update_many<K: Key, T>(
        &self,
        keys: &[K],
        now: u64,
        decide: impl FnOnce(&mut Entries<'_>) -> T,
    ) -> Result<T, UpdateError> {
        if let [key] = keys {
            // Nearly all updates are of one key that has a node.
            let (lookup, now_secs) = (self.lookup(key)?, secs_down(now));
            prefetch_single(&lookup);
            let held = self.acquire()?;
            if let Some(mut live) = self.find_live_at_home(&held, key, &lookup, now_secs) {
                let answer = live.decide(decide);
                self.write_back(live, now_secs)?;
                return Ok(answer);
            }
        }
        self.update_many_slow(keys, now, decide)
    }

    fn update_many_slow<K: Key, T>(
        &self,
        keys: &[K],
        now: u64,
        decide: impl FnOnce(&mut Entries<'_>) -> T,
    ) -> Result<T, UpdateError> {
        let mut lookups = SmallVec::<[Lookup<'_>; KEYS_INLINE]>::with_capacity(keys.len());
        let mut entries = SmallVec::<[PendingEntry; KEYS_INLINE]>::with_capacity(keys.len());
        let mut words = 0;
        // First, as the work below grows with the number of keys.
        check_size(keys.len(), keys.len() * NARROW_WORDS)?;
        for (index, key) in keys.iter().enumerate() {
            let lookup = self.lookup(key)?;
            prefetch(lookup.home.words(), 0);
            let first = lookups.iter().zip(keys).position(|(earlier, other)| {
                earlier.home.id.class == lookup.home.id.class
                    && other.compare(&earlier.stored, &lookup.stored)
            });
            let first = first.unwrap_or(index);
            let len = if first == index { lookup.class.layout.node_words } else { 0 };
            entries.push(PendingEntry {
                first,
                start: words,
                end: words + len,
                ..Default::default()
            });
            words += len;
            lookups.push(lookup);
        }
        check_size(keys.len(), words)?;
        lookups.iter().for_each(prefetch_tagged);
        let mut images: SmallVec<[u64; KEYS_INLINE * NARROW_WORDS]> = SmallVec::from_elem(0, words);
        let now_secs = secs_down(now);
        let held = self.acquire()?;
        let mut transaction = Transaction::new(&self.memory, &self.writers, held.writer);
        let key_slots = self.lock_many(&mut transaction, keys, &lookups, &entries, now_secs)?;
        for (index, (entry, key_slot)) in entries.iter_mut().zip(&key_slots).enumerate() {
            if entry.first == index {
                let image = &mut images[entry.start..entry.end];
                let loaded = self.load(key_slot.as_ref(), &lookups[index].stored, image)?;
                (entry.is_new, entry.expires_at) = loaded;
                entry.room = room(key_slot.as_ref());
            }
        }
        let answer = decide(&mut Entries { entries: &mut entries, words: &mut images });
        for (entry, key_slot) in
            entries.iter_mut().zip(&key_slots).filter(|(entry, _)| entry.end > entry.start)
        {
            let image = &mut images[entry.start..entry.end];
            entry.outcome = self.outcome(key_slot.as_ref(), entry.expires_at, now_secs, image);
        }
        let mut all = entries.iter().zip(&key_slots).zip(&lookups);
        let without_slot =
            all.find(|((entry, key_slot), _)| entry.outcome != Outcome::Keep && key_slot.is_none());
        if let Some((_, lookup)) = without_slot {
            return Err(self.full(&transaction, lookup));
        }
        let changes = entries.iter().zip(&key_slots).zip(&lookups).filter_map(
            |((entry, key_slot), lookup)| {
                let image = match entry.outcome {
                    Outcome::Keep => return None,
                    Outcome::Write => Some(&images[entry.start..entry.end]),
                    Outcome::Erase => None,
                };
                Some(Change { key_slot: (*key_slot)?, home: lookup.home, image })
            },
        );
        if changes.clone().next().is_some() {
            transaction.commit(changes);
        }
        drop(transaction);
        self.check_intact()?;
        Ok(answer)
    }
}

/// A live narrow node, contiguous and at the home of its key, with the lock held.
struct LiveNode<'a> {
    lock: HomeLock<'a>,
    slot: u32,
    words: &'a [AtomicU64; NARROW_WORDS],
    image: [u64; NARROW_WORDS],
    expires_at: u64,
}

impl LiveNode<'_> {
    #[inline(always)]
    fn decide<T>(&mut self, decide: impl FnOnce(&mut Entries<'_>) -> T) -> T {
        let (end, expires_at) = (NARROW_WORDS, self.expires_at);
        let mut entry = [PendingEntry { end, expires_at, ..PendingEntry::default() }];
        let answer = decide(&mut Entries { entries: &mut entry, words: &mut self.image });
        self.expires_at = entry[0].expires_at;
        answer
    }
}

type KeySlots<'a> = SmallVec<[Option<KeySlot<'a>>; KEYS_INLINE]>;

/// Locks the home of a key. Locks its alternate too if `act` needs it and cannot get it directly.
#[inline]
pub(super) fn lock_one<'a, T>(
    transaction: &mut Transaction<'a>,
    lookup: &Lookup<'a>,
    mut act: impl FnMut(&mut Transaction<'a>) -> Result<T, WouldBlock<'a>>,
) -> Result<T, UpdateError> {
    transaction.lock_all(&[lookup.home])?;
    loop {
        match act(transaction) {
            Ok(value) => return Ok(value),
            Err(WouldBlock(other)) => {
                transaction.unlock_all();
                let (first, second) = if other.id < lookup.home.id {
                    (other, lookup.home)
                } else {
                    (lookup.home, other)
                };
                transaction.lock_all(&[first, second])?;
            }
        }
    }
}

#[inline]
fn room(key_slot: Option<&KeySlot<'_>>) -> Room {
    match key_slot.map(|key_slot| key_slot.occupant) {
        Some(Occupant::Live | Occupant::Expired | Occupant::Free) => Room::Available,
        Some(Occupant::Victim) => Room::ByEviction,
        None => Room::Full,
    }
}

/// Prefetches the head of a key's home and, before its tags are known, the two slots where the node most likely is.
#[inline]
pub(super) fn prefetch_single(lookup: &Lookup<'_>) {
    let (words, layout) = (lookup.home.words(), lookup.home.layout());
    let first_choice = layout.first_choice(&lookup.stored);
    prefetch(words, 0);
    prefetch(words, layout.node_at(first_choice).first);
    prefetch(words, layout.node_at(layout.second_choice(first_choice)).first);
}

/// Prefetches the node that the tags in the head of a key's home point to. The head is cached by now. A hint
/// only: no lock is held.
#[inline]
pub(super) fn prefetch_tagged(lookup: &Lookup<'_>) {
    let (key_node, layout) = (lookup.home, lookup.home.layout());
    if let Some(slot) = key_node.first_tagged(lookup.stored.tag(), |_| true) {
        let at = layout.node_at(slot);
        if at.stride == 1 {
            prefetch_run(key_node.words(), at.first, layout.node_words);
        }
    }
}

fn check_size(keys: usize, words: usize) -> Result<(), UpdateError> {
    let words = words + keys * RECORD_WORDS_BESIDES_IMAGE;
    if keys <= KEYS_MAX && words <= JOURNAL_WORDS {
        return Ok(());
    }
    Err(UpdateError::TooLarge { keys, words, keys_max: KEYS_MAX, words_max: JOURNAL_WORDS })
}
