//! Handles the end of a call: stores leases, decides the request that made the call by the verdict,
//! and decides the waiting requests again.

use super::local_decisions::Attempt;
use super::{Outcome, Worker};
use crate::config::HeaderStyle;
use crate::config::encoded::entries_of;
use crate::host::Host;
use crate::host::stats::Counter;
use crate::leases::descriptor_state::{DescriptorState, LocalDecision};
use crate::leases::limit_info::LimitInfo;
use crate::leases::local_table::ReturnableTokens;
use crate::leases::shared_table::Write;
use crate::leases::token_pool::LeaseTokens;
use crate::request::descriptors::{DescriptorRef, LeaseKey};
use crate::worker::call_error::CallError;
use crate::worker::pending_calls::{LeaseWish, PendingCall, Purpose, Requester, Waiter, needed};
use crate::worker::replies::{self, LimitStatus};
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
            if fits(&pending, &answer) { Ok(answer) } else { Err(CallError::Malformed) }
        });
        let read_well = read.is_ok();
        match read {
            Ok(answer) => {
                self.note_answer();
                let limits = if pending.purpose == Purpose::Return {
                    self.count_returned(&pending);
                    Vec::new()
                } else {
                    self.store_answer(&pending, &answer, now)
                };
                if pending.purpose == Purpose::Debit {
                    self.debit_counted();
                }
                if let Some(requester) = pending.requester
                    && !self.is_gone(requester)
                {
                    self.decide_requester(requester, answer.verdict, limits, now);
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

    fn decide_requester(
        &mut self,
        requester: Requester,
        verdict: Verdict,
        limits: Vec<LimitStatus>,
        now: Timestamp,
    ) {
        if verdict == Verdict::Allow {
            self.note_taken(requester, Some(&limits), now);
        } else if self.enforces_denial(requester) {
            let reply = replies::denial(&self.config, &limits, now);
            return self.deliver_counted(requester, Outcome::Deny(reply));
        }
        let tells = self.config.headers != HeaderStyle::Off
            && limits.iter().any(|status| status.limit.is_known());
        self.deliver_counted(
            requester,
            Outcome::Allow(tells.then_some(StreamState::DecidedBySidecar(limits))),
        );
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
                    let reply = self.denial(&waiter.descriptors, now);
                    self.deliver_counted(waiter.requester, Outcome::Deny(reply));
                }
                decision @ (LocalDecision::Allow | LocalDecision::Deny) => {
                    if decision == LocalDecision::Allow {
                        self.note_taken(waiter.requester, None, now);
                    }
                    let kept = self.allowed_state(&waiter.descriptors);
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
        for ((descriptor, status), wish) in statuses {
            let keys = || {
                let entries = entries_of(descriptor.entries);
                entries.into_iter().map(|entry| entry.key).collect::<Vec<_>>().join(".")
            };
            let limit = LimitInfo::of_status(status, keys, now);
            let mut at_hand = 0;
            if self.leases() {
                at_hand = self.store_status(pending, &descriptor, status, limit, now);
                if wish.wanted > 0 && at_hand == 0 {
                    self.shorten_refresh_mark(descriptor.key, now);
                }
                self.note_leasability(&descriptor, status, answer.verdict, *wish, now);
            }
            all.push(LimitStatus { limit, at_hand, verdict: status.verdict });
        }
        all
    }

    /// Stores the status of one descriptor; returns the number of granted tokens.
    fn store_status(
        &mut self,
        pending: &PendingCall,
        descriptor: &DescriptorRef<'_>,
        status: &Status,
        limit: LimitInfo,
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
            record.state.limit = limit;
            if status.verdict == Verdict::Allow {
                record.state.allowed(hits);
            }
        }
        match (lease, status.verdict) {
            (Some(lease), Verdict::Deny) => {
                self.store_denial(index, descriptor.key, hits, limit, lease.valid_until, now);
                0
            }
            (Some(lease), Verdict::Allow) if lease.tokens == Lease::UNLIMITED => {
                let until = lease.valid_until;
                if let Some(record) = self.local.get_mut(index) {
                    record.state.set_unlimited(until, now);
                }
                self.change_slot(descriptor.key, now, |slot| {
                    slot.limit = limit;
                    slot.set_unlimited(until, now);
                    ((), Write::Store)
                });
                0
            }
            (Some(lease), _) if lease.tokens > 0 => {
                let kept = pending.waiting_for(descriptor.key);
                self.store_lease(index, descriptor, lease, kept, (hits, limit), now);
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
        limit: LimitInfo,
        until: Timestamp,
        now: Timestamp,
    ) {
        let held = self.change_slot(key, now, |slot| {
            slot.limit = limit;
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
        (hits, limit): (u64, LimitInfo),
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
        let stored = self.change_slot(descriptor.key, now, |slot| {
            slot.limit = limit;
            slot.allowed(hits);
            slot.demand.note(u64::from(kept), now);
            slot.refreshing_until = Timestamp::default();
            let stored = rest.left == 0 || slot.grant(rest, now).is_ok();
            (stored, Write::Store)
        });
        if stored != Some(true) {
            let record = self.local.get_mut(index);
            let refused = record.is_none_or(|record| record.state.pool.put(rest, now).is_err());
            if refused {
                let (key, entries) = (descriptor.key, Box::from(descriptor.entries));
                self.queue_return(ReturnableTokens { key, entries, lease: rest });
            }
        } else if let Some(record) = self.local.get_mut(index) {
            record.state.limit.remaining = limit.remaining.saturating_add(rest.left);
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
            Verdict::Allow => status.limit.is_none() || (wish.waiting > 0 && status.remaining > 0),
        };
        if status.lease.is_some() {
            record.unleased_until = Timestamp::default();
        } else if unleased {
            record.unleased_until = now.saturating_add(UNLEASED_TIME);
        }
    }
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
