//! Where rules, algorithms and store meet: one request in, one answer out.
//!
//! Owns the rules in force and the counters. All limits of a request are decided under the locks
//! of all their counters: every one is taken from, or none is.

mod answer;
mod debits;
mod denials;
mod give_back;
mod lease;
mod lease_nodes;
mod lease_room;
mod met;
mod nodes;
mod preview;

use crate::metrics::{Metrics, RuleCounters};
use answer::Decided;
use arc_swap::ArcSwap;
use debits::Debits;
use denials::Denials;
use lease_room::LeaseRoom;
use met::{AllMet, Met, meet};
pub(crate) use nodes::{Change, JointError, JointUse, NodeError, NodeWindows, Use};
pub(crate) use preview::{Previewed, preview};
use smallvec::SmallVec;
use std::cell::Cell;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;
use tidegate_core::{
    Answer, CounterKey, Decision, Decisions, DeniedHits, Enforcement, Identity, KeyHash,
    LimitCheck, Nanos, Parts, Quota, Request, StateSize, Timestamp, Verdict, decide_all,
};
use tidegate_limits::{Limit, Rules};
use tidegate_store::{Class, Cluster, Entries, Hashed, UPDATE_KEYS_MAX, UpdateError};

/// Decides requests.
pub(crate) struct Engine {
    store: Cluster,
    rules: ArcSwap<RulesInForce>,
    modes: Modes,
    metrics: Metrics,
    lease_room: LeaseRoom,
}

/// How long a counter is kept beyond its end: a thread, or another process, may still be about to
/// decide by a clock that it read before.
const EXPIRY_SLACK: Nanos = Nanos::from_secs(1);

/// What holds for all rules, whatever they say themselves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Modes {
    pub(crate) shadow: GlobalShadow,
    pub(crate) quota: GlobalQuota,
    pub(crate) metadata: DynamicMetadata,
    /// What becomes of denied requests at limits that they bring along; a rule's limits say it themselves.
    pub(crate) denied: DeniedHits,
    /// How long leases last at most; none are given without.
    pub(crate) lease_ttl: Option<Nanos>,
    /// How many processes of one service grant leases; each has its share of the room for them.
    pub(crate) lessors: NonZeroU32,
}

impl Default for Modes {
    fn default() -> Modes {
        Modes {
            shadow: GlobalShadow::default(),
            quota: GlobalQuota::default(),
            metadata: DynamicMetadata::default(),
            denied: DeniedHits::default(),
            lease_ttl: None,
            lessors: NonZeroU32::MIN,
        }
    }
}

/// Whether denials are only reported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum GlobalShadow {
    #[default]
    Off,
    On,
}

/// Whether every rule that is not in shadow is a quota.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum GlobalQuota {
    #[default]
    Off,
    On,
}

/// Whether answers tell what was met, and the metadata of its rules.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum DynamicMetadata {
    #[default]
    Off,
    On,
}

/// Rules, and a counter handle for each of them, swapped as one.
struct RulesInForce {
    rules: Rules,
    counters: RuleCounters,
    denials: Denials,
    debits: Debits,
}

/// Rules that this data directory cannot serve.
#[derive(Debug, thiserror::Error)]
#[error(
    "limit {limit} ({algorithm}) needs wide nodes, which the data directory was made without or with \
     too few words; serve it from one made with --wide-capacity above 0"
)]
pub(crate) struct NoWideNodes {
    limit: String,
    algorithm: &'static str,
}

impl Engine {
    pub(crate) fn new(
        store: Cluster,
        rules: Rules,
        modes: Modes,
        metrics: Metrics,
    ) -> Result<Self, NoWideNodes> {
        check_nodes(&store, &rules)?;
        let rules = ArcSwap::from_pointee(RulesInForce::new(rules, &metrics));
        let lease_room =
            LeaseRoom::new(&store, modes.lease_ttl.unwrap_or(Nanos::ZERO), modes.lessors);
        Ok(Engine { store, rules, modes, metrics, lease_room })
    }

    /// Puts `rules` in force. Requests under way finish by the old ones; counters live on.
    pub(crate) fn replace_rules(&self, rules: Rules) -> Result<(), NoWideNodes> {
        check_nodes(&self.store, &rules)?;
        self.rules.store(Arc::new(RulesInForce::new(rules, &self.metrics)));
        Ok(())
    }

    pub(crate) fn store(&self) -> &Cluster {
        &self.store
    }

    /// Does something with the rules in force.
    pub(crate) fn with_rules<T>(&self, with: impl FnOnce(&Rules) -> T) -> T {
        with(&self.rules.load().rules)
    }

