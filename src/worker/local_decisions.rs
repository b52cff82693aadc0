//! Deciding by what the worker holds, and taking chunks of the leases that all workers share.
//!
//! A request is allowed only if each of its descriptors allows it; then all are spent in one step,
//! in this worker's memory. What was taken for a request that is not allowed stays in the worker.

use super::Worker;
use crate::host::Host;
use crate::leases::descriptor_state::{DescriptorState, LocalDecision};
use crate::leases::local_table::{ReturnableTokens, Watch};
use crate::leases::shared_table::Write;
use crate::leases::token_pool::TokenPool;
use crate::request::descriptors::{DescriptorRef, RequestDescriptors};
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
pub(super) enum Attempt {
    /// It has just come.
    First,
    /// It has waited, or the same descriptor came before.
    Repeated,
}

/// What came of looking into a slot.
struct Pulled {
    /// The worker's tokens after it.
    pool: TokenPool,
    /// What the slot says after it.
    slot: DescriptorState,
    /// Tokens to ask for in the background.
    wanted: u64,
}

impl<H: Host> Worker<H> {
    /// Decides a request as far as that is possible without asking; what is allowed is spent.
    pub(super) fn decide(
        &mut self,
        descriptors: &RequestDescriptors,
        seen: Attempt,
        now: Timestamp,
    ) -> LocalDecision {
        if !self.leases() {
            return LocalDecision::Ask;
        }
        // Taken out, since an ask that cannot be sent may decide others meanwhile.
        let mut indexes = std::mem::take(&mut self.indexes);
        indexes.clear();
        let choice = self.decide_each(descriptors, &mut indexes, seen, now);
        self.indexes = indexes;
        choice
    }

    fn decide_each(
        &mut self,
        descriptors: &RequestDescriptors,
        indexes: &mut Vec<usize>,
        seen: Attempt,
        now: Timestamp,
    ) -> LocalDecision {
        let mut lacks = false;
        for (index, descriptor) in descriptors.iter().enumerate() {
            let mut seen = seen;
            if descriptors.has_duplicates()
                && descriptors.iter().take(index).any(|before| before.key == descriptor.key)
            {
                seen = Attempt::Repeated;
            }
            let index = self.find_or_insert(&descriptor, now);
            indexes.push(index);
            match self.choose(index, &descriptor, needed_there(descriptors, &descriptor), seen, now)
            {
                LocalDecision::Allow => {}
                LocalDecision::Deny => return LocalDecision::Deny,
                LocalDecision::Ask => lacks = true,
            }
        }
        if !lacks && self.spend(descriptors, indexes, now) {
            LocalDecision::Allow
        } else if lacks && self.would_be_denied(descriptors, now) {
            LocalDecision::Deny
        } else {
            LocalDecision::Ask
        }
    }

    /// Whether the sidecar, asked for all descriptors, would deny one. It charges each of them, also those
    /// of which there are tokens here.
    fn would_be_denied(&self, descriptors: &RequestDescriptors, now: Timestamp) -> bool {
        descriptors.iter().any(|descriptor| {
            let local = self.local_table.of(descriptor.key);
            let hits = needed_there(descriptors, &descriptor);
            local.is_some_and(|local| local.state.is_denied(hits, now))
        })
    }

    /// Whether leases are held at all.
    pub(super) fn leases(&self) -> bool {
        self.config.leases.slots > 0
    }

    /// Whether the sidecar has to be asked about `hits` of this descriptor.
    pub(super) fn lacks(&self, descriptor: &DescriptorRef<'_>, hits: u64, now: Timestamp) -> bool {
        let local = self.local_table.of(descriptor.key);
        local.is_none_or(|local| local.state.decide(hits, now) == LocalDecision::Ask)
    }

