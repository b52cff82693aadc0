//! Where rules, algorithms and store meet: one request in, one answer out.
//!
//! Owns the rules in force and the counters. All limits of a request are decided under the locks
//! of all their counters: every one is taken from, or none is.

use crate::answer::Decided;
use crate::applied::{self, MatchedLimits};
use crate::debits::Debits;
use crate::leases::{Denials, LeaseRoom};
use crate::modes::{DynamicMetadata, GlobalShadow, Modes};
use crate::observer::{LimitObserver, Observer};
use crate::plan::{DECISIONS, Plan};
use arc_swap::ArcSwap;
use std::sync::Arc;
use tidegate_core::{Answer, Nanos, Request, StateSize, Timestamp, Verdict};
use tidegate_limits::{Limit, Rules};
use tidegate_store::{Class, Cluster, UpdateError};

/// Decides requests.
#[expect(missing_debug_implementations, reason = "it has nothing to show")]
pub struct Authority {
    pub(crate) store: Arc<Cluster>,
    pub(crate) rules: ArcSwap<RulesInForce>,
    pub(crate) modes: Modes,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) lease_room: LeaseRoom,
}

/// Rules and what goes with them, swapped as one.
pub(crate) struct RulesInForce {
    pub(crate) rules: Rules,
    pub(crate) observer: Box<dyn LimitObserver>,
    pub(crate) denials: Denials,
    pub(crate) debits: Debits,
}

/// Rules that this data directory cannot serve.
#[derive(Debug, thiserror::Error)]
#[error(
    "limit {limit} ({algorithm}) needs wide nodes, which the data directory was made without or with \
     too few words; serve it from one made with --wide-capacity above 0"
)]
pub struct NoWideNodes {
    limit: String,
    algorithm: &'static str,
}

impl Authority {
    pub fn new(
        store: Arc<Cluster>,
        rules: Rules,
        modes: Modes,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, NoWideNodes> {
        check_nodes(&store, &rules)?;
        let rules = ArcSwap::from_pointee(RulesInForce::new(rules, &*observer));
        let lease_room =
            LeaseRoom::new(&store, modes.lease_ttl.unwrap_or(Nanos::ZERO), modes.lessors);
        Ok(Authority { store, rules, modes, observer, lease_room })
    }

    /// Puts `rules` in force. Requests under way finish by the old ones; counters live on.
    pub fn replace_rules(&self, rules: Rules) -> Result<(), NoWideNodes> {
        check_nodes(&self.store, &rules)?;
        self.rules.store(Arc::new(RulesInForce::new(rules, &*self.observer)));
        Ok(())
    }

    pub fn store(&self) -> &Arc<Cluster> {
        &self.store
    }

    /// Does something with the rules in force.
    pub fn with_rules<T>(&self, with: impl FnOnce(&Rules) -> T) -> T {
        with(&self.rules.load().rules)
    }

    /// Decides `request` at `now`, for a client that knows of no leases.
    pub fn decide(&self, request: &Request, now: Timestamp) -> Result<Answer, UpdateError> {
        let in_force = self.rules.load();
        let applied = self.match_limits(&in_force.rules, request).each;
        let mut plan = Plan::of(&applied, request, self.modes, self.store.seed(), now);
        let mut decisions = DECISIONS.take();
        let verdict = self.store.update_many(&plan.keys, now.as_nanos(), |entries| {
            plan.decide(entries, now, &mut decisions)
        })?;
        let decided = Decided { request, applied: &applied, decisions: decisions.all(), now };
        decided.count(&*in_force.observer);
        decided.note_debits(&in_force.debits);
        let answer = self.answer(&decided, &mut plan, verdict);
        DECISIONS.set(decisions);
        Ok(answer)
    }

    /// What `request` meets, and counts what is asked of domains that there are not.
    pub(crate) fn match_limits<'a>(
        &self,
        rules: &'a Rules,
        request: &Request,
    ) -> MatchedLimits<'a> {
        let applied = applied::match_limits(rules, request);
        if applied.without_domain > 0 {
            self.observer.domain_not_found(applied.without_domain);
        }
        applied
    }

    pub(crate) fn answer(
        &self,
        decided: &Decided<'_, '_>,
        plan: &mut Plan<'_>,
        verdict: Verdict,
    ) -> Answer {
        let statuses = decided.statuses();
        self.observer.answered(verdict);
        if self.modes.shadow == GlobalShadow::On {
            plan.enforce(decided.applied, Modes { shadow: GlobalShadow::Off, ..self.modes });
            if tidegate_core::verdict(&plan.asks, decided.decisions) == Verdict::Deny {
                self.observer.shadowed();
            }
        }
        let metadata = match self.modes.metadata {
            DynamicMetadata::On => Some(decided.metadata(&statuses)),
            DynamicMetadata::Off => None,
        };
        Answer { verdict, statuses, metadata }
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
    fn new(rules: Rules, observer: &dyn Observer) -> Self {
        let observer = observer.limits_replaced(&rules);
        let (denials, debits) = (Denials::of(&rules), Debits::of(&rules));
        RulesInForce { rules, observer, denials, debits }
    }
}
