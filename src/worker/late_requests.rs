//! Decides requests whose costs are settled when they end, and requests that refund.
//!
//! Bounded: streams that would owe more than [`OWING_BYTES_MAX`] of descriptors count as overload.
//! Nothing here runs for requests of configurations without such entries.

use super::call_error::Undecided;
use super::local_decisions::Attempt;
use super::pending_calls::Requester;
use super::settling::{InShadow, Owed, Owing, Place};
use super::streams::StreamState;
use super::{HeadersStatus, Outcome, Worker};
use crate::config::{CostMoment, LateCharge};
use crate::host::stats::Counter;
use crate::host::{Host, RequestFacts, StreamId};
use crate::leases::descriptor_state::LocalDecision;
use crate::request::descriptors::Descriptors;
use tidegate_core::Timestamp;

/// The memory of a worker for the descriptors of streams under way. Envoy itself keeps more for
/// each: its headers.
const OWING_BYTES_MAX: usize = 32 << 20;

impl<H: Host> Worker<H> {
    /// Decides a request of a configuration with late charges or refunds. Requests without any are
    /// decided like those of others.
    #[cold]
    #[inline(never)]
    pub(super) fn decide_late_request(
        &mut self,
        stream: StreamId,
        facts: &impl RequestFacts,
        enforced: &mut Descriptors,
        shadowed: &mut Descriptors,
    ) -> HeadersStatus {
        let mut owed = Vec::new();
        self.take_owed(facts, enforced, Place::Enforced, &mut owed);
        self.take_owed(facts, shadowed, Place::Shadowed, &mut owed);
        if owed.is_empty() && !enforced.has_refunds() && !shadowed.has_refunds() {
            return self.decide_request(stream, enforced, shadowed);
        }
        self.decide_late(stream, enforced, shadowed, owed)
    }

    /// Replaces descriptors with late charges by those that are decided now, and adds what will be
    /// owed.
    fn take_owed(
        &self,
        facts: &impl RequestFacts,
        descriptors: &mut Descriptors,
        place: fn(usize) -> Place,
        owed: &mut Vec<Owed>,
    ) {
        let seed = self.process.seed;
        let mut all = std::mem::take(descriptors);
        descriptors.put_buffer(all.take_buffer());
        for (index, descriptor) in all.iter().enumerate() {
            if let Some(number) = all.origin(index) {
                descriptors.come_from(number);
            }
            let charge = descriptor.late_charge();
            let charge = charge.and_then(|index| Some((index, self.charge(index)?)));
            let mut estimated_at = None;
            match charge {
                None => {
                    descriptors.append(descriptor.entries);
                    descriptors.finish(seed, descriptor.hits);
                }
                Some((_, LateCharge::RefundAtStart(cost))) => {
                    descriptors.append(descriptor.entries);
                    descriptors.finish_refund(seed, self.cost_now(cost, facts).unwrap_or(0));
                }
                Some((_, LateCharge::Estimate { estimate, .. })) => {
                    estimated_at = Some(place(descriptors.len()));
                    descriptors.append(descriptor.entries);
                    descriptors.finish(seed, *estimate);
                }
                Some((_, LateCharge::DebitAtEnd(_) | LateCharge::RefundAtEnd(_))) => {}
            }
            if let Some((index, charge)) = charge.filter(|(_, charge)| charge.at_end().is_some()) {
                owed.push(Owed {
                    charge: index,
                    key: descriptor.key,
                    entries: Box::from(descriptor.entries),
                    place: estimated_at,
                    taken: 0,
                    taken_at: Timestamp::default(),
                    cost: self.read_cost(charge, facts, CostMoment::Request),
                });
            }
        }
    }

    fn decide_late(
        &mut self,
        stream: StreamId,
        enforced: &Descriptors,
        shadowed: &Descriptors,
        mut costs: Vec<Owed>,
    ) -> HeadersStatus {
        let now = self.host.now();
        let bytes = costs.iter().map(Owed::bytes).fold(0, usize::saturating_add);
        let owing_bytes = self.owing_bytes.saturating_add(bytes);
        // Otherwise clients could fill the places of debits, so that those of others are lost.
        let is_full = self.debits.is_full() && self.breaker.is_closed();
        let outcome = if owing_bytes > OWING_BYTES_MAX || is_full {
            self.note_full(now);
            costs.clear();
            Some(self.undecided(Undecided::Overload))
        } else {
            costs.iter_mut().for_each(|owed| owed.taken_at = now);
            self.owing_bytes = owing_bytes;
            // Here from now on, as the call for it may end at any time.
            let (state, shadow) = (Some(StreamState::Paused), InShadow::Decided);
            let owing = Owing { state, shadow, costs, bytes };
            self.streams.insert(stream, StreamState::Owing(Box::new(owing)));
            let outcome = self.enforce_late(stream, enforced, now);
            if !shadowed.is_empty() && !matches!(outcome, Some(Outcome::Deny(_))) {
                self.shadow(stream, shadowed, now);
            }
            outcome
        };
        match outcome {
            Some(Outcome::Allow(kept)) => {
                self.settle_pause(stream, kept);
                HeadersStatus::Continue
            }
            Some(Outcome::Deny(mut denial)) => {
                self.deny_owing(stream);
                denial.send(&self.host, stream);
                HeadersStatus::Pause
            }
            None => HeadersStatus::Pause,
        }
    }

    /// Decides the enforced descriptors; none if the request must wait.
    fn enforce_late(
        &mut self,
        stream: StreamId,
        descriptors: &Descriptors,
        now: Timestamp,
    ) -> Option<Outcome> {
        if descriptors.is_empty() {
            return Some(Outcome::Allow(None));
        }
        match self.decide_unless_refunding(descriptors, Attempt::First, now) {
            LocalDecision::Allow => {
                self.stats.count(Counter::AllowedLocal);
                self.note_taken(Requester::Stream(stream), None, now);
                Some(Outcome::Allow(self.allowed_state(descriptors)))
            }
            LocalDecision::Deny if self.enforces_denial(Requester::Stream(stream)) => {
                self.stats.count(Counter::DeniedLocal);
                Some(Outcome::Deny(self.denial(Requester::Stream(stream), descriptors, now)))
            }
            LocalDecision::Deny => {
                self.stats.count(Counter::AllowedLocal);
                Some(Outcome::Allow(self.shadowed_state(descriptors, now)))
            }
            LocalDecision::Ask => {
                self.stats.count(Counter::LeaseMisses);
                let undecided =
                    self.call_or_wait(Requester::Stream(stream), descriptors, now).err()?;
                self.drop_late_refunds(stream);
                Some(self.undecided(undecided))
            }
        }
    }

    /// Only the sidecar can refund, together with the rest of the request.
    pub(super) fn decide_unless_refunding(
        &mut self,
        descriptors: &Descriptors,
        attempt: Attempt,
        now: Timestamp,
    ) -> LocalDecision {
        if descriptors.has_refunds() {
            return LocalDecision::Ask;
        }
        self.decide(descriptors, attempt, now)
    }
}
