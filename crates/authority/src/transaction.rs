//! What all operations on the counters of a request have in common: limits are matched, planned and updated.

use crate::answer::Decided;
use crate::applied::MatchedLimits;
use crate::in_force::LimitsInForce;
use crate::observer::Observer;
use crate::plan::Plan;
use tidegate_core::{Decision, Request, Timestamp};
use tidegate_store::{Cluster, Entries, UpdateError};

/// A request, the limits that apply to it, and the plan over their counters.
pub(crate) struct Transaction<'t, 'm> {
    pub(crate) store: &'t Cluster,
    pub(crate) observer: &'t dyn Observer,
    pub(crate) limits: &'m LimitsInForce,
    pub(crate) request: &'t Request,
    pub(crate) matched: &'t MatchedLimits<'m>,
    pub(crate) plan: Plan<'t>,
    pub(crate) now: Timestamp,
}

impl<'m> Transaction<'_, 'm> {
    /// Reports descriptors of a domain that has no limits.
    pub(crate) fn report_unknown_domain(&self) {
        if self.matched.without_domain > 0 {
            self.observer.domain_not_found(self.matched.without_domain);
        }
    }

    /// Updates all counters in one step. An error of the store leaves them as they were.
    pub(crate) fn update<T>(
        &self,
        update: impl FnOnce(&Plan<'_>, &mut Entries<'_>) -> T,
    ) -> Result<T, UpdateError> {
        let Transaction { plan, now, .. } = self;
        self.store.update_many(&plan.keys, now.as_nanos(), |entries| update(plan, entries))
    }

    /// The request with the decisions on its limits, in the order of the asks.
    pub(crate) fn decided<'d>(&'d self, decisions: &'d [Decision]) -> Decided<'d, 'm> {
        let (request, applied, now) = (self.request, &self.matched.each[..], self.now);
        Decided { request, applied, decisions, now }
    }
}
