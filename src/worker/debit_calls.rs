//! Sends debits and refunds to the sidecar, holding no request.
//!
//! One call is under way at a time. Meanwhile others wait, and the next call has up to 32
//! descriptors. A call without an answer is sent again unchanged: the sidecar knows the number of
//! the last call that it has counted in this worker's sequence, so each is counted once.

use super::Worker;
use super::debits::{DebitCall, Group, Lost};
use crate::host::Host;
use crate::host::stats::Counter;
use crate::request::descriptors::{DescriptorRef, Descriptors};
use crate::worker::call_error::CallError;
use crate::worker::pending_calls::{LeaseWish, PendingCall, Purpose};
use tidegate_core::{DebitRequest, Direction, LeaseRequest, Nanos, Status, Timestamp};
use tidegate_wire::debit_metadata;

impl<H: Host> Worker<H> {
    /// Adds hits to those that wait for a call, which is made in the next turn.
    pub(super) fn queue_debit(&mut self, group: Group, now: Timestamp) {
        if let Err(lost) = self.debits.add(group) {
            self.note_lost(lost, now);
        }
        if self.debits.is_due() && self.breaker.is_closed() {
            self.wake();
        }
    }

    pub(super) fn note_lost(&mut self, lost: Lost, now: Timestamp) {
        if lost.hits > 0 {
            self.stats.add(Counter::DebitsLost, lost.hits);
            self.log_lost(now);
        }
    }

    /// Drops what waited too long, and sends what is due.
    pub(super) fn tick_debits(&mut self, now: Timestamp) {
        let lost = self.debits.tick(now);
        self.note_lost(lost, now);
        self.send_debits(now);
    }

    /// Sends the next call, unless one is under way.
    pub(super) fn send_debits(&mut self, now: Timestamp) {
        if !self.debits.is_due() || !self.calls.may_call() {
            return;
        }
        if !self.breaker.is_closed() {
            // There may be no requests that would probe.
            if self.breaker.probe(now) {
                let mut descriptors = Descriptors::default();
                if let Some(debit) = self.debits.any() {
                    descriptors.append(&debit.entries);
                    descriptors.finish(self.process.seed, 0);
                }
                self.probe(&descriptors, now);
            }
            return;
        }
        if let Some(again) = self.debits.take_unanswered() {
            // Its leases were recalled, so it requests none.
            return self.send_debit_call(again, Wishes::None, now);
        }
        let mut groups = self.debits.take_groups();
        for group in &mut groups {
            // A lease may have come meanwhile.
            self.pay(group, now);
        }
        groups.retain(|group| !group.debits.is_empty());
        if !groups.is_empty() {
            let number = self.next_call_number();
            let call = DebitCall { number, groups, may_be_counted: false };
            self.send_debit_call(call, Wishes::Demand, now);
        }
    }

    fn send_debit_call(&mut self, call: DebitCall, wishes: Wishes, now: Timestamp) {
        let mut descriptors = Descriptors::default();
        let (mut streams, mut ages) = (Vec::new(), Vec::new());
        for group in &call.groups {
            streams.push(group.debits.len());
            for debit in &group.debits {
                descriptors.append(&debit.entries);
                match group.direction {
                    Direction::Take => {
                        descriptors.finish(self.process.seed, debit.hits);
                        ages.push(Nanos::ZERO);
                    }
                    Direction::Refund => {
                        descriptors.finish_refund(self.process.seed, debit.hits);
                        ages.push(now.saturating_since(group.taken_at));
                    }
                }
            }
        }
        let wishes: Vec<LeaseWish> = match wishes {
            Wishes::None => vec![LeaseWish::default(); descriptors.len()],
            Wishes::Demand => {
                let wanted = |descriptor| self.wanted_by_debit(&descriptor, now);
                descriptors.iter().map(wanted).collect()
            }
        };
        let lease = self.leases().then(|| LeaseRequest {
            call: call.number,
            proxy: self.process.proxy,
            clock: now,
            wanted: wishes.iter().map(|wish| wish.wanted).collect(),
            waiting: vec![0; descriptors.len()],
            headers: self.header_form(),
        });
        let sequence = *self.debit_sequence.get_or_insert_with(|| self.host.random());
        let debit = DebitRequest { call: call.number, sequence, streams, ages };
        let metadata = debit_metadata(&debit, lease.as_ref());
        let message = descriptors.to_vec();
        let pending =
            PendingCall { descriptors, wishes, ..self.new_call(Purpose::Debit, call.number) };
        self.debits.under_way = Some(call);
        match self.send(message, &metadata, pending, now) {
            Ok(()) => self.stats.count(Counter::Asks),
            Err(_) => self.debit_failed(CallError::NotSent, now),
        }
    }

    /// The tokens to request with a debit.
    fn wanted_by_debit(&mut self, descriptor: &DescriptorRef<'_>, now: Timestamp) -> LeaseWish {
        if descriptor.is_refund() || !self.may_be_leased(descriptor, now) {
            return LeaseWish::default();
        }
        LeaseWish { wanted: self.wanted(descriptor, now), waiting: 0 }
    }

    /// A debit call was answered. What could not be counted goes under another number, in a call of
    /// its stream alone: one counter that cannot be used keeps no others waiting.
    pub(super) fn debit_counted(&mut self, statuses: &[Status]) {
        let Some(mut call) = self.debits.under_way.take() else { return };
        let mut statuses = statuses.iter();
        for group in &mut call.groups {
            let takes = group.direction == Direction::Take;
            for debit in &mut group.debits {
                if statuses.next().is_some_and(Status::is_uncounted) {
                    continue;
                }
                if takes {
                    self.stats.add(Counter::Debits, debit.hits);
                }
                debit.hits = 0;
            }
        }
        call.groups.retain(|group| group.debits.iter().any(|debit| debit.hits > 0));
        self.debits.separate(call.groups);
    }

    /// A debit call has failed.
    pub(super) fn debit_failed(&mut self, error: CallError, now: Timestamp) {
        let Some(mut call) = self.debits.under_way.take() else { return };
        match error {
            // It would be refused again.
            CallError::Refused => {
                let hits = call.groups.iter().map(Group::hits).fold(0, u64::saturating_add);
                self.note_lost(Lost { hits }, now);
            }
            // One counter cannot be used. The others need not wait for it.
            CallError::Shed | CallError::Stuck if !call.may_be_counted => {
                self.debits.separate(call.groups);
            }
            // Sent again unchanged: under other numbers it would be counted again.
            _ => {
                call.may_be_counted |= !error.is_without_effect();
                self.debits.keep_unanswered(call);
            }
        }
    }
}

/// The leases that a debit call requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wishes {
    None,
    Demand,
}
