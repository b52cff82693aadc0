//! The sums of one stripe: a table of descriptors that came lately, found by a hash of what they are and what they met.
//!
//! The hash has 128 bits and a secret seed, as those of counters have, so descriptors are not compared by name. When there is
//! no room, the one of a few that came least recently goes, and its sums are passed on. Visits in the order of places,
//! from the last to the first: a removed one gives its place to the last, so that a round misses none.

use crate::recorder::Sinks;
use crate::sum::{Hits, Last, Name, Pairs, Sum};
use hashbrown::HashTable;
use std::num::NonZeroU64;
use std::sync::Arc;
use tidegate_authority::Met;
use tidegate_core::Entry;
use tidegate_limits::Rule;
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// Of places, each of 128 bytes, and of the bytes of names in them: with an index of 5 bytes a place, some 6 MiB.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) places: usize,
    pub(crate) name_bytes: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds { places: 16 * 1024, name_bytes: 4 * 1024 * 1024 }
    }
}

/// Of these places, the one that was used least recently goes.
const CANDIDATES: usize = 8;
/// The time of a round of visits, while there is traffic.
const ROUND_MS: u64 = 1_000;
/// Visits at once: some 20 µs.
const VISITS_MAX: usize = 128;
/// What was not used for so long goes.
const IDLE_MS: u64 = 60_000;

#[derive(Debug)]
pub(crate) struct Table {
    bounds: Bounds,
    seed: u64,
    stripe: usize,
    places: Vec<Place>,
    /// From the hash to the place.
    index: HashTable<u32>,
    name: Name,
    name_bytes: usize,
    /// Where the next candidates are.
    candidates: usize,
    /// Places before this one are still to be visited in this round.
    round: usize,
    visited_at_ms: u64,
}

/// Two cache lines. The first one is that of sums.
#[derive(Debug)]
#[repr(C, align(64))]
struct Place {
    hash: u128,
    /// Since each sink heard of them.
    prompt: Hits,
    patient: Passed,
    at_ms: u64,
    retry_at_ms: Option<NonZeroU64>,
    /// [`NOT_KNOWN`] if it is not.
    remaining: u64,
    capacity: u32,
    kind: Kind,
    rule: Option<Arc<Rule>>,
    name: Box<[u8]>,
}

const _: () = assert!(size_of::<Place>() == 128);
const NOT_KNOWN: u64 = u64::MAX;

/// The part of [`Hits`] that is counted over a longer time.
#[derive(Debug, Clone, Copy, Default)]
struct Passed {
    allowed: u64,
    /// By any limit of the request.
    denied: u64,
}

/// What a descriptor met, beside its rule.
#[derive(Debug, Clone, Copy)]
enum Kind {
    UnknownDomain,
    NoRule,
    Replaced,
    Override,
    Rule,
}

/// Who hears of sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hearer {
    Prompt,
    Patient,
}

/// Whether a sink asked, or a request made it hear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    No,
    Yes,
}

/// The hits of a descriptor.
#[derive(Debug)]
pub(crate) struct Event<'a> {
    pub(crate) domain: &'a str,
    pub(crate) entries: &'a [Entry],
    pub(crate) met: Met<'a>,
    pub(crate) hits: Hits,
    pub(crate) last: Last,
}

impl Table {
    pub(crate) fn new(stripe: usize, seed: u64, bounds: Bounds) -> Table {
        Table {
            bounds,
            seed,
            stripe,
            places: Vec::new(),
            index: HashTable::new(),
            name: Name::new(),
            name_bytes: 0,
            candidates: 0,
            round: 0,
            visited_at_ms: 0,
        }
    }

