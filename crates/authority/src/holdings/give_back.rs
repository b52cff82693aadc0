//! Tokens that are not used go back to their shared counter: after a second without use, when traffic has fallen, when
//! their window is about to end, and when the process leaves.
//!
//! They are taken out of the holding first. If the shared counter cannot be reached then, they stay charged until it
//! forgets them, as nobody knows whether they arrived.

use super::desk::{Known, per_second};
use super::refill::next_look;
use super::{Holdings, Target, Task, never_reached};
use crate::authority::Authority;
use crate::counters::Undecided;
use crate::plan::{EXPIRY_SLACK, Ends, Plan};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tidegate_core::{Charge, GivenBack, Hits, Nanos, Quota, Timestamp, decide};
use tidegate_store::{Entries, Hashed};

/// Holdings looked at in one go: about a millisecond of work.
const LOOKED_AT: usize = 4_096;
/// Updates under way while the process leaves.
const AT_ONCE: usize = 256;
/// Tokens are kept for what this many times the time takes that they should last, by the rate of late.
const KEPT_TIMES: u64 = 2;
/// Less than one in this many tokens is not worth an update.
const WORTHWHILE: u64 = 4;

impl Authority {
    /// Refills holdings that run low, and gives back what is not used. To be called ten times a second; returns when to
    /// call it at once again.
    pub fn tend_holdings(&self) -> bool {
        let Some(holdings) = &self.holdings else { return false };
        let Some(now) = holdings.now() else { return false };
        holdings.register(now);
        holdings.refill_all_low();
        let due = holdings.desk().take_due(now, LOOKED_AT);
        let is_more = due.len() == LOOKED_AT;
        for (key, known) in due {
            crate::counters::wait(holdings.look_at(key, &known, now));
        }
        is_more
    }