    fn choose(
        &mut self,
        index: usize,
        descriptor: &DescriptorRef<'_>,
        hits: u64,
        seen: Attempt,
        now: Timestamp,
    ) -> LocalDecision {
        let Some(local) = self.local_table.get_mut(index) else {
            return LocalDecision::Ask;
        };
        local.used = now;
        if seen == Attempt::First {
            local.state.demand.note(hits, now);
        }
        match local.state.decide(hits, now) {
            LocalDecision::Ask => self.pull(index, descriptor, hits, now),
            LocalDecision::Allow if local.state.is_unlimited_and_stale(now) => {
                self.refresh_unlimited(index, descriptor, now);
                LocalDecision::Allow
            }
            decided => decided,
        }
    }

    /// PendingCalls in the background whether a descriptor still meets no limit, unless another worker does, or
    /// did.
    fn refresh_unlimited(&mut self, index: usize, descriptor: &DescriptorRef<'_>, now: Timestamp) {
        let Some(local) = self.local_table.get(index) else {
            return;
        };
        let (known, wanted) = (local.state.unlimited_until, local.state.demand.wanted(now));
        let may_refresh = wanted > 0 && self.may_refresh(descriptor);
        let mark = self.refresh_mark(now);
        let renewed =
            self.shared_table.change(&self.host, &mut self.stats, descriptor.key, now, |slot| {
                let others = slot.unlimited_until > known || now < slot.refreshing_until;
                if others || !may_refresh {
                    return ((*slot, false), Write::Keep);
                }
                slot.refreshing_until = mark;
                ((*slot, true), Write::Store)
            });
        if let Some(local) = self.local_table.get_mut(index) {
            local.state.refreshing_until = mark;
            if let Some((slot, _)) = renewed
                && slot.unlimited_until > known
            {
                local.state.unlimited_until = slot.unlimited_until;
                local.state.stale_from = slot.stale_from;
            }
        }
        if renewed.is_some_and(|(_, ours)| ours) {
            self.refresh(descriptor, wanted, now);
        }
    }

    /// Whether a new lease of it may be asked for in the background.
    fn may_refresh(&self, descriptor: &DescriptorRef<'_>) -> bool {
        self.breaker.is_closed()
            && self.calls.may_call()
            && !self.calls.is_pending(descriptor.key)
            && descriptor.entries.len() <= ENTRIES_BYTES_MAX
    }

    /// Spends what all descriptors allowed. Nothing when one does not any more: the place of one was
    /// given up for another of the same request.
    fn spend(
        &mut self,
        descriptors: &RequestDescriptors,
        indexes: &[usize],
        now: Timestamp,
    ) -> bool {
        if descriptors.len() > 1 {
            let allows = |(descriptor, index): (DescriptorRef<'_>, &usize)| {
                let hits = needed_there(descriptors, &descriptor);
                let local = self.local_table.at(*index, descriptor.key);
                local.is_some_and(|local| local.state.decide(hits, now) == LocalDecision::Allow)
            };
            if !descriptors.iter().zip(indexes).all(allows) {
                return false;
            }
        }
        descriptors.iter().zip(indexes).all(|(descriptor, index)| {
            self.local_table.at_mut(*index, descriptor.key).is_some_and(|local| {
                local.spent = true;
                local.state.spend(descriptor.hits, now)
            })
        })
    }

    /// Takes a chunk of the lease in the slot, when that holds enough, and learns what else it says.
    fn pull(
        &mut self,
        index: usize,
        descriptor: &DescriptorRef<'_>,
        hits: u64,
        now: Timestamp,
    ) -> LocalDecision {
        let Some(local) = self.local_table.get(index) else {
            return LocalDecision::Ask;
        };
        let (pool, demand) = (local.state.pool, local.state.demand);
        let needed = hits.max(1).saturating_sub(pool.left(now));
        let may_refresh = self.may_refresh(descriptor);
        let refreshing_until = self.refresh_mark(now);
        let pulled = self.shared_table.change(
            &self.host,
            &mut self.stats,
            descriptor.key,
            now,
            |slot: &mut DescriptorState| {
                let mut pool = pool;
                if slot.pool.left(now) < needed {
                    return (Pulled { pool, slot: *slot, wanted: 0 }, Write::Keep);
                }
                let granted = slot.pool.granted(now);
                let chunk = slot.chunk(needed, &demand, now);
                let moved = slot.pool.move_to(&mut pool, chunk, now);
                slot.demand.note(moved, now);
                let mut wanted = 0;
                if may_refresh && slot.is_low(granted, now) {
                    wanted = slot.demand.wanted(now).max(demand.wanted(now));
                }
                if wanted > 0 {
                    slot.refreshing_until = refreshing_until;
                }
                (Pulled { pool, slot: *slot, wanted }, Write::Store)
            },
        );
        let Some(pulled) = pulled else {
            return LocalDecision::Ask;
        };
        self.adopt_slot(index, descriptor, &pulled, now);
        if pulled.wanted > 0 {
            self.refresh(descriptor, pulled.wanted, now);
        }
        self.local_table
            .get(index)
            .map_or(LocalDecision::Ask, |local| local.state.decide(hits, now))
    }

