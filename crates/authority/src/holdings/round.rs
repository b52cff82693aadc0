//! One try to decide a request over holdings, and the next one after refills.
//!
//! `look` finds what each counter lacks before a decision. If a refill could change that, nothing is decided or written
//! until the refill is there. `without` decides limits whose counters are not asked.

mod look;
mod without;

pub(super) use without::CLOSED;

use super::flights::Need;
use super::site::{Kind, Site};
use super::{Holdings, Target};
use crate::counters::{Patience, Undecided};
use crate::plan::Plan;
use smallvec::SmallVec;
use std::sync::Arc;
use tidegate_core::{Charge, Decisions, Enforcement, Held, LimitCheck, Quota, Timestamp, Verdict};

/// Tries until a request is refused. Each but the first follows a refill whose tokens others were quicker to spend, so
/// each asks for twice as many as the one before: soon there are enough for all, or none is left.
const TRIES_MAX: u32 = 16;

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
    patience: Patience,
    /// Whether counters in rare use may decide it without holdings.
    pub(crate) may_be_rare: bool,
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
    /// Whether its holding owes hits, which a refill charges.
    owes: bool,
}

impl<'p> Round<'p> {
    #[inline]
    pub(crate) fn new(
        site: &Site<'_>,
        takes: Takes,
        patience: Patience,
        now: Timestamp,
    ) -> Result<Round<'p>, Undecided> {
        if patience == Patience::AtOnce && site.is_shared() {
            return Err(Undecided::WouldWait { is_rare: false });
        }
        let shared_now = site.holdings().map(|holdings| holdings.now());
        Ok(Round {
            now: shared_now.flatten().unwrap_or(now),
            takes,
            patience,
            may_be_rare: false,
            tries: 0,
            short: SmallVec::new(),
            low: SmallVec::new(),
            failed: SmallVec::new(),
            refilled: SmallVec::new(),
            has_surplus: false,
            is_lost: shared_now == Some(None),
            asks: None,
        })
    }

    /// To be done before the first try.
    #[inline]
    pub(crate) async fn prepare(&self, site: &Site<'_>, plan: &Plan<'p>) {
        let refunds = |ask: &LimitCheck<'_>| matches!(ask.charge, Charge::Refund(_));
        if let Kind::Shared(holdings) = site.kind
            && plan.asks.iter().any(refunds)
        {
            // Boxed: few requests come here, and all would carry its room.
            Box::pin(holdings.surrender(plan)).await;
        }
    }

    /// The shared counters were asked in vain: the limits are decided without them.
    pub(crate) fn fail_all(&mut self, plan: &Plan<'p>) {
        self.failed = (0..plan.counters.len()).collect();
    }

    /// The asks to decide in this try.
    #[inline]
    pub(crate) fn asks<'r>(&'r self, plan: &'r Plan<'p>) -> &'r [LimitCheck<'p>] {
        self.asks.as_deref().unwrap_or(&plan.asks)
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
            (Kind::Local, Err(error @ Undecided::Unreachable { .. })) => {
                // A client sends a debit again.
                if self.takes == Takes::Each { Err(error) } else { Ok(Next::Without) }
            }
            (Kind::Local, updated) => updated.map(|()| Next::Done),
            (Kind::Shared(holdings), updated) => self.after_direct(holdings, plan, updated),
            (Kind::Holdings(holdings, _), updated) => {
                updated?;
                if self.short.is_empty() {
                    self.done(holdings, plan);
                    return Ok(Next::Done);
                }
                if self.patience == Patience::AtOnce {
                    let lacks_all = self.short.len() == plan.counters.len();
                    let owes = self.short.iter().any(|short| short.owes);
                    let may_be = self.may_be_rare && lacks_all && !owes;
                    let is_rare = may_be && holdings.claim_rare(plan, self.now);
                    return Err(Undecided::WouldWait { is_rare });
                }
                // Boxed: most requests never come here, and all would carry its room.
                Box::pin(self.refill(holdings, plan)).await
            }
        }
    }

    fn after_direct(
        &self,
        holdings: &Holdings,
        plan: &Plan<'p>,
        updated: Result<(), Undecided>,
    ) -> Result<Next, Undecided> {
        match updated {
            Ok(()) => {
                holdings.note(Ok(()));
                holdings.end_denials(plan);
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
                holdings.refill_low(target, self.now);
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

/// The asks of a counter.
fn asks_of<'r, 'p>(plan: &'r Plan<'p>, counter: usize) -> impl Iterator<Item = &'r LimitCheck<'p>> {
    let asks = plan.asks.iter().zip(&plan.counter_of_ask);
    asks.filter(move |(_, of)| **of == counter).map(|(ask, _)| ask)
}

/// The holding of an ask, and where its words are.
fn held<'a>(ask: &LimitCheck<'a>) -> Option<(&'a Held, std::ops::Range<usize>)> {
    match ask.quota {
        Quota::Held(held, _) => Some((held, ask.state.clone())),
        _ => None,
    }
}

pub(crate) fn target(plan: &Plan<'_>, counter: usize) -> Option<Target> {
    let quota = asks_of(plan, counter).next()?.quota;
    let hash = plan.counters.get(counter)?.hash;
    matches!(quota, Quota::Held(..)).then(|| Target { hash, quota: quota.clone() })
}
