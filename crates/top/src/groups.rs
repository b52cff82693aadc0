//! What the threads of one stripe have recorded: two sketches for each rule and for each kind of descriptor without
//! one, bounded together in bytes.
//!
//! The hottest of all are among the hottest of their groups, so no sketch of all is needed. Groups come from
//! configuration, names in them from clients. When there are too many bytes, all sketches are halved, at most to
//! [`PLACES_MIN`] places; then the groups with the fewest hits go. Either makes room for as much again, so a record costs
//! a constant number of steps on average.

use crate::DECAY_SECONDS;
use crate::recorder::Event;
use crate::sketch::{Sketch, Weights};
use crate::summary::{GroupSummary, MetKind, Row, Summary};
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

/// Of each sketch.
pub(crate) const PLACES_MAX: usize = 64;
const PLACES_MIN: usize = 8;
/// Places of 90 groups with the longest names, or of 300 with usual ones.
pub(crate) const BYTES_MAX: usize = 8 * 1024 * 1024;
/// Weights grow by e to this power until they are scaled down: far from the bounds of a double, and its precision is
/// relative.
const GROWTH_MAX: f64 = 100.0;

#[derive(Debug)]
pub(crate) struct Groups {
    groups: HashTable<Group>,
    places_max: usize,
    bytes_max: usize,
    bytes: usize,
    /// When a hit weighs 1.
    unit_at_ms: u64,
    /// What a hit weighs at `factor_at_ms`.
    factor: f64,
    factor_at_ms: u64,
}

#[derive(Debug)]
struct Group {
    hash: u64,
    met: MetKind,
    /// Empty if clients chose it.
    domain: Box<str>,
    rule: Option<Box<str>>,
    all: Weights,
    hottest: Sketch,
    most_denied: Sketch,
}

impl Groups {
    pub(crate) fn new(bytes_max: usize) -> Groups {
        Groups {
            groups: HashTable::new(),
            places_max: PLACES_MAX,
            bytes_max,
            bytes: 0,
            unit_at_ms: 0,
            factor: 1.0,
            factor_at_ms: 0,
        }
    }

    /// Adds the hits of a descriptor. Time never goes back by more than what threads differ in.
    pub(crate) fn record(&mut self, event: &Event<'_>, now_ms: u64) {
        let factor = self.factor(now_ms);
        let weights = Weights {
            allowed: event.allowed as f64,
            denied: event.denied as f64,
            elsewhere: event.elsewhere as f64,
            in_envoy: event.in_envoy as f64,
        };
        let weights = weights.scaled(factor);
        let places_max = self.places_max;
        let (group, mut grown) = self.group(event);
        group.all.add(weights);
        grown += group.hottest.add(event, (weights.hits(), weights), places_max);
        if event.denied > 0 {
            grown += group.most_denied.add(event, (weights.denied, weights), places_max);
        }
        self.bytes = self.bytes.saturating_add_signed(grown);
        if self.bytes > self.bytes_max {
            self.compact();
        }
    }

    /// What a hit weighs now.
    fn factor(&mut self, now_ms: u64) -> f64 {
        if now_ms != self.factor_at_ms {
            let growth = |since: u64| now_ms.saturating_sub(since) as f64 / 1_000.0 / DECAY_SECONDS;
            if growth(self.unit_at_ms) > GROWTH_MAX {
                let down = (-growth(self.unit_at_ms)).exp();
                self.groups.iter_mut().for_each(|group| group.scale(down));
                self.unit_at_ms = now_ms;
            }
            self.factor = growth(self.unit_at_ms).exp();
            self.factor_at_ms = now_ms;
        }
        self.factor
    }

    fn group(&mut self, event: &Event<'_>) -> (&mut Group, isize) {
        let is_it = |group: &Group| {
            group.hash == event.group_hash
                && group.met == event.met
                && *group.domain == *event.group_domain
                && group.rule.as_deref() == event.rule
        };
        match self.groups.entry(event.group_hash, is_it, |group| group.hash) {
            Entry::Occupied(known) => (known.into_mut(), 0),
            Entry::Vacant(vacant) => {
                let group = Group {
                    hash: event.group_hash,
                    met: event.met,
                    domain: event.group_domain.into(),
                    rule: event.rule.map(Into::into),
                    all: Weights::default(),
                    hottest: Sketch::default(),
                    most_denied: Sketch::default(),
                };
                let grown = group.bytes() as isize;
                (vacant.insert(group).into_mut(), grown)
            }
        }
    }

    fn compact(&mut self) {
        let target = self.bytes_max / 2;
        while self.bytes > target && self.places_max > PLACES_MIN {
            self.places_max /= 2;
            self.groups.iter_mut().for_each(|group| group.shrink(self.places_max));
            self.bytes = self.groups.iter().map(Group::bytes).sum();
        }
        if self.bytes <= target {
            return;
        }
        let mut all: Vec<(f64, u64, usize)> =
            self.groups.iter().map(|group| (group.all.hits(), group.hash, group.bytes())).collect();
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut kept = 0;
        all.retain(|(.., bytes)| {
            kept += bytes;
            kept <= target
        });
        let mut kept: Vec<u64> = all.iter().map(|(_, hash, _)| *hash).collect();
        kept.sort_unstable();
        self.groups.retain(|group| kept.binary_search(&group.hash).is_ok());
        self.bytes = self.groups.iter().map(Group::bytes).sum();
    }

    /// What is known at `now_ms`. Rows whose hits have faded are left out.
    pub(crate) fn summary(&mut self, now_ms: u64) -> Summary {
        // A rate, from a weight.
        let per_second = 1.0 / self.factor(now_ms) / DECAY_SECONDS;
        let places_max = self.places_max;
        let groups = self.groups.iter().map(|group| {
            let rows = |sketch: &Sketch| {
                let rows = sketch.places().iter().map(|place| Row::of(place, per_second, now_ms));
                rows.collect()
            };
            GroupSummary {
                met: group.met,
                domain: group.domain.to_string(),
                rule: group.rule.as_deref().map(str::to_owned),
                rates: group.all.scaled(per_second).into(),
                hottest: rows(&group.hottest),
                hottest_floor: group.hottest.floor(places_max) * per_second,
                most_denied: rows(&group.most_denied),
                most_denied_floor: group.most_denied.floor(places_max) * per_second,
            }
        });
        let mut summary = Summary { groups: groups.collect() };
        summary.drop_faded();
        summary
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> (usize, usize) {
        (self.bytes, self.groups.iter().map(Group::bytes).sum())
    }
}

impl Group {
    fn bytes(&self) -> usize {
        let rule = self.rule.as_ref().map_or(0, |rule| rule.len());
        // The table has at most twice the places it uses.
        2 * size_of::<Group>()
            + self.domain.len()
            + rule
            + self.hottest.bytes()
            + self.most_denied.bytes()
    }

    fn scale(&mut self, factor: f64) {
        self.all = self.all.scaled(factor);
        self.hottest.scale(factor);
        self.most_denied.scale(factor);
    }

    fn shrink(&mut self, places_max: usize) {
        self.hottest.shrink(places_max);
        self.most_denied.shrink(places_max);
    }
}

#[cfg(test)]
mod tests;
