//! New requests: whether the filter looks at one, what its descriptors are, and what is done at once.
//!
//! Owns the callback of request headers. What a call of the sidecar decides is in `call_results`.

use super::call_error::Undecided;
use super::local_decisions::Attempt;
use super::{HeadersStatus, Outcome, Worker};
use crate::config::{HeaderStyle, RequestType, Selection};
use crate::host::stats::Counter;
use crate::host::{Host, RequestFacts, StreamId};
use crate::leases::descriptor_state::LocalDecision;
use crate::request::descriptors::Descriptors;
use crate::request::extract;
use crate::worker::pending_calls::{Requester, Waiter};
use crate::worker::streams::{LeaseKeys, StreamState};
use tidegate_core::Timestamp;

/// What became of a request in its own callback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decided {
    /// It passes.
    Allow,
    /// It has its local reply.
    Deny,
    /// It waits.
    Later,
}

/// The descriptors of a request.
#[derive(Debug, Default)]
pub(super) struct Extracted {
    pub(super) enforced: Descriptors,
    pub(super) shadowed: Descriptors,
}

impl<H: Host> Worker<H> {
    /// The headers of a request have arrived.
    pub fn on_request(&mut self, stream: StreamId, facts: &impl RequestFacts) -> HeadersStatus {
        let is_special = self.config.is_special;
        if is_special && !self.selects(facts) {
            return HeadersStatus::Continue;
        }
        let mut extracted = self.extracted.take().unwrap_or_default();
        let Extracted { enforced, shadowed } = &mut *extracted;
        extract(&self.config, facts, self.process.seed, enforced, shadowed);
        #[cfg(feature = "cel")]
        if let Some((failures, first)) = enforced.take_failures() {
            self.note_condition(failures, &first);
        }
        let status = if is_special && !self.config.late_charges.is_empty() {
            self.decide_late_request(stream, facts, enforced, shadowed)
        } else {
            self.decide_request(stream, enforced, shadowed)
        };
        self.extracted = Some(extracted);
        status
    }

    /// Whether the filter looks at a request.
    #[cold]
    fn selects(&self, facts: &impl RequestFacts) -> bool {
        let Some(Selection { request_type, enabled }) = self.config.selection else { return true };
        let is_internal =
            || facts.header("x-envoy-internal", |value| value == b"true").unwrap_or(false);
        let is_of_type = match request_type {
            RequestType::Both => true,
            RequestType::Internal => is_internal(),
            RequestType::External => !is_internal(),
        };
        is_of_type && enabled.includes(|| self.host.random())
    }

    /// Whether a denial is carried out; counts it otherwise. `deliver_counted` counts those of
    /// descriptors in shadow.
    pub(super) fn enforces_denial(&mut self, requester: Requester) -> bool {
        let enforces = matches!(requester, Requester::Shadow(_))
            || self.config.filter_enforced.includes(|| self.host.random());
        if !enforces {
            self.stats.count(Counter::ShadowDenied);
        }
        enforces
    }

    pub(super) fn decide_request(
        &mut self,
        stream: StreamId,
        enforced: &Descriptors,
        shadowed: &Descriptors,
    ) -> HeadersStatus {
        if enforced.is_empty() && shadowed.is_empty() {
            return HeadersStatus::Continue;
        }
        let now = self.host.now();
        let decided = self.enforce(stream, enforced, now);
        // A request that is denied does not count in shadow. One that waits may still pass.
        if !shadowed.is_empty() && decided != Decided::Deny {
            self.shadow(stream, shadowed, now);
        }
        match decided {
            Decided::Allow => HeadersStatus::Continue,
            Decided::Deny | Decided::Later => HeadersStatus::Pause,
        }
    }

