//! A refill: one update of one shared counter, and then of its holding.
//!
//! It takes what waiting requests need, as far as whole requests fit, and tokens ahead: what lasts for a second by the
//! rate of late, at most a share of what is left, as leases of proxies are sized. If a request does not fit, the
//! holding keeps a denial for so many hits: until they can fit, but briefly while other sidecars may give tokens back.

use super::desk::{BEFORE_END, KNOWN_MAX, Known, LONGER, UNUSED_FOR, per_second};
use super::flights::Need;
use super::{Holdings, Target, never_reached};
use crate::counters::Undecided;
use crate::leases::{CounterUsers, users_key};
use crate::plan::{EXPIRY_SLACK, Ends, Plan, Words};
use std::sync::Arc;
use tidegate_core::{
    Charge, Demand, GivenBack, Held, Hits, Nanos, Outcome, Quota, Refill, Timestamp, decide,
    lease_tokens,
};
use tidegate_store::Entries;
use tidegate_store::Hashed;

/// Sidecars that refilled in this period or the one before are active. Those with traffic refill at least once in
/// [`LONGER`] seconds.
const USERS_PERIOD: Nanos = Nanos::from_secs(LONGER);
/// The longest time that a denial is kept: a limit may be raised, or a counter erased.
const DENIAL_MAX: Nanos = Nanos::from_secs(5);
/// The same while other sidecars may give tokens back, or that is not known.
const DENIAL_MAX_WHILE_HELD: Nanos = Nanos::new(200_000_000);
/// A counter that recovers all the time is asked again after a time, and not for each hit.
const PAUSE_MAX: Nanos = Nanos::new(20_000_000);
/// Of limits with less nothing is held ahead, so nobody gives anything back (as in `lease_tokens`).
const CAPACITY_MIN: u32 = 10;
/// Tokens for longer than a second are at most one in this many of a sidecar's even share of what is left. Then all
/// sidecars together hold less than a sixtieth of it, and it lasts for minutes at their rate.
const PLENTY: u64 = 64;
/// Tokens that proxies want ahead times this are held for them: each gets a share of a holding.
const PER_WANTED: u64 = 4;

/// A refill that was made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refilled {
    /// The tokens in the holding afterwards.
    pub(super) held: u64,
}

/// What a refill asks the shared counter for.
struct Wish<'n> {
    needs: &'n [Need],
    /// The tokens that are still held.
    held: u64,
    owed: u64,
    /// The tokens that should be held ahead of requests, for each second.
    ahead: u64,
    /// How many seconds those of the last refill were for.
    seconds: u64,
    /// How many seconds they may be for now.
    seconds_max: u64,
    now: Timestamp,
}

impl Holdings {
    pub(super) async fn refill(
        self: &Arc<Self>,
        target: &Target,
        key: Hashed,
        needs: &[Need],
    ) -> Result<Refilled, Undecided> {
        let Some(now) = self.now() else {
            let error = never_reached();
            self.note(Err(&error));
            return Err(error);
        };
        let wish = self.wish(target, key, needs, now).await?;
        let lasting = wish.ahead.saturating_mul(wish.seconds);
        if needs.is_empty() && wish.owed == 0 && lasting <= wish.held {
            return Ok(Refilled { held: wish.held });
        }
        self.register(now);
        let taken = self.take(target, &wish).await;
        self.note(taken.as_ref().map(|_| ()));
        let refill = taken?;
        match self.put(target, key, &refill).await {
            Ok(held) => {
                self.observer.refilled(refill.tokens);
                self.remember(target, key, &refill, (held, wish.ahead), now);
                Ok(Refilled { held })
            }
            Err(error) => {
                // There is no place for them here.
                let back = GivenBack { tokens: refill.tokens, older: 0, end: refill.end };
                self.give_back(target.clone(), back);
                Err(error)
            }
        }
    }

