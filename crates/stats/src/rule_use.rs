//! The use of rules and limits, by their names in metrics: a part of a snapshot, in a form that is small with ten thousand rules.

use crate::snapshot::Snapshot;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Hits that met a rule or a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleHits([u64; 6]);

impl RuleHits {
    pub(crate) const HITS: usize = 0;
    pub(crate) const ALLOWED: usize = 1;
    pub(crate) const OVER: usize = 2;
    pub(crate) const DENIED_ELSEWHERE: usize = 3;
    pub(crate) const SHADOWED: usize = 4;
    pub(crate) const IN_ENVOY: usize = 5;

    /// All of them.
    pub fn hits(&self) -> u64 {
        self.0[Self::HITS]
    }

    /// Let through with room.
    pub fn allowed(&self) -> u64 {
        self.0[Self::ALLOWED]
    }

    /// Without room: denied, unless the rule only reports.
    pub fn over(&self) -> u64 {
        self.0[Self::OVER]
    }

    /// With room, and denied by another limit of the request.
    pub fn denied_elsewhere(&self) -> u64 {
        self.0[Self::DENIED_ELSEWHERE]
    }

    /// Of those without room, those that shadow mode let through.
    pub fn shadowed(&self) -> u64 {
        self.0[Self::SHADOWED]
    }

    /// Decided by the filter.
    pub fn in_envoy(&self) -> u64 {
        self.0[Self::IN_ENVOY]
    }

    pub fn add(&mut self, other: RuleHits) {
        for (own, more) in self.0.iter_mut().zip(other.0) {
            *own = own.saturating_add(more);
        }
    }
}

/// The hits of each rule and limit that was met, by its name in metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleUse(HashMap<String, RuleHits>);

impl RuleUse {
    /// What a snapshot has of it.
    pub fn of(snapshot: &Snapshot) -> RuleUse {
        let mut found = RuleUse::default();
        for (family, place) in [
            ("total_hits", RuleHits::HITS),
            ("within_limit", RuleHits::ALLOWED),
            ("over_limit", RuleHits::OVER),
            ("denied_elsewhere", RuleHits::DENIED_ELSEWHERE),
            ("shadow_mode", RuleHits::SHADOWED),
            ("decided_in_envoy", RuleHits::IN_ENVOY),
        ] {
            for (labels, count) in snapshot.samples(family).filter(|(_, count)| *count > 0) {
                if let [(_, name)] = labels {
                    found.add_count(name, place, count);
                }
            }
        }
        found
    }

    pub(crate) fn add_count(&mut self, name: &str, place: usize, count: u64) {
        let mut hits = RuleHits::default();
        hits.0[place] = count;
        self.add_hits(name, hits);
    }

    fn add_hits(&mut self, name: &str, hits: RuleHits) {
        match self.0.get_mut(name) {
            Some(own) => own.add(hits),
            None => _ = self.0.insert(name.to_owned(), hits),
        }
    }

    /// Adds that of another process.
    pub fn add(&mut self, other: &RuleUse) {
        other.0.iter().for_each(|(name, hits)| self.add_hits(name, *hits));
    }

    /// About its size in bytes, as JSON.
    pub fn bytes(&self) -> usize {
        self.0.keys().map(|name| name.len() + 64).sum()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, RuleHits)> {
        self.0.iter().map(|(name, hits)| (name.as_str(), *hits))
    }
}
