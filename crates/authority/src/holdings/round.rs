//! One try to decide a request over holdings, and the next one after refills.
//!
//! Before a decision it looks at what each counter lacks. If a refill could change that, nothing is decided or written
//! until the refill is there. A request that a recent denial denies anyway needs no refill: its other limits are
//! reported as if they had room.
//!
//! If the shared counters cannot be reached, limits that lack tokens are decided by the failure mode: on a state that
//! is thrown away, of a limit that is closed or that nobody has used.

use super::flights::Need;
use super::site::{Kind, Site};
use super::{Failure, Holdings, Target};
use crate::counters::Undecided;
use crate::plan::{Plan, Words};
use smallvec::SmallVec;
use std::sync::{Arc, LazyLock};
use tidegate_core::{
    Charge, Decisions, Demand, Enforcement, FixedWindow, Held, Lack, LimitCheck, Nanos, Quota,
    Timestamp, Verdict, decide_all,
};

/// Tries until a request is refused. Each but the first follows a refill whose tokens others were quicker to spend, so
/// each asks for twice as many as the one before: soon there are enough for all, or none is left.
const TRIES_MAX: u32 = 16;

/// Denies everything, for a second.
static CLOSED: LazyLock<Quota> = LazyLock::new(|| {
    Quota::FixedWindow(FixedWindow::new(0, Nanos::from_secs(1)).expect("a period in range"))
});

/// Whether the descriptors of a request take their hits together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Takes {
    /// All take them or none.
    Together,
    /// Each takes them even if they do not fit. What the shared counters cannot be asked for is owed.
    Each,
}

/// What to do after an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Done,
    /// Holdings were refilled: decide again.
    Again,
    /// The shared counters cannot be reached: decide without them.
    Without,
}

/// The tries of one request.
pub(crate) struct Round<'p> {
    pub(crate) now: Timestamp,
    takes: Takes,
    tries: u32,
    /// What this try lacks.
    short: SmallVec<[Short; 2]>,
    /// The counters that should be refilled although nobody waits.
    low: SmallVec<[usize; 4]>,
    /// The counters whose refill has failed.
    failed: SmallVec<[usize; 2]>,
    refilled: SmallVec<[usize; 2]>,
    /// Whether refills may have brought more than the hits of the request.
    has_surplus: bool,
    /// Whether no time of the shared counters is known.
    is_lost: bool,
    /// The asks to decide, if not those of the plan.
    asks: Option<SmallVec<[LimitCheck<'p>; 4]>>,
}

/// A counter without enough tokens.
struct Short {
    counter: usize,
    need: Need,
}

/// How to decide a limit without its counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Assumed {
    Room,
    Closed,
}

