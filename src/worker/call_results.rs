//! Handles the end of a call: stores leases, decides the request that made the call by the verdict,
//! and decides the waiting requests again.

use super::local_decisions::Attempt;
use super::met_limits::met_limit;
use super::statuses::MetLimits;
use super::{Outcome, Worker};
use crate::config::{FilterState, HeaderStyle};
use crate::host::Host;
use crate::host::stats::Counter;
use crate::leases::descriptor_state::LocalDecision;
use crate::worker::call_error::CallError;
use crate::worker::pending_calls::{PendingCall, Purpose, Requester, Waiter};
use crate::worker::replies::{self, LimitStatus};
use crate::worker::reports::{Names, noted_shadow};
use crate::worker::streams::StreamState;
use std::collections::VecDeque;
use tidegate_core::{Answer, Status, Timestamp, Verdict};

impl<H: Host> Worker<H> {
    pub(super) fn finish_call(
        &mut self,
        mut pending: PendingCall,
        answer: Result<&[u8], CallError>,
        now: Timestamp,
    ) {
        let read = answer.and_then(|bytes| {
            let answer = tidegate_wire::decode_answer(bytes).map_err(|_| CallError::Malformed)?;
            match fits(&pending, &answer) {
                true => Ok((answer, tidegate_wire::Additions::of_answer(bytes))),
                false => Err(CallError::Malformed),
            }
        });
        let read_well = read.is_ok();
        let told = pending.report.take().map(|report| {
            self.report_ended(*report, pending.purpose, read.as_ref().err().copied(), now);
        });
        match read {
            Ok((answer, additions)) => {
                self.note_answer();
                let limits = if pending.purpose == Purpose::Return {
                    self.count_returned(&pending);
                    Vec::new()
                } else {
                    self.store_answer(&pending, &answer, now)
                };
                if pending.purpose == Purpose::Debit {
                    self.debit_counted(&answer.statuses);
                }
                if let Some(requester) = pending.requester
                    && !self.is_gone(requester)
                {
                    if answer.verdict == Verdict::Allow {
                        self.note_taken(requester, Some(&answer.statuses), now);
                    }
                    let shadow = self.denying_in_shadow(&pending, &answer, now);
                    self.decide_requester(
                        requester,
                        Answered { verdict: answer.verdict, limits, shadow, additions },
                        now,
                    );
                }
            }
            Err(error) => {
                self.note_failure(error, pending.purpose, now);
                self.recover_tokens(&mut pending, error, now);
                if pending.purpose == Purpose::Debit {
                    self.debit_failed(error, now);
                }
                if error == CallError::Overflow {
                    return self.wait_for_room(pending);
                }
                if let Some(requester) = pending.requester {
                    self.fail(requester, error.undecided_reason());
                }
            }
        }
        self.calls.clear_overflow();
        self.decide_again(pending.waiters, now);
        self.submit_queued(now);
        if pending.purpose == Purpose::Debit && read_well {
            self.send_debits(now);
        }
        if told.is_some() && read_well {
            self.send_report(now);
        }
    }

    /// Envoy had no room for a call. Its requests queue as if it had not been tried; the queue
    /// moves when another call ends, or at a tick.
    fn wait_for_room(&mut self, pending: PendingCall) {
        self.calls.overflow();
        let PendingCall { requester, descriptors, deadline, waiters, .. } = pending;
        let requester = requester.map(|requester| Waiter { requester, descriptors, deadline });
        for waiter in requester.into_iter().chain(waiters) {
            self.calls.queue(waiter);
        }
    }

    fn decide_requester(&mut self, requester: Requester, answered: Answered, now: Timestamp) {
        let Answered { verdict, limits, mut shadow, additions } = answered;
        let additions = additions.and_then(|answered| self.report_metadata(requester, *answered));
        if verdict == Verdict::Deny && self.enforces_denial(requester) {
            if self.config.reports.filter_state == FilterState::All {
                self.report_denial(requester, &limits);
            }
            let mut denial = replies::denial(&self.config, &limits, now, &|| self.host.random());
            if let Some(additions) = additions {
                denial.add(additions, &self.config.denied.added);
            }
            return self.deliver_counted(requester, Outcome::Deny(denial));
        }
        if !shadow.is_empty() {
            self.stats.count(Counter::RuleShadowDenied);
        }
        if verdict == Verdict::Deny {
            shadow.add_all(&Names::of_denying(&limits));
        }
        let tells = self.config.headers != HeaderStyle::Off
            && limits.iter().any(|status| status.limit.is_known());
        let mut kept = tells.then_some(StreamState::DecidedBySidecar(limits));
        if let Some(additions) = additions {
            kept = self.pass_with(requester, kept, additions);
        }
        if !shadow.is_empty() {
            kept = noted_shadow(kept, &shadow);
        }
        self.deliver_counted(requester, Outcome::Allow(kept));
    }

