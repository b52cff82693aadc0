//! Looking after leases between requests: what is not needed goes back, from the worker to the slot,
//! and from there to the sidecar.
//!
//! Bounded: so many places and calls a tick. Places that were used since the last tick cost nothing.

use super::Worker;
use crate::host::stats::Gauge;
use crate::host::{CallId, Host};
use crate::leases::local_table::{CAPACITY, ReturnableTokens, Watch};
use crate::leases::shared_table::Write;
use crate::leases::token_pool::TokenPool;
use crate::request::descriptors::LeaseKey;
use crate::worker::call_error::CallError;
use tidegate_core::Timestamp;

/// Each place visited costs a read of shared data, about a microsecond.
const VISITS_MAX: usize = 256;

/// What came of visiting a slot.
struct Visited {
    /// The worker's tokens that have no place in the slot.
    refused: TokenPool,
    /// The slot's tokens that are not needed.
    surplus: TokenPool,
    /// Whether the slot still has tokens.
    left: bool,
}

impl<H: Host> Worker<H> {
    /// Gives up calls that will not end, and all of them when the sidecar is silent.
    pub(super) fn expire_calls(&mut self, now: Timestamp) {
        let is_silent = self.tick_clock.end_tick(self.calls.oldest_sent_at());
        if is_silent && self.breaker.is_closed() {
            while let Some(call) = self.calls.first() {
                self.abandon_call(call, CallError::Silent, now);
            }
        }
        self.calls.try_again();
        // Their reason should have come at once.
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
        self.stats.set(Gauge::LeasesHeld, level(self.local_table.watched()));
        self.stats.set(Gauge::BreakersOpen, i64::from(!self.breaker.is_closed()));
    }

    fn visit_watched(&mut self, now: Timestamp) {
        for _ in 0..VISITS_MAX.min(self.local_table.watched()) {
            if self.visited >= CAPACITY {
                self.visited = 0;
            }
            let next = self.local_table.next_watched(self.visited);
            let Some((index, key)) = next.or_else(|| self.local_table.next_watched(0)) else {
                return;
            };
            self.visited = index.saturating_add(1);
            self.visit(index, key, now);
        }
    }

    fn visit(&mut self, index: usize, key: LeaseKey, now: Timestamp) {
        let Some(local) = self.local_table.get_mut(index) else {
            return;
        };
        if std::mem::take(&mut local.spent) {
            return;
        }
        let (pool, entries) = (local.state.pool, local.entries.clone());
        // What cannot be told to the sidecar is better kept for those who come.
        let may_return = self.breaker.is_closed() && !entries.is_empty();
        let visited = self.shared_table.change(&self.host, &mut self.stats, key, now, |slot| {
            let had = slot.pool;
            let mut refused = pool;
            let moved = refused.move_to(&mut slot.pool, u64::MAX, now);
            slot.demand.take_back(moved);
            let surplus = if may_return { slot.take_surplus(now) } else { TokenPool::default() };
            let left = slot.pool.left(now) > 0;
            let write = if slot.pool == had { Write::Keep } else { Write::Store };
            (Visited { refused, surplus, left }, write)
        });
        let Some(visited) = visited else {
            return;
        };
        let both = visited.refused.each().chain(visited.surplus.each());
        for lease in both.filter(|lease| now < lease.ends) {
            self.queue_return(ReturnableTokens { key, entries: entries.clone(), lease });
        }
        if let Some(local) = self.local_table.get_mut(index) {
            local.state.pool = TokenPool::default();
            if !visited.left {
                local.entries = Box::default();
                self.local_table.watch(index, Watch::No);
            }
        }
    }

    /// Puts all that this worker holds into the slots.
    pub(super) fn return_all_to_slots(&mut self, now: Timestamp) {
        for tokens in std::mem::take(&mut self.to_return) {
            self.return_to_slot(tokens, now);
        }
        let mut next = self.local_table.next_watched(0);
        while let Some((index, key)) = next {
            if let Some(local) = self.local_table.get_mut(index) {
                let pool = std::mem::take(&mut local.state.pool);
                let entries = std::mem::take(&mut local.entries);
                for lease in pool.each() {
                    self.return_to_slot(
                        ReturnableTokens { key, entries: entries.clone(), lease },
                        now,
                    );
                }
            }
            self.local_table.watch(index, Watch::No);
            next = self.local_table.next_watched(index);
        }
    }
}
