//! A worker's own table: what it took of the leases, and what it knows of denials. Bounded, and
//! found by key without a host call or an allocation.
//!
//! Set-associative: a key has [`WAYS`] places. The one that is given up for a new key is the one
//! longest unused, first among those without tokens; tokens that it held are handed to the caller.

use super::descriptor_state::Entry;
use super::token_pool::Held;
use crate::request::descriptors::LeaseKey;
use tidegate_core::Timestamp;

const WAYS: usize = 8;
const SETS: usize = 256;
/// How many descriptors a worker knows: 2,048, in at most 0.6 MB beside the entries of those that hold
/// tokens.
pub(crate) const PLACES: usize = WAYS * SETS;
const _: () = assert!(PLACES * (size_of::<Local>() + size_of::<Option<LeaseKey>>()) <= 600_000);

/// What a worker knows of one descriptor.
#[derive(Debug, Clone, Default)]
pub(crate) struct Local {
    /// Its tokens, denial, limit and own demand. `told.remaining` has the slot's tokens in it.
    pub(crate) entry: Entry,
    /// The descriptor's entries, by which tokens are given back; empty unless it has, or had, tokens.
    pub(crate) entries: Box<[u8]>,
    /// When a request last needed it.
    pub(crate) used: Timestamp,
    /// Until when it is known that the sidecar leases nothing of it.
    pub(crate) unleased_until: Timestamp,
    /// Tokens were spent since the last tick.
    pub(crate) spent: bool,
}

/// Tokens that lost their place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Loose {
    /// Whose they are.
    pub(crate) key: LeaseKey,
    /// The descriptor's entries.
    pub(crate) entries: Box<[u8]>,
    /// The tokens.
    pub(crate) held: Held,
}

/// The table.
#[derive(Debug)]
pub(crate) struct Locals {
    /// Apart from what they lead to: looking for a key reads two cache lines.
    keys: Vec<Option<LeaseKey>>,
    places: Vec<Local>,
    /// A bit for each place that is visited at ticks.
    watched: Vec<u64>,
}

impl Locals {
    /// A table without memory: it has none until its first key, since the machine of Envoy's main
    /// thread never gets a request.
    pub(crate) fn new() -> Locals {
        Locals { keys: Vec::new(), places: Vec::new(), watched: Vec::new() }
    }

    #[cold]
    fn furnish(&mut self) {
        self.keys.resize(PLACES, None);
        self.places.resize_with(PLACES, Local::default);
        self.watched.resize(PLACES.div_ceil(64), 0);
    }

    /// Where `key` is.
    pub(crate) fn find(&self, key: LeaseKey) -> Option<usize> {
        let first = first_place(key);
        let keys = self.keys.get(first..first.saturating_add(WAYS))?;
        let way = keys.iter().position(|other| *other == Some(key))?;
        Some(first.saturating_add(way))
    }

    /// What is at a place.
    pub(crate) fn get(&self, place: usize) -> Option<&Local> {
        self.places.get(place)
    }

    /// What is at a place.
    pub(crate) fn get_mut(&mut self, place: usize) -> Option<&mut Local> {
        self.places.get_mut(place)
    }

    /// What is known of `key`, if it is still at this place.
    pub(crate) fn at(&self, place: usize, key: LeaseKey) -> Option<&Local> {
        self.keys.get(place).filter(|there| **there == Some(key))?;
        self.places.get(place)
    }

    /// As [`Locals::at`], to be changed.
    pub(crate) fn at_mut(&mut self, place: usize, key: LeaseKey) -> Option<&mut Local> {
        self.keys.get(place).filter(|there| **there == Some(key))?;
        self.places.get_mut(place)
    }

    /// What is known of `key`.
    pub(crate) fn of(&self, key: LeaseKey) -> Option<&Local> {
        self.places.get(self.find(key)?)
    }

    /// What is known of `key`.
    pub(crate) fn of_mut(&mut self, key: LeaseKey) -> Option<&mut Local> {
        let place = self.find(key)?;
        self.places.get_mut(place)
    }