impl<'p> Round<'p> {
    #[inline]
    pub(crate) fn new(site: &Site<'_>, takes: Takes, now: Timestamp) -> Round<'p> {
        let shared_now = site.holdings().map(|holdings| holdings.now());
        Round {
            now: shared_now.flatten().unwrap_or(now),
            takes,
            tries: 0,
            short: SmallVec::new(),
            low: SmallVec::new(),
            failed: SmallVec::new(),
            refilled: SmallVec::new(),
            has_surplus: false,
            is_lost: shared_now == Some(None),
            asks: None,
        }
    }

    /// The asks to decide in this try.
    #[inline]
    pub(crate) fn asks<'r>(&'r self, plan: &'r Plan<'p>) -> &'r [LimitCheck<'p>] {
        self.asks.as_deref().unwrap_or(&plan.asks)
    }

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
            self.failed = (0..plan.counters.len()).collect();
        }
        let mut is_denied = false;
        for counter in 0..plan.counters.len() {
            if self.failed.contains(&counter) {
                continue;
            }
            let own =
                || plan.asks.iter().zip(&plan.counter_of_ask).filter(|(_, of)| **of == counter);
            let Some((held, state)) = own().find_map(|(ask, _)| held(ask)) else { continue };
            let mut need = Need::default();
            let mut enforces = false;
            for (ask, _) in own() {
                enforces |= ask.enforcement == Enforcement::Enforce;
                if !matches!(ask.charge, Charge::Refund(_)) {
                    need.hits = need.hits.saturating_add(ask.charge.hits().needed());
                }
                let ahead = ahead(ask.descriptor);
                need.waiting = need.waiting.saturating_add(ahead.waiting);
                need.wanted = need.wanted.saturating_add(ahead.wanted);
            }
            let state = words[state].first_chunk().expect("a holding is narrow");
            let all = need.hits.saturating_add(need.waiting);
            match held.lacks(state, need.hits, self.now) {
                Lack::Tokens => {
                    let spent_by_others = need.hits.saturating_mul((1 << self.tries) - 1);
                    need.waiting = need.waiting.saturating_add(spent_by_others);
                    self.short.push(Short { counter, need });
                }
                Lack::Denied => is_denied |= enforces,
                // What waits elsewhere is asked for once.
                Lack::Nothing
                    if self.tries == 0 && held.lacks(state, all, self.now) == Lack::Tokens =>
                {
                    self.short.push(Short { counter, need });
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

    /// Lets a holding decide alone, if that is the failure mode.
    fn goes_alone(
        &self,
        holdings: &Holdings,
        plan: &Plan<'p>,
        words: &mut Words,
        counter: usize,
    ) -> bool {
        if holdings.shared.failure != Failure::Local {
            return false;
        }
        let own = plan.asks.iter().zip(&plan.counter_of_ask).find(|(_, of)| **of == counter);
        let held = own.and_then(|(ask, _)| held(ask));
        let Some(((held, state), sidecars)) = held.zip(holdings.sidecars.most(self.now)) else {
            return false;
        };
        let Some(state) = words[state].first_chunk_mut() else { return false };
        held.decide_alone(state, sidecars, self.now);
        true
    }

    /// Decides the limits of some counters on states of their own, which are thrown away.
    fn assume(&mut self, plan: &Plan<'p>, words: &mut Words, assumed: &[(usize, Assumed)]) {
        if assumed.is_empty() {
            return;
        }
        let mut asks = plan.asks.clone();
        for (ask, counter) in asks.iter_mut().zip(&plan.counter_of_ask) {
            let Some((_, how)) = assumed.iter().find(|(of, _)| of == counter) else { continue };
            ask.quota = match (how, ask.quota) {
                (Assumed::Closed, _) => &CLOSED,
                (Assumed::Room, Quota::Held(_, of)) => of,
                (Assumed::Room, quota) => quota,
            };
            let parts = ask.quota.parts(self.now).labels().len();
            let first = words.len();
            words.resize(first + parts * ask.quota.state_size().words(), 0);
            ask.state = first..words.len();
        }
        self.asks = Some(asks);
    }

    /// Decides a request whose counters cannot be reached.
    fn decide_without(
        &mut self,
        site: &Site<'_>,
        plan: &Plan<'p>,
        decisions: &mut Decisions,
    ) -> Verdict {
        let failure = site.holdings().map_or(Failure::Deny, |holdings| holdings.shared.failure);
        let how = assumed_by(failure);
        let all: SmallVec<[(usize, Assumed); 4]> =
            (0..plan.counters.len()).map(|counter| (counter, how)).collect();
        let mut words = Words::from_elem(0, plan.words);
        self.assume(plan, &mut words, &all);
        decide_all(&mut words, self.asks(plan), self.now, decisions)
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

    /// Whether the request is decided after an update. Otherwise holdings were refilled meanwhile, and it is to be decided
    /// again.
    #[inline]
    pub(crate) async fn is_decided(
        &mut self,
        site: &Site<'_>,
        plan: &Plan<'p>,
        updated: Result<(), Undecided>,
        (verdict, decisions): (&mut Verdict, &mut Decisions),
    ) -> Result<bool, Undecided> {
        let is_decided = match self.next(site, plan, updated).await? {
            Next::Done => true,
            Next::Again => false,
            Next::Without => {
                *verdict = self.decide_without(site, plan, decisions);
                true
            }
        };
        let may_leave = self.has_surplus || !takes_all(plan, *verdict);
        if is_decided && !self.refilled.is_empty() && may_leave {
            self.watch(site, plan);
        }
        Ok(is_decided)
    }

    #[inline]
    async fn next(
        &mut self,
        site: &Site<'_>,
        plan: &Plan<'p>,
        updated: Result<(), Undecided>,
    ) -> Result<Next, Undecided> {
        match (site.kind, updated) {
            (Kind::Local, updated) => updated.map(|()| Next::Done),
            (Kind::Shared(holdings), updated) => self.after_direct(holdings, updated),
            (Kind::Holdings(holdings, _), updated) => {
                updated?;
                if self.short.is_empty() {
                    self.done(holdings, plan);
                    return Ok(Next::Done);
                }
                // Boxed: most requests never come here, and all would carry its room.
                Box::pin(self.refill(holdings, plan)).await
            }
        }
    }

    fn after_direct(
        &self,
        holdings: &Holdings,
        updated: Result<(), Undecided>,
    ) -> Result<Next, Undecided> {
        match updated {
            Ok(()) => {
                holdings.note(Ok(()));
                Ok(Next::Done)
            }
            Err(error @ Undecided::Unreachable { .. }) => {
                holdings.note(Err(&error));
                if self.takes == Takes::Each {
                    // The client sends a debit again.
                    return Err(error);
                }
                holdings.observer.decided_without(holdings.shared.failure);
                Ok(Next::Without)
            }
            Err(error) => Err(error),
        }
    }

    fn done(&self, holdings: &Arc<Holdings>, plan: &Plan<'p>) {
        for counter in &self.low {
            if let Some(target) = target(plan, *counter) {
                holdings.refill_ahead(target);
            }
        }
        if !self.failed.is_empty() {
            holdings.observer.decided_without(holdings.shared.failure);
        }
    }

    /// Watches the holdings that this request had refilled, so that unused tokens go back.
    #[cold]
    fn watch(&self, site: &Site<'_>, plan: &Plan<'p>) {
        if let Some(holdings) = site.holdings() {
            for target in self.refilled.iter().filter_map(|counter| target(plan, *counter)) {
                holdings.watch(target);
            }
        }
    }

    #[cold]
    async fn refill(
        &mut self,
        holdings: &Arc<Holdings>,
        plan: &Plan<'p>,
    ) -> Result<Next, Undecided> {
        self.tries += 1;
        if self.tries > TRIES_MAX {
            let cause = "others spend what refills bring".to_owned();
            return Err(Undecided::Unreachable { cause });
        }
        let mut refills = SmallVec::<[_; 2]>::new();
        for short in &self.short {
            self.has_surplus |= short.need.waiting > 0;
            if let Some(target) = target(plan, short.counter) {
                refills.push((short.counter, holdings.refill_for(target, short.need)?));
            }
        }
        for (counter, refill) in refills {
            match refill.await {
                Ok(()) => self.refilled.push(counter),
                Err(Undecided::Unreachable { .. }) if self.takes == Takes::Each => {}
                Err(Undecided::Unreachable { .. }) => self.failed.push(counter),
                Err(error) => return Err(error),
            }
        }
        self.now = holdings.now().unwrap_or(self.now);
        Ok(Next::Again)
    }
}

/// Whether a request has spent what it had its holdings refilled for.
fn takes_all(plan: &Plan<'_>, verdict: Verdict) -> bool {
    let takes = |ask: &LimitCheck<'_>| {
        ask.enforcement == Enforcement::Enforce && ask.charge != Charge::PEEK
    };
    verdict == Verdict::Allow && plan.asks.iter().all(takes)
}

fn assumed_by(failure: Failure) -> Assumed {
    match failure {
        Failure::Allow => Assumed::Room,
        Failure::Deny | Failure::Local => Assumed::Closed,
    }
}

/// The holding of an ask, and where its words are.
fn held<'a>(ask: &LimitCheck<'a>) -> Option<(&'a Held, std::ops::Range<usize>)> {
    match ask.quota {
        Quota::Held(held, _) => Some((held, ask.state.clone())),
        _ => None,
    }
}

pub(crate) fn target(plan: &Plan<'_>, counter: usize) -> Option<Target> {
    let ask = plan.counter_of_ask.iter().position(|of| *of == counter)?;
    let quota = plan.asks.get(ask)?.quota;
    let hash = plan.counters.get(counter)?.hash;
    matches!(quota, Quota::Held(..)).then(|| Target { hash, quota: quota.clone() })
}
