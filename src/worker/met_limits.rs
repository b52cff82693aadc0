//! The limits that a request met, for headers and denials: each descriptor has its tightest, and
//! further ones if it meets several. Decides nothing.

use super::Worker;
use super::replies::{self, Denial, LimitStatus};
use crate::config::FilterState;
use crate::host::Host;
use crate::leases::limit_info::FurtherLimits;
use crate::request::descriptors::{Descriptors, LeaseKey};
use crate::worker::pending_calls::{Requester, needed_by_own};
use crate::worker::streams::LeaseKeys;
use tidegate_core::{Timestamp, Verdict};

impl<H: Host> Worker<H> {
    /// The limits of these keys, each with the entry of `rate_limits` that it comes from.
    pub(super) fn limits_of(
        &self,
        keys: impl Iterator<Item = (LeaseKey, Option<u8>)>,
    ) -> (Timestamp, Vec<LimitStatus>) {
        let now = self.host.now();
        let mut met = Vec::with_capacity(LeaseKeys::FEW);
        for (key, entry) in keys {
            let Some(record) = self.local.of(key) else { continue };
            let at_hand = record.state.pool.left(now);
            let tightest =
                LimitStatus { limit: record.state.limit, at_hand, verdict: Verdict::Allow, entry };
            met_limit(&mut met, tightest, &record.further);
        }
        (now, met)
    }

    pub(super) fn denial(
        &self,
        requester: Requester,
        descriptors: &Descriptors,
        now: Timestamp,
    ) -> Denial {
        let limits = self.met_limits(descriptors, now);
        if self.config.reports.filter_state == FilterState::All {
            self.report_denial(requester, &limits);
        }
        replies::denial(&self.config, &limits, now, &|| self.host.random())
    }

    /// The limits that a denied request met, by local state.
    pub(super) fn met_limits(&self, descriptors: &Descriptors, now: Timestamp) -> Vec<LimitStatus> {
        let mut met = Vec::with_capacity(descriptors.len());
        for (index, descriptor) in descriptors.iter().enumerate() {
            let Some(record) = self.local.of(descriptor.key) else { continue };
            let hits = needed_by_own(descriptors, &descriptor);
            let verdict = match record.state.is_denied(hits, now) {
                true => Verdict::Deny,
                false => Verdict::Allow,
            };
            let entry = match self.config.entry_options.is_empty() {
                true => None,
                false => descriptors.origin(index),
            };
            let at_hand = record.state.pool.left(now);
            let tightest = LimitStatus { limit: record.state.limit, at_hand, verdict, entry };
            met_limit(&mut met, tightest, &record.further);
        }
        met
    }
}

/// Appends the limits of a descriptor: its tightest, and further ones.
#[inline(always)]
pub(super) fn met_limit(
    met: &mut Vec<LimitStatus>,
    tightest: LimitStatus,
    further: &FurtherLimits,
) {
    met.push(tightest);
    if !further.is_empty() {
        further_limits(met, &tightest, further);
    }
}

/// A lease is charged to all limits of its descriptor, so its tokens are left under each.
#[cold]
fn further_limits(met: &mut Vec<LimitStatus>, tightest: &LimitStatus, further: &FurtherLimits) {
    met.extend(further.iter().map(|limit| LimitStatus {
        limit: *limit,
        verdict: match tightest.verdict {
            Verdict::Deny => limit.verdict(),
            Verdict::Allow => Verdict::Allow,
        },
        ..*tightest
    }));
}