    /// Decides `request` at `now`, for a client that knows of no leases.
    pub(crate) fn decide(&self, request: &Request, now: Timestamp) -> Result<Answer, UpdateError> {
        let in_force = self.rules.load();
        let met = self.meet(&in_force.rules, request).each;
        let mut plan = Plan::of(&met, request, self.modes, self.store.seed(), now);
        let mut decisions = DECISIONS.take();
        let verdict = self.store.update_many(&plan.keys, now.as_nanos(), |entries| {
            plan.decide(entries, now, &mut decisions)
        })?;
        let decided = Decided { request, met: &met, decisions: decisions.all(), now };
        decided.count(&in_force.counters);
        decided.note_debits(&in_force.debits);
        let answer = self.answer(&decided, &mut plan, verdict);
        DECISIONS.set(decisions);
        Ok(answer)
    }

    /// What `request` meets, and counts what is asked of domains that there are not.
    fn meet<'a>(&self, rules: &'a Rules, request: &Request) -> AllMet<'a> {
        let met = meet(rules, request);
        if met.without_domain > 0 {
            self.metrics.missed_domain(met.without_domain);
        }
        met
    }

    fn answer(&self, decided: &Decided<'_, '_>, plan: &mut Plan<'_>, verdict: Verdict) -> Answer {
        let statuses = decided.statuses();
        self.metrics.answered(verdict);
        if self.modes.shadow == GlobalShadow::On {
            plan.enforce(decided.met, Modes { shadow: GlobalShadow::Off, ..self.modes });
            if tidegate_core::verdict(&plan.asks, decided.decisions) == Verdict::Deny {
                self.metrics.shadowed();
            }
        }
        let metadata = match self.modes.metadata {
            DynamicMetadata::On => Some(decided.metadata(&statuses)),
            DynamicMetadata::Off => None,
        };
        Answer { verdict, statuses, metadata }
    }
}

impl Modes {
    fn enforcement(self, own: Enforcement) -> Enforcement {
        match (self.shadow, self.quota, own) {
            (GlobalShadow::On, _, _) => Enforcement::Shadow,
            (_, GlobalQuota::On, Enforcement::Enforce) => Enforcement::Quota,
            _ => own,
        }
    }
}

thread_local! {
    /// The buffers of the last request of this thread, for the next one. Who takes them leaves empty
    /// ones, which do as well.
    static KEY: Cell<CounterKey> = const { Cell::new(CounterKey::new()) };
    static DECISIONS: Cell<Decisions> = const { Cell::new(Decisions::new()) };
}

/// What a request asks, and of which counters. Nearly all have up to four of each.
#[derive(Default)]
struct Plan<'a> {
    asks: SmallVec<[LimitCheck<'a>; 4]>,
    /// The counter of each ask.
    counter_of_ask: SmallVec<[usize; 4]>,
    counters: SmallVec<[Counter; 4]>,
    /// The keys in the store, those of one counter after the other.
    keys: SmallVec<[Hashed; 4]>,
    words: usize,
}

/// The words of the states of a request's counters.
type Words = SmallVec<[u64; 16]>;
/// A time for each of them, in nanoseconds since the Unix epoch.
type Ends = SmallVec<[u64; 4]>;

/// One counter of a request.
struct Counter {
    hash: KeyHash,
    /// Its keys among those of the plan.
    keys: Range<usize>,
    /// Its words among those of all states.
    state: Range<usize>,
}

