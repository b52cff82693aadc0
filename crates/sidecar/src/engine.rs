//! Where rules, algorithms and store meet: one request in, one answer out.
//!
//! Owns the rules in force and the counters. All limits of a request are decided under the locks
//! of all their counters: every one is taken from, or none is.

use crate::metrics::{LimitCounters, Metrics};
use arc_swap::ArcSwap;
use std::collections::HashMap;
use std::sync::Arc;
use tidegate_core::{
    Answer, Ask, CounterKey, Decision, Enforcement, Entry, Found, Hits, Limit, LimitView, Request,
    Rules, State, Status, Timestamp, Unit, Verdict, decide_all,
};
use tidegate_store::{Cluster, Entries, Hashed, UpdateError};

/// Decides requests.
pub(crate) struct Engine {
    store: Cluster,
    rules: ArcSwap<RulesInForce>,
    metrics: Metrics,
}

/// Rules, and a counter handle for each of their limits, swapped as one.
struct RulesInForce {
    rules: Rules,
    counters: HashMap<String, LimitCounters>,
}

impl Engine {
    pub(crate) fn new(store: Cluster, rules: Rules, metrics: Metrics) -> Self {
        let rules = ArcSwap::from_pointee(RulesInForce::new(rules, &metrics));
        Engine { store, rules, metrics }
    }

    /// Puts `rules` in force. Requests under way finish by the old ones; counters live on.
    pub(crate) fn replace_rules(&self, rules: Rules) {
        self.rules.store(Arc::new(RulesInForce::new(rules, &self.metrics)));
    }

    pub(crate) fn store(&self) -> &Cluster {
        &self.store
    }

    /// Decides `request` at `now`.
    pub(crate) fn decide(&self, request: &Request, now: Timestamp) -> Result<Answer, UpdateError> {
        let in_force = self.rules.load();
        let descriptors = request.descriptors.len();
        let mut statuses = Vec::with_capacity(descriptors);
        // The limits that the request meets, each with its descriptor; what it asks of each, in
        // the same order; and the keys of their counters.
        let mut limits: Vec<(usize, &Limit)> = Vec::with_capacity(descriptors);
        let mut asks: Vec<Ask<'_>> = Vec::with_capacity(descriptors);
        let mut keys: Vec<Hashed> = Vec::with_capacity(descriptors);
        let mut identity = CounterKey::new();
        for (index, descriptor) in request.descriptors.iter().enumerate() {
            let found = in_force.rules.find(&request.domain, &descriptor.entries);
            statuses.push(match found {
                Found::Unlimited => Status::UNLIMITED,
                _ => Status::NO_LIMIT,
            });
            if let Found::Limit(limit) = found {
                let (seed, entries) = (self.store.seed(), &descriptor.entries);
                let key = counter_key(&mut identity, seed, &request.domain, entries, limit);
                limits.push((index, limit));
                asks.push(Ask {
                    quota: &limit.quota,
                    enforcement: limit.enforcement,
                    hits: request.hits_of(descriptor),
                    state: index_of(&mut keys, key),
                });
            }
        }
        let mut decisions = Vec::with_capacity(asks.len());
        let verdict = self.store.update_many(&keys, now.as_nanos(), |entries| {
            decide_entries(entries, &asks, now, &mut decisions)
        })?;
        for (((index, limit), ask), decision) in limits.into_iter().zip(&asks).zip(&decisions) {
            statuses[index] = status(limit, decision, now);
            in_force.count(limit, ask.hits, decision);
        }
        self.metrics.answered(verdict);
        Ok(Answer { verdict, statuses })
    }
}

/// The key in the store of the counter of `limit` for these entries.
pub(crate) fn counter_key(
    identity: &mut CounterKey,
    seed: u64,
    domain: &str,
    entries: &[Entry],
    limit: &Limit,
) -> Hashed {
    Hashed::narrow(identity.hash(seed, domain, entries, limit).0)
}

/// The place of `key` among `keys`, added when new: a request may carry a descriptor twice.
fn index_of(keys: &mut Vec<Hashed>, key: Hashed) -> usize {
    match keys.iter().position(|known| *known == key) {
        Some(index) => index,
        None => {
            keys.push(key);
            keys.len() - 1
        }
    }
}

