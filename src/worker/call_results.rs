//! What follows when a call has ended: leases are stored, the request that asked is decided by the
//! verdict, and those that waited are decided again.

use super::local_decisions::Seen;
use super::{Ruling, Worker};
use crate::config::HeaderStyle;
use crate::config::encoded::entries_of;
use crate::host::Host;
use crate::host::stats::Count;
use crate::leases::descriptor_state::Choice;
use crate::leases::limit_info::Told;
use crate::leases::local_table::Loose;
use crate::leases::shared_table::Write;
use crate::leases::token_pool::Held;
use crate::request::descriptors::{Drawing, LeaseKey};
use crate::worker::call_error::AskError;
use crate::worker::pending_calls::{Ask, Hoped, Purpose, Waiter, Who, needed};
use crate::worker::replies::{self, Shown};
use crate::worker::streams::Stream;
use std::collections::VecDeque;
use tidegate_core::{Answer, Lease, Nanos, Status, Timestamp, Verdict};

/// No lease lasts longer, whatever is told.
const LEASE_MAX: Nanos = Nanos::from_secs(60);
/// So long nobody waits for others' leases of a descriptor that is leased to nobody.
const UNLEASED: Nanos = Nanos::from_secs(1);
/// So long nobody asks again for a lease that was not granted. It bounds the asks near a limit.
const REFUSED: Nanos = Nanos::new(5_000_000);
impl<H: Host> Worker<H> {
    /// A call has ended.
    pub(super) fn end(&mut self, mut ask: Ask, answer: Result<&[u8], AskError>, now: Timestamp) {
        let read = answer.and_then(|bytes| {
            let answer = tidegate_wire::decode_answer(bytes).map_err(|_| AskError::Malformed)?;
            if makes_sense(&ask, &answer) { Ok(answer) } else { Err(AskError::Malformed) }
        });
        match read {
            Ok(answer) => {
                self.note_answer();
                let shown = if ask.purpose == Purpose::Return {
                    self.count_returned(&ask);
                    Vec::new()
                } else {
                    self.learn(&ask, &answer, now)
                };
                if let Some(who) = ask.asker
                    && !self.is_gone(who)
                {
                    self.decide_asker(who, answer.verdict, shown, now);
                }
            }
            Err(error) => {
                self.note_failure(error, ask.purpose, now);
                self.make_up_for(&mut ask, error, now);
                if error == AskError::Overflow {
                    return self.wait_for_room(ask);
                }
                if let Some(who) = ask.asker {
                    self.fail(who, error.leaves());
                }
            }
        }
        self.asks.try_again();
        self.decide_again(ask.waiters, now);
        self.ask_queued(now);
    }

    /// Envoy had no room for a call. Its requests wait for their turn, as if it had not been tried; the turn
    /// comes when another call has ended, or with a tick.
    fn wait_for_room(&mut self, ask: Ask) {
        self.asks.overflow();
        let Ask { asker, drawn, ends, waiters, .. } = ask;
        let asker = asker.map(|who| Waiter { who, drawn, deadline: ends });
        for waiter in asker.into_iter().chain(waiters) {
            self.asks.queue(waiter);
        }
    }

    fn decide_asker(&mut self, who: Who, verdict: Verdict, shown: Vec<Shown>, now: Timestamp) {
        if verdict == Verdict::Deny {
            let reply = replies::denial(&self.config, &shown, now);
            return self.settle_counted(who, Ruling::Deny(reply));
        }
        let tells = self.config.headers != HeaderStyle::Off
            && shown.iter().any(|shown| shown.told.is_known());
        self.settle_counted(who, Ruling::Allow(tells.then_some(Stream::Told(shown))));
    }

    /// Carries out what an answer decided, and counts it.
    fn settle_counted(&mut self, who: Who, ruling: Ruling) {
        match (who, &ruling) {
            (Who::Stream(_), Ruling::Allow(_)) => self.stats.count(Count::AllowedAsked),
            (Who::Stream(_), Ruling::Deny(_)) => self.stats.count(Count::DeniedAsked),
            (Who::Shadow, Ruling::Allow(_)) => {}
            (Who::Shadow, Ruling::Deny(_)) => self.stats.count(Count::ShadowDenied),
        }
        self.settle(who, ruling);
    }