impl<'a> Plan<'a> {
    /// The plan for a request that meets `met`.
    fn of(
        met: &'a [Met<'_>],
        request: &'a Request,
        modes: Modes,
        seed: u64,
        now: Timestamp,
    ) -> Plan<'a> {
        let mut plan = Plan::default();
        let mut key = KEY.take();
        for (index, (met, descriptor)) in met.iter().zip(&request.descriptors).enumerate() {
            for limit in met.limits() {
                if plan.keys.len() > UPDATE_KEYS_MAX {
                    // The store is going to refuse it, however many more there are.
                    return plan;
                }
                let identity = Identity {
                    domain: &request.domain,
                    entries: &descriptor.entries,
                    shared: met.shared(),
                    quota: limit.quota,
                    label: limit.label,
                };
                let (state, counter) = plan.counter(&mut key, &identity, seed, now);
                plan.counter_of_ask.push(counter);
                plan.asks.push(LimitCheck {
                    quota: limit.quota,
                    enforcement: modes.enforcement(limit.enforcement),
                    denied: limit.denied.unwrap_or(modes.denied),
                    charge: request.charge_of(descriptor),
                    descriptor: index,
                    state,
                });
            }
        }
        KEY.set(key);
        plan
    }

    /// Gives the asks the enforcement that their rules have in these modes.
    fn enforce(&mut self, met: &[Met<'_>], modes: Modes) {
        let limits = met.iter().flat_map(Met::limits);
        for (ask, limit) in self.asks.iter_mut().zip(limits) {
            ask.enforcement = modes.enforcement(limit.enforcement);
        }
    }

    /// The words and the number of this counter, added when new: a request may carry a descriptor
    /// twice.
    fn counter(
        &mut self,
        key: &mut CounterKey,
        identity: &Identity<'_>,
        seed: u64,
        now: Timestamp,
    ) -> (Range<usize>, usize) {
        let hash = key.hash(seed, identity);
        if let Some(index) = self.counters.iter().position(|counter| counter.hash == hash) {
            return (self.counters[index].state.clone(), index);
        }
        let (first_key, first_word) = (self.keys.len(), self.words);
        match identity.quota.state_size() {
            // In one part, which is the counter's own.
            StateSize::Narrow => self.keys.push(Hashed::narrow(hash.0)),
            StateSize::Wide => self.keys.extend(counter_keys(hash, identity.quota, seed, now)),
        }
        let keys = first_key..self.keys.len();
        self.words += keys.len() * identity.quota.state_size().words();
        let state = first_word..self.words;
        self.counters.push(Counter { hash, keys, state: state.clone() });
        (state, self.counters.len() - 1)
    }

    fn decide(
        &self,
        entries: &mut Entries<'_>,
        now: Timestamp,
        decisions: &mut Decisions,
    ) -> Verdict {
        let mut words = self.read(entries);
        let verdict = decide_all(&mut words, &self.asks, now, decisions);
        let keep_until = self.keep_until(decisions.all());
        self.write(entries, &mut words, &keep_until);
        verdict
    }

    /// The states of all counters, one after the other.
    fn read(&self, entries: &mut Entries<'_>) -> Words {
        let mut words = Words::from_elem(0, self.words);
        for counter in &self.counters {
            for (key, part) in counter.parts(&mut words) {
                part.copy_from_slice(&entries.get(key).state[..part.len()]);
            }
        }
        words
    }

    /// Until when each counter matters, by the decisions on the asks.
    fn keep_until(&self, decisions: &[Decision]) -> Ends {
        let mut keep_until = Ends::from_elem(0, self.counters.len());
        for (counter, decision) in self.counter_of_ask.iter().zip(decisions) {
            // A descriptor that comes twice has two decisions on one state: the later end counts.
            keep_until[*counter] = decision.keep_until.as_nanos().max(keep_until[*counter]);
        }
        keep_until
    }

    /// Puts the states back that changed.
    fn write(&self, entries: &mut Entries<'_>, words: &mut Words, keep_until: &Ends) {
        for (counter, keep_until) in self.counters.iter().zip(keep_until) {
            let expires_at = keep_until.saturating_add(EXPIRY_SLACK.as_nanos());
            let is_whole = counter.keys.len() == 1;
            for (key, part) in counter.parts(words) {
                let entry = entries.get(key);
                if entry.state[..part.len()] != *part {
                    entry.state[..part.len()].copy_from_slice(part);
                    *entry.expires_at = expires_at;
                } else if is_whole && part.iter().any(|word| *word != 0) {
                    // Under a changed limit the same state may matter for longer. (The parts of one in
                    // several were each written with an end of its own.)
                    *entry.expires_at = expires_at.max(*entry.expires_at);
                }
            }
        }
    }
}

impl Counter {
    /// Its keys, each with its words.
    fn parts<'w>(&self, words: &'w mut [u64]) -> impl Iterator<Item = (usize, &'w mut [u64])> {
        let part_words = self.state.len() / self.keys.len();
        self.keys.clone().zip(words[self.state.clone()].chunks_exact_mut(part_words))
    }
}

/// The keys in the store of the parts of a counter that a decision at `now` needs.
pub(crate) fn counter_keys(
    hash: KeyHash,
    quota: &Quota,
    seed: u64,
    now: Timestamp,
) -> SmallVec<[Hashed; Parts::MAX]> {
    let parts = quota.parts(now);
    let hashes = parts.labels().iter().map(|label| hash.part(seed, *label).0);
    match quota.state_size() {
        StateSize::Narrow => hashes.map(Hashed::narrow).collect(),
        StateSize::Wide => hashes.map(Hashed::wide).collect(),
    }
}

/// Whether the store has nodes for every limit.
fn check_nodes(store: &Cluster, rules: &Rules) -> Result<(), NoWideNodes> {
    let words = store.geometry(Class::Wide).map_or(0, |geometry| geometry.state_words() as usize);
    let unfit = |limit: &&Limit| {
        limit.quota.state_size() == StateSize::Wide && words < StateSize::Wide.words()
    };
    match rules.limits().into_iter().find(unfit) {
        None => Ok(()),
        Some(limit) => {
            let (limit, algorithm) = (limit.path.clone(), limit.quota.algorithm());
            Err(NoWideNodes { limit, algorithm })
        }
    }
}

impl RulesInForce {
    fn new(rules: Rules, metrics: &Metrics) -> Self {
        let counters = metrics.rule_counters(&rules);
        let (denials, debits) = (Denials::of(&rules), Debits::of(&rules));
        RulesInForce { rules, counters, denials, debits }
    }
}

#[cfg(test)]
mod tests;