    /// Adds hits. `keep` is the rule that the descriptor met, for a place of its own.
    pub(crate) fn record(
        &mut self,
        event: &Event<'_>,
        keep: impl FnOnce() -> Option<Arc<Rule>>,
        sinks: &Sinks,
    ) {
        let Some(name) = self.name.set(number(event.met), event.domain, event.entries) else {
            sinks.each(|sink| sink.add(&event.sum(self.stripe)));
            return;
        };
        let (hash, length) = (xxh3_128_with_seed(name, self.seed), name.len());
        let place = match self.find(hash) {
            Some(place) => place,
            None => self.enter(hash, length, event.met, keep(), sinks),
        };
        if let Some(place) = self.places.get_mut(place) {
            place.add(event, sinks);
        }
        let now_ms = event.last.at_ms;
        if sinks.prompt.is_some() && now_ms != self.visited_at_ms {
            self.visit_some(now_ms, sinks);
        }
    }

    #[inline]
    fn find(&self, hash: u128) -> Option<usize> {
        let is_it =
            |place: &u32| self.places.get(*place as usize).is_some_and(|it| it.hash == hash);
        self.index.find(hash as u64, is_it).map(|place| *place as usize)
    }

    /// Gives a place to the descriptor whose name was made last.
    #[cold]
    fn enter(
        &mut self,
        hash: u128,
        length: usize,
        met: Met<'_>,
        rule: Option<Arc<Rule>>,
        sinks: &Sinks,
    ) -> usize {
        while self.places.len() >= self.bounds.places
            || (self.name_bytes + length > self.bounds.name_bytes && !self.places.is_empty())
        {
            self.evict(sinks);
        }
        let index = self.places.len();
        self.name_bytes += length;
        self.places.push(Place {
            hash,
            prompt: Hits::default(),
            patient: Passed::default(),
            at_ms: 0,
            retry_at_ms: None,
            remaining: NOT_KNOWN,
            capacity: 0,
            kind: met.into(),
            rule,
            name: self.name.written().into(),
        });
        let places = &self.places;
        let again = |place: &u32| places.get(*place as usize).map_or(0, |it| it.hash as u64);
        // There are fewer places than a u32 has numbers.
        self.index.insert_unique(hash as u64, index as u32, again);
        index
    }

    fn evict(&mut self, sinks: &Sinks) {
        let first = if self.candidates < self.places.len() { self.candidates } else { 0 };
        let end = (first + CANDIDATES).min(self.places.len());
        let oldest = (first..end).min_by_key(|index| self.places[*index].at_ms);
        self.candidates = end;
        if let Some(oldest) = oldest {
            for hearer in [Hearer::Prompt, Hearer::Patient] {
                self.places[oldest].pass_on((hearer, Asked::No), self.stripe, sinks);
            }
            self.remove(oldest);
        }
    }

    /// The last place moves to this one.
    fn remove(&mut self, index: usize) {
        let last = self.places.len() - 1;
        let (hash, moved) = (self.places[index].hash, self.places[last].hash);
        if let Ok(entry) = self.index.find_entry(hash as u64, |place| *place as usize == index) {
            entry.remove();
        }
        if index != last
            && let Some(place) = self.index.find_mut(moved as u64, |place| *place as usize == last)
        {
            *place = index as u32;
        }
        self.name_bytes -= self.places.swap_remove(index).name.len();
    }

    /// As many visits as this time has in a round, so that each place has one.
    #[cold]
    fn visit_some(&mut self, now_ms: u64, sinks: &Sinks) {
        let passed = now_ms.saturating_sub(self.visited_at_ms).min(ROUND_MS);
        self.visited_at_ms = now_ms;
        let share = self.places.len() as u64 * passed / ROUND_MS + 1;
        let visits = VISITS_MAX.min(share as usize);
        if self.round == 0 {
            self.round = self.places.len();
        }
        let to = (Hearer::Prompt, Asked::No);
        self.round = self.pass_on((self.round, visits), to, now_ms, sinks);
    }

    /// Passes on the sums of `visits` places before `end`, and returns the first of them: the end of those that are left.
    pub(crate) fn pass_on(
        &mut self,
        (end, visits): (usize, usize),
        to: (Hearer, Asked),
        now_ms: u64,
        sinks: &Sinks,
    ) -> usize {
        let end = end.min(self.places.len());
        let start = end.saturating_sub(visits);
        for index in (start..end).rev() {
            let place = &mut self.places[index];
            place.pass_on(to, self.stripe, sinks);
            if place.at_ms.saturating_add(IDLE_MS) < now_ms && place.is_passed_on() {
                self.remove(index);
            }
        }
        start
    }

