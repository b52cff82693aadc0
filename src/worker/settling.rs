//! What streams owe, from their decision to their end.
//!
//! Owns the descriptors, which only the request's headers can make, what was taken ahead, and costs
//! that are known before the end. At the end the difference is debited or refunded.
//!
//! A cost that cannot be read charges nothing, as the upstream writes it and not the client. What
//! was estimated stays charged then.

use super::Worker;
use super::call_results::is_denied_in_shadow;
use super::debits::{Debit, Group};
use super::pending_calls::Requester;
use super::reports::with_earlier_notes;
use super::streams::StreamState;
use crate::config::{CostMoment, LateCharge, LateCost};
use crate::host::stats::Counter;
use crate::host::{Host, RequestFacts, StreamId};
use crate::leases::token_pool::TokenPool;
use crate::request::cost_now;
use crate::request::descriptors::{DescriptorRef, LeaseKey};
use tidegate_core::{Direction, Nanos, Status, Timestamp, Verdict};

/// Shorter waits for an answer are within the error that the sidecar allows for the time of a charge.
const WAIT_IGNORED: Nanos = Nanos::new(50_000_000);

/// What a stream owes at its end.
#[derive(Debug)]
pub(crate) struct Owing {
    /// Its state as a request.
    pub(crate) state: Option<StreamState>,
    pub(super) shadow: InShadow,
    pub(super) costs: Vec<Owed>,
    pub(super) bytes: usize,
}

/// Whether the descriptors of a stream in shadow are decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InShadow {
    Decided,
    /// The answer is still to come, and says whether their estimates were taken.
    Awaited,
    /// The same, and the stream has ended.
    AwaitedAfterEnd,
}

/// What one entry of the configuration owes.
#[derive(Debug)]
pub(super) struct Owed {
    /// The index of its charge.
    pub(super) charge: usize,
    pub(super) key: LeaseKey,
    pub(super) entries: Box<[u8]>,
    /// The index of its descriptor in the request, if it took an estimate.
    pub(super) place: Option<Place>,
    /// Hits that were taken ahead.
    pub(super) taken: u64,
    /// When they were taken, or else when the request arrived.
    pub(super) taken_at: Timestamp,
    /// Its cost, once it is known, unless that has no number.
    pub(super) cost: Option<Option<u64>>,
}

/// The place of a descriptor in the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Enforced(usize),
    Shadowed(usize),
}

impl Owed {
    pub(super) fn bytes(&self) -> usize {
        self.entries.len().saturating_add(size_of::<Owed>())
    }
}

impl<H: Host> Worker<H> {
    pub(super) fn charge(&self, index: usize) -> Option<&LateCharge> {
        self.config.late_charges.get(index)
    }

    /// The cost of a stream if it is to be read now: a number, or none if there is none.
    pub(super) fn read_cost(
        &self,
        charge: &LateCharge,
        facts: &impl RequestFacts,
        now: CostMoment,
    ) -> Option<Option<u64>> {
        let cost = charge.at_end().filter(|cost| cost.moment() == now)?;
        let number = self.cost_now(cost, facts);
        Some(match (now, charge) {
            // Clients must not evade a limit by a header without a number.
            (CostMoment::Request, LateCharge::DebitAtEnd(_) | LateCharge::Estimate { .. }) => {
                Some(number.unwrap_or(1))
            }
            _ => number,
        })
    }

    pub(super) fn cost_now(&self, cost: &LateCost, facts: &impl RequestFacts) -> Option<u64> {
        match cost {
            LateCost::Number(number) => Some(*number),
            LateCost::Value(command) => cost_now(&self.config, command, facts),
        }
    }

    /// The estimates of a request were taken. `statuses` are those of its descriptors, if the sidecar
    /// decided; otherwise local state did. Where no limit applies, nothing is settled.
    pub(super) fn note_taken(
        &mut self,
        requester: Requester,
        statuses: Option<&[Status]>,
        now: Timestamp,
    ) {
        if self.config.late_charges.is_empty() {
            return;
        }
        let (Requester::Stream(stream) | Requester::Shadow(stream)) = requester;
        let Some(StreamState::Owing(owing)) = self.streams.get_mut(&stream) else { return };
        let (charges, local) = (&self.config.late_charges, &self.local);
        owing.costs.retain_mut(|owed| {
            let index = match (requester, owed.place) {
                (Requester::Stream(_), Some(Place::Enforced(index)))
                | (Requester::Shadow(_), Some(Place::Shadowed(index))) => index,
                _ => return true,
            };
            if let Some(LateCharge::Estimate { estimate, .. }) = charges.get(owed.charge)
                && statuses.is_none_or(|statuses| statuses.get(index).is_some_and(has_taken))
            {
                let waited = now.saturating_since(owed.taken_at);
                // Of a long wait, the hits may have been taken at the beginning.
                if waited <= WAIT_IGNORED {
                    owed.taken_at = now;
                }
                owed.taken = *estimate;
            }
            match statuses {
                Some(statuses) => statuses.get(index).is_some_and(|status| status.limit.is_some()),
                None => local.of(owed.key).is_none_or(|record| record.state.unlimited_until <= now),
            }
        });
    }

