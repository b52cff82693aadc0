//! Asking the sidecar: for a request, for a new lease in the background, and as a probe.
//!
//! The hits of a request that asks are charged by the sidecar, for all its descriptors together; so
//! nothing that the worker holds is spent for it.

use super::Worker;
use super::local_decisions::ENTRIES_BYTES_MAX;
use crate::host::stats::Counter;
use crate::host::{Call, CallId, Host, Unsent};
use crate::leases::shared_table::Write;
use crate::request::descriptors::{DescriptorRef, RequestDescriptors};
use crate::worker::call_error::{CallError, Undecided};
use crate::worker::pending_calls::{LeaseWish, PendingCall, Purpose, Waiter, needed, needed_by};
use std::time::Duration;
use tidegate_core::{Descriptor, Hits, LeaseAsk, Request, Timestamp};
use tidegate_wire::{encode_request, lease_ask_metadata};

/// So long after its timeout Envoy is to end a call itself, in case no tick does: longer than an ask is waited
/// for, as Envoy's timers start early in a worker that is late.
const GIVEN_UP: Duration = Duration::from_secs(2);

impl<H: Host> Worker<H> {
    /// Has a request wait for a call that is under way, or asks for it. `rest` will wait for the same
    /// answer.
    pub(super) fn submit(
        &mut self,
        waiter: Waiter,
        rest: &[Waiter],
        now: Timestamp,
    ) -> Result<(), Undecided> {
        if !self.breaker.is_closed() {
            return Err(Undecided::Failure);
        }
        let lacking: Vec<bool> = self.lacking(&waiter.descriptors, now);
        let waiter = match self.call_to_wait_for(&waiter, &lacking, now) {
            Some(call) => match self.calls.wait(call, waiter) {
                Ok(()) => return Ok(()),
                Err(waiter) => waiter,
            },
            None => waiter,
        };
        if waiter.deadline < self.tick_clock.now() {
            self.note_late(now);
            return Err(Undecided::Overload);
        }
        if !self.calls.may_call() {
            self.calls.queue(waiter);
            return Ok(());
        }
        let mut wish = Vec::with_capacity(lacking.len());
        for (index, (descriptor, lacks)) in waiter.descriptors.iter().zip(&lacking).enumerate() {
            // One lease for a descriptor that is there twice.
            let again =
                waiter.descriptors.iter().take(index).any(|before| before.key == descriptor.key);
            wish.push(if *lacks && !again && self.may_be_leased(&descriptor, now) {
                let waiting = needed_by(rest.iter(), descriptor.key);
                LeaseWish { wanted: self.wanted(&descriptor, now), waiting }
            } else {
                LeaseWish::default()
            });
        }
        let pending = PendingCall {
            purpose: Purpose::Decide,
            requester: Some(waiter.requester),
            wish,
            descriptors: waiter.descriptors,
            ends: waiter.deadline,
            waiters: Vec::new(),
            sent_at: self.tick_clock.now(),
            name: self.next_call_number(),
            returned: Vec::new(),
        };
        self.pending(pending, now).ok_or(CallError::NotSent.undecided_reason())
    }

