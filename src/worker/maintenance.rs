//! Looking after leases between requests: what is not needed goes back, from the worker to the slot,
//! and from there to the sidecar.
//!
//! Bounded: so many places and calls a tick. Places that were used since the last tick cost nothing.

use super::Worker;
use crate::host::stats::Level;
use crate::host::{CallId, Host};
use crate::leases::local_table::{Loose, PLACES, Watch};
use crate::leases::shared_table::Write;
use crate::leases::token_pool::Purse;
use crate::request::descriptors::LeaseKey;
use crate::worker::call_error::AskError;
use tidegate_core::Timestamp;

/// Each place visited costs a read of shared data, about a microsecond.
const VISITS: usize = 256;

/// What came of visiting a slot.
struct Visited {
    /// The worker's tokens that have no place in the slot.
    refused: Purse,
    /// The slot's tokens that are not needed.
    surplus: Purse,
    /// Whether the slot still has tokens.
    left: bool,
}

impl<H: Host> Worker<H> {
    /// Gives up calls that will not end, and all of them when the sidecar is silent.
    pub(super) fn look_after_calls(&mut self, now: Timestamp) {
        let is_silent = self.patience.end_tick(self.asks.oldest_sent_in());
        if is_silent && self.breaker.is_closed() {
            while let Some(call) = self.asks.first() {
                self.give_up(call, AskError::Silent, now);
            }
        }
        self.asks.try_again();
        // Their reason should have come at once.
        while let Some(ask) = self.asks.take_unsent() {
            self.end(ask, Err(AskError::NotSent), now);
        }
        while let Some(call) = self.asks.overdue(self.patience.now()) {
            self.give_up(call, AskError::Late, now);
        }
    }

    fn give_up(&mut self, call: CallId, error: AskError, now: Timestamp) {
        if let Some(ask) = self.asks.take(call) {
            self.host.cancel(call);
            self.end(ask, Err(error), now);
        }
    }

    pub(super) fn look_after_leases(&mut self, now: Timestamp) {
        self.visit_places(now);
        self.give_tokens_back(now);
        let level = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.stats.set(Level::Waiting, level(self.paused()));
        self.stats.set(Level::LeasesHeld, level(self.locals.watched()));
        self.stats.set(Level::BreakersOpen, i64::from(!self.breaker.is_closed()));
    }

    fn visit_places(&mut self, now: Timestamp) {
        for _ in 0..VISITS.min(self.locals.watched()) {
            if self.visited >= PLACES {
                self.visited = 0;
            }
            let next = self.locals.next_watched(self.visited);
            let Some((place, key)) = next.or_else(|| self.locals.next_watched(0)) else {
                return;
            };
            self.visited = place.saturating_add(1);
            self.visit(place, key, now);
        }
    }

    fn visit(&mut self, place: usize, key: LeaseKey, now: Timestamp) {
        let Some(local) = self.locals.get_mut(place) else {
            return;
        };
        if std::mem::take(&mut local.spent) {
            return;
        }
        let (purse, entries) = (local.entry.purse, local.entries.clone());
        // What cannot be told to the sidecar is better kept for those who come.
        let may_return = self.breaker.is_closed() && !entries.is_empty();
        let visited = self.table.change(&self.host, &mut self.stats, key, now, |slot| {
            let had = slot.purse;
            let mut refused = purse;
            let moved = refused.move_to(&mut slot.purse, u64::MAX, now);
            slot.demand.unneeded(moved);
            let surplus = if may_return { slot.take_surplus(now) } else { Purse::default() };
            let left = slot.purse.left(now) > 0;
            let write = if slot.purse == had { Write::Keep } else { Write::Store };
            (Visited { refused, surplus, left }, write)
        });
        let Some(visited) = visited else {
            return;
        };
        let both = visited.refused.each().chain(visited.surplus.each());
        for held in both.filter(|held| now < held.ends) {
            self.let_go(Loose { key, entries: entries.clone(), held });
        }
        if let Some(local) = self.locals.get_mut(place) {
            local.entry.purse = Purse::default();
            if !visited.left {
                local.entries = Box::default();
                self.locals.watch(place, Watch::No);
            }
        }
    }

    /// Puts all that this worker holds into the slots.
    pub(super) fn put_all_back(&mut self, now: Timestamp) {
        for loose in std::mem::take(&mut self.loose) {
            self.put_back(loose, now);
        }
        let mut next = self.locals.next_watched(0);
        while let Some((place, key)) = next {
            if let Some(local) = self.locals.get_mut(place) {
                let purse = std::mem::take(&mut local.entry.purse);
                let entries = std::mem::take(&mut local.entries);
                for held in purse.each() {
                    self.put_back(Loose { key, entries: entries.clone(), held }, now);
                }
            }
            self.locals.watch(place, Watch::No);
            next = self.locals.next_watched(place);
        }
    }
}