    /// Decides those again who waited: by what is known now, else by the next ask. The one with the
    /// least time left asks, so that its answer comes in time for all others.
    pub(super) fn decide_again(&mut self, waiters: Vec<Waiter>, now: Timestamp) {
        let mut undecided = VecDeque::new();
        for waiter in waiters {
            if self.is_gone(waiter.who) {
                continue;
            }
            match self.decide(&waiter.drawn, Seen::Again, now) {
                Choice::Allow => {
                    let kept = self.told_of(&waiter.drawn);
                    self.settle_counted(waiter.who, Ruling::Allow(kept));
                }
                Choice::Deny => {
                    let reply = self.denial(&waiter.drawn, now);
                    self.settle_counted(waiter.who, Ruling::Deny(reply));
                }
                Choice::Ask => undecided.push_back(waiter),
            }
        }
        undecided.make_contiguous().sort_by_key(|waiter| waiter.deadline);
        while let Some(waiter) = undecided.pop_front() {
            if self.breaker.is_closed() && !self.may_ask() {
                self.asks.queue(waiter);
                undecided.drain(..).for_each(|waiter| self.asks.queue(waiter));
                return;
            }
            let who = waiter.who;
            if let Err(why) = self.pose(waiter, undecided.make_contiguous(), now) {
                self.fail(who, why);
            }
        }
    }

    /// Whether nobody waits for the decision any more.
    pub(super) fn is_gone(&self, who: Who) -> bool {
        matches!(who, Who::Stream(stream) if !self.streams.contains_key(&stream))
    }

    /// Stores what an answer says; gives what clients may be told of it.
    fn learn(&mut self, ask: &Ask, answer: &Answer, now: Timestamp) -> Vec<Shown> {
        let mut all = Vec::with_capacity(answer.statuses.len());
        let statuses = ask.drawn.iter().zip(&answer.statuses).zip(&ask.hoped);
        for ((drawing, status), hoped) in statuses {
            let keys = || {
                let entries = entries_of(drawing.entries);
                entries.into_iter().map(|entry| entry.key).collect::<Vec<_>>().join(".")
            };
            let told = Told::of_status(status, keys, now);
            let mut at_hand = 0;
            if self.leases() {
                at_hand = self.learn_one(ask, &drawing, status, told, now);
                if hoped.wanted > 0 && at_hand == 0 {
                    self.take_mark_off(drawing.key, now);
                }
                self.note_whether_leased(&drawing, status, answer.verdict, *hoped, now);
            }
            all.push(Shown { told, at_hand, verdict: status.verdict });
        }
        all
    }

    /// Stores what is said of one descriptor; gives the tokens that were granted.
    fn learn_one(
        &mut self,
        ask: &Ask,
        drawing: &Drawing<'_>,
        status: &Status,
        told: Told,
        now: Timestamp,
    ) -> u64 {
        let place = self.place_of(drawing, now);
        let hits = needed(&ask.drawn, drawing.key);
        let lease = status.lease.map(|lease| Lease {
            valid_until: lease.valid_until.min(now.saturating_add(LEASE_MAX)),
            ..lease
        });
        let lease = lease.filter(|lease| now < lease.valid_until);
        if let Some(local) = self.locals.get_mut(place) {
            local.entry.told = told;
            if status.verdict == Verdict::Allow {
                local.entry.allowed(hits);
            }
        }
        match (lease, status.verdict) {
            (Some(lease), Verdict::Deny) => {
                if let Some(local) = self.locals.get_mut(place) {
                    local.entry.deny(hits, lease.valid_until, now);
                }
                self.table.change(&self.host, &mut self.stats, drawing.key, now, |slot| {
                    slot.told = told;
                    slot.deny(hits, lease.valid_until, now);
                    slot.refreshing_until = Timestamp::default();
                    ((), Write::Store)
                });
                0
            }
            (Some(lease), Verdict::Allow) if lease.tokens == Lease::FREE => {
                if let Some(local) = self.locals.get_mut(place) {
                    local.entry.free(lease.valid_until, now);
                }
                self.table.change(&self.host, &mut self.stats, drawing.key, now, |slot| {
                    slot.told = told;
                    slot.free(lease.valid_until, now);
                    ((), Write::Store)
                });
                0
            }
            (Some(lease), Verdict::Allow) if lease.tokens > 0 => {
                let kept = ask.waiting_for(drawing.key);
                self.store(place, drawing, lease, kept, (hits, told), now);
                u64::from(lease.tokens)
            }
            _ => 0,
        }
    }

