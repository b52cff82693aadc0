//! Calls the sidecar: for a request, for a new lease in the background, and as a probe.
//!
//! The sidecar charges the hits of the request that calls, for all its descriptors together; so no
//! local tokens are spent for it.

use super::Worker;
use super::local_decisions::ENTRIES_BYTES_MAX;
use crate::config::HeaderStyle;
use crate::config::encoded::domain_of;
use crate::host::stats::Counter;
use crate::host::{Call, CallId, Host, Unsent};
use crate::leases::local_table::LocalRecord;
use crate::leases::shared_table::Write;
use crate::request::descriptors::{DescriptorRef, Descriptors};
use crate::worker::call_error::{CallError, Undecided};
use crate::worker::pending_calls::{LeaseWish, PendingCall, Purpose, Waiter, needed, needed_by};
use std::time::Duration;
use tidegate_core::{Descriptor, HeaderForm, Hits, LeaseRequest, Request, Timestamp};
use tidegate_wire::{append_report, encode_request, lease_request_metadata};

/// Envoy ends a call itself this long after its timeout, in case no tick does. Long enough that ticks
/// come first even in a worker in which each takes a second: what Envoy ends tells nothing about the
/// sidecar, so it counts as late although the sidecar may be silent.
const TIMEOUT_BEYOND: Duration = Duration::from_secs(10);