    fn adopt_slot(
        &mut self,
        index: usize,
        descriptor: &DescriptorRef<'_>,
        pulled: &Pulled,
        now: Timestamp,
    ) {
        let Some(local) = self.local_table.get_mut(index) else {
            return;
        };
        let slot = &pulled.slot;
        local.state.pool = pulled.pool;
        if slot.unlimited_until > local.state.unlimited_until {
            local.state.unlimited_until = slot.unlimited_until;
            local.state.stale_from = slot.stale_from;
        }
        if now < slot.denied_until {
            local.state.deny(slot.denied_hits, slot.denied_until, now);
        }
        if slot.limit.is_known() {
            local.state.limit = slot.limit;
            let left = u64::from(slot.limit.remaining).saturating_add(slot.pool.left(now));
            local.state.limit.remaining = u32::try_from(left).unwrap_or(u32::MAX);
        }
        if pulled.pool.left(now) > 0 {
            self.watch(index, descriptor);
        }
    }

    /// Has a place that holds tokens, or whose slot does, looked after at ticks.
    pub(super) fn watch(&mut self, index: usize, descriptor: &DescriptorRef<'_>) {
        let Some(local) = self.local_table.get_mut(index) else {
            return;
        };
        if local.entries.is_empty() && descriptor.entries.len() <= ENTRIES_BYTES_MAX {
            local.entries = Box::from(descriptor.entries);
        }
        self.local_table.watch(index, Watch::Yes);
    }

    /// The place of a descriptor. Tokens of the one that was there go back to its slot.
    pub(super) fn find_or_insert(
        &mut self,
        descriptor: &DescriptorRef<'_>,
        now: Timestamp,
    ) -> usize {
        if let Some(index) = self.local_table.find(descriptor.key) {
            return index;
        }
        let (index, tokens) = self.local_table.find_or_insert(descriptor.key, now);
        for tokens in tokens {
            self.return_to_slot(tokens, now);
        }
        index
    }

    /// Puts tokens back into their slot, or else has them given back to the sidecar.
    pub(super) fn return_to_slot(&mut self, tokens: ReturnableTokens, now: Timestamp) {
        let refused =
            self.shared_table.change(&self.host, &mut self.stats, tokens.key, now, |slot| {
                let refused = slot.pool.put(tokens.lease, now).is_err();
                slot.demand.take_back(u64::from(tokens.lease.left));
                (refused, Write::Store)
            });
        if refused != Some(false) {
            self.queue_return(tokens);
        }
    }

    /// Gives tokens back to the sidecar at the next tick.
    pub(super) fn queue_return(&mut self, tokens: ReturnableTokens) {
        if self.to_return.len() < LOOSE_MAX && !tokens.entries.is_empty() {
            self.to_return.push(tokens);
        }
    }

    /// Until when others need not ask for a new lease, since this worker does now.
    pub(super) fn refresh_mark(&self, now: Timestamp) -> Timestamp {
        const MARK_MAX: Nanos = Nanos::from_secs(1);
        now.saturating_add(self.timeout().min(MARK_MAX))
    }
}
