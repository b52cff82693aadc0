//! Deciding by what the worker holds, and taking chunks of the leases that all workers share.
//!
//! A request is allowed only if each of its descriptors allows it; then all are spent in one step,
//! in this worker's memory. What was taken for a request that is not allowed stays in the worker.

use super::Worker;
use crate::host::Host;
use crate::leases::descriptor_state::{Choice, Entry};
use crate::leases::local_table::{Loose, Watch};
use crate::leases::shared_table::Write;
use crate::leases::token_pool::Purse;
use crate::request::descriptors::{Drawing, Drawn};
use crate::worker::pending_calls::needed_there;
use tidegate_core::{Nanos, Timestamp};

/// Tokens are only leased for descriptors of at most so many bytes: they are kept, to give tokens
/// back. At most 2 MB for a full table.
pub(super) const ENTRIES_BYTES_MAX: usize = 1_024;
/// More than this many tokens wait to be given back only when many keys are given up at once; the
/// rest comes back when its leases end.
const LOOSE_MAX: usize = 256;

/// Whether a request is decided for the first time: only then it counts as demand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// It has just come.
    First,
    /// It has waited, or the same descriptor came before.
    Again,
}

/// What came of looking into a slot.
struct Pulled {
    /// The worker's tokens after it.
    purse: Purse,
    /// What the slot says after it.
    slot: Entry,
    /// Tokens to ask for in the background.
    wanted: u64,
}

impl<H: Host> Worker<H> {
    /// Decides a request as far as that is possible without asking; what is allowed is spent.
    pub(super) fn decide(&mut self, drawn: &Drawn, seen: Seen, now: Timestamp) -> Choice {
        if !self.leases() {
            return Choice::Ask;
        }
        // Taken out, since an ask that cannot be sent may decide others meanwhile.
        let mut places = std::mem::take(&mut self.places);
        places.clear();
        let choice = self.decide_each(drawn, &mut places, seen, now);
        self.places = places;
        choice
    }

    fn decide_each(
        &mut self,
        drawn: &Drawn,
        places: &mut Vec<usize>,
        seen: Seen,
        now: Timestamp,
    ) -> Choice {
        let mut lacks = false;
        for (index, drawing) in drawn.iter().enumerate() {
            let mut seen = seen;
            if drawn.repeats() && drawn.iter().take(index).any(|before| before.key == drawing.key) {
                seen = Seen::Again;
            }
            let place = self.place_of(&drawing, now);
            places.push(place);
            match self.choose(place, &drawing, needed_there(drawn, &drawing), seen, now) {
                Choice::Allow => {}
                Choice::Deny => return Choice::Deny,
                Choice::Ask => lacks = true,
            }
        }
        if !lacks && self.spend(drawn, places, now) {
            Choice::Allow
        } else if lacks && self.would_be_denied(drawn, now) {
            Choice::Deny
        } else {
            Choice::Ask
        }
    }

    /// Whether the sidecar, asked for all descriptors, would deny one. It charges each of them, also those
    /// of which there are tokens here.
    fn would_be_denied(&self, drawn: &Drawn, now: Timestamp) -> bool {
        drawn.iter().any(|drawing| {
            let local = self.locals.of(drawing.key);
            let hits = needed_there(drawn, &drawing);
            local.is_some_and(|local| local.entry.is_denied(hits, now))
        })
    }

    /// Whether leases are held at all.
    pub(super) fn leases(&self) -> bool {
        self.config.leases.slots > 0
    }

    /// Whether the sidecar has to be asked about `hits` of this descriptor.
    pub(super) fn lacks(&self, drawing: &Drawing<'_>, hits: u64, now: Timestamp) -> bool {
        let local = self.locals.of(drawing.key);
        local.is_none_or(|local| local.entry.decide(hits, now) == Choice::Ask)
    }

    fn choose(
        &mut self,
        place: usize,
        drawing: &Drawing<'_>,
        hits: u64,
        seen: Seen,
        now: Timestamp,
    ) -> Choice {
        let Some(local) = self.locals.get_mut(place) else {
            return Choice::Ask;
        };
        local.used = now;
        if seen == Seen::First {
            local.entry.demand.note(hits, now);
        }
        match local.entry.decide(hits, now) {
            Choice::Ask => self.pull(place, drawing, hits, now),
            Choice::Allow if local.entry.is_free_and_stale(now) => {
                self.renew_freedom(place, drawing, now);
                Choice::Allow
            }
            decided => decided,
        }
    }

    /// Asks in the background whether a descriptor still meets no limit, unless another worker does, or
    /// did.
    fn renew_freedom(&mut self, place: usize, drawing: &Drawing<'_>, now: Timestamp) {
        let Some(local) = self.locals.get(place) else {
            return;
        };
        let (known, wanted) = (local.entry.free_until, local.entry.demand.wanted(now));
        let may_refresh = wanted > 0 && self.may_refresh(drawing);
        let mark = self.mark(now);
        let renewed = self.table.change(&self.host, &mut self.stats, drawing.key, now, |slot| {
            let others = slot.free_until > known || now < slot.refreshing_until;
            if others || !may_refresh {
                return ((*slot, false), Write::Keep);
            }
            slot.refreshing_until = mark;
            ((*slot, true), Write::Store)
        });
        if let Some(local) = self.locals.get_mut(place) {
            local.entry.refreshing_until = mark;
            if let Some((slot, _)) = renewed
                && slot.free_until > known
            {
                local.entry.free_until = slot.free_until;
                local.entry.stale_from = slot.stale_from;
            }
        }
        if renewed.is_some_and(|(_, ours)| ours) {
            self.refresh(drawing, wanted, now);
        }
    }

