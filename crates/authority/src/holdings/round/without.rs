//! Decisions on limits without their counters.
//!
//! If the shared counters cannot be reached, limits that lack tokens are decided by the failure mode: on a state that
//! is thrown away, of a limit that is closed or that nobody has used. A request that a recent denial denies anyway needs
//! no refill: its other limits are reported as if they had room.

use super::{Round, asks_of, held};
use crate::holdings::site::Site;
use crate::holdings::{Failure, Holdings};
use crate::plan::{Plan, Words};
use smallvec::SmallVec;
use std::sync::LazyLock;
use tidegate_core::{Decisions, FixedWindow, Nanos, Quota, Verdict, decide_all};

/// Denies everything, for a second.
pub(in crate::holdings) static CLOSED: LazyLock<Quota> = LazyLock::new(|| {
    Quota::FixedWindow(FixedWindow::new(0, Nanos::from_secs(1)).expect("a period in range"))
});

/// How to decide a limit without its counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Assumed {
    Room,
    Closed,
}

impl<'p> Round<'p> {
    /// Lets a holding decide alone, if that is the failure mode.
    pub(super) fn goes_alone(
        &self,
        holdings: &Holdings,
        plan: &Plan<'p>,
        words: &mut Words,
        counter: usize,
    ) -> bool {
        if holdings.shared.failure != Failure::Local {
            return false;
        }
        let held = asks_of(plan, counter).next().and_then(held);
        let Some(((held, state), sidecars)) = held.zip(holdings.sidecars.most(self.now)) else {
            return false;
        };
        let Some(state) = words[state].first_chunk_mut() else { return false };
        held.decide_alone(state, sidecars, self.now);
        true
    }

    /// Decides the limits of some counters on states of their own, which are thrown away.
    pub(super) fn assume(
        &mut self,
        plan: &Plan<'p>,
        words: &mut Words,
        assumed: &[(usize, Assumed)],
    ) {
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
    pub(super) fn decide_without(
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
}

pub(super) fn assumed_by(failure: Failure) -> Assumed {
    match failure {
        Failure::Allow => Assumed::Room,
        Failure::Deny | Failure::Local => Assumed::Closed,
    }
}
