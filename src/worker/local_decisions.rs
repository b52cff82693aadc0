//! Decides by local state, and takes chunks of the leases that all workers share.
//!
//! A request is allowed only if each of its descriptors allows it; then all tokens are spent in one
//! step, in this worker's memory. Tokens taken for a request that is not allowed stay in the
//! worker.

use super::Worker;
use crate::host::Host;
use crate::leases::descriptor_state::{DescriptorState, LocalDecision};
use crate::leases::limit_info::FurtherLimits;
use crate::leases::local_table::ReturnableTokens;
use crate::leases::shared_table::Write;
use crate::leases::token_pool::TokenPool;
use crate::request::descriptors::{DescriptorRef, Descriptors};
use crate::worker::pending_calls::needed_by_own;
use tidegate_core::{Nanos, Timestamp};

/// Only descriptors of at most this size are leased: their entries are kept for returning tokens.
/// At most 2 MB for a full table.
pub(super) const ENTRIES_BYTES_MAX: usize = 1_024;
/// Only mass evictions fill this queue. Further tokens stay charged until their windows end.
pub(super) const TO_RETURN_MAX: usize = 256;

/// Whether a request is decided for the first time: only then it counts as demand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempt {
    First,
    /// It has waited, or the same descriptor occurred before.
    Repeated,
}

struct Pulled {
    /// The worker's tokens afterwards.
    pool: TokenPool,
    slot: DescriptorState,
    further: FurtherLimits,
    /// Tokens to request in the background.
    wanted: u64,
}

impl<H: Host> Worker<H> {
    /// Decides a request without a call if possible; spends what is allowed.
    pub(super) fn decide(
        &mut self,
        descriptors: &Descriptors,
        attempt: Attempt,
        now: Timestamp,
    ) -> LocalDecision {
        if !self.leases() {
            return LocalDecision::Ask;
        }
        // Taken out, since a call that cannot be sent may decide other requests meanwhile.
        let mut indexes = std::mem::take(&mut self.indexes);
        indexes.clear();
        let decision = self.decide_each(descriptors, &mut indexes, attempt, now);
        if decision == LocalDecision::Deny {
            self.tally_denial(descriptors, &indexes, now);
        }
        self.indexes = indexes;
        decision
    }

