//! Requests that are decided directly, and whose counters are at several places, such as slots of a cluster.
//!
//! Hits are reserved place by place, in the order of the places, and given back if a later place denies. So no limit is
//! exceeded. As long as hits are reserved, which takes a round trip for each further place, other requests may be denied for
//! want of them. Two requests never deny each other: the one that reserves first at their first common place goes on.
//!
//! Hits that cannot be given back stay charged: their window is over, or their place cannot be reached.

use super::round::{CLOSED, Round};
use super::site::Site;
use crate::authority::Authority;
use crate::counters::{Counters, Undecided};
use crate::plan::{Part, Plan, Words};
use tidegate_core::{
    Charge, Decision, Decisions, DeniedHits, Enforcement, Hits, LimitCheck, Outcome, Quota,
    Timestamp, Verdict, decide, decide_all, verdict,
};
use tidegate_store::Entries;

/// A part of a request, and what became of it.
struct Reserved<'p> {
    part: Part<'p>,
    /// One for each ask.
    decisions: Vec<Decision>,
    words: Words,
}

/// A request that was decided.
pub(crate) struct Made {
    pub(crate) verdict: Verdict,
    /// The words of all counters afterwards.
    pub(crate) words: Words,
}

impl Authority {
    /// Decides a request whose counters no single update reaches.
    #[cold]
    pub(crate) async fn decide_apart<'p>(
        &self,
        (site, round): (&Site<'_>, &mut Round<'p>),
        plan: &Plan<'p>,
        decisions: &mut Decisions,
    ) -> Result<Verdict, Undecided> {
        let made = Box::pin(reserve(site, plan, round.now, decisions)).await;
        let (mut verdict, updated) = match made {
            Ok(made) => (made.verdict, Ok(())),
            Err(error) => (Verdict::Deny, Err(error)),
        };
        // A direct decision is final.
        round.is_decided(site, plan, updated, (&mut verdict, decisions)).await?;
        Ok(verdict)
    }
}

/// Takes all hits, or none.
pub(crate) async fn reserve(
    site: &Site<'_>,
    plan: &Plan<'_>,
    now: Timestamp,
    decisions: &mut Decisions,
) -> Result<Made, Undecided> {
    let mut parts: Vec<Reserved<'_>> =
        plan.parts(site.counters.reach()).into_iter().map(Reserved::new).collect();
    let mut denied_at = None;
    for index in 0..parts.len() {
        let made = match denied_at {
            None => parts[index].take(site.counters, now).await,
            Some(_) => parts[index].deny(site.counters, now).await.map(|()| Verdict::Allow),
        };
        match made {
            Ok(Verdict::Allow) => {}
            Ok(Verdict::Deny) => denied_at = Some(index),
            Err(error) => {
                // The request has no decision. What cannot be given back stays charged.
                let reserved = denied_at.unwrap_or(index);
                let _ = give_back(site, &mut parts[..reserved], now).await;
                return Err(error);
            }
        }
    }
    let all = gather(plan, &parts);
    let quotas_deny = denied_at.is_none() && verdict(&plan.asks, &all) == Verdict::Deny;
    let denied_at = denied_at.or(quotas_deny.then_some(parts.len()));
    if denied_at.is_none() {
        for part in &mut parts {
            part.refund(site.counters, now).await?;
        }
    }
    if let Some(reserved) = denied_at
        && let Err(error) = give_back(site, &mut parts[..reserved], now).await
    {
        tracing::debug!(%error, "hits of a denied request stay charged");
    }
    let mut words = Words::from_elem(0, plan.words);
    for reserved in &parts {
        reserved.part.copy_into(plan, &reserved.words, &mut words);
    }
    decisions.set(gather(plan, &parts));
    let verdict = if denied_at.is_some() { Verdict::Deny } else { Verdict::Allow };
    Ok(Made { verdict, words })
}

/// The words of all counters, place by place.
pub(crate) async fn read(
    counters: &dyn Counters,
    plan: &Plan<'_>,
    now: Timestamp,
) -> Result<Words, Undecided> {
    let mut all = Words::from_elem(0, plan.words);
    for part in plan.parts(counters.reach()) {
        let mut words = Words::new();
        let mut look = |entries: &mut Entries<'_>| words = part.plan.read(entries);
        counters.update(&part.plan.keys, now, &mut look).await?;
        part.copy_into(plan, &words, &mut all);
    }
    Ok(all)
}

/// The decisions of all parts, in the order of the plan's asks.
fn gather(plan: &Plan<'_>, parts: &[Reserved<'_>]) -> Vec<Decision> {
    let own = |reserved: &Reserved<'_>| {
        reserved.part.asks.iter().copied().zip(reserved.decisions.clone()).collect::<Vec<_>>()
    };
    let mut all: Vec<(usize, Decision)> = parts.iter().flat_map(own).collect();
    all.sort_unstable_by_key(|(index, _)| *index);
    debug_assert_eq!(all.len(), plan.asks.len());
    all.into_iter().map(|(_, decision)| decision).collect()
}