    /// Which descriptors the sidecar has to be asked about.
    fn lacking(&self, descriptors: &RequestDescriptors, now: Timestamp) -> Vec<bool> {
        let lacks = |descriptor: DescriptorRef<'_>| {
            self.lacks(&descriptor, needed(descriptors, descriptor.key), now)
        };
        descriptors.iter().map(lacks).collect()
    }

    /// The call whose answer will bring all that `waiter` lacks.
    fn call_to_wait_for(
        &self,
        waiter: &Waiter,
        lacking: &[bool],
        now: Timestamp,
    ) -> Option<CallId> {
        if !self.leases() {
            return None;
        }
        let lacked = || waiter.descriptors.iter().zip(lacking).filter(|(_, lacks)| **lacks);
        if !lacked().all(|(descriptor, _)| self.may_be_leased(&descriptor, now)) {
            return None;
        }
        self.calls.call_for(lacked().map(|(descriptor, _)| descriptor.key), waiter.deadline)
    }

    /// Whether an answer may bring tokens for others than the one who asks.
    fn may_be_leased(&self, descriptor: &DescriptorRef<'_>, now: Timestamp) -> bool {
        let unleased = |local: &crate::leases::local_table::LocalRecord| now < local.unleased_until;
        descriptor.entries.len() <= ENTRIES_BYTES_MAX
            && !self.local_table.of(descriptor.key).is_some_and(unleased)
    }

    /// How many tokens to ask for in advance: none while another worker does.
    fn wanted(&mut self, descriptor: &DescriptorRef<'_>, now: Timestamp) -> u64 {
        let local = self.local_table.of(descriptor.key);
        let own = local.map_or(0, |local| local.state.demand.wanted(now));
        let refreshing_until = self.refresh_mark(now);
        let wanted =
            self.shared_table.change(&self.host, &mut self.stats, descriptor.key, now, |slot| {
                let wanted = slot.demand.wanted(now).max(own);
                if wanted == 0 || now < slot.refreshing_until {
                    return (0, Write::Keep);
                }
                slot.refreshing_until = refreshing_until;
                (wanted, Write::Store)
            });
        wanted.unwrap_or(own)
    }

    /// PendingCalls for a new lease of a descriptor in the background.
    pub(super) fn refresh(&mut self, descriptor: &DescriptorRef<'_>, wanted: u64, now: Timestamp) {
        let mut descriptors = RequestDescriptors::default();
        self.add_peek(&mut descriptors, descriptor);
        self.ask_in_background(Purpose::Refresh, descriptors, wanted, now);
    }

    /// PendingCalls whether the sidecar answers again, with the descriptors of the request at hand.
    pub(super) fn probe(&mut self, descriptors: &RequestDescriptors, now: Timestamp) {
        let mut peek = RequestDescriptors::default();
        for descriptor in descriptors.iter() {
            self.add_peek(&mut peek, &descriptor);
        }
        self.ask_in_background(Purpose::Probe, peek, 0, now);
    }

    fn add_peek(&self, descriptors: &mut RequestDescriptors, descriptor: &DescriptorRef<'_>) {
        descriptors.append(descriptor.entries);
        descriptors.finish(self.process.seed, 0);
    }

    fn ask_in_background(
        &mut self,
        purpose: Purpose,
        descriptors: RequestDescriptors,
        wanted: u64,
        now: Timestamp,
    ) {
        let count = descriptors.len();
        let pending = PendingCall {
            purpose,
            requester: None,
            descriptors,
            wish: vec![LeaseWish { wanted, waiting: 0 }; count],
            ends: self.tick_clock.deadline(),
            waiters: Vec::new(),
            sent_at: self.tick_clock.now(),
            name: self.next_call_number(),
            returned: Vec::new(),
        };
        let _ = self.pending(pending, now);
    }

    fn pending(&mut self, pending: PendingCall, now: Timestamp) -> Option<()> {
        let metadata = if self.leases() {
            let proxy = self.process.proxy;
            let wanted = pending.wish.iter().map(|wish| wish.wanted).collect();
            let waiting = pending.wish.iter().map(|wish| wish.waiting).collect();
            lease_ask_metadata(&LeaseAsk { call: pending.name, proxy, clock: now, wanted, waiting })
        } else {
            Vec::new()
        };
        self.send(pending.descriptors.to_vec(), &metadata, pending, now).ok()?;
        self.stats.count(Counter::Asks);
        Some(())
    }

    /// Sends a call. Gives the ask back when Envoy does not take it. One that fails at once is kept until
    /// its reason comes.
    pub(super) fn send(
        &mut self,
        descriptors: Vec<Descriptor>,
        metadata: &[(&'static str, String)],
        pending: PendingCall,
        now: Timestamp,
    ) -> Result<(), Box<PendingCall>> {
        let request = Request { domain: self.config.domain.clone(), descriptors, hits: Hits::ONE };
        let call = self.host.call(&Call {
            target: &self.config.call_target,
            metadata,
            message: &encode_request(&request),
            timeout: self.config.timeout.saturating_add(GIVEN_UP),
        });
        let call = match call {
            Ok(call) => call,
            Err(Unsent::FailedAtOnce) => {
                self.calls.keep_unsent(pending);
                return Ok(());
            }
            Err(Unsent::Refused) => {
                self.note_failure(CallError::NotSent, pending.purpose, now);
                return Err(Box::new(pending));
            }
        };
        if let Some(lost) = self.calls.sent(call, pending) {
            self.finish_call(lost, Err(CallError::Late), now);
        }
        Ok(())
    }
}
