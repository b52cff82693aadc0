//! Deciding several limits as one: all have room and are taken from, or none is.
//!
//! The caller holds the states (and their locks) for the time of the call. Several asks may name
//! the same state, as when a request carries one descriptor twice; each then sees what the
//! earlier ones took.

use crate::algorithm::decide;
use crate::answer::Verdict;
use crate::quota::{Decision, Outcome, Quota};
use crate::units::{Charge, Timestamp};
use std::ops::Range;

/// Whether a rule has a say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Enforcement {
    /// It denies.
    #[default]
    Enforce,
    /// It counts and reports, but never denies.
    Shadow,
    /// It denies only together with all other rules of this kind that the request meets.
    Quota,
}

/// What becomes of the hits of a denied request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeniedHits {
    /// They are not counted.
    #[default]
    Ignore,
    /// They are counted, as far as the limit has room.
    Count,
}

/// One limit asked for one request.
#[derive(Debug, Clone)]
pub struct LimitCheck<'a> {
    /// The limit's rate.
    pub quota: &'a Quota,
    /// Whether its denial counts.
    pub enforcement: Enforcement,
    /// What becomes of the hits when the request is denied.
    pub denied: DeniedHits,
    /// What the request does here.
    pub charge: Charge,
    /// Which descriptor of the request asks. Asks of one descriptor follow each other.
    pub descriptor: usize,
    /// Where among the words of all states those of its counter are.
    pub state: Range<usize>,
}

/// What came of the asks of one request; kept by the caller, so that deciding allocates nothing once
/// it has grown.
#[derive(Debug, Default)]
pub struct Decisions {
    all: Vec<Decision>,
    before: Vec<u64>,
}

impl Decisions {
    /// None yet.
    #[must_use]
    pub const fn new() -> Self {
        Decisions { all: Vec::new(), before: Vec::new() }
    }

    /// One decision for each ask of the last request, in their order.
    #[must_use]
    pub fn all(&self) -> &[Decision] {
        &self.all
    }
}

/// Decides `asks` in order, on the words of their counters' states.
///
/// A descriptor is over when one of its limits has no room. The request is denied when a descriptor
/// is over whose rule is enforced, or when all those are over whose rules are quotas. A denied request takes
/// nothing; of one that is allowed, descriptors that are over (in shadow, or by quota) take
/// nothing, the others take all. [`DeniedHits::Count`] makes an exception to both. Decisions of limits with room from which nothing
/// was taken show what is left, untouched.
///
/// # Panics
/// When an ask names words that are not there, or too few for its quota.
pub fn decide_all(
    states: &mut [u64],
    asks: &[LimitCheck<'_>],
    now: Timestamp,
    decisions: &mut Decisions,
) -> Verdict {
    let Decisions { all, before } = decisions;
    all.clear();
    before.clear();
    before.extend_from_slice(states);
    for ask in asks {
        // Denied hits that count must be seen by the asks that follow.
        all.push(decide(&mut states[ask.state.clone()], ask.quota, counted(ask), now));
    }
    if all.iter().all(Decision::is_allow) {
        return Verdict::Allow;
    }
    let verdict = verdict(asks, all);
    states.copy_from_slice(before);
    let mut start = 0;
    for group in asks.chunk_by(|a, b| a.descriptor == b.descriptor) {
        let decisions = &mut all[start..start + group.len()];
        start += group.len();
        let is_over = !decisions.iter().all(Decision::is_allow);
        for (ask, decision) in group.iter().zip(decisions) {
            let state = &mut states[ask.state.clone()];
            if verdict == Verdict::Deny || is_over {
                hold_back(ask, state, now, decision);
            } else {
                *decision = decide(state, ask.quota, counted(ask), now);
            }
        }
    }
    verdict
}

/// What the decisions on `asks` come to, one for each of them.
#[must_use]
pub fn verdict(asks: &[LimitCheck<'_>], decisions: &[Decision]) -> Verdict {
    let (mut quotas, mut quotas_over) = (0, 0);
    let mut start = 0;
    for group in asks.chunk_by(|a, b| a.descriptor == b.descriptor) {
        let decisions = &decisions[start..start + group.len()];
        start += group.len();
        let is_over = |enforcement| {
            let mut asked = group.iter().zip(decisions);
            asked.any(|(ask, decision)| ask.enforcement == enforcement && !decision.is_allow())
        };
        if is_over(Enforcement::Enforce) {
            return Verdict::Deny;
        }
        if group.iter().any(|ask| ask.enforcement == Enforcement::Quota) {
            quotas += 1;
            quotas_over += usize::from(is_over(Enforcement::Quota));
        }
    }
    if quotas > 0 && quotas == quotas_over { Verdict::Deny } else { Verdict::Allow }
}

/// The charge of an ask, which is taken even where it does not fit if denied hits count.
fn counted(ask: &LimitCheck<'_>) -> Charge {
    match (ask.denied, ask.charge) {
        (DeniedHits::Count, Charge::Take(hits)) => Charge::Force(hits),
        (_, charge) => charge,
    }
}

/// Takes nothing, unless denied hits count.
fn hold_back(ask: &LimitCheck<'_>, state: &mut [u64], now: Timestamp, decision: &mut Decision) {
    match (ask.denied, ask.charge) {
        (DeniedHits::Count, Charge::Take(_)) => {
            *decision = decide(state, ask.quota, counted(ask), now);
        }
        _ if decision.is_allow() => {
            // It still fits, a refund too, though there may be nothing left for a peek.
            let untouched = decide(state, ask.quota, Charge::PEEK, now);
            *decision = Decision { outcome: Outcome::Allow, ..untouched };
        }
        // A new bucket's time starts with the first look at it, even if that was a denial.
        _ if state.iter().all(|word| *word == 0) => {
            decide(state, ask.quota, Charge::PEEK, now);
        }
        _ => {}
    }
}
