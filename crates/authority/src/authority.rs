//! The authority: limits in force, counters, and the decision on a request.
//!
//! All limits of a request are decided in one update of all their counters: every one is charged, or none is.
//! Operations are futures, since counters may answer later; over counters in memory they end when they are first
//! polled. What follows from a decision is done and reported after its update, once.

use crate::answer::Decided;
use crate::applied::{MatchedLimits, match_limits};
use crate::counters::{Answers, Counters, Patience, Undecided};
use crate::holdings::{Holdings, Round, Shared, Takes};
use crate::in_force::{LimitsInForce, Sharing};
use crate::leases::{DEBIT_KEPT, LeaseRoom};
use crate::modes::{DynamicMetadata, GlobalShadow, Modes};
use crate::observer::Observer;
use crate::outcome::Passing;
use crate::plan::{DECISIONS, Plan};
use crate::reports::REPORT_KEPT;
use arc_swap::ArcSwap;
use std::sync::Arc;
use tidegate_core::{Answer, Demand, Nanos, Request, Timestamp, Verdict, decide_all};
use tidegate_limits::{Limit, Rules};
use tidegate_store::Entries;

/// Decides requests.
#[expect(missing_debug_implementations, reason = "it has nothing to show")]
pub struct Authority {
    pub(crate) counters: Arc<dyn Counters>,
    pub(crate) limits: ArcSwap<LimitsInForce>,
    pub(crate) modes: Modes,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) lease_room: LeaseRoom,
    pub(crate) debit_room: LeaseRoom,
    pub(crate) report_room: LeaseRoom,
    /// None if no other machine shares the counters.
    pub(crate) holdings: Option<Arc<Holdings>>,
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
        counters: Arc<dyn Counters>,
        rules: Rules,
        modes: Modes,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, NoWideNodes> {
        check_states(&*counters, &rules)?;
        Ok(Authority::of(counters, None, rules, modes, observer))
    }

    /// An authority whose counters other machines share. `local` are for holdings of them, and for leases.
    pub fn with_shared(
        local: Arc<dyn Counters>,
        shared: Shared,
        rules: Rules,
        modes: Modes,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, NoWideNodes> {
        check_states(&*shared.counters, &rules)?;
        let holdings = Holdings::new(local.clone(), shared, observer.clone());
        Ok(Authority::of(local, Some(holdings), rules, modes, observer))
    }

    fn of(
        counters: Arc<dyn Counters>,
        holdings: Option<Arc<Holdings>>,
        rules: Rules,
        modes: Modes,
        observer: Arc<dyn Observer>,
    ) -> Authority {
        let sharing = if holdings.is_some() { Sharing::Shared } else { Sharing::Alone };
        let limits = ArcSwap::from_pointee(LimitsInForce::new(rules, &*observer, sharing));
        let lease_room = LeaseRoom::new(
            counters.capacity(),
            modes.lease_ttl.unwrap_or(Nanos::ZERO),
            modes.lessors,
        );
        let debit_room = LeaseRoom::of_debits(counters.capacity(), DEBIT_KEPT, modes.lessors);
        let report_room = LeaseRoom::of_debits(counters.capacity(), REPORT_KEPT, modes.lessors);
        Authority {
            counters,
            limits,
            modes,
            observer,
            lease_room,
            debit_room,
            report_room,
            holdings,
        }
    }

    /// Puts `rules` in force. Requests under way finish by the old ones; counters live on.
    pub fn replace_limits(&self, rules: Rules) -> Result<(), NoWideNodes> {
        check_states(self.true_site().counters, &rules)?;
        let sharing = if self.holdings.is_some() { Sharing::Shared } else { Sharing::Alone };
        self.limits.store(Arc::new(LimitsInForce::new(rules, &*self.observer, sharing)));
        Ok(())
    }

    /// When operations end.
    pub fn answers(&self) -> Answers {
        self.true_site().counters.answers()
    }

    /// Does something with the rules in force.
    pub fn with_limits<T>(&self, with: impl FnOnce(&Rules) -> T) -> T {
        with(&self.limits.load().rules)
    }

    /// Decides `request` at `now`, for a client that knows of no leases.
    pub async fn decide(&self, request: &Request, now: Timestamp) -> Result<Answer, Undecided> {
        match self.decide_within(Patience::AtOnce, request, now).await {
            Err(Undecided::WouldWait { is_rare }) => self.decide_later(request, is_rare, now).await,
            decided => decided,
        }
    }

    /// Decides a request that has to wait, perhaps for counters that it has claimed as rare ones.
    pub(crate) async fn decide_later(
        &self,
        request: &Request,
        is_rare: bool,
        now: Timestamp,
    ) -> Result<Answer, Undecided> {
        // Each future is some kilobytes, which would be moved with that of the caller.
        match &self.holdings {
            Some(holdings) if is_rare => Box::pin(self.decide_rare(holdings, request, now)).await,
            _ => Box::pin(self.decide_within(Patience::Waits, request, now)).await,
        }
    }

    pub(crate) async fn decide_within(
        &self,
        patience: Patience,
        request: &Request,
        now: Timestamp,
    ) -> Result<Answer, Undecided> {
        let limits = self.limits.load();
        let matched = self.matched(&limits, request)?;
        let site = self.site(&limits, &matched, request);
        let mut round = Round::new(&site, Takes::Together, patience, now)?;
        round.may_be_rare = true;
        let mut plan = site.plan(&matched.each, request, self.modes, round.now);
        if patience == Patience::Failed {
            round.fail_all(&plan);
        }
        round.prepare(&site, &plan).await;
        let (mut verdict, mut decisions) = (Verdict::Deny, DECISIONS.take());
        loop {
            if site.is_apart(&plan) {
                verdict = self.decide_apart((&site, &mut round), &plan, &mut decisions).await?;
                break;
            }
            let now = round.now;
            let mut update = |entries: &mut Entries<'_>| {
                let mut words = plan.read(entries);
                if round.lacks_tokens(&site, &plan, &mut words, |_| Demand::default()) {
                    return;
                }
                verdict = decide_all(&mut words, round.asks(&plan), now, &mut decisions);
                let keep_until = plan.keep_until(decisions.all());
                round.note_low(&site, &plan, &mut words);
                plan.write(entries, &mut words, &keep_until);
            };
            let updated = site.counters.update(&plan.keys, now, &mut update).await;
            let decided = (&mut verdict, &mut decisions);
            if round.is_decided(&site, &plan, updated, decided).await? {
                break;
            }
        }
        let now = round.now;
        let decided = Decided::new(&limits, request, &matched, decisions.all(), now);
        let answer = self.answer(&decided, &mut plan, verdict, Passing::Together(verdict));
        DECISIONS.set(decisions);
        Ok(answer)
    }

    /// The limits that apply to `request`. Reports descriptors of a domain that has none.
    pub(crate) fn matched<'m>(
        &self,
        limits: &'m LimitsInForce,
        request: &Request,
    ) -> Result<MatchedLimits<'m>, Undecided> {
        let matched = match_limits(&limits.rules, request);
        self.check_domain(limits, request, &matched)?;
        Ok(matched)
    }

    /// Reports descriptors of a domain without limits. Fails while such a domain may still get some: to allow them
    /// would open every limit at a start.
    pub(crate) fn check_domain(
        &self,
        limits: &LimitsInForce,
        request: &Request,
        matched: &MatchedLimits<'_>,
    ) -> Result<(), Undecided> {
        if matched.without_domain > 0 {
            self.observer.domain_not_found(matched.without_domain);
        }
        match limits.rules.is_awaited() && !limits.rules.has_domain(&request.domain) {
            true => Err(Undecided::LimitsAwaited),
            false => Ok(()),
        }
    }

    /// The answer to a request that was decided, which is reported.
    pub(crate) fn answer(
        &self,
        decided: &Decided<'_, '_>,
        plan: &mut Plan<'_>,
        verdict: Verdict,
        passing: Passing,
    ) -> Answer {
        let debits = &decided.limits.debits;
        decided.report(passing, |limit, charge, decision| debits.note(limit, charge, decision));
        let statuses = decided.statuses();
        let metadata = match self.modes.metadata {
            DynamicMetadata::On => Some(decided.metadata(&statuses)),
            DynamicMetadata::Off => None,
        };
        self.observer.answered(verdict);
        if self.modes.shadow == GlobalShadow::On {
            plan.enforce(decided.applied, Modes { shadow: GlobalShadow::Off, ..self.modes });
            if tidegate_core::verdict(&plan.asks, decided.decisions) == Verdict::Deny {
                self.observer.shadowed();
            }
        }
        Answer { verdict, statuses, metadata }
    }
}

/// Whether the counters can have the state of every limit.
fn check_states(counters: &dyn Counters, rules: &Rules) -> Result<(), NoWideNodes> {
    let unfit = |limit: &&Limit| counters.state_words() < limit.quota.state_size().words();
    match rules.limits().into_iter().find(unfit) {
        None => Ok(()),
        Some(limit) => {
            let (limit, algorithm) = (limit.path.clone(), limit.quota.algorithm());
            Err(NoWideNodes { limit, algorithm })
        }
    }
}