impl<H: Host> Worker<H> {
    /// Adds a request to a pending call, or makes a call for it. `rest` will wait for the same
    /// response.
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
        let mut wishes = Vec::with_capacity(lacking.len());
        for (index, (descriptor, lacks)) in waiter.descriptors.iter().zip(&lacking).enumerate() {
            // One lease for a descriptor that occurs twice.
            let again = waiter.descriptors.is_repeated(index, descriptor.key);
            let takes = !descriptor.is_refund();
            wishes.push(if *lacks && !again && takes && self.may_be_leased(&descriptor, now) {
                let waiting = needed_by(rest.iter(), descriptor.key);
                LeaseWish { wanted: self.wanted(&descriptor, now), waiting }
            } else {
                LeaseWish::default()
            });
        }
        let number = self.next_call_number();
        let pending = PendingCall {
            requester: Some(waiter.requester),
            wishes,
            descriptors: waiter.descriptors,
            deadline: waiter.deadline,
            ..self.new_call(Purpose::Decide, number)
        };
        self.call_sidecar(pending, now).ok_or(CallError::NotSent.undecided_reason())
    }

    /// Which descriptors need a call.
    fn lacking(&self, descriptors: &Descriptors, now: Timestamp) -> Vec<bool> {
        let lacks = |descriptor: DescriptorRef<'_>| {
            self.lacks(&descriptor, needed(descriptors, descriptor.key), now)
        };
        descriptors.iter().map(lacks).collect()
    }

    /// The call whose response will bring all that `waiter` lacks.
    fn call_to_wait_for(
        &self,
        waiter: &Waiter,
        lacking: &[bool],
        now: Timestamp,
    ) -> Option<CallId> {
        if !self.leases() || waiter.descriptors.has_refunds() {
            return None;
        }
        let lacked = || waiter.descriptors.iter().zip(lacking).filter(|(_, lacks)| **lacks);
        if !lacked().all(|(descriptor, _)| self.may_be_leased(&descriptor, now)) {
            return None;
        }
        self.calls.call_for(lacked().map(|(descriptor, _)| descriptor.key), waiter.deadline)
    }

    /// Whether a response may bring tokens for other requests than the one that calls.
    pub(super) fn may_be_leased(&self, descriptor: &DescriptorRef<'_>, now: Timestamp) -> bool {
        let unleased = |record: &LocalRecord| now < record.unleased_until;
        descriptor.entries.len() <= ENTRIES_BYTES_MAX
            && !self.local.of(descriptor.key).is_some_and(unleased)
    }

    /// The tokens to request in advance: none while another worker does.
    pub(super) fn wanted(&mut self, descriptor: &DescriptorRef<'_>, now: Timestamp) -> u64 {
        let record = self.local.of(descriptor.key);
        let own = record.map_or(0, |record| record.state.demand.wanted(now));
        let refreshing_until = self.refresh_mark(now);
        let wanted = self.change_slot(descriptor.key, now, |slot| {
            let wanted = slot.demand.wanted(now).max(own);
            if wanted == 0 || now < slot.refreshing_until {
                return (0, Write::Keep);
            }
            slot.refreshing_until = refreshing_until;
            (wanted, Write::Store)
        });
        wanted.unwrap_or(own)
    }

    /// Requests a new lease of a descriptor in the background.
    pub(super) fn refresh(&mut self, descriptor: &DescriptorRef<'_>, wanted: u64, now: Timestamp) {
        let mut descriptors = Descriptors::default();
        self.add_peek(&mut descriptors, descriptor);
        self.call_in_background(Purpose::Refresh, descriptors, wanted, now);
    }

    /// Checks whether the sidecar answers again, with the descriptors of the current request.
    pub(super) fn probe(&mut self, descriptors: &Descriptors, now: Timestamp) {
        let mut peek = Descriptors::default();
        for descriptor in descriptors.iter() {
            self.add_peek(&mut peek, &descriptor);
        }
        self.call_in_background(Purpose::Probe, peek, 0, now);
    }

    fn add_peek(&self, descriptors: &mut Descriptors, descriptor: &DescriptorRef<'_>) {
        descriptors.append(descriptor.entries);
        descriptors.finish(self.process.seed, 0);
    }

    fn call_in_background(
        &mut self,
        purpose: Purpose,
        descriptors: Descriptors,
        wanted: u64,
        now: Timestamp,
    ) {
        let wishes = vec![LeaseWish { wanted, waiting: 0 }; descriptors.len()];
        let number = self.next_call_number();
        let pending = PendingCall { descriptors, wishes, ..self.new_call(purpose, number) };
        let _ = self.call_sidecar(pending, now);
    }

    /// The form of the headers about limits that this filter writes.
    pub(super) fn header_form(&self) -> HeaderForm {
        match self.config.headers_by_default {
            HeaderStyle::Ietf => HeaderForm::Ietf,
            HeaderStyle::Draft03 => HeaderForm::Draft03,
            HeaderStyle::Off | HeaderStyle::ByEntry => HeaderForm::Off,
        }
    }

    /// The domain of a call. All its descriptors have the same.
    fn domain_of<'a>(&'a self, pending: &'a PendingCall) -> &'a str {
        let first = pending.descriptors.iter().next().map(|descriptor| descriptor.entries);
        let returned = pending.returned.first().map(|tokens| &*tokens.entries);
        first.or(returned).and_then(domain_of).unwrap_or(&self.config.domain)
    }

    /// A call without descriptors and requests.
    pub(super) fn new_call(&self, purpose: Purpose, number: u64) -> PendingCall {
        PendingCall {
            purpose,
            requester: None,
            descriptors: Descriptors::default(),
            wishes: Vec::new(),
            deadline: self.tick_clock.deadline(),
            waiters: Vec::new(),
            sent_at: self.tick_clock.now(),
            number,
            returned: Vec::new(),
            report: None,
        }
    }

    fn call_sidecar(&mut self, pending: PendingCall, now: Timestamp) -> Option<()> {
        let metadata = if self.leases() {
            let proxy = self.process.proxy;
            let wanted = pending.wishes.iter().map(|wish| wish.wanted).collect();
            let waiting = pending.wishes.iter().map(|wish| wish.waiting).collect();
            lease_request_metadata(&LeaseRequest {
                call: pending.number,
                proxy,
                clock: now,
                wanted,
                waiting,
                headers: self.header_form(),
            })
        } else {
            Vec::new()
        };
        self.send(pending.descriptors.to_vec(), &metadata, pending, now).ok()?;
        self.stats.count(Counter::Asks);
        Some(())
    }

    /// Sends a call. Returns it if Envoy refuses it. A call that fails at once is kept until its
    /// cause arrives.
    pub(super) fn send(
        &mut self,
        descriptors: Vec<Descriptor>,
        metadata: &[(&'static str, String)],
        mut pending: PendingCall,
        now: Timestamp,
    ) -> Result<(), Box<PendingCall>> {
        let domain = self.domain_of(&pending).to_owned();
        let request = Request { domain, descriptors, hits: Hits::ONE };
        let mut message = encode_request(&request);
        pending.report = self.next_report(&request.domain);
        if let Some(report) = &pending.report {
            append_report(&report.to_wire(), &mut message);
        }
        let call = self.host.call(&Call {
            target: &self.config.call_target,
            metadata,
            message: &message,
            timeout: self.config.timeout.saturating_add(TIMEOUT_BEYOND),
        });
        let call = match call {
            Ok(call) => call,
            Err(Unsent::FailedAtOnce) => {
                self.calls.keep_unsent(pending);
                return Ok(());
            }
            Err(Unsent::Refused) => {
                if let Some(report) = pending.report.take() {
                    self.tallies.failed(*report);
                }
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