    fn decide_each(
        &mut self,
        descriptors: &Descriptors,
        indexes: &mut Vec<usize>,
        attempt: Attempt,
        now: Timestamp,
    ) -> LocalDecision {
        let mut lacks = false;
        for (index, descriptor) in descriptors.iter().enumerate() {
            let attempt = match descriptors.is_repeated(index, descriptor.key) {
                true => Attempt::Repeated,
                false => attempt,
            };
            let index = self.find_or_insert(&descriptor, now);
            indexes.push(index);
            let hits = needed_by_own(descriptors, &descriptor);
            match self.decide_one(index, &descriptor, hits, attempt, now) {
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

    /// Whether the sidecar would deny a call for all descriptors. It charges each of them, even
    /// those with tokens here.
    fn would_be_denied(&self, descriptors: &Descriptors, now: Timestamp) -> bool {
        descriptors.iter().any(|descriptor| {
            let record = self.local.of(descriptor.key);
            let hits = needed_by_own(descriptors, &descriptor);
            record.is_some_and(|record| record.state.is_denied(hits, now))
        })
    }

    pub(super) fn leases(&self) -> bool {
        self.config.lease_slots > 0
    }

    /// Whether `hits` of this descriptor need a call.
    pub(super) fn lacks(&self, descriptor: &DescriptorRef<'_>, hits: u64, now: Timestamp) -> bool {
        let record = self.local.of(descriptor.key);
        record.is_none_or(|record| record.state.decide(hits, now) == LocalDecision::Ask)
    }

    fn decide_one(
        &mut self,
        index: usize,
        descriptor: &DescriptorRef<'_>,
        hits: u64,
        attempt: Attempt,
        now: Timestamp,
    ) -> LocalDecision {
        let Some(record) = self.local.get_mut(index) else { return LocalDecision::Ask };
        record.used = now;
        if attempt == Attempt::First {
            record.state.demand.note(hits, now);
        }
        match record.state.decide(hits, now) {
            LocalDecision::Ask => self.pull(index, descriptor, hits, now),
            LocalDecision::Allow if record.state.is_unlimited_and_stale(now) => {
                self.refresh_unlimited(index, descriptor, now);
                LocalDecision::Allow
            }
            decided => decided,
        }
    }

    /// Checks in the background whether still no limit applies, unless another worker does so, or
    /// has done so.
    fn refresh_unlimited(&mut self, index: usize, descriptor: &DescriptorRef<'_>, now: Timestamp) {
        let Some(record) = self.local.get(index) else { return };
        let (known, wanted) = (record.state.unlimited_until, record.state.demand.wanted(now));
        let may_refresh = wanted > 0 && self.may_refresh(descriptor);
        let mark = self.refresh_mark(now);
        let renewed = self.change_slot(descriptor.key, now, |slot| {
            let others = slot.unlimited_until > known || now < slot.refreshing_until;
            if others || !may_refresh {
                return ((*slot, false), Write::Keep);
            }
            slot.refreshing_until = mark;
            ((*slot, true), Write::Store)
        });
        if let Some(record) = self.local.get_mut(index) {
            record.state.refreshing_until = mark;
            if let Some((slot, _)) = &renewed {
                record.state.copy_unlimited(slot);
            }
        }
        if renewed.is_some_and(|(_, ours)| ours) {
            self.refresh(descriptor, wanted, now);
        }
    }

    /// Whether a new lease may be requested in the background.
    fn may_refresh(&self, descriptor: &DescriptorRef<'_>) -> bool {
        self.breaker.is_closed()
            && self.calls.may_call()
            && !self.calls.is_pending(descriptor.key)
            && descriptor.entries.len() <= ENTRIES_BYTES_MAX
    }

    /// Spends the tokens of all descriptors. None if one no longer allows it, because another
    /// descriptor of the request evicted its record.
    fn spend(&mut self, descriptors: &Descriptors, indexes: &[usize], now: Timestamp) -> bool {
        if descriptors.len() > 1 {
            let allows = |(descriptor, index): (DescriptorRef<'_>, &usize)| {
                let hits = needed_by_own(descriptors, &descriptor);
                let record = self.local.at(*index, descriptor.key);
                record.is_some_and(|record| record.state.decide(hits, now) == LocalDecision::Allow)
            };
            if !descriptors.iter().zip(indexes).all(allows) {
                return false;
            }
        }
        let mut is_first = false;
        let is_spent = descriptors.iter().zip(indexes).all(|(descriptor, index)| {
            self.local.at_mut(*index, descriptor.key).is_some_and(|record| {
                // A peek leaves idle tokens idle, so that they go back.
                record.spent |= descriptor.hits > 0;
                let is_spent = record.state.spend(descriptor.hits, now);
                if is_spent {
                    let tallied = record.tally.allowed;
                    is_first |= tallied == 0;
                    // Reports come long before so many hits.
                    record.tally.allowed = tallied.wrapping_add(descriptor.hits);
                }
                is_spent
            })
        });
        if is_first {
            self.begin_tallies(descriptors);
        }
        is_spent
    }

    /// Takes a chunk of the lease in the slot if that has enough, and copies what else the slot
    /// caches.
    fn pull(
        &mut self,
        index: usize,
        descriptor: &DescriptorRef<'_>,
        hits: u64,
        now: Timestamp,
    ) -> LocalDecision {
        let Some(record) = self.local.get(index) else { return LocalDecision::Ask };
        let (pool, demand) = (record.state.pool, record.state.demand);
        let needed = hits.max(1).saturating_sub(pool.left(now));
        let may_refresh = self.may_refresh(descriptor);
        let refreshing_until = self.refresh_mark(now);
        let pulled = self.change_slot_with_limits(descriptor.key, now, |slot, further| {
            let (mut pool, further) = (pool, further.clone());
            if slot.pool.left(now) < needed {
                return (Pulled { pool, slot: *slot, further, wanted: 0 }, Write::Keep);
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
            (Pulled { pool, slot: *slot, further, wanted }, Write::Store)
        });
        let Some(pulled) = pulled else { return LocalDecision::Ask };
        self.adopt_slot(index, descriptor, &pulled, now);
        if pulled.wanted > 0 {
            self.refresh(descriptor, pulled.wanted, now);
        }
        self.local.get(index).map_or(LocalDecision::Ask, |record| record.state.decide(hits, now))
    }

    /// Takes tokens out of the slot as far as this worker lacks them for `hits`, even if they do not
    /// suffice. Returns whether any hits can be paid here now.
    ///
    /// Like [`pull`](Self::pull), but apart from it: sharing would cost requests some instructions.
    pub(super) fn gather(
        &mut self,
        descriptor: &DescriptorRef<'_>,
        hits: u64,
        now: Timestamp,
    ) -> bool {
        let index = self.find_or_insert(descriptor, now);
        let Some(record) = self.local.get_mut(index) else { return false };
        record.used = now;
        if now < record.state.unlimited_until {
            return true;
        }
        let (pool, demand) = (record.state.pool, record.state.demand);
        let needed = hits.saturating_sub(pool.left(now));
        if needed == 0 {
            return true;
        }
        let may_refresh = self.may_refresh(descriptor);
        let refreshing_until = self.refresh_mark(now);
        let gathered = self.change_slot(descriptor.key, now, |slot| {
            let (mut pool, granted) = (pool, slot.pool.granted(now));
            let chunk = slot.chunk(needed, &demand, now);
            let moved = slot.pool.move_to(&mut pool, chunk, now);
            slot.demand.note(moved, now);
            let has_enough = moved >= needed && moved > 0;
            let mut wanted = 0;
            if has_enough && may_refresh && slot.is_low(granted, now) {
                wanted = slot.demand.wanted(now).max(demand.wanted(now));
                slot.refreshing_until = refreshing_until;
            }
            let write = if moved > 0 { Write::Store } else { Write::Keep };
            let further = FurtherLimits::default();
            (Pulled { pool, slot: *slot, further, wanted }, write)
        });
        let Some(gathered) = gathered else { return pool.left(now) > 0 };
        if let Some(record) = self.local.get_mut(index) {
            record.state.pool = gathered.pool;
            record.state.copy_unlimited(&gathered.slot);
        }
        self.watch(index, descriptor);
        if gathered.wanted > 0 {
            self.refresh(descriptor, gathered.wanted, now);
        }
        gathered.pool.left(now) > 0 || now < gathered.slot.unlimited_until
    }

    fn adopt_slot(
        &mut self,
        index: usize,
        descriptor: &DescriptorRef<'_>,
        pulled: &Pulled,
        now: Timestamp,
    ) {
        self.set_aside(index);
        let Some(record) = self.local.get_mut(index) else { return };
        let slot = &pulled.slot;
        record.state.pool = pulled.pool;
        record.state.copy_unlimited(slot);
        if now < slot.denied_until {
            record.state.deny(slot.denied_hits, slot.denied_until, now);
        }
        if slot.limit.is_known() {
            let in_slot = slot.pool.left(now);
            record.state.limit = slot.limit;
            let left = u64::from(slot.limit.remaining).saturating_add(in_slot);
            record.state.limit.remaining = u32::try_from(left).unwrap_or(u32::MAX);
            record.further = pulled.further.with_more(in_slot);
        }
        if pulled.pool.left(now) > 0 {
            self.watch(index, descriptor);
        }
    }

    /// Has ticks visit a record that holds tokens, or whose slot does.
    pub(super) fn watch(&mut self, index: usize, descriptor: &DescriptorRef<'_>) {
        let Some(record) = self.local.get_mut(index) else { return };
        if record.entries.is_empty() && descriptor.entries.len() <= ENTRIES_BYTES_MAX {
            record.entries = Box::from(descriptor.entries);
        }
        self.local.watch(index);
    }

    /// The index of a descriptor. The tokens of an evicted one go back to its slot.
    pub(super) fn find_or_insert(
        &mut self,
        descriptor: &DescriptorRef<'_>,
        now: Timestamp,
    ) -> usize {
        if let Some(index) = self.local.find(descriptor.key) {
            return index;
        }
        let (index, evicted) = self.local.find_or_insert(descriptor.key, now);
        for tokens in evicted.tokens {
            self.return_to_slot(tokens, now);
        }
        if let Some(tally) = evicted.tally {
            self.keep_tally(tally);
        }
        index
    }

    /// Moves tokens back into their slot, or else queues them for the sidecar.
    pub(super) fn return_to_slot(&mut self, tokens: ReturnableTokens, now: Timestamp) {
        let refused = self.change_slot(tokens.key, now, |slot| {
            let refused = slot.pool.put(tokens.lease, now).is_err();
            slot.demand.take_back(u64::from(tokens.lease.left));
            (refused, Write::Store)
        });
        if refused != Some(false) {
            self.queue_return(tokens);
        }
    }

    /// Queues tokens for the sidecar at the next tick.
    pub(super) fn queue_return(&mut self, tokens: ReturnableTokens) {
        if self.to_return.len() < TO_RETURN_MAX && !tokens.entries.is_empty() {
            self.to_return.push(tokens);
        }
    }

    /// Until then other workers need not request a lease that this one requests now.
    pub(super) fn refresh_mark(&self, now: Timestamp) -> Timestamp {
        const MARK_MAX: Nanos = Nanos::from_secs(1);
        now.saturating_add(self.timeout().min(MARK_MAX))
    }
}
