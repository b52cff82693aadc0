//! Maintains leases and calls at each tick: unneeded tokens go back from the worker to the slot,
//! and from there to the sidecar.
//!
//! Bounded: a limited number of records and calls per tick. Records used since the last tick cost
//! nothing.

use super::Worker;
use super::local_decisions::TO_RETURN_MAX;
use crate::host::stats::Gauge;
use crate::host::{CallId, Host};
use crate::leases::local_table::ReturnableTokens;
use crate::leases::shared_table::Write;
use crate::leases::token_pool::TokenPool;
use crate::request::descriptors::LeaseKey;
use crate::worker::call_error::CallError;
use tidegate_core::Timestamp;

/// Each visit costs a read of shared data, about a microsecond.
const VISITS_MAX: usize = 256;

/// Beyond this length of the queue of returns, a visit might find no room for its tokens: those of a
/// worker's pool and of a slot's.
const VISITED_QUEUE_MAX: usize = TO_RETURN_MAX - 2 * TokenPool::LEASES_MAX;

struct Visited {
    /// The worker's tokens that found no place in the slot.
    refused: TokenPool,
    /// The slot's unneeded tokens.
    surplus: TokenPool,
    /// Whether the slot still has tokens.
    left: bool,
}

impl<H: Host> Worker<H> {
    /// Cancels overdue calls, and all calls if the sidecar is silent.
    pub(super) fn expire_calls(&mut self, now: Timestamp) {
        let is_silent = self.tick_clock.end_tick(self.calls.oldest_sent_at(), now);
        if is_silent && self.breaker.is_closed() {
            while let Some(call) = self.calls.first() {
                self.abandon_call(call, CallError::Silent, now);
            }
        }
        self.calls.clear_overflow();
        // Their causes should have arrived at once.
        while let Some(pending) = self.calls.take_unsent() {
            self.finish_call(pending, Err(CallError::NotSent), now);
        }
        while let Some(call) = self.calls.overdue(self.tick_clock.now()) {
            self.abandon_call(call, CallError::Late, now);
        }
    }

    fn abandon_call(&mut self, call: CallId, error: CallError, now: Timestamp) {
        if let Some(pending) = self.calls.take(call) {
            self.host.cancel(call);
            self.finish_call(pending, Err(error), now);
        }
    }

    pub(super) fn maintain_leases(&mut self, now: Timestamp) {
        self.visit_watched(now);
        self.return_tokens(now);
        let level = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.stats.set(Gauge::Waiting, level(self.paused()));
        self.stats.set(Gauge::LeasesHeld, level(self.local.watched()));
        self.stats.set(Gauge::BreakersOpen, i64::from(!self.breaker.is_closed()));
    }

    fn visit_watched(&mut self, now: Timestamp) {
        for _ in 0..VISITS_MAX.min(self.local.watched()) {
            // Tokens without a place in the queue would stay charged. Here they wait for one.
            if self.to_return.len() > VISITED_QUEUE_MAX {
                return;
            }
            let next = self.local.next_watched(self.visited);
            // After the last one, from the start.
            let Some((index, key)) = next.or_else(|| self.local.next_watched(0)) else { return };
            self.visited = index.saturating_add(1);
            self.visit(index, key, now);
        }
    }

    fn visit(&mut self, index: usize, key: LeaseKey, now: Timestamp) {
        let Some(record) = self.local.get_mut(index) else { return };
        if std::mem::take(&mut record.spent) {
            return;
        }
        let (pool, entries) = (record.state.pool, record.entries.clone());
        // Tokens that cannot be returned to the sidecar stay available to requests.
        let may_return = self.breaker.is_closed() && !entries.is_empty();
        let visited = self.change_slot(key, now, |slot| {
            let had = slot.pool;
            let mut refused = pool;
            let moved = refused.move_to(&mut slot.pool, u64::MAX, now);
            slot.demand.take_back(moved);
            let surplus = if may_return { slot.take_surplus(now) } else { TokenPool::default() };
            let left = slot.pool.left(now) > 0;
            let write = if slot.pool == had { Write::Keep } else { Write::Store };
            (Visited { refused, surplus, left }, write)
        });
        let Some(visited) = visited else { return };
        let both = visited.refused.each().chain(visited.surplus.each());
        for lease in both.filter(|lease| now < lease.expires_at) {
            self.queue_return(ReturnableTokens { key, entries: entries.clone(), lease });
        }
        if let Some(record) = self.local.get_mut(index) {
            record.state.pool = TokenPool::default();
            if !visited.left {
                // A tally needs them, too.
                if record.tally.is_empty() {
                    record.entries = Box::default();
                }
                self.local.unwatch(index);
            }
        }
    }

    /// Moves all tokens of this worker into the slots.
    pub(super) fn return_all_to_slots(&mut self, now: Timestamp) {
        for tokens in std::mem::take(&mut self.to_return) {
            self.return_to_slot(tokens, now);
        }
        let mut next = self.local.next_watched(0);
        while let Some((index, key)) = next {
            if let Some(record) = self.local.get_mut(index) {
                let pool = std::mem::take(&mut record.state.pool);
                let entries = std::mem::take(&mut record.entries);
                for lease in pool.each() {
                    self.return_to_slot(
                        ReturnableTokens { key, entries: entries.clone(), lease },
                        now,
                    );
                }
            }
            self.local.unwatch(index);
            next = self.local.next_watched(index);
        }
    }
}