    /// A request that owes continues; `kept` is for its response.
    pub(super) fn settle_pause(&mut self, stream: StreamId, kept: Option<StreamState>) {
        let waited = match self.streams.get_mut(&stream) {
            Some(StreamState::Owing(owing)) => owing.state.take(),
            _ => None,
        };
        let kept = self.reported(stream, with_earlier_notes(waited, kept));
        match self.streams.get_mut(&stream) {
            Some(StreamState::Owing(owing)) if !owing.costs.is_empty() => owing.state = kept,
            _ => {
                self.remove_owing(stream);
                if let Some(kept) = kept {
                    self.streams.insert(stream, kept);
                }
            }
        }
    }

    /// A request that owes was answered instead. It took nothing that counts, so there is nothing to
    /// refund: otherwise denied clients could free room that others have taken.
    pub(super) fn deny_owing(&mut self, stream: StreamId) {
        let Some(StreamState::Owing(owing)) = self.streams.get_mut(&stream) else { return };
        owing.state = None;
        let (charges, shadow) = (&self.config.late_charges, owing.shadow);
        owing.costs.retain_mut(|owed| {
            let may_be_taken =
                matches!(owed.place, Some(Place::Shadowed(_))) && shadow == InShadow::Awaited;
            if owed.taken > 0 || may_be_taken {
                // In shadow. It goes back.
                owed.cost = Some(Some(0));
                return true;
            }
            matches!(charges.get(owed.charge), Some(LateCharge::DebitAtEnd(_)))
        });
        if owing.costs.is_empty() {
            self.remove_owing(stream);
        }
    }

    /// A request passes without a decision, so it took no hits that its end could refund.
    pub(super) fn drop_late_refunds(&mut self, stream: StreamId) {
        if self.config.late_charges.is_empty() {
            return;
        }
        let Some(StreamState::Owing(owing)) = self.streams.get_mut(&stream) else { return };
        let charges = &self.config.late_charges;
        owing
            .costs
            .retain(|owed| !matches!(charges.get(owed.charge), Some(LateCharge::RefundAtEnd(_))));
    }

    fn remove_owing(&mut self, stream: StreamId) -> Option<Box<Owing>> {
        match self.streams.remove(&stream)? {
            StreamState::Owing(owing) => {
                self.owing_bytes = self.owing_bytes.saturating_sub(owing.bytes);
                Some(owing)
            }
            _ => None,
        }
    }

    /// The response headers of a request that owes have arrived. Returns the state for them.
    #[cold]
    #[inline(never)]
    pub(super) fn on_response_of_owing(
        &mut self,
        stream: StreamId,
        mut owing: Box<Owing>,
        facts: &impl RequestFacts,
    ) -> Option<StreamState> {
        for owed in owing.costs.iter_mut().filter(|owed| owed.cost.is_none()) {
            if let Some(charge) = self.charge(owed.charge) {
                owed.cost = self.read_cost(charge, facts, CostMoment::Response);
            }
        }
        // Answered by another filter while it was paused; its deletion is still to come.
        let is_paused = owing.state.as_ref().is_some_and(StreamState::is_paused);
        let state = if is_paused { None } else { owing.state.take() };
        self.streams.insert(stream, StreamState::Owing(owing));
        state
    }

    /// A stream that owes has ended.
    #[cold]
    #[inline(never)]
    pub(super) fn settle(
        &mut self,
        stream: StreamId,
        mut owing: Box<Owing>,
        facts: &impl RequestFacts,
    ) {
        // Its client left before it was decided, so the upstream never saw it.
        if owing.state.as_ref().is_some_and(StreamState::is_paused) {
            self.owing_bytes = self.owing_bytes.saturating_sub(owing.bytes);
            return;
        }
        for owed in owing.costs.iter_mut().filter(|owed| owed.cost.is_none()) {
            if let Some(charge) = self.charge(owed.charge) {
                owed.cost = self.read_cost(charge, facts, CostMoment::End);
            }
        }
        if owing.shadow == InShadow::Decided {
            self.owing_bytes = self.owing_bytes.saturating_sub(owing.bytes);
            return self.settle_costs(owing.costs);
        }
        let is_awaited = |owed: &mut Owed| matches!(owed.place, Some(Place::Shadowed(_)));
        let awaited = owing.costs.extract_if(.., is_awaited).collect();
        let known = std::mem::replace(&mut owing.costs, awaited);
        (owing.state, owing.shadow) = (None, InShadow::AwaitedAfterEnd);
        self.streams.insert(stream, StreamState::Owing(owing));
        self.settle_costs(known);
    }

