//! Returns tokens to the sidecar: unneeded ones, and those of leases that a lost response may have
//! granted.
//!
//! Calls are numbered, and the id of a lease is its call's number plus its index. So the leases of
//! a lost response can be recalled by id, and an unanswered return is sent again unchanged: the
//! sidecar accepts it once.

use super::Worker;
use super::local_decisions::ENTRIES_BYTES_MAX;
use crate::config::encoded::{domain_of, entries_of};
use crate::host::Host;
use crate::host::stats::Counter;
use crate::leases::local_table::ReturnableTokens;
use crate::leases::token_pool::LeaseTokens;
use crate::worker::call_error::CallError;
use crate::worker::pending_calls::{PendingCall, Purpose};
use tidegate_core::{Descriptor, Direction, Hits, LeaseRequest, Nanos, Timestamp};
use tidegate_wire::{DESCRIPTORS_MAX, returned_metadata};

/// Descriptors per return, and calls per tick.
const RETURN_DESCRIPTORS_MAX: usize = 32;
const RETURN_CALLS_MAX: usize = 4;
/// Returns that wait to be sent again. The oldest is dropped: its tokens come back with their
/// window.
const UNANSWERED_MAX: usize = 16;
/// Leases of lost responses that wait to be recalled; the oldest is dropped. Apart from tokens
/// known to exist, so that an outage costs none of those.
const RECALLS_MAX: usize = 256;
/// Leases of a lost response are recalled for this time. Most leases end earlier.
const RECALL_TIME: Nanos = Nanos::from_secs(10);

/// A return: the tokens of one call.
#[derive(Debug)]
pub(crate) struct TokenReturn {
    /// The call's number, unchanged when it is sent again.
    pub(crate) call: u64,
    pub(crate) tokens: Vec<ReturnableTokens>,
}

impl<H: Host> Worker<H> {
    /// A number for a call. Its leases use it and those that follow.
    pub(super) fn next_call_number(&mut self) -> u64 {
        let name = self.call_next;
        let leases = u64::try_from(DESCRIPTORS_MAX).unwrap_or(u64::MAX);
        self.call_next = name.wrapping_add(leases);
        name
    }

    /// Returns unneeded tokens. They wait while the sidecar does not answer, and are dropped when
    /// their lease ends.
    pub(super) fn return_tokens(&mut self, now: Timestamp) {
        self.to_return.retain(|tokens| now < tokens.lease.expires_at);
        self.recalls.retain(|tokens| now < tokens.lease.expires_at);
        self.unanswered
            .retain(|back| back.tokens.iter().any(|tokens| now < tokens.lease.expires_at));
        for _ in 0..RETURN_CALLS_MAX {
            if !self.breaker.is_closed() {
                return;
            }
            if let Some(again) = self.unanswered.pop_front() {
                self.send_return(again, now);
            } else if !self.to_return.is_empty() || !self.recalls.is_empty() {
                let tokens = self.tokens_of_one_domain();
                let call = self.next_call_number();
                self.send_return(TokenReturn { call, tokens }, now);
            } else {
                return;
            }
        }
    }

    /// The next tokens to return: those of one call, which has one domain.
    fn tokens_of_one_domain(&mut self) -> Vec<ReturnableTokens> {
        let first = self.to_return.first().or_else(|| self.recalls.front());
        let domain = first.and_then(|tokens| domain_of(&tokens.entries)).map(str::to_owned);
        let is_of_it = |tokens: &&ReturnableTokens| domain_of(&tokens.entries) == domain.as_deref();
        let some = self.to_return.iter().take(RETURN_DESCRIPTORS_MAX).take_while(is_of_it).count();
        let more = RETURN_DESCRIPTORS_MAX.saturating_sub(some);
        let more = self.recalls.iter().take(more).take_while(is_of_it).count();
        let mut tokens: Vec<ReturnableTokens> = self.to_return.drain(..some).collect();
        tokens.extend(self.recalls.drain(..more));
        tokens
    }

    fn send_return(&mut self, back: TokenReturn, now: Timestamp) {
        let descriptor = |tokens: &ReturnableTokens| Descriptor {
            hits: Some(Hits::new(u64::from(tokens.lease.left))),
            direction: Direction::Refund,
            ..Descriptor::new(entries_of(&tokens.entries))
        };
        let descriptors = back.tokens.iter().map(descriptor).collect();
        let leases: Vec<u64> = back.tokens.iter().map(|tokens| tokens.lease.id).collect();
        let metadata = returned_metadata(back.call, &leases);
        let pending =
            PendingCall { returned: back.tokens, ..self.new_call(Purpose::Return, back.call) };
        if let Err(pending) = self.send(descriptors, &metadata, pending, now) {
            self.keep_unanswered(TokenReturn { call: pending.number, tokens: pending.returned });
        }
    }

    /// A return was answered.
    pub(super) fn count_returned(&mut self, pending: &PendingCall) {
        // A recalled lease may never have been granted.
        let seen = pending.returned.iter().filter(|tokens| tokens.lease.granted > 0);
        let tokens = seen.map(|tokens| u64::from(tokens.lease.left));
        self.stats.add(Counter::TokensReturned, tokens.fold(0, u64::saturating_add));
    }

    /// A call has failed. Keeps the leases that it may have granted, or the tokens that it was to
    /// return.
    pub(super) fn recover_tokens(
        &mut self,
        pending: &mut PendingCall,
        error: CallError,
        now: Timestamp,
    ) {
        let may_go_again = !error.is_answer() || error == CallError::Stuck;
        if pending.purpose == Purpose::Return && may_go_again {
            let returned = std::mem::take(&mut pending.returned);
            return self.keep_unanswered(TokenReturn { call: pending.number, tokens: returned });
        }
        if error.is_without_effect() || !self.leases() {
            return;
        }
        let expires_at = now.saturating_add(RECALL_TIME);
        for (index, (descriptor, wish)) in
            pending.descriptors.iter().zip(&pending.wishes).enumerate()
        {
            let hopeless = wish.wanted == 0 && wish.waiting == 0;
            if hopeless || descriptor.entries.len() > ENTRIES_BYTES_MAX {
                continue;
            }
            let id = LeaseRequest::lease_id(pending.number, index);
            // All of them: none were spent.
            let lease = LeaseTokens { id, left: u32::MAX, granted: 0, expires_at };
            if self.recalls.len() >= RECALLS_MAX {
                self.recalls.pop_front();
            }
            let (key, entries) = (descriptor.key, Box::from(descriptor.entries));
            self.recalls.push_back(ReturnableTokens { key, entries, lease });
        }
    }

    pub(super) fn keep_unanswered(&mut self, back: TokenReturn) {
        if self.unanswered.len() >= UNANSWERED_MAX {
            self.unanswered.pop_front();
        }
        self.unanswered.push_back(back);
    }
}
