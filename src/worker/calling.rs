//! Asking the sidecar: for a request, for a new lease in the background, and as a probe.
//!
//! The hits of a request that asks are charged by the sidecar, for all its descriptors together; so
//! nothing that the worker holds is spent for it.

use super::Worker;
use super::local_decisions::ENTRIES_BYTES_MAX;
use crate::host::stats::Count;
use crate::host::{Call, CallId, Host, Unsent};
use crate::leases::shared_table::Write;
use crate::request::descriptors::{Drawing, Drawn};
use crate::worker::call_error::{AskError, Undecided};
use crate::worker::pending_calls::{Ask, Hoped, Purpose, Waiter, needed, needed_by};
use std::time::Duration;
use tidegate_core::{Descriptor, Hits, LeaseAsk, Request, Timestamp};
use tidegate_wire::{encode_request, lease_ask_metadata};

/// So long after its timeout Envoy is to end a call itself, in case no tick does: longer than an ask is waited
/// for, as Envoy's timers start early in a worker that is late.
const GIVEN_UP: Duration = Duration::from_secs(2);

impl<H: Host> Worker<H> {
    /// Has a request wait for a call that is under way, or asks for it. `rest` will wait for the same
    /// answer.
    pub(super) fn pose(
        &mut self,
        waiter: Waiter,
        rest: &[Waiter],
        now: Timestamp,
    ) -> Result<(), Undecided> {
        if !self.breaker.is_closed() {
            return Err(Undecided::Failure);
        }
        let lacking: Vec<bool> = self.lacking(&waiter.drawn, now);
        let waiter = match self.call_to_wait_for(&waiter, &lacking, now) {
            Some(call) => match self.asks.wait(call, waiter) {
                Ok(()) => return Ok(()),
                Err(waiter) => waiter,
            },
            None => waiter,
        };
        if waiter.deadline < self.patience.now() {
            self.note_late(now);
            return Err(Undecided::Overload);
        }
        if !self.asks.may_call() {
            self.asks.queue(waiter);
            return Ok(());
        }
        let mut hoped = Vec::with_capacity(lacking.len());
        for (index, (drawing, lacks)) in waiter.drawn.iter().zip(&lacking).enumerate() {
            // One lease for a descriptor that is there twice.
            let again = waiter.drawn.iter().take(index).any(|before| before.key == drawing.key);
            hoped.push(if *lacks && !again && self.may_be_leased(&drawing, now) {
                let waiting = needed_by(rest.iter(), drawing.key);
                Hoped { wanted: self.wanted(&drawing, now), waiting }
            } else {
                Hoped::default()
            });
        }
        let ask = Ask {
            purpose: Purpose::Decide,
            asker: Some(waiter.who),
            hoped,
            drawn: waiter.drawn,
            ends: waiter.deadline,
            waiters: Vec::new(),
            sent_in: self.patience.now(),
            name: self.name_call(),
            returned: Vec::new(),
        };
        self.ask(ask, now).ok_or(AskError::NotSent.leaves())
    }

    /// Which descriptors the sidecar has to be asked about.
    fn lacking(&self, drawn: &Drawn, now: Timestamp) -> Vec<bool> {
        let lacks = |drawing: Drawing<'_>| self.lacks(&drawing, needed(drawn, drawing.key), now);
        drawn.iter().map(lacks).collect()
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
        let lacked = || waiter.drawn.iter().zip(lacking).filter(|(_, lacks)| **lacks);
        if !lacked().all(|(drawing, _)| self.may_be_leased(&drawing, now)) {
            return None;
        }
        self.asks.call_for(lacked().map(|(drawing, _)| drawing.key), waiter.deadline)
    }

    /// Whether an answer may bring tokens for others than the one who asks.
    fn may_be_leased(&self, drawing: &Drawing<'_>, now: Timestamp) -> bool {
        let unleased = |local: &crate::leases::local_table::Local| now < local.unleased_until;
        drawing.entries.len() <= ENTRIES_BYTES_MAX
            && !self.locals.of(drawing.key).is_some_and(unleased)
    }

    /// How many tokens to ask for in advance: none while another worker does.
    fn wanted(&mut self, drawing: &Drawing<'_>, now: Timestamp) -> u64 {
        let local = self.locals.of(drawing.key);
        let own = local.map_or(0, |local| local.entry.demand.wanted(now));
        let refreshing_until = self.mark(now);
        let wanted = self.table.change(&self.host, &mut self.stats, drawing.key, now, |slot| {
            let wanted = slot.demand.wanted(now).max(own);
            if wanted == 0 || now < slot.refreshing_until {
                return (0, Write::Keep);
            }
            slot.refreshing_until = refreshing_until;
            (wanted, Write::Store)
        });
        wanted.unwrap_or(own)
    }

    /// Asks for a new lease of a descriptor in the background.
    pub(super) fn refresh(&mut self, drawing: &Drawing<'_>, wanted: u64, now: Timestamp) {
        let mut drawn = Drawn::default();
        self.add_peek(&mut drawn, drawing);
        self.ask_in_background(Purpose::Refresh, drawn, wanted, now);
    }

    /// Asks whether the sidecar answers again, with the descriptors of the request at hand.
    pub(super) fn probe(&mut self, drawn: &Drawn, now: Timestamp) {
        let mut peek = Drawn::default();
        for drawing in drawn.iter() {
            self.add_peek(&mut peek, &drawing);
        }
        self.ask_in_background(Purpose::Probe, peek, 0, now);
    }

    fn add_peek(&self, drawn: &mut Drawn, drawing: &Drawing<'_>) {
        drawn.append(drawing.entries);
        drawn.finish(self.process.seed, 0);
    }

    fn ask_in_background(&mut self, purpose: Purpose, drawn: Drawn, wanted: u64, now: Timestamp) {
        let count = drawn.len();
        let ask = Ask {
            purpose,
            asker: None,
            drawn,
            hoped: vec![Hoped { wanted, waiting: 0 }; count],
            ends: self.patience.deadline(),
            waiters: Vec::new(),
            sent_in: self.patience.now(),
            name: self.name_call(),
            returned: Vec::new(),
        };
        let _ = self.ask(ask, now);
    }

    fn ask(&mut self, ask: Ask, now: Timestamp) -> Option<()> {
        let metadata = if self.leases() {
            let proxy = self.process.proxy;
            let wanted = ask.hoped.iter().map(|hoped| hoped.wanted).collect();
            let waiting = ask.hoped.iter().map(|hoped| hoped.waiting).collect();
            lease_ask_metadata(&LeaseAsk { call: ask.name, proxy, clock: now, wanted, waiting })
        } else {
            Vec::new()
        };
        self.send(ask.drawn.descriptors(), &metadata, ask, now).ok()?;
        self.stats.count(Count::Asks);
        Some(())
    }

    /// Sends a call. Gives the ask back when Envoy does not take it. One that fails at once is kept until
    /// its reason comes.
    pub(super) fn send(
        &mut self,
        descriptors: Vec<Descriptor>,
        metadata: &[(&'static str, String)],
        ask: Ask,
        now: Timestamp,
    ) -> Result<(), Box<Ask>> {
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
                self.asks.keep_unsent(ask);
                return Ok(());
            }
            Err(Unsent::Refused) => {
                self.note_failure(AskError::NotSent, ask.purpose, now);
                return Err(Box::new(ask));
            }
        };
        if let Some(lost) = self.asks.sent(call, ask) {
            self.end(lost, Err(AskError::Late), now);
        }
        Ok(())
    }
}