    /// Whether a new lease of it may be asked for in the background.
    fn may_refresh(&self, drawing: &Drawing<'_>) -> bool {
        self.breaker.is_closed()
            && self.asks.may_call()
            && !self.asks.asks_for(drawing.key)
            && drawing.entries.len() <= ENTRIES_BYTES_MAX
    }

    /// Spends what all descriptors allowed. Nothing when one does not any more: the place of one was
    /// given up for another of the same request.
    fn spend(&mut self, drawn: &Drawn, places: &[usize], now: Timestamp) -> bool {
        if drawn.len() > 1 {
            let allows = |(drawing, place): (Drawing<'_>, &usize)| {
                let hits = needed_there(drawn, &drawing);
                let local = self.locals.at(*place, drawing.key);
                local.is_some_and(|local| local.entry.decide(hits, now) == Choice::Allow)
            };
            if !drawn.iter().zip(places).all(allows) {
                return false;
            }
        }
        drawn.iter().zip(places).all(|(drawing, place)| {
            self.locals.at_mut(*place, drawing.key).is_some_and(|local| {
                local.spent = true;
                local.entry.spend(drawing.hits, now)
            })
        })
    }

    /// Takes a chunk of the lease in the slot, when that holds enough, and learns what else it says.
    fn pull(&mut self, place: usize, drawing: &Drawing<'_>, hits: u64, now: Timestamp) -> Choice {
        let Some(local) = self.locals.get(place) else {
            return Choice::Ask;
        };
        let (purse, demand) = (local.entry.purse, local.entry.demand);
        let needed = hits.max(1).saturating_sub(purse.left(now));
        let may_refresh = self.may_refresh(drawing);
        let refreshing_until = self.mark(now);
        let pulled =
            self.table.change(&self.host, &mut self.stats, drawing.key, now, |slot: &mut Entry| {
                let mut purse = purse;
                if slot.purse.left(now) < needed {
                    return (Pulled { purse, slot: *slot, wanted: 0 }, Write::Keep);
                }
                let granted = slot.purse.granted(now);
                let chunk = slot.chunk(needed, &demand, now);
                let moved = slot.purse.move_to(&mut purse, chunk, now);
                slot.demand.note(moved, now);
                let mut wanted = 0;
                if may_refresh && slot.is_low(granted, now) {
                    wanted = slot.demand.wanted(now).max(demand.wanted(now));
                }
                if wanted > 0 {
                    slot.refreshing_until = refreshing_until;
                }
                (Pulled { purse, slot: *slot, wanted }, Write::Store)
            });
        let Some(pulled) = pulled else {
            return Choice::Ask;
        };
        self.learn_from_slot(place, drawing, &pulled, now);
        if pulled.wanted > 0 {
            self.refresh(drawing, pulled.wanted, now);
        }
        self.locals.get(place).map_or(Choice::Ask, |local| local.entry.decide(hits, now))
    }

    fn learn_from_slot(
        &mut self,
        place: usize,
        drawing: &Drawing<'_>,
        pulled: &Pulled,
        now: Timestamp,
    ) {
        let Some(local) = self.locals.get_mut(place) else {
            return;
        };
        let slot = &pulled.slot;
        local.entry.purse = pulled.purse;
        if slot.free_until > local.entry.free_until {
            local.entry.free_until = slot.free_until;
            local.entry.stale_from = slot.stale_from;
        }
        if now < slot.denied_until {
            local.entry.deny(slot.denied_hits, slot.denied_until, now);
        }
        if slot.told.is_known() {
            local.entry.told = slot.told;
            let left = u64::from(slot.told.remaining).saturating_add(slot.purse.left(now));
            local.entry.told.remaining = u32::try_from(left).unwrap_or(u32::MAX);
        }
        if pulled.purse.left(now) > 0 {
            self.hold(place, drawing);
        }
    }

    /// Has a place that holds tokens, or whose slot does, looked after at ticks.
    pub(super) fn hold(&mut self, place: usize, drawing: &Drawing<'_>) {
        let Some(local) = self.locals.get_mut(place) else {
            return;
        };
        if local.entries.is_empty() && drawing.entries.len() <= ENTRIES_BYTES_MAX {
            local.entries = Box::from(drawing.entries);
        }
        self.locals.watch(place, Watch::Yes);
    }

    /// The place of a descriptor. Tokens of the one that was there go back to its slot.
    pub(super) fn place_of(&mut self, drawing: &Drawing<'_>, now: Timestamp) -> usize {
        if let Some(place) = self.locals.find(drawing.key) {
            return place;
        }
        let (place, loose) = self.locals.place_of(drawing.key, now);
        for loose in loose {
            self.put_back(loose, now);
        }
        place
    }

    /// Puts tokens back into their slot, or else has them given back to the sidecar.
    pub(super) fn put_back(&mut self, loose: Loose, now: Timestamp) {
        let refused = self.table.change(&self.host, &mut self.stats, loose.key, now, |slot| {
            let refused = slot.purse.put(loose.held, now).is_err();
            slot.demand.unneeded(u64::from(loose.held.left));
            (refused, Write::Store)
        });
        if refused != Some(false) {
            self.let_go(loose);
        }
    }

    /// Gives tokens back to the sidecar at the next tick.
    pub(super) fn let_go(&mut self, loose: Loose) {
        if self.loose.len() < LOOSE_MAX && !loose.entries.is_empty() {
            self.loose.push(loose);
        }
    }

    /// Until when others need not ask for a new lease, since this worker does now.
    pub(super) fn mark(&self, now: Timestamp) -> Timestamp {
        const MARK_MAX: Nanos = Nanos::from_secs(1);
        now.saturating_add(self.timeout().min(MARK_MAX))
    }
}
