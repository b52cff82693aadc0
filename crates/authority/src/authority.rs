//! The authority: limits in force, counters, and the decision on a request.
//!
//! All limits of a request are decided under the locks of all their counters: every one is charged, or none
//! is.

use crate::applied::match_limits;
use crate::in_force::LimitsInForce;
use crate::leases::LeaseRoom;
use crate::modes::{DynamicMetadata, GlobalShadow, Modes};
use crate::observer::Observer;
use crate::plan::{DECISIONS, Plan};
use crate::transaction::Transaction;
use arc_swap::ArcSwap;
use std::sync::Arc;
use tidegate_core::{Answer, Decision, Nanos, Request, StateSize, Timestamp, Verdict};
use tidegate_limits::{Limit, Rules};
use tidegate_store::{Class, Cluster, UpdateError};

/// Decides requests.
#[expect(missing_debug_implementations, reason = "it has nothing to show")]
pub struct Authority {
    pub(crate) store: Arc<Cluster>,
    pub(crate) limits: ArcSwap<LimitsInForce>,
    pub(crate) modes: Modes,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) lease_room: LeaseRoom,
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
        let limits = ArcSwap::from_pointee(LimitsInForce::new(rules, &*observer));
        let lease_room =
            LeaseRoom::new(&store, modes.lease_ttl.unwrap_or(Nanos::ZERO), modes.lessors);
        Ok(Authority { store, limits, modes, observer, lease_room })
    }

    /// Puts `rules` in force. Requests under way finish by the old ones; counters live on.
    pub fn replace_limits(&self, rules: Rules) -> Result<(), NoWideNodes> {
        check_nodes(&self.store, &rules)?;
        self.limits.store(Arc::new(LimitsInForce::new(rules, &*self.observer)));
        Ok(())
    }

    pub fn store(&self) -> &Arc<Cluster> {
        &self.store
    }

    /// Does something with the rules in force.
    pub fn with_limits<T>(&self, with: impl FnOnce(&Rules) -> T) -> T {
        with(&self.limits.load().rules)
    }

    /// Runs `operation` on `request` as it stands under the limits in force, with the enforcement of `modes`.
    pub(crate) fn transact<R>(
        &self,
        request: &Request,
        modes: Modes,
        now: Timestamp,
        operation: impl FnOnce(&mut Transaction<'_, '_>) -> R,
    ) -> R {
        let (limits, seed) = (self.limits.load(), self.store.seed());
        let matched = match_limits(&limits.rules, request);
        let plan = Plan::of(&matched.each, request, modes, seed, now);
        let (store, observer) = (&*self.store, &*self.observer);
        let (limits, matched) = (&**limits, &matched);
        operation(&mut Transaction { store, observer, limits, request, matched, plan, now })
    }

    /// Decides `request` at `now`, for a client that knows of no leases.
    pub fn decide(&self, request: &Request, now: Timestamp) -> Result<Answer, UpdateError> {
        self.transact(request, self.modes, now, |transaction| {
            transaction.report_unknown_domain();
            let mut decisions = DECISIONS.take();
            let verdict =
                transaction.update(|plan, entries| plan.decide(entries, now, &mut decisions))?;
            let answer = self.answer(transaction, decisions.all(), verdict);
            DECISIONS.set(decisions);
            Ok(answer)
        })
    }

    /// The answer to a request that was decided, which is reported.
    pub(crate) fn answer(
        &self,
        transaction: &mut Transaction<'_, '_>,
        decisions: &[Decision],
        verdict: Verdict,
    ) -> Answer {
        let decided = transaction.decided(decisions);
        decided.report(&*transaction.limits.observer);
        decided.note_debits(&transaction.limits.debits);
        let statuses = decided.statuses();
        let metadata = match self.modes.metadata {
            DynamicMetadata::On => Some(decided.metadata(&statuses)),
            DynamicMetadata::Off => None,
        };
        self.observer.answered(verdict);
        if self.modes.shadow == GlobalShadow::On {
            let modes = Modes { shadow: GlobalShadow::Off, ..self.modes };
            transaction.plan.enforce(&transaction.matched.each, modes);
            if tidegate_core::verdict(&transaction.plan.asks, decisions) == Verdict::Deny {
                self.observer.shadowed();
            }
        }
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
