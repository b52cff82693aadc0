//! Handles the end of a call: stores leases, decides the request that made the call by the verdict,
//! and decides the waiting requests again.

use super::local_decisions::Attempt;
use super::met_limits::met_limit;
use super::{Outcome, Worker};
use crate::config::encoded::entries_of;
use crate::config::{FilterState, HeaderStyle};
use crate::host::Host;
use crate::host::stats::Counter;
use crate::leases::descriptor_state::{DescriptorState, LocalDecision};
use crate::leases::limit_info::{FurtherLimits, LimitInfo};
use crate::leases::local_table::ReturnableTokens;
use crate::leases::shared_table::Write;
use crate::leases::token_pool::LeaseTokens;
use crate::request::descriptors::{DescriptorRef, LeaseKey};
use crate::worker::call_error::CallError;
use crate::worker::pending_calls::{LeaseWish, PendingCall, Purpose, Requester, Waiter, needed};
use crate::worker::replies::{self, LimitStatus};
use crate::worker::reports::{Names, noted_shadow};
use crate::worker::streams::StreamState;
use std::collections::VecDeque;
use tidegate_core::{Answer, Lease, Nanos, Status, Timestamp, Verdict};

/// No lease lasts longer, whatever the sidecar says.
const LEASE_MAX: Nanos = Nanos::from_secs(60);
/// For this time, requests do not wait for others' leases of a descriptor that the sidecar does not
/// lease.
const UNLEASED_TIME: Nanos = Nanos::from_secs(1);
/// For this time, no worker requests a lease again that was not granted. Bounds the calls near a
/// limit.
const REFRESH_RETRY: Nanos = Nanos::new(5_000_000);
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

    /// The tokens of this worker, and those that its record of a limit counts as the slot's.
    fn tokens_at_hand(&self, key: LeaseKey, met: &MetLimits, now: Timestamp) -> u64 {
        self.local.of(key).map_or(0, |record| {
            let in_slot = record.state.limit.remaining.saturating_sub(met.tightest.remaining);
            record.state.pool.left(now).saturating_add(in_slot.into())
        })
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

    /// Stores the status of one descriptor; returns the number of granted tokens.
    fn store_status(
        &mut self,
        pending: &PendingCall,
        descriptor: &DescriptorRef<'_>,
        status: &Status,
        met: &MetLimits,
        now: Timestamp,
    ) -> u64 {
        let index = self.find_or_insert(descriptor, now);
        let hits = match (pending.purpose, status.verdict) {
            // The answer to a debit says what is left after it, and whether one hit fits.
            (Purpose::Debit, Verdict::Deny) => 1,
            _ => needed(&pending.descriptors, descriptor.key),
        };
        let lease = status.lease.map(|lease| Lease {
            valid_until: lease.valid_until.min(now.saturating_add(LEASE_MAX)),
            ..lease
        });
        let lease = lease.filter(|lease| now < lease.valid_until);
        if let Some(record) = self.local.get_mut(index) {
            record.state.limit = met.tightest;
            record.further = met.further.clone();
            if status.verdict == Verdict::Allow {
                record.state.allowed(hits);
            }
        }
        match (lease, status.verdict) {
            (Some(lease), Verdict::Deny) => {
                self.store_denial(index, descriptor.key, hits, met, lease.valid_until, now);
                0
            }
            (Some(lease), Verdict::Allow) if lease.tokens == Lease::UNLIMITED => {
                let until = lease.valid_until;
                if let Some(record) = self.local.get_mut(index) {
                    record.state.set_unlimited(until, now);
                }
                self.change_slot_with_limits(descriptor.key, now, |slot, further| {
                    met.copy_to(slot, further);
                    slot.set_unlimited(until, now);
                    ((), Write::Store)
                });
                0
            }
            (Some(lease), _) if lease.tokens > 0 => {
                let kept = pending.waiting_for(descriptor.key);
                self.store_lease(index, descriptor, lease, kept, (hits, met), now);
                u64::from(lease.tokens)
            }
            _ => 0,
        }
    }

    /// Caches a denial for all workers. Short in this one too while the slot has tokens: they may
    /// be spent by then, or go back.
    fn store_denial(
        &mut self,
        index: usize,
        key: LeaseKey,
        hits: u64,
        met: &MetLimits,
        until: Timestamp,
        now: Timestamp,
    ) {
        let held = self.change_slot_with_limits(key, now, |slot, further| {
            met.copy_to(slot, further);
            slot.refreshing_until = Timestamp::default();
            slot.deny(hits, until, now);
            (slot.pool.left(now) > 0, Write::Store)
        });
        let until = match held {
            Some(true) => DescriptorState::denied_while_held(until, now),
            _ => until,
        };
        if let Some(record) = self.local.get_mut(index) {
            record.state.deny(hits, until, now);
        }
    }

    /// Stores the tokens of a lease: those that waiting requests need in this worker, the rest in
    /// the slot. Tokens without a place are returned.
    fn store_lease(
        &mut self,
        index: usize,
        descriptor: &DescriptorRef<'_>,
        lease: Lease,
        kept: u64,
        (hits, met): (u64, &MetLimits),
        now: Timestamp,
    ) {
        self.stats.count(Counter::LeasesGranted);
        let granted = lease.tokens;
        let mut kept = u32::try_from(kept).unwrap_or(u32::MAX).min(granted);
        let lease =
            |left| LeaseTokens { id: lease.id, left, granted, expires_at: lease.valid_until };
        if let Some(record) = self.local.get_mut(index)
            && record.state.pool.put(lease(kept), now).is_err()
        {
            kept = 0;
        }
        let rest = lease(granted.saturating_sub(kept));
        let stored = self.change_slot_with_limits(descriptor.key, now, |slot, further| {
            met.copy_to(slot, further);
            slot.allowed(hits);
            slot.demand.note(u64::from(kept), now);
            slot.refreshing_until = Timestamp::default();
            let stored = rest.left == 0 || slot.grant(rest, now).is_ok();
            // Another lease may be there, too.
            (stored.then(|| slot.pool.left(now)), Write::Store)
        });
        let in_slot = stored.flatten();
        if let Some(record) = self.local.get_mut(index)
            && let Some(in_slot) = in_slot
        {
            let left = u64::from(met.tightest.remaining).saturating_add(in_slot);
            record.state.limit.remaining = u32::try_from(left).unwrap_or(u32::MAX);
            record.further = met.further.with_more(in_slot);
        }
        if in_slot.is_none() {
            let record = self.local.get_mut(index);
            let refused = record.is_none_or(|record| record.state.pool.put(rest, now).is_err());
            if refused {
                let (key, entries) = (descriptor.key, Box::from(descriptor.entries));
                self.queue_return(ReturnableTokens { key, entries, lease: rest });
            }
        }
        self.watch(index, descriptor);
    }

    /// Lets workers request a lease again soon, since this one was not granted.
    fn shorten_refresh_mark(&mut self, key: LeaseKey, now: Timestamp) {
        let soon = now.saturating_add(REFRESH_RETRY);
        self.change_slot(key, now, |slot| {
            let write = if slot.refreshing_until > soon { Write::Store } else { Write::Keep };
            slot.refreshing_until = slot.refreshing_until.min(soon);
            ((), write)
        });
    }

    /// Records whether waiting for others' leases of this descriptor helps. It does not where the
    /// sidecar could lease tokens but does not.
    fn note_leasability(
        &mut self,
        descriptor: &DescriptorRef<'_>,
        status: &Status,
        verdict: Verdict,
        wish: LeaseWish,
        now: Timestamp,
    ) {
        let Some(record) = self.local.of_mut(descriptor.key) else { return };
        let unleased = match status.verdict {
            Verdict::Deny => true,
            // A denied request is granted no tokens.
            Verdict::Allow if verdict == Verdict::Deny => return,
            Verdict::Allow => {
                status.limit.is_none()
                    || (wish.waiting > 0 && status.remaining > 0)
                    || is_denied_in_shadow(status)
            }
        };
        if status.lease.is_some() {
            record.unleased_until = Timestamp::default();
        } else if unleased {
            record.unleased_until = now.saturating_add(UNLEASED_TIME);
        }
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

/// The limits of one descriptor.
struct MetLimits {
    tightest: LimitInfo,
    further: FurtherLimits,
}

impl MetLimits {
    fn of(descriptor: &DescriptorRef<'_>, status: &Status, now: Timestamp) -> MetLimits {
        let keys = || {
            let entries = entries_of(descriptor.entries);
            entries.into_iter().map(|entry| entry.key).collect::<Vec<_>>().join(".")
        };
        MetLimits {
            tightest: LimitInfo::of_status(status, keys, now),
            further: FurtherLimits::of_status(status, keys, now),
        }
    }

    fn copy_to(&self, slot: &mut DescriptorState, further: &mut FurtherLimits) {
        slot.limit = self.tightest;
        *further = self.further.clone();
    }
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
    pending.purpose == Purpose::Return
        || (answer.statuses.len() == pending.descriptors.len()
            && !answer.statuses.iter().any(denies_with_tokens))
}
