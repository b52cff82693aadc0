//! Requests whose costs are settled when they end, and requests that refund.
//!
//! Owns what a stream owes: the descriptors, which only the request's headers can make, what was
//! taken ahead, and costs that are known before the end. Bounded: streams that would owe more than
//! [`OWING_BYTES_MAX`] of descriptors count as overload. Nothing here runs for requests of
//! configurations without such entries.
//!
//! A cost that cannot be read charges nothing, as the upstream writes it and not the client. What
//! was estimated stays charged then.

use super::call_error::Undecided;
use super::call_results::is_denied_in_shadow;
use super::debits::{Debit, Group};
use super::local_decisions::Attempt;
use super::pending_calls::Requester;
use super::reports::with_earlier_notes;
use super::streams::StreamState;
use super::{HeadersStatus, Outcome, Worker};
use crate::config::{CostMoment, LateCharge, LateCost};
use crate::host::stats::Counter;
use crate::host::{Host, RequestFacts, StreamId};
use crate::leases::descriptor_state::LocalDecision;
use crate::leases::token_pool::TokenPool;
use crate::request::cost_now;
use crate::request::descriptors::{DescriptorRef, Descriptors, LeaseKey};
use tidegate_core::{Direction, Nanos, Status, Timestamp, Verdict};

/// The memory of a worker for the descriptors of streams under way. Envoy itself keeps more for
/// each: its headers.
const OWING_BYTES_MAX: usize = 32 << 20;

/// Shorter waits for an answer are within the error that the sidecar allows for the time of a charge.
const WAIT_IGNORED: Nanos = Nanos::new(50_000_000);

/// What a stream owes at its end.
#[derive(Debug)]
pub(crate) struct Owing {
    /// Its state as a request.
    pub(crate) state: Option<StreamState>,
    costs: Vec<Owed>,
    bytes: usize,
}

/// What one entry of the configuration owes.
#[derive(Debug)]
struct Owed {
    /// The index of its charge.
    charge: usize,
    key: LeaseKey,
    entries: Box<[u8]>,
    /// The index of its descriptor in the request, if it took an estimate.
    place: Option<Place>,
    /// Hits that were taken ahead.
    taken: u64,
    /// When they were taken, or else when the request arrived.
    taken_at: Timestamp,
    /// Its cost, once it is known, unless that has no number.
    cost: Option<Option<u64>>,
}

/// The place of a descriptor in the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Enforced(usize),
    Shadowed(usize),
}

impl Owed {
    fn bytes(&self) -> usize {
        self.entries.len().saturating_add(size_of::<Owed>())
    }
}

impl<H: Host> Worker<H> {
    /// Decides a request of a configuration with late charges or refunds. Requests without any are
    /// decided like those of others.
    #[cold]
    #[inline(never)]
    pub(super) fn decide_late_request(
        &mut self,
        stream: StreamId,
        facts: &impl RequestFacts,
        enforced: &mut Descriptors,
        shadowed: &mut Descriptors,
    ) -> HeadersStatus {
        let mut owed = Vec::new();
        self.take_owed(facts, enforced, Place::Enforced, &mut owed);
        self.take_owed(facts, shadowed, Place::Shadowed, &mut owed);
        if owed.is_empty() && !enforced.has_refunds() && !shadowed.has_refunds() {
            return self.decide_request(stream, enforced, shadowed);
        }
        self.decide_late(stream, enforced, shadowed, owed)
    }

    /// Replaces descriptors with late charges by those that are decided now, and adds what will be
    /// owed.
    fn take_owed(
        &self,
        facts: &impl RequestFacts,
        descriptors: &mut Descriptors,
        place: fn(usize) -> Place,
        owed: &mut Vec<Owed>,
    ) {
        let seed = self.process.seed;
        let mut all = std::mem::take(descriptors);
        descriptors.put_buffer(all.take_buffer());
        for (index, descriptor) in all.iter().enumerate() {
            if let Some(number) = all.origin(index) {
                descriptors.come_from(number);
            }
            let charge = descriptor.late_charge();
            let charge = charge.and_then(|index| Some((index, self.charge(index)?)));
            let mut estimated_at = None;
            match charge {
                None => {
                    descriptors.append(descriptor.entries);
                    descriptors.finish(seed, descriptor.hits);
                }
                Some((_, LateCharge::RefundAtStart(cost))) => {
                    descriptors.append(descriptor.entries);
                    descriptors.finish_refund(seed, self.cost_now(cost, facts).unwrap_or(0));
                }
                Some((_, LateCharge::Estimate { estimate, .. })) => {
                    estimated_at = Some(place(descriptors.len()));
                    descriptors.append(descriptor.entries);
                    descriptors.finish(seed, *estimate);
                }
                Some((_, LateCharge::DebitAtEnd(_) | LateCharge::RefundAtEnd(_))) => {}
            }
            if let Some((index, charge)) = charge.filter(|(_, charge)| charge.at_end().is_some()) {
                owed.push(Owed {
                    charge: index,
                    key: descriptor.key,
                    entries: Box::from(descriptor.entries),
                    place: estimated_at,
                    taken: 0,
                    taken_at: Timestamp::default(),
                    cost: self.read_cost(charge, facts, CostMoment::Request),
                });
            }
        }
    }