fn decide_entries(
    entries: &mut Entries<'_>,
    asks: &[Ask<'_>],
    now: Timestamp,
    decisions: &mut Vec<Decision>,
) -> Verdict {
    let mut states: Vec<State> =
        (0..entries.len()).map(|index| state_of(entries.get(index).state)).collect();
    let verdict = decide_all(&mut states, asks, now, decisions);
    let mut keep_until = vec![0; entries.len()];
    for (ask, decision) in asks.iter().zip(decisions.iter()) {
        // A descriptor that comes twice has two decisions on one state: the later end counts.
        keep_until[ask.state] = decision.keep_until.as_nanos().max(keep_until[ask.state]);
    }
    for (index, (state, keep_until)) in states.iter().zip(keep_until).enumerate() {
        let entry = entries.get(index);
        if entry.state != state.0 {
            entry.state.copy_from_slice(&state.0);
            *entry.expires_at = keep_until;
        }
    }
    verdict
}

/// The state of a narrow node, which has four words.
fn state_of(words: &[u64]) -> State {
    State(*words.first_chunk().expect("every state today fits into a narrow node, and has one"))
}

fn status(limit: &Limit, decision: &Decision, now: Timestamp) -> Status {
    // What is left counts down from the capacity, so that is the number to tell. A bucket whose
    // burst is not its rate has no "so many per unit" that would go with it.
    let (capacity, unit) = (limit.quota.capacity(), Unit::of_period(limit.quota.period()));
    let shadowed = limit.enforcement == Enforcement::Shadow;
    Status {
        verdict: if decision.is_allow() || shadowed { Verdict::Allow } else { Verdict::Deny },
        limit: Some(LimitView {
            requests: capacity,
            unit: unit.filter(|_| capacity == limit.quota.requests()),
            name: limit.name.clone().unwrap_or_default(),
        }),
        remaining: u32::try_from(decision.remaining).unwrap_or(u32::MAX),
        reset: decision.wait(now),
    }
}

impl RulesInForce {
    fn new(rules: Rules, metrics: &Metrics) -> Self {
        let counters = rules
            .limits()
            .into_iter()
            .map(|limit| (limit.path.clone(), metrics.limit_counters(&limit.path)))
            .collect();
        RulesInForce { rules, counters }
    }

    fn count(&self, limit: &Limit, hits: Hits, decision: &Decision) {
        if let Some(counters) = self.counters.get(&limit.path) {
            let shadow = limit.enforcement == Enforcement::Shadow;
            counters.count(hits, decision.is_allow(), shadow);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::{Descriptor, DomainRules, Entry as Fact, Nanos, Quota, Rule, TokenBucket};
    use tidegate_store::{Geometry, Options};

    fn engine(dir: &std::path::Path, quota: Quota) -> Engine {
        let limit =
            Limit { name: None, path: "d/k".to_owned(), quota, enforcement: Enforcement::Enforce };
        let mut domain = DomainRules::new("d");
        let node = domain.root_mut().insert("k", None).expect("a new place");
        node.set_rule(Rule::Limit(Arc::new(limit)));
        let mut rules = Rules::default();
        rules.insert(domain).expect("a new domain");
        let geometry = Geometry::by_capacity(64, 0.8).expect("a geometry");
        let store = Cluster::open(dir, &Options::narrow(geometry)).expect("a store");
        Engine::new(store, rules, Metrics::default())
    }

    /// A bucket that one request charged twice was forgotten after the refill of the first charge
    /// alone, and came back full: the expiry of the first decision was kept, not the later one.
    #[test]
    fn a_counter_charged_twice_by_one_request_is_kept_until_both_are_refilled() {
        let dir = tempfile::TempDir::new().expect("a directory");
        let bucket = TokenBucket::new(1, Nanos::from_secs(1), 10, 10).expect("a quota");
        let engine = engine(dir.path(), Quota::TokenBucket(bucket));
        let ask = |times: usize, hits: u64, secs: u64| {
            let entries = vec![Fact::new("k", "v")];
            let descriptor = Descriptor { entries, hits: None };
            let descriptors = vec![descriptor; times];
            let request = Request { domain: "d".into(), descriptors, hits: Hits::new(hits) };
            engine.decide(&request, Timestamp::from_secs(secs)).expect("a decision")
        };
        assert_eq!(ask(2, 5, 1_000).verdict, Verdict::Allow);
        let later = ask(1, 1, 1_006);
        assert_eq!((later.verdict, later.statuses[0].remaining), (Verdict::Allow, 5));
    }
}
