//! Where a request is decided: over local counters, over holdings, or directly over the shared counters.
//!
//! Some requests need the true state and are decided directly: limits that count denied hits, limits in requests (the
//! next request may bring a larger one), refunds, and the nodes of the FRS.

use super::round::target;
use super::{HeldQuotas, Holdings};
use crate::applied::{Applied, MatchedLimits};
use crate::authority::Authority;
use crate::counters::{Counters, Reach};
use crate::in_force::LimitsInForce;
use crate::modes::Modes;
use crate::plan::{Hashing, HeldPlan, Plan};
use std::sync::Arc;
use tidegate_core::{DeniedHits, Direction, Request, Timestamp};

/// Where a request is decided.
pub(crate) struct Site<'a> {
    pub(crate) counters: &'a dyn Counters,
    pub(crate) kind: Kind<'a>,
}

#[derive(Clone, Copy)]
pub(crate) enum Kind<'a> {
    /// There are no others.
    Local,
    Holdings(&'a Arc<Holdings>, &'a HeldQuotas),
    Shared(&'a Arc<Holdings>),
}

impl Authority {
    /// Where to decide `request`.
    #[inline]
    pub(crate) fn site<'a>(
        &'a self,
        limits: &'a LimitsInForce,
        matched: &MatchedLimits<'_>,
        request: &Request,
    ) -> Site<'a> {
        match (&self.holdings, &limits.held) {
            (Some(holdings), Some(_)) if is_direct(matched, request) => shared_site(holdings),
            (Some(_), Some(_)) => self.holdings_site(limits),
            _ => self.local_site(),
        }
    }

    /// For what belongs to leases, which are taken from holdings alone.
    pub(crate) fn holdings_site<'a>(&'a self, limits: &'a LimitsInForce) -> Site<'a> {
        match (&self.holdings, &limits.held) {
            (Some(holdings), Some(held)) => {
                Site { counters: &*self.counters, kind: Kind::Holdings(holdings, held) }
            }
            _ => self.local_site(),
        }
    }

    /// Where the true states are.
    pub(crate) fn true_site(&self) -> Site<'_> {
        match &self.holdings {
            Some(holdings) => shared_site(holdings),
            None => self.local_site(),
        }
    }

    fn local_site(&self) -> Site<'_> {
        Site { counters: &*self.counters, kind: Kind::Local }
    }
}

fn shared_site(holdings: &Arc<Holdings>) -> Site<'_> {
    Site { counters: &*holdings.shared.counters, kind: Kind::Shared(holdings) }
}

impl<'a> Site<'a> {
    /// The time to decide at: that of the shared counters, if there are any and they have told it.
    #[inline]
    pub(crate) fn now(&self, local: Timestamp) -> Timestamp {
        self.holdings().and_then(|holdings| holdings.now()).unwrap_or(local)
    }

    #[inline]
    pub(crate) fn holdings(&self) -> Option<&'a Arc<Holdings>> {
        match self.kind {
            Kind::Local => None,
            Kind::Holdings(holdings, _) | Kind::Shared(holdings) => Some(holdings),
        }
    }

    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.kind, Kind::Shared(_))
    }

    /// Has tokens that came back to holdings given back if nobody uses them.
    pub(crate) fn watch(&self, plan: &Plan<'_>) {
        if let Kind::Holdings(holdings, _) = self.kind {
            for target in (0..plan.counters.len()).filter_map(|counter| target(plan, counter)) {
                holdings.watch(target);
            }
        }
    }

    /// The plan of a request here.
    #[inline]
    pub(crate) fn plan(
        &self,
        applied: &'a [Applied<'_>],
        request: &'a Request,
        modes: Modes,
        now: Timestamp,
    ) -> Plan<'a> {
        let hashing = self.hashing();
        match self.kind {
            Kind::Local | Kind::Shared(_) => Plan::of(applied, request, modes, hashing, now),
            Kind::Holdings(_, quotas) => {
                let held = HeldPlan { quotas, local_seed: self.counters.seed() };
                Plan::over(applied, request, modes, hashing, Some(held), now)
            }
        }
    }

    /// How the keys of true counters are made.
    #[inline]
    pub(crate) fn hashing(&self) -> Hashing {
        match self.holdings() {
            None => Hashing::undivided(self.counters.seed()),
            Some(holdings) => Hashing::of(&*holdings.shared.counters),
        }
    }

    /// Whether no single update reaches all counters of a plan.
    #[inline]
    pub(crate) fn is_apart(&self, plan: &Plan<'_>) -> bool {
        self.is_shared()
            && self.counters.reach() != Reach::All
            && plan.has_places(self.counters.reach())
    }
}

/// Whether only the shared counters can decide this request.
fn is_direct(matched: &MatchedLimits<'_>, request: &Request) -> bool {
    let mut each = matched.each.iter().zip(&request.descriptors);
    each.any(|(applied, descriptor)| match applied {
        Applied::Override(_) => true,
        Applied::Rule { .. } if descriptor.direction == Direction::Refund => true,
        Applied::Rule { limits, .. } => {
            limits.iter().any(|limit| limit.denied == DeniedHits::Count)
        }
        _ => false,
    })
}