    fn charge(&self, index: usize) -> Option<&LateCharge> {
        self.config.late_charges.get(index)
    }

    /// The cost of a stream if it is to be read now: a number, or none if there is none.
    fn read_cost(
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

    fn cost_now(&self, cost: &LateCost, facts: &impl RequestFacts) -> Option<u64> {
        match cost {
            LateCost::Number(number) => Some(*number),
            LateCost::Value(command) => cost_now(&self.config, command, facts),
        }
    }

    fn decide_late(
        &mut self,
        stream: StreamId,
        enforced: &Descriptors,
        shadowed: &Descriptors,
        mut costs: Vec<Owed>,
    ) -> HeadersStatus {
        let now = self.host.now();
        let bytes = costs.iter().map(Owed::bytes).fold(0, usize::saturating_add);
        let owing_bytes = self.owing_bytes.saturating_add(bytes);
        // Otherwise clients could fill the places of debits, so that those of others are lost.
        let is_full = self.debits.is_full() && self.breaker.is_closed();
        let outcome = if owing_bytes > OWING_BYTES_MAX || is_full {
            self.note_full(now);
            costs.clear();
            Some(self.undecided(Undecided::Overload))
        } else {
            costs.iter_mut().for_each(|owed| owed.taken_at = now);
            self.owing_bytes = owing_bytes;
            // Here from now on, as the call for it may end at any time.
            let owing = Owing { state: Some(StreamState::Paused), costs, bytes };
            self.streams.insert(stream, StreamState::Owing(Box::new(owing)));
            let outcome = self.enforce_late(stream, enforced, now);
            if !shadowed.is_empty() && !matches!(outcome, Some(Outcome::Deny(_))) {
                self.shadow(stream, shadowed, now);
            }
            outcome
        };
        match outcome {
            Some(Outcome::Allow(kept)) => {
                self.settle_pause(stream, kept);
                HeadersStatus::Continue
            }
            Some(Outcome::Deny(mut denial)) => {
                self.deny_owing(stream);
                denial.send(&self.host, stream);
                HeadersStatus::Pause
            }
            None => HeadersStatus::Pause,
        }
    }

    /// Decides the enforced descriptors; none if the request must wait.
    fn enforce_late(
        &mut self,
        stream: StreamId,
        descriptors: &Descriptors,
        now: Timestamp,
    ) -> Option<Outcome> {
        if descriptors.is_empty() {
            return Some(Outcome::Allow(None));
        }
        match self.decide_unless_refunding(descriptors, Attempt::First, now) {
            LocalDecision::Allow => {
                self.stats.count(Counter::AllowedLocal);
                self.note_taken(Requester::Stream(stream), None, now);
                Some(Outcome::Allow(self.allowed_state(descriptors)))
            }
            LocalDecision::Deny if self.enforces_denial(Requester::Stream(stream)) => {
                self.stats.count(Counter::DeniedLocal);
                Some(Outcome::Deny(self.denial(Requester::Stream(stream), descriptors, now)))
            }
            LocalDecision::Deny => {
                self.stats.count(Counter::AllowedLocal);
                Some(Outcome::Allow(self.shadowed_state(descriptors, now)))
            }
            LocalDecision::Ask => {
                self.stats.count(Counter::LeaseMisses);
                let undecided =
                    self.call_or_wait(Requester::Stream(stream), descriptors, now).err()?;
                self.drop_late_refunds(stream);
                Some(self.undecided(undecided))
            }
        }
    }

    /// Only the sidecar can refund, together with the rest of the request.
    pub(super) fn decide_unless_refunding(
        &mut self,
        descriptors: &Descriptors,
        attempt: Attempt,
        now: Timestamp,
    ) -> LocalDecision {
        if descriptors.has_refunds() {
            return LocalDecision::Ask;
        }
        self.decide(descriptors, attempt, now)
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
        let charges = &self.config.late_charges;
        owing.costs.retain_mut(|owed| {
            if owed.taken > 0 {
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
    pub(super) fn settle(&mut self, owing: Owing, facts: &impl RequestFacts) {
        self.owing_bytes = self.owing_bytes.saturating_sub(owing.bytes);
        // Its client left before it was decided, so the upstream never saw it.
        if owing.state.as_ref().is_some_and(StreamState::is_paused) {
            return;
        }
        let now = self.host.now();
        let group = |direction| Group {
            direction,
            debits: Vec::new(),
            taken_at: Timestamp::from_nanos(u64::MAX),
            since: now,
        };
        let (mut taken, mut refunded) = (group(Direction::Take), group(Direction::Refund));
        for owed in owing.costs {
            let Some(charge) = self.charge(owed.charge) else { continue };
            let known = owed.cost.or_else(|| self.read_cost(charge, facts, CostMoment::End));
            let Some(hits) = known.flatten() else { continue };
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
