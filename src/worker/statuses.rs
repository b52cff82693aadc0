//! What a worker keeps of the status of one descriptor in an answer: its limits, a lease, a denial.

use super::Worker;
use super::call_results::is_denied_in_shadow;
use crate::config::encoded::entries_of;
use crate::host::Host;
use crate::host::stats::Counter;
use crate::leases::descriptor_state::DescriptorState;
use crate::leases::limit_info::{FurtherLimits, LimitInfo};
use crate::leases::local_table::ReturnableTokens;
use crate::leases::shared_table::Write;
use crate::leases::token_pool::LeaseTokens;
use crate::request::descriptors::{DescriptorRef, LeaseKey};
use crate::worker::pending_calls::{LeaseWish, PendingCall, Purpose, needed};
use tidegate_core::{Lease, Nanos, Status, Timestamp, Verdict};

/// No lease lasts longer, whatever the sidecar says.
const LEASE_MAX: Nanos = Nanos::from_secs(60);
/// For this time, requests do not wait for others' leases of a descriptor that the sidecar does not
/// lease.
const UNLEASED_TIME: Nanos = Nanos::from_secs(1);
/// For this time, no worker requests a lease again that was not granted. Bounds the calls near a
/// limit.
const REFRESH_RETRY: Nanos = Nanos::new(5_000_000);

impl<H: Host> Worker<H> {
    /// The tokens of this worker, and those that its record of a limit counts as the slot's.
    pub(super) fn tokens_at_hand(&self, key: LeaseKey, met: &MetLimits, now: Timestamp) -> u64 {
        self.local.of(key).map_or(0, |record| {
            let in_slot = record.state.limit.remaining.saturating_sub(met.tightest.remaining);
            record.state.pool.left(now).saturating_add(in_slot.into())
        })
    }

    /// Stores the status of one descriptor; returns the number of granted tokens.
    pub(super) fn store_status(
        &mut self,
        pending: &PendingCall,
        descriptor: &DescriptorRef<'_>,
        status: &Status,
        met: &MetLimits,
        now: Timestamp,
    ) -> u64 {
        let index = self.find_or_insert(descriptor, now);
        let hits = match (pending.purpose, status.verdict) {
            // The answer to a debit says what is left after it, and whether one hit fits.
            (Purpose::Debit, Verdict::Deny) => 1,
            _ => needed(&pending.descriptors, descriptor.key),
        };
        let lease = status.lease.map(|lease| Lease {
            valid_until: lease.valid_until.min(now.saturating_add(LEASE_MAX)),
            ..lease
        });
        let lease = lease.filter(|lease| now < lease.valid_until);
        self.set_aside(index);
        if let Some(record) = self.local.get_mut(index) {
            record.state.limit = met.tightest;
            record.further = met.further.clone();
            if status.verdict == Verdict::Allow {
                record.state.allowed(hits);
            }
        }
        match (lease, status.verdict) {
            (Some(lease), Verdict::Deny) => {
                self.store_denial(index, descriptor.key, hits, met, lease.valid_until, now);
                0
            }
            (Some(lease), Verdict::Allow) if lease.tokens == Lease::UNLIMITED => {
                let until = lease.valid_until;
                if let Some(record) = self.local.get_mut(index) {
                    record.state.set_unlimited(until, now);
                }
                self.change_slot_with_limits(descriptor.key, now, |slot, further| {
                    met.copy_to(slot, further);
                    slot.set_unlimited(until, now);
                    ((), Write::Store)
                });
                0
            }
            (Some(lease), _) if lease.tokens > 0 => {
                let kept = pending.waiting_for(descriptor.key);
                self.store_lease(index, descriptor, lease, kept, (hits, met), now);
                u64::from(lease.tokens)
            }
            _ => 0,
        }
    }

    /// Caches a denial for all workers. Short in this one too while the slot has tokens: they may
    /// be spent by then, or go back.
    fn store_denial(
        &mut self,
        index: usize,
        key: LeaseKey,
        hits: u64,
        met: &MetLimits,
        until: Timestamp,
        now: Timestamp,
    ) {
        let held = self.change_slot_with_limits(key, now, |slot, further| {
            met.copy_to(slot, further);
            slot.refreshing_until = Timestamp::default();
            slot.deny(hits, until, now);
            (slot.pool.left(now) > 0, Write::Store)
        });
        let until = match held {
            Some(true) => DescriptorState::denied_while_held(until, now),
            _ => until,
        };
        if let Some(record) = self.local.get_mut(index) {
            record.state.deny(hits, until, now);
        }
    }