    #[cfg(test)]
    pub(crate) fn size(&self) -> (usize, usize) {
        assert_eq!(self.index.len(), self.places.len());
        assert_eq!(
            self.name_bytes,
            self.places.iter().map(|place| place.name.len()).sum::<usize>()
        );
        (self.places.len(), self.name_bytes)
    }
}

impl Place {
    #[inline]
    fn add(&mut self, event: &Event<'_>, sinks: &Sinks) {
        let (hits, last) = (event.hits, event.last);
        self.at_ms = last.at_ms;
        if sinks.patient.is_some() {
            self.patient.allowed = self.patient.allowed.saturating_add(hits.allowed);
            let denied = hits.denied.saturating_add(hits.elsewhere);
            self.patient.denied = self.patient.denied.saturating_add(denied);
        }
        if sinks.prompt.is_some() {
            self.prompt.add(hits);
            if let Some((remaining, capacity)) = last.left {
                (self.remaining, self.capacity) = (remaining, capacity);
            }
            if let Some(at) = last.retry_at_ms {
                self.retry_at_ms = NonZeroU64::new(at);
            }
        }
    }

    fn is_passed_on(&self) -> bool {
        self.prompt.all() == 0 && self.patient.allowed == 0 && self.patient.denied == 0
    }

    fn pass_on(&mut self, (to, asked): (Hearer, Asked), stripe: usize, sinks: &Sinks) {
        let (sink, hits) = match to {
            Hearer::Prompt => (&sinks.prompt, std::mem::take(&mut self.prompt)),
            Hearer::Patient => {
                let Passed { allowed, denied } = std::mem::take(&mut self.patient);
                (&sinks.patient, Hits { allowed, denied, ..Hits::default() })
            }
        };
        let Some(sink) = sink.as_ref().filter(|_| hits.all() > 0) else { return };
        let (domain, entries) = Name::read(&self.name);
        let left = (self.remaining != NOT_KNOWN).then_some((self.remaining, self.capacity));
        let retry_at_ms = self.retry_at_ms.map(NonZeroU64::get);
        let last = Last { at_ms: self.at_ms, retry_at_ms, left };
        let met = match (self.kind, &self.rule) {
            (Kind::Rule, Some(rule)) => Met::Rule(rule),
            (Kind::UnknownDomain, _) => Met::UnknownDomain,
            (Kind::Replaced, _) => Met::Replaced,
            (Kind::Override, _) => Met::Override,
            (Kind::NoRule | Kind::Rule, _) => Met::NoRule,
        };
        let is_asked = asked == Asked::Yes;
        sink.add(&Sum { domain, entries, met, hits, last, stripe, is_asked });
    }
}

impl<'a> Event<'a> {
    fn sum(&self, stripe: usize) -> Sum<'a> {
        let Event { domain, entries, met, hits, last } = *self;
        Sum { domain, entries: Pairs::of(entries), met, hits, last, stripe, is_asked: false }
    }
}

impl From<Met<'_>> for Kind {
    fn from(met: Met<'_>) -> Kind {
        match met {
            Met::UnknownDomain => Kind::UnknownDomain,
            Met::NoRule => Kind::NoRule,
            Met::Replaced => Kind::Replaced,
            Met::Override => Kind::Override,
            Met::Rule(_) => Kind::Rule,
        }
    }
}

/// A rule by its address: while a place has it, no other rule can be there. No address is as low as the others.
fn number(met: Met<'_>) -> u64 {
    match met {
        Met::UnknownDomain => 0,
        Met::NoRule => 1,
        Met::Replaced => 2,
        Met::Override => 3,
        Met::Rule(rule) => std::ptr::from_ref(rule).addr() as u64,
    }
}

#[cfg(test)]
mod tests;