    /// Decides the enforced descriptors, and carries that out.
    fn enforce(&mut self, stream: StreamId, descriptors: &Descriptors, now: Timestamp) -> Decided {
        if descriptors.is_empty() {
            return Decided::Allow;
        }
        match self.decide(descriptors, Attempt::First, now) {
            LocalDecision::Deny if self.enforces_denial(Requester::Stream(stream)) => {
                self.stats.count(Counter::DeniedLocal);
                let requester = Requester::Stream(stream);
                self.denial(requester, descriptors, now).send(&self.host, stream);
                Decided::Deny
            }
            LocalDecision::Allow => {
                self.stats.count(Counter::AllowedLocal);
                let kept = self.allowed_state(descriptors);
                self.keep(stream, kept);
                Decided::Allow
            }
            LocalDecision::Deny => {
                self.stats.count(Counter::AllowedLocal);
                let kept = self.shadowed_state(descriptors, now);
                self.keep(stream, kept);
                Decided::Allow
            }
            LocalDecision::Ask => {
                self.stats.count(Counter::LeaseMisses);
                self.streams.insert(stream, StreamState::Paused);
                let requester = Requester::Stream(stream);
                let Err(why) = self.call_or_wait(requester, descriptors, now) else {
                    return Decided::Later;
                };
                self.streams.remove(&stream);
                match self.undecided(why) {
                    Outcome::Allow(_) => Decided::Allow,
                    Outcome::Deny(mut denial) => {
                        denial.send(&self.host, stream);
                        Decided::Deny
                    }
                }
            }
        }
    }

    /// Counts the effect that the descriptors in shadow would have. The limits that would deny now
    /// are noted; those of an answer that is still to come are only counted.
    #[inline(never)]
    pub(super) fn shadow(&mut self, stream: StreamId, descriptors: &Descriptors, now: Timestamp) {
        match self.decide_unless_refunding(descriptors, Attempt::First, now) {
            LocalDecision::Allow => self.note_taken(Requester::Shadow(stream), None, now),
            LocalDecision::Deny => {
                self.stats.count(Counter::ShadowDenied);
                let names = self.denying(descriptors, now);
                self.note_shadow(stream, &names);
            }
            LocalDecision::Ask => {
                // Without a decision nothing is counted.
                if self.call_or_wait(Requester::Shadow(stream), descriptors, now).is_ok() {
                    self.await_shadow(stream);
                }
            }
        }
    }

    /// Calls the sidecar for a new request, or adds it to a pending call.
    pub(super) fn call_or_wait(
        &mut self,
        requester: Requester,
        descriptors: &Descriptors,
        now: Timestamp,
    ) -> Result<(), Undecided> {
        if !self.breaker.is_closed() {
            if self.breaker.probe(now) {
                self.probe(descriptors, now);
            }
            return Err(Undecided::Failure);
        }
        if !self.calls.has_room(self.resume_queue.due()) {
            self.note_full(now);
            return Err(Undecided::Overload);
        }
        let deadline = self.tick_clock.deadline();
        self.submit(Waiter { requester, descriptors: descriptors.clone(), deadline }, &[], now)
    }

    #[inline]
    pub(super) fn keep(&mut self, stream: StreamId, kept: Option<StreamState>) {
        let Some(kept) = kept else { return };
        // Not moved out of it, which would copy the largest of states.
        if matches!(kept, StreamState::Noted(_)) {
            return self.keep_noted(stream, kept);
        }
        self.streams.insert(stream, kept);
    }

    /// State for the response of a locally allowed request.
    pub(super) fn allowed_state(&self, descriptors: &Descriptors) -> Option<StreamState> {
        if self.config.headers == HeaderStyle::Off {
            return None;
        }
        let known = |key| self.local.of(key).is_some_and(|record| record.state.limit.is_known());
        descriptors.iter().any(|descriptor| known(descriptor.key)).then(|| {
            match self.config.headers {
                HeaderStyle::ByEntry => StreamState::by_entry(descriptors),
                _ => StreamState::DecidedLocally(LeaseKeys::of(descriptors)),
            }
        })
    }
}