    /// The descriptors of a request in shadow are in a call.
    pub(super) fn await_shadow(&mut self, stream: StreamId) {
        if let Some(StreamState::Owing(owing)) = self.streams.get_mut(&stream) {
            owing.shadow = InShadow::Awaited;
        }
    }

    /// The descriptors of a stream in shadow are decided, or will not be.
    pub(super) fn settle_shadow(&mut self, stream: StreamId) {
        let Some(StreamState::Owing(owing)) = self.streams.get_mut(&stream) else { return };
        let before = std::mem::replace(&mut owing.shadow, InShadow::Decided);
        if before == InShadow::AwaitedAfterEnd
            && let Some(owing) = self.remove_owing(stream)
        {
            self.settle_costs(owing.costs);
        }
    }

    /// Debits or refunds what streams have cost beyond what was taken.
    fn settle_costs(&mut self, costs: Vec<Owed>) {
        let now = self.host.now();
        let group = |direction| Group {
            direction,
            debits: Vec::new(),
            taken_at: Timestamp::from_nanos(u64::MAX),
            since: now,
        };
        let (mut taken, mut refunded) = (group(Direction::Take), group(Direction::Refund));
        for owed in costs {
            let Some(charge) = self.charge(owed.charge) else { continue };
            let Some(hits) = owed.cost.flatten() else { continue };
            let (debit, refund) = match charge {
                LateCharge::RefundAtEnd(_) => (0, hits),
                _ => (hits.saturating_sub(owed.taken), owed.taken.saturating_sub(hits)),
            };
            let (group, hits) =
                if debit > 0 { (&mut taken, debit) } else { (&mut refunded, refund) };
            if hits > 0 {
                group.taken_at = group.taken_at.min(owed.taken_at);
                group.debits.push(Debit { key: owed.key, entries: owed.entries, hits });
            }
        }
        for group in [taken, refunded] {
            self.debit(group, now);
        }
    }

    /// Debits or refunds the hits of a stream: from tokens at hand, or else by a call.
    fn debit(&mut self, mut group: Group, now: Timestamp) {
        if group.debits.is_empty() {
            return;
        }
        if group.direction == Direction::Take {
            for debit in &group.debits {
                let index = self.find_or_insert(&descriptor_of(debit), now);
                if let Some(record) = self.local.get_mut(index) {
                    record.state.demand.note(debit.hits, now);
                }
            }
            self.pay(&mut group, now);
        }
        if !group.debits.is_empty() {
            self.queue_debit(group, now);
        }
    }

    /// Spends tokens at hand for a group, and leaves the rest of its hits in it.
    ///
    /// If one of several descriptors has none, the sidecar counts them all: one that is never
    /// leased may replace the limits of the others.
    pub(super) fn pay(&mut self, group: &mut Group, now: Timestamp) {
        // A descriptor without hits was counted before the others. It may replace their limits.
        let is_part = group.debits.iter().any(|debit| debit.hits == 0);
        if !self.leases() || group.direction == Direction::Refund || is_part {
            return;
        }
        let at_hand = |worker: &mut Self, debit: &Debit| {
            worker.gather(&descriptor_of(debit), debit.hits, now)
        };
        if !group.debits.iter().all(|debit| at_hand(self, debit)) {
            return;
        }
        for debit in &mut group.debits {
            // Another descriptor may have evicted its record.
            let Some(record) = self.local.of_mut(debit.key) else { continue };
            let paid = match now < record.state.unlimited_until {
                true => debit.hits,
                // Out of the pool and into nowhere.
                false => record.state.pool.move_to(&mut TokenPool::default(), debit.hits, now),
            };
            record.spent |= paid > 0;
            record.tally.allowed = record.tally.allowed.saturating_add(paid);
            self.begin_tally(&descriptor_of(debit));
            debit.hits = debit.hits.saturating_sub(paid);
            self.stats.add(Counter::Debits, paid);
        }
        group.debits.retain(|debit| debit.hits > 0);
    }
}

/// Whether a request that passed has taken the hits of this descriptor: those over a limit in shadow
/// mode or quota mode were not taken.
fn has_taken(status: &Status) -> bool {
    status.verdict == Verdict::Allow && !is_denied_in_shadow(status)
}

pub(super) fn descriptor_of(debit: &Debit) -> DescriptorRef<'_> {
    DescriptorRef { key: debit.key, hits: debit.hits, entries: &debit.entries }
}
