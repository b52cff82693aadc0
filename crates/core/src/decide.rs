//! Decides one limit, or several as one: all have room and are charged, or none is.
//!
//! The caller holds the states and their locks during the call. Several checks may share a state, for
//! example if a request has the same descriptor twice; each then sees the hits that the earlier ones took.

use crate::algorithm::daily_reset;
use crate::answer::Verdict;
use crate::decision::{Decision, Outcome};
use crate::quota::Quota;
use crate::state::narrow_mut;
use crate::units::{Charge, Hits, Nanos, Timestamp};
use std::ops::Range;

/// Decides one charge against one counter. `state` has the words of the parts of [`Quota::parts`] at `now`,
/// one after the other, each of [`Quota::state_size`]. A state of zeros is a counter that was never used.
///
/// # Panics
/// If `state` is shorter than that.
pub fn decide(state: &mut [u64], quota: &Quota, charge: Charge, now: Timestamp) -> Decision {
    let mut decision = match quota {
        Quota::FixedWindow(window) => match &window.reset {
            None => window.decide(narrow_mut(state), charge, now),
            Some(reset) => daily_reset::decide(window, reset, state, charge, now),
        },
        Quota::FirstHitWindow(window) => window.decide(narrow_mut(state), charge, now),
        Quota::TokenBucket(bucket) => bucket.decide(narrow_mut(state), charge, now),
        Quota::SlidingWindow(window) => match &window.reset {
            None => window.decide(narrow_mut(state), charge, now),
            Some(reset) => daily_reset::decide(window, reset, state, charge, now),
        },
        Quota::SlidingBuckets(buckets) => match &buckets.reset {
            None => buckets.decide(state, charge, now),
            Some(reset) => daily_reset::decide(buckets, reset, state, charge, now),
        },
        Quota::SlidingExact(exact) => exact.decide(state, charge, now),
        Quota::Held(held, _) => held.decide(narrow_mut(state), charge, now),
    };
    if let Outcome::Deny { retry_after } = &mut decision.outcome
        && *retry_after == Nanos::ZERO
    {
        // The hits never fit, although the counter is full. Without a wait, a client would retry at once,
        // for ever.
        *retry_after = quota.period().nominal();
    }
    decision
}

/// Whether a rule denies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Enforcement {
    /// The rule denies.
    #[default]
    Enforce,
    /// The rule counts and reports, but never denies.
    Shadow,
    /// The rule denies only if all rules of this kind that the request meets are over.
    Quota,
}

/// Whether the hits of denied requests count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeniedHits {
    /// They do not count.
    #[default]
    Ignore,
    /// They count, as far as the algorithm can.
    Count,
}

/// One limit to check for a request.
#[derive(Debug, Clone)]
pub struct LimitCheck<'a> {
    /// The limit's rate.
    pub quota: &'a Quota,
    /// Whether it denies.
    pub enforcement: Enforcement,
    /// Whether denied hits count.
    pub denied: DeniedHits,
    /// The charge against its counter.
    pub charge: Charge,
    /// The index of the descriptor. Checks of one descriptor are adjacent.
    pub descriptor: usize,
    /// The range of its counter's words among the words of all states.
    pub state: Range<usize>,
}

/// The decisions on one request. Reused by the caller, so that deciding does not allocate once the buffers
/// have grown.
#[derive(Debug, Default)]
pub struct Decisions {
    all: Vec<Decision>,
    before: Vec<u64>,
}

impl Decisions {
    /// No decisions yet.
    #[must_use]
    pub const fn new() -> Self {
        Decisions { all: Vec::new(), before: Vec::new() }
    }

    /// One decision for each check of the last request, in order.
    #[must_use]
    pub fn all(&self) -> &[Decision] {
        &self.all
    }

    /// Takes decisions that were made elsewhere.
    pub fn set(&mut self, all: impl IntoIterator<Item = Decision>) {
        self.all.clear();
        self.all.extend(all);
    }
}