    /// The place of `key`, made if need be; and what the one before it there leaves.
    pub(crate) fn place_of(&mut self, key: LeaseKey, now: Timestamp) -> (usize, Vec<Loose>) {
        if let Some(place) = self.find(key) {
            return (place, Vec::new());
        }
        if self.keys.is_empty() {
            self.furnish();
        }
        let first = first_place(key);
        let ways = first..first.saturating_add(WAYS);
        let rank = |place: &usize| {
            let free = self.keys.get(*place).is_some_and(Option::is_none);
            let local = self.places.get(*place);
            let used = local.map(|local| local.used).unwrap_or_default();
            // Visited at ticks are those with tokens, here or in their slot: without a visit they would
            // stay charged until their window ends.
            let holds = local.is_some_and(|local| local.entry.purse.left(now) > 0);
            (!free, holds || self.is_watched(*place), used)
        };
        let place = ways.min_by_key(rank).unwrap_or(first);
        let old = self.keys.get_mut(place).and_then(|slot| slot.replace(key));
        let left = self.places.get_mut(place).map(std::mem::take).unwrap_or_default();
        self.watch(place, Watch::No);
        let loose = old.map(|key| loose_of(key, &left, now)).unwrap_or_default();
        (place, loose)
    }

    fn is_watched(&self, place: usize) -> bool {
        self.watched.get(place >> 6).is_some_and(|word| (word >> (place & 63)) & 1 == 1)
    }

    /// Has a place visited at ticks, or no longer.
    pub(crate) fn watch(&mut self, place: usize, watch: Watch) {
        let bit = 1_u64 << (place & 63);
        if let Some(word) = self.watched.get_mut(place >> 6) {
            match watch {
                Watch::Yes => *word |= bit,
                Watch::No => *word &= !bit,
            }
        }
    }

    /// How many places are visited at ticks.
    pub(crate) fn watched(&self) -> usize {
        let ones = self.watched.iter().map(|word| word.count_ones());
        usize::try_from(ones.fold(0, u32::saturating_add)).unwrap_or(usize::MAX)
    }

    /// The first place from `place` on that is visited at ticks, and its key.
    pub(crate) fn next_watched(&self, place: usize) -> Option<(usize, LeaseKey)> {
        let mut word_at = place >> 6;
        let mut word = self.watched.get(word_at)? & (u64::MAX << (place & 63));
        while word == 0 {
            word_at = word_at.saturating_add(1);
            word = *self.watched.get(word_at)?;
        }
        let place = (word_at << 6) | usize::try_from(word.trailing_zeros()).ok()?;
        Some((place, self.keys.get(place).copied().flatten()?))
    }
}

/// Whether a place is visited at ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Watch {
    /// It is.
    Yes,
    /// It is not.
    No,
}

fn first_place(key: LeaseKey) -> usize {
    let set = usize::try_from(key.0 & 0xffff).unwrap_or(0) & (SETS - 1);
    set.saturating_mul(WAYS)
}

fn loose_of(key: LeaseKey, local: &Local, now: Timestamp) -> Vec<Loose> {
    let live = local.entry.purse.each().filter(|held| now < held.ends);
    live.map(|held| Loose { key, entries: local.entries.clone(), held }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Timestamp {
        Timestamp::from_nanos(nanos)
    }

    /// Keys of one set.
    fn key(number: u128) -> LeaseKey {
        LeaseKey(number << 32 | 5)
    }

    #[test]
    fn the_place_longest_unused_is_given_up_first_among_those_without_tokens() {
        let mut locals = Locals::new();
        let held = Held { id: 9, left: 3, granted: 3, ends: at(1_000) };
        for number in 0..8_u32 {
            let (place, loose) = locals.place_of(key(number.into()), at(0));
            assert_eq!(loose, []);
            let local = locals.get_mut(place).unwrap();
            local.used = at(u64::from(number));
            local.entries = Box::from(&[number as u8][..]);
            if number != 5 {
                local.entry.grant(held, at(0)).unwrap();
            }
        }
        let (place, loose) = locals.place_of(key(8), at(10));
        assert_eq!((loose, locals.find(key(5)), locals.find(key(8))), (vec![], None, Some(place)));
        let local = locals.get_mut(place).unwrap();
        local.entry.grant(held, at(0)).unwrap();
        local.used = at(10);
        let (_, loose) = locals.place_of(key(9), at(10));
        assert_eq!(loose, [Loose { key: key(0), entries: Box::from(&[0][..]), held }]);
    }

    #[test]
    fn watched_places_are_found_in_order() {
        let mut locals = Locals::new();
        let mut places: Vec<usize> = [3, 64, 700]
            .into_iter()
            .map(|number| {
                let (place, _) = locals.place_of(LeaseKey(number), at(0));
                locals.watch(place, Watch::Yes);
                place
            })
            .collect();
        places.sort_unstable();
        let mut found = Vec::new();
        let mut from = 0;
        while let Some((place, _)) = locals.next_watched(from) {
            found.push(place);
            from = place + 1;
        }
        assert_eq!((found, locals.watched()), (places.clone(), 3));
        locals.watch(places[1], Watch::No);
        assert_eq!(locals.watched(), 2);
        assert_eq!(locals.next_watched(PLACES), None);
    }
}
