//! What follows when a call has ended: leases are stored, the request that asked is decided by the
//! verdict, and those that waited are decided again.

use super::local_decisions::Attempt;
use super::{Outcome, Worker};
use crate::config::HeaderStyle;
use crate::config::encoded::entries_of;
use crate::host::Host;
use crate::host::stats::Counter;
use crate::leases::descriptor_state::LocalDecision;
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

/// No lease lasts longer, whatever is told.
const LEASE_MAX: Nanos = Nanos::from_secs(60);
/// So long nobody waits for others' leases of a descriptor that is leased to nobody.
const UNLEASED: Nanos = Nanos::from_secs(1);
/// So long nobody asks again for a lease that was not granted. It bounds the asks near a limit.
const REFUSED: Nanos = Nanos::new(5_000_000);
impl<H: Host> Worker<H> {
    /// A call has ended.
    pub(super) fn finish_call(
        &mut self,
        mut pending: PendingCall,
        answer: Result<&[u8], CallError>,
        now: Timestamp,
    ) {
        let read = answer.and_then(|bytes| {
            let answer = tidegate_wire::decode_answer(bytes).map_err(|_| CallError::Malformed)?;
            if makes_sense(&pending, &answer) { Ok(answer) } else { Err(CallError::Malformed) }
        });
        match read {
            Ok(answer) => {
                self.note_answer();
                let limits = if pending.purpose == Purpose::Return {
                    self.count_returned(&pending);
                    Vec::new()
                } else {
                    self.store_answer(&pending, &answer, now)
                };
                if let Some(requester) = pending.requester
                    && !self.is_gone(requester)
                {
                    self.decide_asker(requester, answer.verdict, limits, now);
                }
            }
            Err(error) => {
                self.note_failure(error, pending.purpose, now);
                self.recover_tokens(&mut pending, error, now);
                if error == CallError::Overflow {
                    return self.wait_for_room(pending);
                }
                if let Some(requester) = pending.requester {
                    self.fail(requester, error.undecided_reason());
                }
            }
        }
        self.calls.try_again();
        self.decide_again(pending.waiters, now);
        self.submit_queued(now);
    }

    /// Envoy had no room for a call. Its requests wait for their turn, as if it had not been tried; the turn
    /// comes when another call has ended, or with a tick.
    fn wait_for_room(&mut self, pending: PendingCall) {
        self.calls.overflow();
        let PendingCall { requester, descriptors, ends, waiters, .. } = pending;
        let requester =
            requester.map(|requester| Waiter { requester, descriptors, deadline: ends });
        for waiter in requester.into_iter().chain(waiters) {
            self.calls.queue(waiter);
        }
    }