    /// Looks at the holding and its use.
    async fn wish<'n>(
        &self,
        target: &Target,
        key: Hashed,
        needs: &'n [Need],
        now: Timestamp,
    ) -> Result<Wish<'n>, Undecided> {
        let (mut held, mut owed) = (0, 0);
        let mut look = |entries: &mut Entries<'_>| {
            let entry = entries.get(0);
            if let (Quota::Held(of, _), Some(state)) = (&target.quota, entry.state.first_chunk()) {
                (held, owed) = (of.tokens(state, now), of.owed(state, now));
            }
        };
        self.local.update(&[key], now, &mut look).await?;
        let needed = needs.iter().fold(0_u64, |sum, need| sum.saturating_add(need.hits));
        let wanted = needs.iter().fold(0_u64, |sum, need| sum.saturating_add(need.wanted));
        let desk = self.desk();
        let known = desk.counters.get(&key).and_then(|of| of.known.as_ref());
        let by_rate = match known {
            Some(known) => known.ahead(held, needed, now),
            None => match self.recent.note(target.hash, now) {
                Some(passed) => per_second(needed, passed),
                None => 0,
            },
        };
        // Tokens that nobody looks after would not come back.
        let has_room = known.is_some() || desk.known < KNOWN_MAX;
        let ahead = match has_room {
            true => by_rate.max(wanted.saturating_mul(PER_WANTED)),
            false => 0,
        };
        let seconds = known.map_or(1, Known::seconds);
        // The first tokens ahead are few: nothing is known but the time between two requests.
        let seconds_max = if known.is_some() { LONGER } else { 1 };
        Ok(Wish { needs, held, owed, ahead, seconds, seconds_max, now })
    }

    /// Takes tokens from the shared counter.
    async fn take(&self, target: &Target, wish: &Wish<'_>) -> Result<Refill, Undecided> {
        let Quota::Held(held, of) = &target.quota else { return Err(never_reached()) };
        let (counters, now) = (&self.shared.counters, wish.now);
        let seed = counters.seed();
        let mut plan = Plan::of_counter(target.hash, of, seed, now);
        let may_be_held = of.capacity() >= CAPACITY_MIN;
        // Without tokens ahead the number of users has no effect, so a key in rare use costs one state less.
        let counts_users = may_be_held && wish.ahead > 0;
        let users_index = plan.keys.len();
        if counts_users {
            plan.keys.push(users_key(seed, target.hash));
        }
        let sidecar = self.register.sidecar();
        let (mut refill, mut sidecars) = (None, 1);
        let mut update = |entries: &mut Entries<'_>| {
            let mut users = counts_users
                .then(|| CounterUsers::read(&entries.get(users_index), sidecar, USERS_PERIOD, now));
            let active = users.map_or(1, |users| users.active());
            sidecars = active;
            let is_held = match users {
                Some(users) => users.held_until() > now,
                None => may_be_held,
            };
            let mut words = plan.read(entries);
            let (taken, keep_until) = wish.take(held, of, &mut words, active, is_held);
            let mut keep = Ends::new();
            keep.push(keep_until.as_nanos());
            plan.write(entries, &mut words, &keep);
            if let Some(users) = &mut users {
                if taken.ahead > 0 {
                    users.note_lease(taken.end, now, USERS_PERIOD);
                }
                users.write(&mut entries.get(users_index), USERS_PERIOD, EXPIRY_SLACK, now);
            }
            refill = Some(taken);
        };
        counters.update(&plan.keys, now, &mut update).await?;
        self.sidecars.note(sidecars, now);
        refill.ok_or_else(never_reached)
    }

    /// Puts tokens into the holding, and returns how many there are.
    async fn put(&self, target: &Target, key: Hashed, refill: &Refill) -> Result<u64, Undecided> {
        let Quota::Held(held, _) = &target.quota else { return Err(never_reached()) };
        let now = self.now().ok_or_else(never_reached)?;
        let mut tokens = 0;
        let mut put = |entries: &mut Entries<'_>| {
            let entry = entries.get(0);
            let Some(state) = entry.state.first_chunk_mut() else { return };
            let keep_until = held.add(state, refill, now);
            tokens = held.tokens(state, now);
            *entry.expires_at = keep_until.saturating_add(EXPIRY_SLACK).as_nanos();
        };
        self.local.update(&[key], now, &mut put).await?;
        Ok(tokens)
    }

    /// Notes a refill that brought tokens ahead. The holding has now `held` tokens, and a second takes `ahead`.
    fn remember(
        &self,
        target: &Target,
        key: Hashed,
        refill: &Refill,
        (held, ahead): (u64, u64),
        now: Timestamp,
    ) {
        let mut desk = self.desk();
        let is_known = desk.counters.get(&key).is_some_and(|of| of.known.is_some());
        if refill.ahead == 0 && !is_known {
            return;
        }
        let Some(known) = desk.known(key, target, now) else { return };
        (known.refilled_at, known.tokens) = (now, held);
        known.added = known.added.saturating_add(refill.tokens);
        known.has_plenty = held > ahead.saturating_mul(2);
        let due = next_look(refill.end, now);
        desk.look_at(key, due);
    }
}

