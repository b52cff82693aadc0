//! The entry of a key: its state and its expiry, as callers read and change them.

use smallvec::SmallVec;

use crate::format::Hashed;
use crate::format::node::STATE;

const SECOND: u64 = 1_000_000_000;

/// The entry of a key, to read and change.
///
/// A new or expired key has a state of zeros and an expiry of 0. An entry whose state is left all zero, or
/// whose expiry is not in the future, is erased.
#[derive(Debug)]
pub struct EntryMut<'a> {
    /// The state words, four in a narrow node. Their meaning is the caller's.
    pub state: &'a mut [u64],
    /// When the entry expires, in nanoseconds since the Unix epoch. Stored in whole seconds, rounded up, so
    /// an entry may live up to a second longer. At most the year 2106.
    pub expires_at: &'a mut u64,
    pub(crate) is_new: bool,
    pub(crate) room: Room,
}

/// Whether there is a node for an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Room {
    /// There is one.
    #[default]
    Available,
    /// Only by evicting a live entry of another key ([`Eviction::EvictSoonestExpiry`](crate::Eviction)).
    ByEviction,
    /// None: an update that leaves something in the entry fails.
    Full,
}

impl EntryMut<'_> {
    /// Whether the key had no entry, or an expired one.
    #[must_use]
    pub const fn is_new(&self) -> bool {
        self.is_new
    }

    /// Whether there is a node for the entry. Callers that can do without an entry check this before they change it.
    #[must_use]
    pub const fn room(&self) -> Room {
        self.room
    }
}

/// A copy of an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The state words.
    pub state: SmallVec<[u64; 4]>,
    /// When the entry expires, in nanoseconds since the Unix epoch.
    pub expires_at: u64,
}

impl Entry {
    /// An entry with this state.
    #[must_use]
    pub fn new(state: &[u64], expires_at: u64) -> Self {
        Self { state: SmallVec::from_slice(state), expires_at }
    }

    /// Whether the entry has expired at `now`. It has at the very moment of its expiry.
    #[must_use]
    pub const fn is_expired(&self, now: u64) -> bool {
        self.expires_at <= now
    }
}

/// The entries of the keys of one update, in the order of the keys.
#[derive(Debug)]
pub struct Entries<'a> {
    pub(crate) entries: &'a mut [PendingEntry],
    pub(crate) words: &'a mut [u64],
}

/// One key of an update, and where the image of its node is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PendingEntry {
    /// The index of the key's first occurrence in this update.
    pub(crate) first: usize,
    /// The range of the image's words.
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) expires_at: u64,
    pub(crate) is_new: bool,
    pub(crate) room: Room,
    pub(crate) outcome: Outcome,
}

/// The effect of an update on the node of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Outcome {
    #[default]
    Keep,
    Write,
    Erase,
}

impl Entries<'_> {
    /// The number of keys of the update.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the update has no keys.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entry of key number `index`. Equal keys share one entry.
    ///
    /// # Panics
    ///
    /// If there is no such key.
    #[inline]
    pub fn get(&mut self, index: usize) -> EntryMut<'_> {
        let entry = &mut self.entries[self.entries[index].first];
        EntryMut {
            state: &mut self.words[entry.start + STATE..entry.end - 1],
            expires_at: &mut entry.expires_at,
            is_new: entry.is_new,
            room: entry.room,
        }
    }
}

/// Entries that were loaded from elsewhere, for the update functions of [`Cluster::update_many`](crate::Cluster).
#[derive(Debug)]
pub struct LoadedEntries {
    entries: SmallVec<[PendingEntry; 2]>,
    words: SmallVec<[u64; 16]>,
}

impl LoadedEntries {
    /// The entry of each key, as `load` returns it. A new key has a state of zeros and an expiry of 0. Equal keys
    /// share one entry, which is loaded once.
    pub fn new(keys: &[Hashed], mut load: impl FnMut(&Hashed) -> Entry) -> Self {
        let mut loaded =
            Self { entries: SmallVec::with_capacity(keys.len()), words: SmallVec::new() };
        for (index, key) in keys.iter().enumerate() {
            let first = keys[..index].iter().position(|earlier| earlier == key);
            let Entry { state, expires_at } = match first {
                None => load(key),
                Some(_) => Entry::default(),
            };
            // As in the image of a node, words surround the state.
            let start = loaded.words.len();
            loaded.words.resize(start + STATE, 0);
            loaded.words.extend_from_slice(&state);
            loaded.words.push(0);
            let (first, end, is_new) =
                (first.unwrap_or(index), loaded.words.len(), expires_at == 0);
            let pending =
                PendingEntry { first, start, end, expires_at, is_new, ..Default::default() };
            loaded.entries.push(pending);
        }
        loaded
    }

    /// The entries, to read and change.
    pub fn entries(&mut self) -> Entries<'_> {
        Entries { entries: &mut self.entries, words: &mut self.words }
    }
}

/// A time in seconds, rounded up, at most 2^32 - 1.
#[inline]
pub(crate) const fn secs_up(nanos: u64) -> u32 {
    let secs = nanos.div_ceil(SECOND);
    if secs > u32::MAX as u64 { u32::MAX } else { secs as u32 }
}

/// A time in seconds, rounded down, at most 2^32 - 1.
#[inline]
pub(crate) const fn secs_down(nanos: u64) -> u32 {
    let secs = nanos / SECOND;
    if secs > u32::MAX as u64 { u32::MAX } else { secs as u32 }
}

/// The start of a second, in nanoseconds.
#[inline]
pub(crate) const fn nanos(secs: u32) -> u64 {
    secs as u64 * SECOND
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_update_has_an_entry_for_each_of_its_keys() {
        for count in 0..3_usize {
            let keys: Vec<_> = (0..count as u128).map(Hashed::narrow).collect();
            let mut loaded = LoadedEntries::new(&keys, |_| Entry::new(&[7], SECOND));
            let mut entries = loaded.entries();
            assert_eq!((entries.len(), entries.is_empty()), (count, count == 0));
            for index in 0..count {
                assert_eq!(entries.get(index).state, [7]);
            }
        }
    }

    #[test]
    fn an_expiry_is_never_shortened_by_rounding() {
        for at in [0, 1, SECOND - 1, SECOND, SECOND + 1, 4_000_000_000 * SECOND + 5] {
            assert!(nanos(secs_up(at)) >= at && nanos(secs_up(at)) < at + SECOND);
            assert!(nanos(secs_down(at)) <= at);
        }
        assert_eq!(secs_up(u64::MAX), u32::MAX);
        assert_eq!(secs_down(u64::MAX), u32::MAX);
    }
}
