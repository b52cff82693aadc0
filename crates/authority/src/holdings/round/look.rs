//! What the holdings of a request lack before its decision, and which run low after it.

use super::without::{Assumed, assumed_by};
use super::{Round, Short, Takes, asks_of, held};
use crate::holdings::Holdings;
use crate::holdings::flights::Need;
use crate::holdings::site::{Kind, Site};
use crate::plan::{Plan, Words};
use smallvec::SmallVec;
use tidegate_core::{Charge, Demand, Enforcement, Lack};

impl<'p> Round<'p> {
    /// Whether the holdings lack tokens that a refill may bring. `ahead` is what a descriptor wants beyond its hits.
    #[inline]
    pub(crate) fn lacks_tokens(
        &mut self,
        site: &Site<'_>,
        plan: &Plan<'p>,
        words: &mut Words,
        ahead: impl Fn(usize) -> Demand,
    ) -> bool {
        match site.kind {
            Kind::Local | Kind::Shared(_) => false,
            Kind::Holdings(holdings, _) => self.look(holdings, plan, words, ahead),
        }
    }

    fn look(
        &mut self,
        holdings: &Holdings,
        plan: &Plan<'p>,
        words: &mut Words,
        ahead: impl Fn(usize) -> Demand,
    ) -> bool {
        self.short.clear();
        self.low.clear();
        self.asks = None;
        if self.takes == Takes::Each && (self.tries > 0 || self.is_lost) {
            return false;
        }
        if self.is_lost {
            self.fail_all(plan);
        }
        let mut is_denied = false;
        for counter in 0..plan.counters.len() {
            if self.failed.contains(&counter) {
                continue;
            }
            let Some((held, state)) = asks_of(plan, counter).find_map(held) else { continue };
            let (mut need, enforces) = needed(plan, counter, &ahead);
            let state = words[state].first_chunk().expect("a holding is narrow");
            let all = need.hits.saturating_add(need.waiting);
            match held.lacks(state, need.hits, self.now) {
                Lack::Tokens => {
                    let spent_by_others = need.hits.saturating_mul((1 << self.tries) - 1);
                    need.waiting = need.waiting.saturating_add(spent_by_others);
                    let owes = held.owed(state, self.now) > 0;
                    self.short.push(Short { counter, need, owes });
                }
                Lack::Denied => is_denied |= enforces,
                // What waits elsewhere is asked for once.
                Lack::Nothing
                    if self.tries == 0 && held.lacks(state, all, self.now) == Lack::Tokens =>
                {
                    self.short.push(Short { counter, need, owes: false });
                }
                Lack::Nothing => {}
            }
        }
        let spares = is_denied && self.takes == Takes::Together;
        if !self.short.is_empty() && !spares {
            return true;
        }
        let is_alone = |counter: &&usize| !self.goes_alone(holdings, plan, words, **counter);
        let failed: SmallVec<[usize; 4]> = self.failed.iter().filter(is_alone).copied().collect();
        let how = assumed_by(holdings.shared.failure);
        let failed = failed.into_iter().map(|counter| (counter, how));
        let spared = self.short.drain(..).map(|short| (short.counter, Assumed::Room));
        let assumed: SmallVec<[(usize, Assumed); 4]> = failed.chain(spared).collect();
        self.assume(plan, words, &assumed);
        false
    }

    /// Notes the holdings that run low by this decision.
    #[inline]
    pub(crate) fn note_low(&mut self, site: &Site<'_>, plan: &Plan<'p>, words: &mut Words) {
        if let Kind::Holdings(..) = site.kind {
            for (ask, counter) in plan.asks.iter().zip(&plan.counter_of_ask) {
                if let Some((held, state)) = held(ask)
                    && let Some(state) = words[state].first_chunk_mut()
                    && held.is_refill_due(state, self.now)
                    && !self.low.contains(counter)
                {
                    self.low.push(*counter);
                }
            }
        }
    }
}

/// What the request needs of a counter, and whether one of its limits may deny it.
fn needed(plan: &Plan<'_>, counter: usize, ahead: impl Fn(usize) -> Demand) -> (Need, bool) {
    let (mut need, mut enforces) = (Need::default(), false);
    for ask in asks_of(plan, counter) {
        enforces |= ask.enforcement == Enforcement::Enforce;
        if !matches!(ask.charge, Charge::Refund(_)) {
            need.hits = need.hits.saturating_add(ask.charge.hits().needed());
        }
        let ahead = ahead(ask.descriptor);
        need.waiting = need.waiting.saturating_add(ahead.waiting);
        need.wanted = need.wanted.saturating_add(ahead.wanted);
    }
    (need, enforces)
}
