//! Places: a plan in several parts, for counters that no single update reaches.
//!
//! All counters of a descriptor are at one place, so no descriptor is divided.

use super::{Counter, Plan, Words};
use crate::counters::Reach;
use smallvec::SmallVec;
use tidegate_core::KeyHash;
use tidegate_store::Hashed;

/// The counters of one place.
pub(crate) struct Part<'a> {
    pub(crate) plan: Plan<'a>,
    /// The indexes of its asks and of its counters in the whole plan.
    pub(crate) asks: SmallVec<[usize; 4]>,
    counters: SmallVec<[usize; 4]>,
}

impl<'a> Plan<'a> {
    /// Whether no single update reaches all counters.
    pub(crate) fn has_places(&self, reach: Reach) -> bool {
        let mut places = self.counters.iter().map(|counter| reach.number(counter.hash));
        places.next().is_some_and(|first| places.any(|place| place != first))
    }

    /// A key at the place of the counters.
    pub(crate) fn beside(&self, key: Hashed) -> Hashed {
        let Some(counter) = self.counters.first() else { return key };
        Hashed { hash: KeyHash(key.hash).placed(counter.hash.place()).0, ..key }
    }

    /// The parts, in the order of their places: all requests come to two counters in the same order.
    pub(crate) fn parts(&self, reach: Reach) -> Vec<Part<'a>> {
        let mut places: SmallVec<[u64; 8]> =
            self.counters.iter().map(|counter| reach.number(counter.hash)).collect();
        places.sort_unstable();
        places.dedup();
        places.into_iter().map(|place| self.part(reach, place)).collect()
    }

    fn part(&self, reach: Reach, place: u64) -> Part<'a> {
        let (asks, counters) = (SmallVec::new(), SmallVec::new());
        let mut part = Part { plan: Plan::default(), asks, counters };
        for (index, counter) in self.counters.iter().enumerate() {
            if reach.number(counter.hash) != place {
                continue;
            }
            let (first_key, first_word) = (part.plan.keys.len(), part.plan.words);
            part.plan.keys.extend_from_slice(&self.keys[counter.keys.clone()]);
            part.plan.words += counter.state.len();
            let (keys, state) = (first_key..part.plan.keys.len(), first_word..part.plan.words);
            part.plan.counters.push(Counter { hash: counter.hash, keys, state });
            part.counters.push(index);
        }
        for (index, (ask, counter)) in self.asks.iter().zip(&self.counter_of_ask).enumerate() {
            if let Some(own) = part.counters.iter().position(|of| of == counter) {
                let mut ask = ask.clone();
                ask.state = part.plan.counters[own].state.clone();
                part.plan.asks.push(ask);
                part.plan.counter_of_ask.push(own);
                part.asks.push(index);
            }
        }
        part
    }
}

impl Part<'_> {
    /// Copies the words of this part into those of the whole plan.
    pub(crate) fn copy_into(&self, whole: &Plan<'_>, words: &[u64], all: &mut Words) {
        for (own, index) in self.plan.counters.iter().zip(&self.counters) {
            let to = whole.counters[*index].state.clone();
            all[to].copy_from_slice(&words[own.state.clone()]);
        }
    }
}