    /// Stores the tokens of a lease: those that waiters need here, the rest for all workers. What has
    /// no place goes back.
    fn store(
        &mut self,
        place: usize,
        drawing: &Drawing<'_>,
        lease: Lease,
        kept: u64,
        (hits, told): (u64, Told),
        now: Timestamp,
    ) {
        self.stats.count(Count::LeasesGranted);
        let granted = lease.tokens;
        let mut kept = u32::try_from(kept).unwrap_or(u32::MAX).min(granted);
        let held = |left| Held { id: lease.id, left, granted, ends: lease.valid_until };
        if let Some(local) = self.locals.get_mut(place)
            && local.entry.purse.put(held(kept), now).is_err()
        {
            kept = 0;
        }
        let rest = held(granted.saturating_sub(kept));
        let stored = self.table.change(&self.host, &mut self.stats, drawing.key, now, |slot| {
            slot.told = told;
            slot.allowed(hits);
            slot.demand.note(u64::from(kept), now);
            slot.refreshing_until = Timestamp::default();
            let stored = rest.left == 0 || slot.grant(rest, now).is_ok();
            (stored, Write::Store)
        });
        if stored != Some(true) {
            let local = self.locals.get_mut(place);
            let refused = local.is_none_or(|local| local.entry.purse.put(rest, now).is_err());
            if refused {
                let (key, entries) = (drawing.key, Box::from(drawing.entries));
                self.let_go(Loose { key, entries, held: rest });
            }
        } else if let Some(local) = self.locals.get_mut(place) {
            local.entry.told.remaining = told.remaining.saturating_add(rest.left);
        }
        self.hold(place, drawing);
    }

    /// Lets others ask for a new lease soon: this one was not granted.
    fn take_mark_off(&mut self, key: LeaseKey, now: Timestamp) {
        let soon = now.saturating_add(REFUSED);
        self.table.change(&self.host, &mut self.stats, key, now, |slot| {
            let write = if slot.refreshing_until > soon { Write::Store } else { Write::Keep };
            slot.refreshing_until = slot.refreshing_until.min(soon);
            ((), write)
        });
    }

    /// Notes whether waiting for others' leases of this descriptor is any use: not where the sidecar
    /// leases nothing though it could.
    fn note_whether_leased(
        &mut self,
        drawing: &Drawing<'_>,
        status: &Status,
        verdict: Verdict,
        hoped: Hoped,
        now: Timestamp,
    ) {
        let Some(local) = self.locals.of_mut(drawing.key) else {
            return;
        };
        let unleased = match status.verdict {
            Verdict::Deny => true,
            // On a denied request no tokens are granted.
            Verdict::Allow if verdict == Verdict::Deny => return,
            Verdict::Allow => status.limit.is_none() || (hoped.waiting > 0 && status.remaining > 0),
        };
        if status.lease.is_some() {
            local.unleased_until = Timestamp::default();
        } else if unleased {
            local.unleased_until = now.saturating_add(UNLEASED);
        }
    }
}

/// Whether an answer is one to this ask.
fn makes_sense(ask: &Ask, answer: &Answer) -> bool {
    let denies_with_tokens = |status: &Status| {
        status.verdict == Verdict::Deny && status.lease.is_some_and(|lease| lease.tokens > 0)
    };
    ask.purpose == Purpose::Return
        || (answer.statuses.len() == ask.drawn.len()
            && !answer.statuses.iter().any(denies_with_tokens))
}
