//! What a caller gets to see and change: the state of a key, and when it stops to count.

use smallvec::SmallVec;

use crate::format::node::STATE;

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

/// The entry of a key, to be read and changed.
///
/// A key that is new or has expired has a state of zeros and an expiry of 0. An entry whose state is
/// left all zero, or whose expiry is not after the present, is erased: there is nothing to remember.
#[derive(Debug)]
pub struct EntryMut<'a> {
    /// The state words, four in a narrow node. They belong to the caller.
    pub state: &'a mut [u64],
    /// When the entry stops to count, in nanoseconds since the Unix epoch. Kept in whole seconds,
    /// rounded up, so it may count up to a second longer; at most until the year 2106.
    pub expires_at: &'a mut u64,
    pub(crate) is_new: bool,
    pub(crate) room: Room,
}

/// Whether an entry that is to be kept has a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Room {
    /// It has one.
    #[default]
    Available,
    /// Only if a live entry of another key gives way ([`Eviction::EvictSoonestExpiry`](crate::Eviction)).
    ByEviction,
    /// No: an update that leaves something in it fails.
    Full,
}

impl EntryMut<'_> {
    /// Whether the key had no entry, or one that has expired.
    #[must_use]
    pub const fn is_new(&self) -> bool {
        self.is_new
    }

    /// Whether there is a node for it. Who can do without an entry looks here before it is changed.
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
    /// When the entry stops to count, in nanoseconds since the Unix epoch.
    pub expires_at: u64,
}

impl Entry {
    /// An entry of this state.
    #[must_use]
    pub fn new(state: &[u64], expires_at: u64) -> Self {
        Self { state: SmallVec::from_slice(state), expires_at }
    }

    /// Whether the entry no longer counts at `now`; the moment of expiry itself is past.
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

/// One key of an update, and where the image of its node is being made.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PendingEntry {
    /// The index of the key's first mention in this update.
    pub(crate) first: usize,
    /// The words of the image.
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) expires_at: u64,
    pub(crate) is_new: bool,
    pub(crate) room: Room,
    pub(crate) outcome: Outcome,
}

/// What an update does to the node of a key.
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

    /// The entry of key number `index`. Keys that are the same have the same entry.
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

/// The second in which a moment is over, at most 2^32 - 1.
#[inline]
pub(crate) const fn secs_up(nanos: u64) -> u32 {
    let secs = nanos.div_ceil(SECOND);
    if secs > u32::MAX as u64 { u32::MAX } else { secs as u32 }
}

/// The second in which a moment is, at most 2^32 - 1.
#[inline]
pub(crate) const fn secs_down(nanos: u64) -> u32 {
    let secs = nanos / SECOND;
    if secs > u32::MAX as u64 { u32::MAX } else { secs as u32 }
}

/// The beginning of a second.
#[inline]
pub(crate) const fn nanos(secs: u32) -> u64 {
    secs as u64 * SECOND
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

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