/// Gives back what parts of a denied request have reserved. Goes on after an error, and returns the first.
async fn give_back(
    site: &Site<'_>,
    parts: &mut [Reserved<'_>],
    charged_at: Timestamp,
) -> Result<(), Undecided> {
    let mut result = Ok(());
    for part in parts {
        let now = site.now(charged_at).max(charged_at);
        result = result.and(part.give_back(site.counters, charged_at, now).await);
    }
    result
}

impl<'p> Reserved<'p> {
    fn new(part: Part<'p>) -> Self {
        Reserved { part, decisions: Vec::new(), words: Words::new() }
    }

    /// Takes the hits, unless a rule of this place denies. Whether all quotas of the request are over is seen later, and
    /// refunds are made later.
    async fn take(
        &mut self,
        counters: &dyn Counters,
        now: Timestamp,
    ) -> Result<Verdict, Undecided> {
        let Reserved { part, decisions, words } = self;
        let plan = &part.plan;
        let mut asks = plan.asks.clone();
        for ask in &mut asks {
            if ask.enforcement == Enforcement::Quota {
                ask.enforcement = Enforcement::Shadow;
            }
            if let Charge::Refund(_) = ask.charge {
                ask.charge = Charge::Refund(Hits::PEEK);
            }
        }
        let (mut verdict, mut made) = (Verdict::Deny, Decisions::default());
        let mut update = |entries: &mut Entries<'_>| {
            *words = plan.read(entries);
            verdict = decide_all(words, &asks, now, &mut made);
            plan.write(entries, words, &plan.keep_until(made.all()));
        };
        counters.update(&plan.keys, now, &mut update).await?;
        decisions.clear();
        decisions.extend_from_slice(made.all());
        Ok(verdict)
    }

    /// Decides as part of a request that is denied elsewhere.
    async fn deny(&mut self, counters: &dyn Counters, now: Timestamp) -> Result<(), Undecided> {
        let Reserved { part, decisions, words, .. } = self;
        let plan = &part.plan;
        let closed = Quota::state_size(&CLOSED).words();
        let mut asks = plan.asks.to_vec();
        asks.push(LimitCheck {
            quota: &CLOSED,
            enforcement: Enforcement::Enforce,
            denied: DeniedHits::Ignore,
            charge: Charge::Take(Hits::new(1)),
            descriptor: usize::MAX,
            state: plan.words..plan.words + closed,
        });
        let mut made = Decisions::default();
        let mut update = |entries: &mut Entries<'_>| {
            *words = plan.read(entries);
            words.resize(plan.words + closed, 0);
            decide_all(words, &asks, now, &mut made);
            words.truncate(plan.words);
            plan.write(entries, words, &plan.keep_until(&made.all()[..plan.asks.len()]));
        };
        counters.update(&plan.keys, now, &mut update).await?;
        decisions.clear();
        decisions.extend_from_slice(&made.all()[..plan.asks.len()]);
        Ok(())
    }

    /// Makes the refunds of an allowed request.
    async fn refund(&mut self, counters: &dyn Counters, now: Timestamp) -> Result<(), Undecided> {
        let Reserved { part, decisions, words } = self;
        let plan = &part.plan;
        let is_refund = |ask: &LimitCheck<'_>| matches!(ask.charge, Charge::Refund(_));
        if !plan.asks.iter().any(is_refund) {
            return Ok(());
        }
        let before = &*decisions;
        let mut after = before.clone();
        let mut update = |entries: &mut Entries<'_>| {
            *words = plan.read(entries);
            after.clone_from(before);
            for (ask, decision) in plan.asks.iter().zip(&mut after) {
                if is_refund(ask) {
                    *decision = decide(&mut words[ask.state.clone()], ask.quota, ask.charge, now);
                }
            }
            plan.write(entries, words, &plan.keep_until(&after));
        };
        counters.update(&plan.keys, now, &mut update).await?;
        *decisions = after;
        Ok(())
    }

    /// Gives back what was taken at `charged_at`, as far as its windows still count it.
    async fn give_back(
        &mut self,
        counters: &dyn Counters,
        charged_at: Timestamp,
        now: Timestamp,
    ) -> Result<(), Undecided> {
        let Reserved { part, decisions, words } = self;
        let plan = &part.plan;
        let before = &*decisions;
        let mut after = before.clone();
        let mut update = |entries: &mut Entries<'_>| {
            *words = plan.read(entries);
            after.clone_from(before);
            for ask in &plan.asks {
                if !has_taken(plan, before, ask) {
                    continue;
                }
                let state = &mut words[ask.state.clone()];
                let hits = ask.charge.hits().get();
                let worth = ask.quota.refundable(state, hits, charged_at, now);
                let charge = Charge::Refund(Hits::new(worth));
                decide(state, ask.quota, charge, now);
            }
            for (index, ask) in plan.asks.iter().enumerate() {
                if has_taken(plan, before, ask) {
                    let state = &mut words[ask.state.clone()];
                    let left = decide(state, ask.quota, Charge::PEEK, now);
                    after[index] = Decision { outcome: Outcome::Allow, ..left };
                }
            }
            plan.write(entries, words, &plan.keep_until(&after));
        };
        counters.update(&plan.keys, now, &mut update).await?;
        *decisions = after;
        Ok(())
    }
}

/// Whether an ask has charged its counter, and would not have if the request had been denied at once.
fn has_taken(plan: &Plan<'_>, decisions: &[Decision], ask: &LimitCheck<'_>) -> bool {
    let own = plan.asks.iter().zip(decisions);
    let mut own = own.filter(|(other, _)| other.descriptor == ask.descriptor);
    ask.denied == DeniedHits::Ignore
        && matches!(ask.charge, Charge::Take(_))
        && ask.charge != Charge::PEEK
        && own.all(|(_, decision)| decision.is_allow())
}