    fn decide_asker(
        &mut self,
        requester: Requester,
        verdict: Verdict,
        limits: Vec<LimitStatus>,
        now: Timestamp,
    ) {
        if verdict == Verdict::Deny {
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

    /// Carries out what an answer decided, and counts it.
    fn deliver_counted(&mut self, requester: Requester, outcome: Outcome) {
        match (requester, &outcome) {
            (Requester::Stream(_), Outcome::Allow(_)) => self.stats.count(Counter::AllowedAsked),
            (Requester::Stream(_), Outcome::Deny(_)) => self.stats.count(Counter::DeniedAsked),
            (Requester::Shadow, Outcome::Allow(_)) => {}
            (Requester::Shadow, Outcome::Deny(_)) => self.stats.count(Counter::ShadowDenied),
        }
        self.deliver(requester, outcome);
    }

    /// Decides those again who waited: by what is known now, else by the next ask. The one with the
    /// least time left asks, so that its answer comes in time for all others.
    pub(super) fn decide_again(&mut self, waiters: Vec<Waiter>, now: Timestamp) {
        let mut undecided = VecDeque::new();
        for waiter in waiters {
            if self.is_gone(waiter.requester) {
                continue;
            }
            match self.decide(&waiter.descriptors, Attempt::Repeated, now) {
                LocalDecision::Allow => {
                    let kept = self.allowed_state(&waiter.descriptors);
                    self.deliver_counted(waiter.requester, Outcome::Allow(kept));
                }
                LocalDecision::Deny => {
                    let reply = self.denial(&waiter.descriptors, now);
                    self.deliver_counted(waiter.requester, Outcome::Deny(reply));
                }
                LocalDecision::Ask => undecided.push_back(waiter),
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

    /// Whether nobody waits for the decision any more.
    pub(super) fn is_gone(&self, requester: Requester) -> bool {
        matches!(requester, Requester::Stream(stream) if !self.streams.contains_key(&stream))
    }

    /// Stores what an answer says; gives what clients may be told of it.
    fn store_answer(
        &mut self,
        pending: &PendingCall,
        answer: &Answer,
        now: Timestamp,
    ) -> Vec<LimitStatus> {
        let mut all = Vec::with_capacity(answer.statuses.len());
        let statuses = pending.descriptors.iter().zip(&answer.statuses).zip(&pending.wish);
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

    /// Stores what is said of one descriptor; gives the tokens that were granted.
    fn store_status(
        &mut self,
        pending: &PendingCall,
        descriptor: &DescriptorRef<'_>,
        status: &Status,
        limit: LimitInfo,
        now: Timestamp,
    ) -> u64 {
        let index = self.find_or_insert(descriptor, now);
        let hits = needed(&pending.descriptors, descriptor.key);
        let lease = status.lease.map(|lease| Lease {
            valid_until: lease.valid_until.min(now.saturating_add(LEASE_MAX)),
            ..lease
        });
        let lease = lease.filter(|lease| now < lease.valid_until);
        if let Some(local) = self.local_table.get_mut(index) {
            local.state.limit = limit;
            if status.verdict == Verdict::Allow {
                local.state.allowed(hits);
            }
        }
        match (lease, status.verdict) {
            (Some(lease), Verdict::Deny) => {
                if let Some(local) = self.local_table.get_mut(index) {
                    local.state.deny(hits, lease.valid_until, now);
                }
                self.shared_table.change(
                    &self.host,
                    &mut self.stats,
                    descriptor.key,
                    now,
                    |slot| {
                        slot.limit = limit;
                        slot.deny(hits, lease.valid_until, now);
                        slot.refreshing_until = Timestamp::default();
                        ((), Write::Store)
                    },
                );
                0
            }
            (Some(lease), Verdict::Allow) if lease.tokens == Lease::FREE => {
                if let Some(local) = self.local_table.get_mut(index) {
                    local.state.free(lease.valid_until, now);
                }
                self.shared_table.change(
                    &self.host,
                    &mut self.stats,
                    descriptor.key,
                    now,
                    |slot| {
                        slot.limit = limit;
                        slot.free(lease.valid_until, now);
                        ((), Write::Store)
                    },
                );
                0
            }
            (Some(lease), Verdict::Allow) if lease.tokens > 0 => {
                let kept = pending.waiting_for(descriptor.key);
                self.store_lease(index, descriptor, lease, kept, (hits, limit), now);
                u64::from(lease.tokens)
            }
            _ => 0,
        }
    }

    /// Stores the tokens of a lease: those that waiters need here, the rest for all workers. What has
    /// no place goes back.
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
        let lease = |left| LeaseTokens { id: lease.id, left, granted, ends: lease.valid_until };
        if let Some(local) = self.local_table.get_mut(index)
            && local.state.pool.put(lease(kept), now).is_err()
        {
            kept = 0;
        }
        let rest = lease(granted.saturating_sub(kept));
        let stored =
            self.shared_table.change(&self.host, &mut self.stats, descriptor.key, now, |slot| {
                slot.limit = limit;
                slot.allowed(hits);
                slot.demand.note(u64::from(kept), now);
                slot.refreshing_until = Timestamp::default();
                let stored = rest.left == 0 || slot.grant(rest, now).is_ok();
                (stored, Write::Store)
            });
        if stored != Some(true) {
            let local = self.local_table.get_mut(index);
            let refused = local.is_none_or(|local| local.state.pool.put(rest, now).is_err());
            if refused {
                let (key, entries) = (descriptor.key, Box::from(descriptor.entries));
                self.queue_return(ReturnableTokens { key, entries, lease: rest });
            }
        } else if let Some(local) = self.local_table.get_mut(index) {
            local.state.limit.remaining = limit.remaining.saturating_add(rest.left);
        }
        self.watch(index, descriptor);
    }

    /// Lets others ask for a new lease soon: this one was not granted.
    fn shorten_refresh_mark(&mut self, key: LeaseKey, now: Timestamp) {
        let soon = now.saturating_add(REFUSED);
        self.shared_table.change(&self.host, &mut self.stats, key, now, |slot| {
            let write = if slot.refreshing_until > soon { Write::Store } else { Write::Keep };
            slot.refreshing_until = slot.refreshing_until.min(soon);
            ((), write)
        });
    }

    /// Notes whether waiting for others' leases of this descriptor is any use: not where the sidecar
    /// leases nothing though it could.
    fn note_leasability(
        &mut self,
        descriptor: &DescriptorRef<'_>,
        status: &Status,
        verdict: Verdict,
        wish: LeaseWish,
        now: Timestamp,
    ) {
        let Some(local) = self.local_table.of_mut(descriptor.key) else {
            return;
        };
        let unleased = match status.verdict {
            Verdict::Deny => true,
            // On a denied request no tokens are granted.
            Verdict::Allow if verdict == Verdict::Deny => return,
            Verdict::Allow => status.limit.is_none() || (wish.waiting > 0 && status.remaining > 0),
        };
        if status.lease.is_some() {
            local.unleased_until = Timestamp::default();
        } else if unleased {
            local.unleased_until = now.saturating_add(UNLEASED);
        }
    }
}

/// Whether an answer is one to this ask.
fn makes_sense(pending: &PendingCall, answer: &Answer) -> bool {
    let denies_with_tokens = |status: &Status| {
        status.verdict == Verdict::Deny && status.lease.is_some_and(|lease| lease.tokens > 0)
    };
    pending.purpose == Purpose::Return
        || (answer.statuses.len() == pending.descriptors.len()
            && !answer.statuses.iter().any(denies_with_tokens))
}