    /// Stores the tokens of a lease: those that waiting requests need in this worker, the rest in
    /// the slot. Tokens without a place are returned.
    fn store_lease(
        &mut self,
        index: usize,
        descriptor: &DescriptorRef<'_>,
        lease: Lease,
        kept: u64,
        (hits, met): (u64, &MetLimits),
        now: Timestamp,
    ) {
        self.stats.count(Counter::LeasesGranted);
        let granted = lease.tokens;
        let mut kept = u32::try_from(kept).unwrap_or(u32::MAX).min(granted);
        let lease =
            |left| LeaseTokens { id: lease.id, left, granted, expires_at: lease.valid_until };
        if let Some(record) = self.local.get_mut(index)
            && record.state.pool.put(lease(kept), now).is_err()
        {
            kept = 0;
        }
        let rest = lease(granted.saturating_sub(kept));
        let stored = self.change_slot_with_limits(descriptor.key, now, |slot, further| {
            met.copy_to(slot, further);
            slot.allowed(hits);
            slot.demand.note(u64::from(kept), now);
            slot.refreshing_until = Timestamp::default();
            let stored = rest.left == 0 || slot.grant(rest, now).is_ok();
            // Another lease may be there, too.
            (stored.then(|| slot.pool.left(now)), Write::Store)
        });
        let in_slot = stored.flatten();
        if let Some(record) = self.local.get_mut(index)
            && let Some(in_slot) = in_slot
        {
            let left = u64::from(met.tightest.remaining).saturating_add(in_slot);
            record.state.limit.remaining = u32::try_from(left).unwrap_or(u32::MAX);
            record.further = met.further.with_more(in_slot);
        }
        if in_slot.is_none() {
            let record = self.local.get_mut(index);
            let refused = record.is_none_or(|record| record.state.pool.put(rest, now).is_err());
            if refused {
                let (key, entries) = (descriptor.key, Box::from(descriptor.entries));
                self.queue_return(ReturnableTokens { key, entries, lease: rest });
            }
        }
        self.watch(index, descriptor);
    }

    /// Lets workers request a lease again soon, since this one was not granted.
    pub(super) fn shorten_refresh_mark(&mut self, key: LeaseKey, now: Timestamp) {
        let soon = now.saturating_add(REFRESH_RETRY);
        self.change_slot(key, now, |slot| {
            let write = if slot.refreshing_until > soon { Write::Store } else { Write::Keep };
            slot.refreshing_until = slot.refreshing_until.min(soon);
            ((), write)
        });
    }

    /// Records whether waiting for others' leases of this descriptor helps. It does not where the
    /// sidecar could lease tokens but does not.
    pub(super) fn note_leasability(
        &mut self,
        descriptor: &DescriptorRef<'_>,
        status: &Status,
        verdict: Verdict,
        wish: LeaseWish,
        now: Timestamp,
    ) {
        let Some(record) = self.local.of_mut(descriptor.key) else { return };
        let unleased = match status.verdict {
            Verdict::Deny => true,
            // A denied request is granted no tokens.
            Verdict::Allow if verdict == Verdict::Deny => return,
            Verdict::Allow => {
                status.limit.is_none()
                    || (wish.waiting > 0 && status.remaining > 0)
                    || is_denied_in_shadow(status)
            }
        };
        if status.lease.is_some() {
            record.unleased_until = Timestamp::default();
        } else if unleased {
            record.unleased_until = now.saturating_add(UNLEASED_TIME);
        }
    }
}

/// The limits of one descriptor.
pub(super) struct MetLimits {
    pub(super) tightest: LimitInfo,
    pub(super) further: FurtherLimits,
}

impl MetLimits {
    pub(super) fn of(descriptor: &DescriptorRef<'_>, status: &Status, now: Timestamp) -> MetLimits {
        let keys = || {
            let entries = entries_of(descriptor.entries);
            entries.into_iter().map(|entry| entry.key).collect::<Vec<_>>().join(".")
        };
        MetLimits {
            tightest: LimitInfo::of_status(status, keys, now),
            further: FurtherLimits::of_status(status, keys, now),
        }
    }

    fn copy_to(&self, slot: &mut DescriptorState, further: &mut FurtherLimits) {
        slot.limit = self.tightest;
        *further = self.further.clone();
    }
}