/// The shortest time that a denial is kept where hits fit again one by one. It is a small part of the time that the limit
/// takes to recover, so that no hit is lost by the wait.
fn pause(held: &Held) -> Nanos {
    PAUSE_MAX.min(Nanos::new(held.recovery().as_nanos() / 16))
}

/// When to look at a holding whose tokens end at `end`.
pub(super) fn next_look(end: Timestamp, now: Timestamp) -> Timestamp {
    let unused = now.saturating_add(UNUSED_FOR);
    let before = Timestamp::from_nanos(end.as_nanos().saturating_sub(BEFORE_END.as_nanos()));
    if before > now { unused.min(before) } else { unused }
}

impl Wish<'_> {
    /// Takes tokens from the words of the shared counter. Returns also how long these must be kept.
    fn take(
        &self,
        held: &Held,
        of: &Quota,
        words: &mut [u64],
        active: u32,
        is_held: bool,
    ) -> (Refill, Timestamp) {
        let now = self.now;
        let mut keep_until = Timestamp::default();
        if self.owed > 0 {
            let charge = Charge::Force(Hits::new(self.owed));
            keep_until = decide(words, of, charge, now).keep_until;
        }
        let mut decision = decide(words, of, Charge::PEEK, now);
        keep_until = keep_until.max(decision.keep_until);
        let left = decision.remaining;
        let (fitting, unfit) = self.fitting(left.saturating_add(self.held));
        let needed = fitting.saturating_sub(self.held);
        let end = held.end(of.spendable_until(words, now), now);
        let scarce = self.ahead_until(end, fitting, 1);
        let plenty = left.saturating_sub(needed) / (PLENTY * u64::from(active.max(1)));
        let wanted = scarce.max(self.ahead_until(end, fitting, self.seconds_max).min(plenty));
        let demand = Demand { waiting: needed, wanted };
        let tokens = lease_tokens(left, of.capacity(), active, demand);
        let (mut end, ahead) = (end, u64::from(tokens).saturating_sub(needed));
        if tokens > 0 {
            decision = decide(words, of, Charge::Take(Hits::new(tokens.into())), now);
            keep_until = keep_until.max(decision.keep_until);
            end = held.end(of.spendable_until(words, now), now);
        }
        let mut refill = Refill {
            tokens: tokens.into(),
            ahead,
            end,
            left: decision.remaining,
            more_at: decision.reset_at,
            denied: None,
            paid: self.owed,
        };
        if let Some(hits) = unfit {
            let mut copy = Words::from_slice(words);
            let charge = Charge::Take(Hits::new(hits));
            if let Outcome::Deny { retry_after } = decide(&mut copy, of, charge, now).outcome {
                let most = if is_held { DENIAL_MAX_WHILE_HELD } else { DENIAL_MAX };
                let most = now.saturating_add(most);
                let fits_at = now.saturating_add(retry_after);
                // Hits that fit before the window ends fit one by one.
                let window_end = of.spendable_until(words, now);
                let until = fits_at.max(now.saturating_add(pause(held)).min(window_end));
                refill.more_at = fits_at;
                refill.denied = Some((hits, until.min(most)));
            }
        }
        (refill, keep_until)
    }

    /// The hits of the requests that fit into `room`, in their order, and the least hits of one that does not. What waits
    /// elsewhere comes last.
    fn fitting(&self, room: u64) -> (u64, Option<u64>) {
        let (mut fitting, mut unfit) = (0_u64, None::<u64>);
        for need in self.needs {
            match fitting.checked_add(need.hits).filter(|sum| *sum <= room) {
                Some(sum) => fitting = sum,
                None => unfit = Some(unfit.map_or(need.hits, |least| least.min(need.hits))),
            }
        }
        let elsewhere = self.needs.iter().fold(0_u64, |sum, need| sum.saturating_add(need.waiting));
        (fitting + elsewhere.min(room - fitting), unfit)
    }

    /// The tokens to take ahead of requests for some seconds: those wanted, less those that are left over. A window that
    /// ends soon needs fewer.
    fn ahead_until(&self, end: Timestamp, fitting: u64, seconds: u64) -> u64 {
        let time_left = end.saturating_since(self.now).min(Nanos::from_secs(seconds));
        let ahead = u128::from(self.ahead) * u128::from(time_left.as_nanos()) / 1_000_000_000;
        let ahead = u64::try_from(ahead).unwrap_or(u64::MAX);
        ahead.saturating_sub(self.held.saturating_sub(fitting))
    }
}

#[cfg(test)]
mod tests;