    /// Gives back all tokens that this process knows of, before it leaves.
    pub async fn give_back_holdings(&self) {
        let Some(holdings) = &self.holdings else { return };
        let Some(now) = holdings.now() else { return };
        loop {
            let due = holdings.desk().take_due(Timestamp::from_nanos(u64::MAX - 1), AT_ONCE);
            if due.is_empty() {
                return;
            }
            let mut tasks: Vec<Task> = Vec::new();
            for (key, known) in due {
                let taken = holdings.take_out(&known.target, key, now, |_| Some(0)).await;
                if let Ok((_, _, back)) = taken {
                    tasks.push(holdings.give_back_task(known.target, back));
                }
                holdings.desk().forget(key);
            }
            let mut left = tasks;
            poll_fn(|context| {
                left.retain_mut(|task| task.as_mut().poll(context).is_pending());
                if left.is_empty() { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
    }

    /// How many sidecars shared the counters lately, for [`Failure::Local`](super::Failure::Local). None if that is
    /// unknown.
    pub fn sidecars_seen(&self) -> Option<u32> {
        let holdings = self.holdings.as_ref()?;
        holdings.sidecars.most(holdings.now()?)
    }

    /// So many did at a time that an earlier process remembers.
    pub fn remember_sidecars(&self, sidecars: u32, at: Timestamp) {
        if let Some(holdings) = &self.holdings {
            holdings.sidecars.remember(sidecars, at);
        }
    }

    /// Why the shared counters could not be reached at the last attempt, if so.
    pub fn shared_trouble(&self) -> Option<String> {
        self.holdings.as_ref()?.trouble()
    }
}

impl Holdings {
    /// Has the tokens of a holding given back if nobody uses them.
    pub(super) fn watch(self: &Arc<Self>, target: Target) {
        let Some(now) = self.now() else { return };
        let key = self.key(&target);
        let mut desk = self.desk();
        if desk.known(key, &target, now).is_some() {
            desk.look_at(key, now.saturating_add(super::desk::UNUSED_FOR));
            return;
        }
        drop(desk);
        // There is no room to remember it.
        let holdings = self.clone();
        (self.shared.spawn)(Box::pin(async move {
            if let Ok((_, _, back)) = holdings.take_out(&target, key, now, |_| Some(0)).await {
                holdings.give_back_task(target, back).await;
            }
        }));
    }

    /// Looks at the use of a holding since the last time.
    async fn look_at(self: &Arc<Self>, key: Hashed, known: &Known, now: Timestamp) {
        let before = known.seen.saturating_add(known.added);
        let time = now.saturating_since(known.seen_at);
        let keep = |(tokens, end): (u64, Timestamp)| {
            let used = before.saturating_sub(tokens);
            let kept_for = Nanos::from_secs(KEPT_TIMES * known.seconds());
            let time_left = end.saturating_since(now).min(kept_for).as_nanos();
            let rate = u128::from(per_second(used, time));
            let keep = u64::try_from(rate * u128::from(time_left) / 1_000_000_000);
            let keep = keep.unwrap_or(u64::MAX);
            let is_worthwhile = keep == 0 || tokens.saturating_sub(keep) > tokens / WORTHWHILE;
            is_worthwhile.then_some(keep)
        };
        let Ok((tokens, end, back)) = self.take_out(&known.target, key, now, keep).await else {
            // The store is busy: later.
            self.desk().look_at(key, now.saturating_add(super::desk::UNUSED_FOR));
            return;
        };
        if back.tokens + back.older > 0 {
            self.give_back(known.target.clone(), back);
        }
        let mut desk = self.desk();
        if tokens == 0 {
            desk.forget(key);
            return;
        }
        let of = desk.counters.get_mut(&key).and_then(|of| of.known.as_mut());
        if let Some(of) = of {
            (of.seen_at, of.seen, of.added) = (now, tokens, of.added.saturating_sub(known.added));
            of.tokens = of.tokens.saturating_sub(back.tokens + back.older);
        }
        desk.look_at(key, next_look(end, now));
    }

    /// Takes out all but the tokens that `keep` says, if it says any. Returns the tokens that stay and their end.
    pub(super) async fn take_out(
        &self,
        target: &Target,
        key: Hashed,
        now: Timestamp,
        keep: impl Fn((u64, Timestamp)) -> Option<u64> + Send + Sync,
    ) -> Result<(u64, Timestamp, GivenBack), Undecided> {
        let Quota::Held(held, _) = &target.quota else { return Err(never_reached()) };
        let end = Timestamp::default();
        let mut taken = (0, end, GivenBack { tokens: 0, older: 0, end });
        let mut update = |entries: &mut Entries<'_>| {
            let entry = entries.get(0);
            let Some(state) = entry.state.first_chunk_mut() else { return };
            let end = Timestamp::from_nanos(state[1]);
            let tokens = held.tokens(state, now);
            let Some(keep) = keep((tokens, end)) else {
                taken = (tokens, end, GivenBack { tokens: 0, older: 0, end });
                return;
            };
            let back = held.take_out(state, keep, now);
            taken = (held.tokens(state, now), end, back);
            let keep_until =
                decide(state, &target.quota, Charge::Refund(Hits::PEEK), now).keep_until;
            *entry.expires_at = keep_until.saturating_add(EXPIRY_SLACK).as_nanos();
        };
        self.local.update(&[key], now, &mut update).await?;
        Ok(taken)
    }

    pub(super) fn give_back(self: &Arc<Self>, target: Target, back: GivenBack) {
        if back.tokens + back.older == 0 {
            return;
        }
        let mut task = self.give_back_task(target, back);
        // Begun here, and not when the task first runs: a refill that comes next finds the tokens where they are now.
        if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            (self.shared.spawn)(task);
        }
    }

    pub(super) fn give_back_task(self: &Arc<Self>, target: Target, back: GivenBack) -> Task {
        let holdings = self.clone();
        Box::pin(async move {
            let given = holdings.refund(&target, &back).await;
            match given {
                Ok(tokens) => holdings.observer.gave_back(tokens),
                Err(error) => holdings.note(Err(&error)),
            }
        })
    }

    /// Refunds tokens to the shared counter, and returns how many it took.
    async fn refund(&self, target: &Target, back: &GivenBack) -> Result<u64, Undecided> {
        let Quota::Held(_, of) = &target.quota else { return Ok(0) };
        let now = self.now().ok_or_else(never_reached)?;
        let (counters, mut given) = (&self.shared.counters, 0);
        let plan = Plan::of_counter(target.hash, of, counters.seed(), now);
        let mut update = |entries: &mut Entries<'_>| {
            let mut words = plan.read(entries);
            given = target.quota.worth_back(&words, back, now);
            let decision = decide(&mut words, of, Charge::Refund(Hits::new(given)), now);
            let mut keep = Ends::new();
            keep.push(decision.keep_until.as_nanos());
            plan.write(entries, &mut words, &keep);
        };
        counters.update(&plan.keys, now, &mut update).await?;
        Ok(given)
    }
}