    /// Delivers and counts the outcome of a response.
    fn deliver_counted(&mut self, requester: Requester, outcome: Outcome) {
        match (requester, &outcome) {
            (Requester::Stream(_), Outcome::Allow(_)) => self.stats.count(Counter::AllowedAsked),
            (Requester::Stream(_), Outcome::Deny(_)) => self.stats.count(Counter::DeniedAsked),
            (Requester::Shadow(_), Outcome::Allow(_)) => {}
            (Requester::Shadow(_), Outcome::Deny(_)) => self.stats.count(Counter::ShadowDenied),
        }
        self.deliver(requester, outcome);
    }

    /// Decides waiting requests again, by local state or else by another call. The one with the
    /// earliest deadline calls, so that its response is in time for all others.
    pub(super) fn decide_again(&mut self, waiters: Vec<Waiter>, now: Timestamp) {
        let mut undecided = VecDeque::new();
        for waiter in waiters {
            if self.is_gone(waiter.requester) {
                continue;
            }
            match self.decide_unless_refunding(&waiter.descriptors, Attempt::Repeated, now) {
                LocalDecision::Ask => undecided.push_back(waiter),
                LocalDecision::Deny if self.enforces_denial(waiter.requester) => {
                    let denial = self.denial(waiter.requester, &waiter.descriptors, now);
                    self.deliver_counted(waiter.requester, Outcome::Deny(denial));
                }
                LocalDecision::Allow => {
                    self.note_taken(waiter.requester, None, now);
                    let kept = self.allowed_state(&waiter.descriptors);
                    self.deliver_counted(waiter.requester, Outcome::Allow(kept));
                }
                LocalDecision::Deny => {
                    let kept = self.shadowed_state(&waiter.descriptors, now);
                    self.deliver_counted(waiter.requester, Outcome::Allow(kept));
                }
            }
        }
        undecided.make_contiguous().sort_by_key(|waiter| waiter.deadline);
        while let Some(waiter) = undecided.pop_front() {
            if self.breaker.is_closed() && !self.may_submit() {
                self.calls.queue(waiter);
                undecided.drain(..).for_each(|waiter| self.calls.queue(waiter));
                return;
            }
            let requester = waiter.requester;
            if let Err(why) = self.submit(waiter, undecided.make_contiguous(), now) {
                self.fail(requester, why);
            }
        }
    }

    /// Whether the request that waited is gone.
    pub(super) fn is_gone(&self, requester: Requester) -> bool {
        matches!(requester, Requester::Stream(stream) if !self.streams.contains_key(&stream))
    }

    /// Stores a response; returns the limits for the client's headers.
    fn store_answer(
        &mut self,
        pending: &PendingCall,
        answer: &Answer,
        now: Timestamp,
    ) -> Vec<LimitStatus> {
        let mut all = Vec::with_capacity(answer.statuses.len());
        let statuses = pending.descriptors.iter().zip(&answer.statuses).zip(&pending.wishes);
        for (index, ((descriptor, status), wish)) in statuses.enumerate() {
            if pending.purpose == Purpose::Debit && status.is_uncounted() {
                continue;
            }
            let met = MetLimits::of(&descriptor, status, now);
            let mut at_hand = 0;
            if self.leases() {
                let granted = self.store_status(pending, &descriptor, status, &met, now);
                if wish.wanted > 0 && granted == 0 {
                    self.shorten_refresh_mark(descriptor.key, now);
                }
                self.note_leasability(&descriptor, status, answer.verdict, *wish, now);
                at_hand = self.tokens_at_hand(descriptor.key, &met, now);
            }
            let entry = pending.descriptors.origin(index);
            let verdict = status.verdict;
            let tightest = LimitStatus { limit: met.tightest, at_hand, verdict, entry };
            met_limit(&mut all, tightest, &met.further);
        }
        all
    }

    /// The limits that would have denied a request if no rule were in shadow.
    fn denying_in_shadow(&self, pending: &PendingCall, answer: &Answer, now: Timestamp) -> Names {
        let mut names = Names::default();
        for (descriptor, status) in pending.descriptors.iter().zip(&answer.statuses) {
            if is_denied_in_shadow(status) {
                let met = MetLimits::of(&descriptor, status, now);
                names.add(met.tightest.name());
                let further = met.further.iter().filter(|limit| limit.verdict() == Verdict::Deny);
                further.for_each(|limit| names.add(limit.name()));
            }
        }
        names
    }
}

/// A decision by a response.
struct Answered {
    verdict: Verdict,
    limits: Vec<LimitStatus>,
    /// The limits in shadow that would have denied.
    shadow: Names,
    additions: Option<Box<tidegate_wire::Additions>>,
}

/// Whether only shadow mode prevented a denial. Such a descriptor is never leased.
pub(super) fn is_denied_in_shadow(status: &Status) -> bool {
    status.details.as_ref().is_some_and(|details| details.without_shadow == Verdict::Deny)
}

/// Whether a response fits its call.
fn fits(pending: &PendingCall, answer: &Answer) -> bool {
    let denies_with_tokens = |status: &Status| {
        status.verdict == Verdict::Deny && status.lease.is_some_and(|lease| lease.tokens > 0)
    };
    matches!(pending.purpose, Purpose::Return | Purpose::Report)
        || (answer.statuses.len() == pending.descriptors.len()
            && !answer.statuses.iter().any(denies_with_tokens))
}
