//! Giving tokens back to the sidecar: those that nobody here needs, and those that an ask may have been
//! granted whose answer never came.
//!
//! Calls are numbered, and a lease has the number of its ask and of its place in it. So the leases of a lost
//! answer can be named, and a return that is not answered is sent again as it was: the sidecar takes it once.

use super::Worker;
use super::local_decisions::ENTRIES_BYTES_MAX;
use crate::config::encoded::entries_of;
use crate::host::Host;
use crate::host::stats::Count;
use crate::leases::local_table::Loose;
use crate::leases::token_pool::Held;
use crate::request::descriptors::Drawn;
use crate::worker::call_error::AskError;
use crate::worker::pending_calls::{Ask, Purpose};
use tidegate_core::{Descriptor, Direction, Hits, LeaseAsk, Nanos, Timestamp};
use tidegate_wire::{DESCRIPTORS_MAX, returned_metadata};

/// Descriptors that are given back in one call, and calls a tick.
const RETURNS: usize = 32;
const RETURN_CALLS: usize = 4;
/// Returns that wait to be sent again. The oldest gives way: its tokens come back with their window.
const UNANSWERED_MAX: usize = 16;
/// Leases of lost answers that wait to be asked back, of which the oldest gives way. Apart from tokens
/// that are known to be there, so that an outage costs none of those.
const RECALLS_MAX: usize = 256;
/// So long the leases of a lost answer are asked back. Most leases end earlier.
const RECALL: Nanos = Nanos::from_secs(10);

/// Tokens that go back in one call.
#[derive(Debug)]
pub(crate) struct Return {
    /// The call's number, the same when it is sent again.
    pub(crate) call: u64,
    /// The tokens of each descriptor.
    pub(crate) tokens: Vec<Loose>,
}

impl<H: Host> Worker<H> {
    /// A number for a call. Its leases have it and those that follow.
    pub(super) fn name_call(&mut self) -> u64 {
        let name = self.call_next;
        let leases = u64::try_from(DESCRIPTORS_MAX).unwrap_or(u64::MAX);
        self.call_next = name.wrapping_add(leases);
        name
    }

    /// Gives tokens back that nobody here needs. While the sidecar does not answer they wait, and
    /// those whose lease ends meanwhile are dropped.
    pub(super) fn give_tokens_back(&mut self, now: Timestamp) {
        self.loose.retain(|loose| now < loose.held.ends);
        self.recalls.retain(|loose| now < loose.held.ends);
        self.unanswered.retain(|back| back.tokens.iter().any(|loose| now < loose.held.ends));
        for _ in 0..RETURN_CALLS {
            if !self.breaker.is_closed() {
                return;
            }
            if let Some(again) = self.unanswered.pop_front() {
                self.give_back(again, now);
            } else if !self.loose.is_empty() || !self.recalls.is_empty() {
                let some = self.loose.len().min(RETURNS);
                let mut tokens: Vec<Loose> = self.loose.drain(..some).collect();
                let more = RETURNS.saturating_sub(some).min(self.recalls.len());
                tokens.extend(self.recalls.drain(..more));
                let call = self.name_call();
                self.give_back(Return { call, tokens }, now);
            } else {
                return;
            }
        }
    }

    fn give_back(&mut self, back: Return, now: Timestamp) {
        let descriptor = |loose: &Loose| Descriptor {
            hits: Some(Hits::new(u64::from(loose.held.left))),
            direction: Direction::Refund,
            ..Descriptor::new(entries_of(&loose.entries))
        };
        let descriptors = back.tokens.iter().map(descriptor).collect();
        let leases: Vec<u64> = back.tokens.iter().map(|loose| loose.held.id).collect();
        let metadata = returned_metadata(back.call, &leases);
        let ask = Ask {
            purpose: Purpose::Return,
            asker: None,
            drawn: Drawn::default(),
            hoped: Vec::new(),
            ends: self.patience.deadline(),
            waiters: Vec::new(),
            sent_in: self.patience.now(),
            name: back.call,
            returned: back.tokens,
        };
        if let Err(ask) = self.send(descriptors, &metadata, ask, now) {
            self.keep_unanswered(Return { call: ask.name, tokens: ask.returned });
        }
    }

    /// A return was answered.
    pub(super) fn count_returned(&mut self, ask: &Ask) {
        // What was asked back unseen may never have been granted.
        let seen = ask.returned.iter().filter(|loose| loose.held.granted > 0);
        let tokens = seen.map(|loose| u64::from(loose.held.left));
        self.stats.add(Count::TokensReturned, tokens.fold(0, u64::saturating_add));
    }

    /// An ask has failed. What it may have been granted, or what it gave back, is not forgotten.
    pub(super) fn make_up_for(&mut self, ask: &mut Ask, error: AskError, now: Timestamp) {
        let may_go_again = !error.is_answer() || error == AskError::Stuck;
        if ask.purpose == Purpose::Return && may_go_again {
            let returned = std::mem::take(&mut ask.returned);
            return self.keep_unanswered(Return { call: ask.name, tokens: returned });
        }
        if error.is_without_effect() || !self.leases() {
            return;
        }
        let ends = now.saturating_add(RECALL);
        for (index, (drawing, hoped)) in ask.drawn.iter().zip(&ask.hoped).enumerate() {
            let hopeless = hoped.wanted == 0 && hoped.waiting == 0;
            if hopeless || drawing.entries.len() > ENTRIES_BYTES_MAX {
                continue;
            }
            let id = LeaseAsk::lease_id(ask.name, index);
            // All that there are: none of them were spent.
            let held = Held { id, left: u32::MAX, granted: 0, ends };
            if self.recalls.len() >= RECALLS_MAX {
                self.recalls.pop_front();
            }
            let (key, entries) = (drawing.key, Box::from(drawing.entries));
            self.recalls.push_back(Loose { key, entries, held });
        }
    }

    fn keep_unanswered(&mut self, back: Return) {
        if self.unanswered.len() >= UNANSWERED_MAX {
            self.unanswered.pop_front();
        }
        self.unanswered.push_back(back);
    }
}
