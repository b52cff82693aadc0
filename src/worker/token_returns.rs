//! Giving tokens back to the sidecar: those that nobody here needs, and those that an ask may have been
//! granted whose answer never came.
//!
//! Calls are numbered, and a lease has the number of its ask and of its place in it. So the leases of a lost
//! answer can be named, and a return that is not answered is sent again as it was: the sidecar takes it once.

use super::Worker;
use super::local_decisions::ENTRIES_BYTES_MAX;
use crate::config::encoded::entries_of;
use crate::host::Host;
use crate::host::stats::Counter;
use crate::leases::local_table::ReturnableTokens;
use crate::leases::token_pool::LeaseTokens;
use crate::request::descriptors::RequestDescriptors;
use crate::worker::call_error::CallError;
use crate::worker::pending_calls::{PendingCall, Purpose};
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
    pub(crate) tokens: Vec<ReturnableTokens>,
}

impl<H: Host> Worker<H> {
    /// A number for a call. Its leases have it and those that follow.
    pub(super) fn next_call_number(&mut self) -> u64 {
        let name = self.call_next;
        let leases = u64::try_from(DESCRIPTORS_MAX).unwrap_or(u64::MAX);
        self.call_next = name.wrapping_add(leases);
        name
    }

    /// Gives tokens back that nobody here needs. While the sidecar does not answer they wait, and
    /// those whose lease ends meanwhile are dropped.
    pub(super) fn return_tokens(&mut self, now: Timestamp) {
        self.to_return.retain(|tokens| now < tokens.lease.ends);
        self.recalls.retain(|tokens| now < tokens.lease.ends);
        self.unanswered.retain(|back| back.tokens.iter().any(|tokens| now < tokens.lease.ends));
        for _ in 0..RETURN_CALLS {
            if !self.breaker.is_closed() {
                return;
            }
            if let Some(again) = self.unanswered.pop_front() {
                self.send_return(again, now);
            } else if !self.to_return.is_empty() || !self.recalls.is_empty() {
                let some = self.to_return.len().min(RETURNS);
                let mut tokens: Vec<ReturnableTokens> = self.to_return.drain(..some).collect();
                let more = RETURNS.saturating_sub(some).min(self.recalls.len());
                tokens.extend(self.recalls.drain(..more));
                let call = self.next_call_number();
                self.send_return(Return { call, tokens }, now);
            } else {
                return;
            }
        }
    }

    fn send_return(&mut self, back: Return, now: Timestamp) {
        let descriptor = |tokens: &ReturnableTokens| Descriptor {
            hits: Some(Hits::new(u64::from(tokens.lease.left))),
            direction: Direction::Refund,
            ..Descriptor::new(entries_of(&tokens.entries))
        };
        let descriptors = back.tokens.iter().map(descriptor).collect();
        let leases: Vec<u64> = back.tokens.iter().map(|tokens| tokens.lease.id).collect();
        let metadata = returned_metadata(back.call, &leases);
        let pending = PendingCall {
            purpose: Purpose::Return,
            requester: None,
            descriptors: RequestDescriptors::default(),
            wish: Vec::new(),
            ends: self.tick_clock.deadline(),
            waiters: Vec::new(),
            sent_at: self.tick_clock.now(),
            name: back.call,
            returned: back.tokens,
        };
        if let Err(pending) = self.send(descriptors, &metadata, pending, now) {
            self.keep_unanswered(Return { call: pending.name, tokens: pending.returned });
        }
    }

    /// A return was answered.
    pub(super) fn count_returned(&mut self, pending: &PendingCall) {
        // What was asked back unseen may never have been granted.
        let seen = pending.returned.iter().filter(|tokens| tokens.lease.granted > 0);
        let tokens = seen.map(|tokens| u64::from(tokens.lease.left));
        self.stats.add(Counter::TokensReturned, tokens.fold(0, u64::saturating_add));
    }

    /// An ask has failed. What it may have been granted, or what it gave back, is not forgotten.
    pub(super) fn recover_tokens(
        &mut self,
        pending: &mut PendingCall,
        error: CallError,
        now: Timestamp,
    ) {
        let may_go_again = !error.is_answer() || error == CallError::Stuck;
        if pending.purpose == Purpose::Return && may_go_again {
            let returned = std::mem::take(&mut pending.returned);
            return self.keep_unanswered(Return { call: pending.name, tokens: returned });
        }
        if error.is_without_effect() || !self.leases() {
            return;
        }
        let ends = now.saturating_add(RECALL);
        for (index, (descriptor, wish)) in pending.descriptors.iter().zip(&pending.wish).enumerate()
        {
            let hopeless = wish.wanted == 0 && wish.waiting == 0;
            if hopeless || descriptor.entries.len() > ENTRIES_BYTES_MAX {
                continue;
            }
            let id = LeaseAsk::lease_id(pending.name, index);
            // All that there are: none of them were spent.
            let lease = LeaseTokens { id, left: u32::MAX, granted: 0, ends };
            if self.recalls.len() >= RECALLS_MAX {
                self.recalls.pop_front();
            }
            let (key, entries) = (descriptor.key, Box::from(descriptor.entries));
            self.recalls.push_back(ReturnableTokens { key, entries, lease });
        }
    }

    fn keep_unanswered(&mut self, back: Return) {
        if self.unanswered.len() >= UNANSWERED_MAX {
            self.unanswered.pop_front();
        }
        self.unanswered.push_back(back);
    }
}