/// Decides `checks` in order, and updates the words of their counters' states.
///
/// A descriptor is over if one of its limits has no room. The request is denied if a descriptor with an
/// enforced rule is over, or if all descriptors with quota rules are over. A denied request takes nothing.
/// If a request is allowed, descriptors that are over (in shadow or quota mode) take nothing, and the
/// others take all their hits. [`DeniedHits::Count`] makes an exception to both. Limits with room that
/// nothing was taken from report their remaining hits unchanged.
///
/// # Panics
/// If the range of a check is out of bounds, or too short for its quota.
pub fn decide_all(
    states: &mut [u64],
    checks: &[LimitCheck<'_>],
    now: Timestamp,
    decisions: &mut Decisions,
) -> Verdict {
    let Decisions { all, before } = decisions;
    all.clear();
    before.clear();
    before.extend_from_slice(states);
    for check in checks {
        // Later checks must see denied hits that count.
        all.push(decide(
            &mut states[check.state.clone()],
            check.quota,
            effective_charge(check),
            now,
        ));
    }
    if all.iter().all(Decision::is_allow) {
        return Verdict::Allow;
    }
    let verdict = verdict(checks, all);
    states.copy_from_slice(before);
    let mut start = 0;
    for group in checks.chunk_by(|a, b| a.descriptor == b.descriptor) {
        let decisions = &mut all[start..start + group.len()];
        start += group.len();
        let is_over = !decisions.iter().all(Decision::is_allow);
        for (check, decision) in group.iter().zip(decisions) {
            let state = &mut states[check.state.clone()];
            if verdict == Verdict::Deny || is_over {
                charge_denied(check, state, now, decision);
            } else {
                *decision = decide(state, check.quota, effective_charge(check), now);
            }
        }
    }
    verdict
}

/// Charges `checks` in order, each by itself, and updates the words of their counters' states. Hits count
/// even if they do not fit ([`Charge::Force`]), because they have already happened, and a refund is made
/// whatever becomes of the other charges. The verdict is the one that a request for all of them would get.
///
/// # Panics
/// If the range of a check is out of bounds, or too short for its quota.
pub fn charge_each(
    states: &mut [u64],
    checks: &[LimitCheck<'_>],
    now: Timestamp,
    decisions: &mut Decisions,
) -> Verdict {
    let Decisions { all, .. } = decisions;
    all.clear();
    for check in checks {
        let charge = match check.charge {
            Charge::Take(hits) if hits != Hits::PEEK => Charge::Force(hits),
            charge => charge,
        };
        all.push(decide(&mut states[check.state.clone()], check.quota, charge, now));
    }
    verdict(checks, all)
}

/// The verdict that follows from one decision for each check.
#[must_use]
pub fn verdict(checks: &[LimitCheck<'_>], decisions: &[Decision]) -> Verdict {
    let (mut quotas, mut quotas_over) = (0, 0);
    let mut start = 0;
    for group in checks.chunk_by(|a, b| a.descriptor == b.descriptor) {
        let decisions = &decisions[start..start + group.len()];
        start += group.len();
        let is_over = |enforcement| {
            let mut checked = group.iter().zip(decisions);
            checked
                .any(|(check, decision)| check.enforcement == enforcement && !decision.is_allow())
        };
        if is_over(Enforcement::Enforce) {
            return Verdict::Deny;
        }
        if group.iter().any(|check| check.enforcement == Enforcement::Quota) {
            quotas += 1;
            quotas_over += usize::from(is_over(Enforcement::Quota));
        }
    }
    if quotas > 0 && quotas == quotas_over { Verdict::Deny } else { Verdict::Allow }
}

/// The charge of a check; forced if denied hits count.
fn effective_charge(check: &LimitCheck<'_>) -> Charge {
    match (check.denied, check.charge) {
        (DeniedHits::Count, Charge::Take(hits)) => Charge::Force(hits),
        (_, charge) => charge,
    }
}

/// Takes nothing, unless denied hits count.
fn charge_denied(
    check: &LimitCheck<'_>,
    state: &mut [u64],
    now: Timestamp,
    decision: &mut Decision,
) {
    match (check.denied, check.charge) {
        (DeniedHits::Count, Charge::Take(_)) => {
            *decision = decide(state, check.quota, effective_charge(check), now);
        }
        _ if decision.is_allow() => {
            // The charge itself fits (refunds always do), even if nothing is left for a peek.
            let untouched = decide(state, check.quota, Charge::PEEK, now);
            *decision = Decision { outcome: Outcome::Allow, ..untouched };
        }
        // A new bucket starts to refill at its first use, even if that is denied.
        _ if state.iter().all(|word| *word == 0) => {
            decide(state, check.quota, Charge::PEEK, now);
        }
        _ => {}
    }
}
