//! The store: finds the nodes of the keys, gives their entries to the caller, writes them back.
//!
//! Owns the update of several keys as one step for the threads of this process. All locks are held
//! and every place is found before the caller's closure runs, and nothing is written before it
//! returned, so an error or a panic changes no entry. For a kill each key is a step of its own: see
//! [`Store::update_many`].

use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;

use crate::error::{OpenError, UpdateError};
use crate::file::{CounterFile, Options};
use crate::header::{CHAIN_NODES, Header};
use crate::key::{Entry, Key};
use crate::node::{Held, Node};
use crate::region::Region;
use crate::stats::{Counts, Stats};
use crate::stripes::{Claim, Stripes};

/// Calls with up to this many keys do not allocate: the working arrays then take about 1.3 KiB of
/// stack. A request seldom matches more than a handful of limits.
const KEYS_INLINE: usize = 8;

/// An open counter store.
///
/// There is one owner at a time: the store is locked until it is dropped or its process ends.
pub struct Store {
    header: Header,
    // Declared before the lock, so dropped before it: what is mapped is always locked.
    region: Region,
    stripes: Stripes,
    counts: Counts,
    /// Nothing reads it; absent in tests over the heap.
    _lock: Option<File>,
}

/// Where one key of a call lives.
#[derive(Clone, Copy, Default)]
struct Place {
    chain: u64,
    /// Position in the chain; unset until a node is found or reserved.
    node: Option<u64>,
    /// The current copy, if the node is this key's already.
    held: Option<Held>,
    presence: Presence,
}

impl Place {
    /// The entry that the closure gets: zero unless the key is live.
    fn before(&self) -> Entry {
        match (self.presence, self.held) {
            (Presence::Live, Some(held)) => held.entry,
            _ => Entry::default(),
        }
    }
}

/// What the store knows of a key before a call.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Presence {
    Live,
    /// New or expired; its place is free to take.
    #[default]
    Absent,
    /// As `Absent`, and its place still holds the expired entry of another key.
    Displacing,
}

impl Store {
    /// Opens the store in `dir`, and makes the directory and the store if they are missing.
    ///
    /// The size of an existing store wins over `options`. Does not wait for another owner: one that
    /// is just dying may hold the store for a moment longer, so a caller that replaces it tries
    /// again upon [`OpenError::InUse`].
    ///
    /// # Errors
    ///
    /// If the options are out of range, the store is in use, or its file is not a whole counter file
    /// of this format (it stays as it is).
    pub fn open(dir: &Path, options: &Options) -> Result<Self, OpenError> {
        let CounterFile { header, region, lock } = CounterFile::open(dir, options)?;
        Ok(Self::over(header, region, Some(lock)))
    }

    fn over(header: Header, region: Region, lock: Option<File>) -> Self {
        let (stripes, counts) = (Stripes::new(), Counts::default());
        Self { header, region, stripes, counts, _lock: lock }
    }

