//! Tokens that come back unused: from the record of their lease to the counters, in one update.
//!
//! Taken are only tokens of a lease that is known, has not ended, and was charged to the counters and
//! windows that the descriptor leads to now; and only as many as are still held. A return that comes twice
//! is taken once. So nothing is given back twice, nor to a window that never counted it. Anything else
//! changes nothing, and is no error: who gives back cannot know what became of a lease.

use super::lease_nodes::{Digest, Record, ReturnStamp, record_key};
use super::lease_room::LeaseRoom;
use super::{Decided, EXPIRY_SLACK, Engine, Plan, meet};
use smallvec::SmallVec;
use tidegate_core::{
    Answer, Charge, Decision, Direction, Hits, LeaseReturn, LimitCheck, Request, Timestamp,
    Verdict, decide,
};
use tidegate_store::{Entries, UpdateError};

/// Asks what is left, and fits always.
const LOOK: Charge = Charge::Refund(Hits::PEEK);

/// Tokens of one lease that come back.
struct Return<'a> {
    /// Where they are among the descriptors.
    descriptor: usize,
    /// Where the record of the lease is among the keys.
    record: usize,
    tokens: u64,
    /// The number of the call.
    call: u64,
    seed: u64,
    room: &'a LeaseRoom,
    now: Timestamp,
}

/// What came of a return.
#[derive(Default)]
struct Taken {
    /// Tokens, for each descriptor.
    tokens: SmallVec<[u64; 4]>,
    /// How each limit stands now.
    decisions: SmallVec<[Decision; 8]>,
}

impl Engine {
    /// Takes tokens back at `now`: of each descriptor of `request` its hits, from the lease of that place.
    pub(crate) fn give_back(
        &self,
        request: &Request,
        back: &LeaseReturn,
        now: Timestamp,
    ) -> Result<Answer, UpdateError> {
        match self.give_back_at_once(request, back, now) {
            // Counters in many parts: what is too much together is not one by one.
            Err(UpdateError::TooMuch { .. }) if request.descriptors.len() > 1 => {
                let (verdict, metadata) = (Verdict::Allow, None);
                let mut answer = Answer { verdict, statuses: Vec::new(), metadata };
                for (descriptor, lease) in request.descriptors.iter().zip(&back.leases) {
                    let descriptors = vec![descriptor.clone()];
                    let (domain, hits) = (request.domain.clone(), request.hits);
                    let one = Request { domain, descriptors, hits };
                    let back = LeaseReturn { call: back.call, leases: vec![*lease] };
                    answer.statuses.extend(self.give_back_at_once(&one, &back, now)?.statuses);
                }
                Ok(answer)
            }
            done => done,
        }
    }

    fn give_back_at_once(
        &self,
        request: &Request,
        back: &LeaseReturn,
        now: Timestamp,
    ) -> Result<Answer, UpdateError> {
        let in_force = self.rules.load();
        let met = meet(&in_force.rules, request).each;
        let seed = self.store.seed();
        let mut plan = Plan::of(&met, request, self.modes, seed, now);
        let records = plan.keys.len();
        let ids = request.descriptors.iter().zip(&back.leases);
        plan.keys.extend(ids.map(|(_, id)| record_key(seed, *id)));
        let records = records..plan.keys.len();
        let mut taken = Taken::default();
        self.store.update_many(&plan.keys, now.as_nanos(), |entries| {
            let mut words = plan.read(entries);
            for (index, descriptor) in request.descriptors.iter().enumerate() {
                let Some(record) = records.clone().nth(index) else { break };
                let tokens = match descriptor.direction {
                    Direction::Refund => request.charge_of(descriptor).hits().get(),
                    Direction::Take => 0,
                };
                let (call, room) = (back.call, &self.lease_room);
                let one = Return { descriptor: index, record, tokens, call, seed, room, now };
                taken.tokens.push(plan.take_back(entries, &mut words, &one));
            }
            let looks = plan.asks.iter();
            taken.decisions.extend(
                looks.map(|ask| decide(&mut words[ask.state.clone()], ask.quota, LOOK, now)),
            );
            plan.write(entries, &mut words, &plan.keep_until(&taken.decisions));
        })?;
        let decided = Decided { request, met: &met, decisions: &taken.decisions, now };
        for (index, tokens) in taken.tokens.iter().enumerate().filter(|(_, tokens)| **tokens > 0) {
            decided.each_limit(index, |of, entries| {
                in_force.counters.returned(of, entries, *tokens);
            });
        }
        self.metrics.took_back();
        Ok(Answer { verdict: Verdict::Allow, statuses: decided.statuses(), metadata: None })
    }
}

impl Plan<'_> {
    /// Takes tokens back from the lease of a record. Says how many.
    fn take_back(&self, entries: &mut Entries<'_>, words: &mut [u64], one: &Return<'_>) -> u64 {
        let Return { descriptor, record, tokens, call, seed, room, now } = *one;
        let mut entry = entries.get(record);
        let Some(mut record) = Record::read(&entry) else { return 0 };
        let own = || {
            let asks = self.asks.iter().zip(&self.counter_of_ask);
            asks.filter(|(ask, _)| ask.descriptor == descriptor)
        };
        let digest = own().fold(Digest::default(), |digest, (ask, counter)| {
            let window_end = ask.quota.refund_spendable_until(&words[ask.state.clone()], now);
            digest.with(seed, self.counters[*counter].hash, window_end)
        });
        let stamp = ReturnStamp::new(call);
        if record.ends_at <= now || !record.is_of(digest) || tokens == 0 || !record.note(stamp) {
            return 0;
        }
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX).min(record.held);
        let held = u64::from(record.held);
        for (LimitCheck { quota, state, .. }, _) in own() {
            let state = &mut words[state.clone()];
            let worth = quota.returnable(state, held, record.charged_at, now).min(tokens.into());
            decide(state, quota, Charge::Refund(Hits::new(worth)), now);
        }
        record.held -= tokens;
        if record.held == 0 {
            room.gone(*entry.expires_at);
        }
        record.write(&mut entry, EXPIRY_SLACK);
        tokens.into()
    }
}