    /// The random seed of this store, to hash keys with. Never changes during the store's life.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.header.seed
    }

    /// How many keys the store has nodes for.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.header.capacity()
    }

    /// What the store has done since it was opened.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.counts.stats(self.capacity())
    }

    /// Writes all changes to the disk and waits for it.
    ///
    /// Only against loss of power: what a killed process wrote is safe without.
    ///
    /// # Errors
    ///
    /// If the disk fails.
    pub fn sync(&self) -> io::Result<()> {
        self.region.sync()
    }

    /// Gives the entries of `keys`, in their order, to `decide`, then writes those it changed.
    ///
    /// A key that is new, or whose entry has expired at `now` (nanoseconds since the Unix epoch), has
    /// an entry of zeros. Such a key takes up a node only if `decide` leaves it with a state that is
    /// not all zero and an expiry after `now`. To erase an entry, let it expire.
    ///
    /// To the other threads this is one step. A kill in the middle leaves each key either as it was
    /// or as it was decided, some keys of the call perhaps the one and some the other.
    ///
    /// `decide` runs under the locks of the keys, so it must be quick, and must not call the store. If
    /// it panics, nothing is written and the store stays usable.
    ///
    /// # Errors
    ///
    /// If a key is given twice, or a key that is absent finds all nodes of its chain live. `decide` is
    /// not called then, and no entry changes.
    pub fn update_many<T>(
        &self,
        keys: &[Key],
        now: u64,
        decide: impl FnOnce(&mut [Entry]) -> T,
    ) -> Result<T, UpdateError> {
        refuse_repeated(keys)?;
        let (mut few, mut many) = (Default::default(), Vec::new());
        let places: &mut [Place] = working_space(&mut few, &mut many, keys.len());
        let (mut few, mut many) = (Default::default(), Vec::new());
        let entries: &mut [Entry] = working_space(&mut few, &mut many, keys.len());
        let (mut few, mut many) = (Default::default(), Vec::new());
        let claims: &mut [Claim<'_>] = working_space(&mut few, &mut many, keys.len());

        for ((key, place), claim) in keys.iter().zip(&mut *places).zip(&mut *claims) {
            place.chain = key.chain(self.header.chain_count);
            claim.chain = place.chain;
        }
        self.stripes.lock(claims);
        // All keys are found before any place is reserved: an expired node in which a later key of
        // this call lives must not be given to an earlier one.
        for (key, place) in keys.iter().zip(&mut *places) {
            self.find(*key, now, place);
        }
        self.reserve(keys, now, places).inspect_err(|_| self.counts.refused.add(1))?;
        for (entry, place) in entries.iter_mut().zip(&*places) {
            *entry = place.before();
        }
        let answer = decide(entries);
        self.write(keys, now, places, entries);
        Ok(answer)
    }

    /// Finds the node of `key`, if it has one, and its entry.
    fn find(&self, key: Key, now: u64, place: &mut Place) {
        for index in 0..CHAIN_NODES {
            let node = self.node(place.chain, index);
            if !node.is_of(key) {
                continue;
            }
            // An invalid node is freed, and does not hide a valid one further on.
            let Some(held) = self.read_or_drop(node) else { continue };
            place.node = Some(index);
            place.held = Some(held);
            if !held.entry.is_expired(now) {
                place.presence = Presence::Live;
            }
            return;
        }
    }

    /// Finds a node for every key that has none. Only `places` is changed.
    fn reserve(&self, keys: &[Key], now: u64, places: &mut [Place]) -> Result<(), UpdateError> {
        for (index, &key) in keys.iter().enumerate() {
            if places[index].node.is_some() {
                continue;
            }
            let chain = places[index].chain;
            let is_taken = |node: u64| {
                places.iter().any(|place| place.chain == chain && place.node == Some(node))
            };
            let Some((node, presence)) = self.vacancy(chain, now, is_taken) else {
                return Err(UpdateError::ChainFull { key, chain, nodes: CHAIN_NODES });
            };
            places[index].node = Some(node);
            places[index].presence = presence;
        }
        Ok(())
    }

    /// The node to give to a new key: a free one, else the one that expired the longest ago.
    fn vacancy(
        &self,
        chain: u64,
        now: u64,
        is_taken: impl Fn(u64) -> bool,
    ) -> Option<(u64, Presence)> {
        let mut nodes = 0..CHAIN_NODES;
        if let Some(free) = nodes.find(|&node| self.node(chain, node).is_free() && !is_taken(node))
        {
            return Some((free, Presence::Absent));
        }
        let mut oldest = None;
        for node in (0..CHAIN_NODES).filter(|&node| !is_taken(node)) {
            let Some(held) = self.read_or_drop(self.node(chain, node)) else {
                return Some((node, Presence::Absent));
            };
            let expires_at = held.entry.expires_at;
            if held.entry.is_expired(now) && oldest.is_none_or(|(least, _)| expires_at < least) {
                oldest = Some((expires_at, node));
            }
        }
        oldest.map(|(_, node)| (node, Presence::Displacing))
    }

    /// Writes the entries that changed.
    fn write(&self, keys: &[Key], now: u64, places: &[Place], entries: &[Entry]) {
        for ((&key, place), entry) in keys.iter().zip(places).zip(entries) {
            let is_kept = entry.state != [0; 4] && !entry.is_expired(now);
            if *entry == place.before() || (place.presence != Presence::Live && !is_kept) {
                continue;
            }
            let Some(node) = place.node else { continue };
            let node = self.node(place.chain, node);
            match &place.held {
                Some(held) => node.update(held, entry),
                None => node.claim(key, entry),
            }
            self.counts.updates.add(1);
            self.counts.created.add(u64::from(place.presence != Presence::Live));
            self.counts.evicted_expired.add(u64::from(place.presence == Presence::Displacing));
        }
    }

    /// The entry of a node. A node which is not free and has none is freed.
    fn read_or_drop(&self, node: Node<'_>) -> Option<Held> {
        let held = node.read();
        if held.is_none() && !node.is_free() {
            node.free();
            self.counts.dropped_invalid.add(1);
        }
        held
    }

    fn node(&self, chain: u64, node: u64) -> Node<'_> {
        Node::new(&self.region, Header::node_base(chain, node), self.header.seed)
    }
}

impl fmt::Debug for Store {
    /// Leaves out the seed: who reads a log must not learn how to aim keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// `len` default values: on the stack if they are few.
fn working_space<'a, T: Default>(
    few: &'a mut [T; KEYS_INLINE],
    many: &'a mut Vec<T>,
    len: usize,
) -> &'a mut [T] {
    if len <= KEYS_INLINE {
        return &mut few[..len];
    }
    many.resize_with(len, T::default);
    many
}

fn refuse_repeated(keys: &[Key]) -> Result<(), UpdateError> {
    for (at, &key) in keys.iter().enumerate() {
        if keys[..at].contains(&key) {
            return Err(UpdateError::RepeatedKey { key });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
