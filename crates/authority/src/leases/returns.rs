//! Unused tokens that come back, from the record of their lease to the counters, in one update.
//!
//! The sidecar accepts tokens only from a known, unexpired lease that was charged to the counters and windows of
//! the descriptor now, up to the number still held. A repeated return counts once. So nothing is returned twice, or
//! to a window that never counted it. Any other return changes nothing and is no error: a client cannot know what
//! happened to its lease.

use super::records::{Digest, Record, ReturnStamp, record_key};
use super::room::RoomChange;
use crate::answer::Decided;
use crate::applied::match_limits;
use crate::authority::Authority;
use crate::counters::Undecided;
use crate::plan::{EXPIRY_SLACK, Plan};
use smallvec::SmallVec;
use tidegate_core::{
    Answer, Charge, Decision, Direction, Hits, LeaseReturn, LimitCheck, Request, Timestamp,
    Verdict, decide,
};
use tidegate_store::Entries;

/// Asks what is left, and always fits.
const PEEK_AT_REFUND: Charge = Charge::Refund(Hits::PEEK);

/// Returned tokens of one lease.
struct Return {
    /// The index of the descriptor.
    descriptor: usize,
    /// The index of the record's key.
    record: usize,
    tokens: u64,
    /// The number of the call.
    call: u64,
    seed: u64,
    now: Timestamp,
}

/// What the last run of the update accepted.
#[derive(Default)]
struct Taken {
    /// Accepted tokens, for each descriptor.
    tokens: SmallVec<[u64; 4]>,
    /// A decision on each limit afterwards.
    decisions: SmallVec<[Decision; 8]>,
    room_changes: SmallVec<[RoomChange; 4]>,
}

impl Authority {
    /// Accepts returned tokens at `now`: the hits of each descriptor of `request`, from the lease at the same index.
    pub async fn return_tokens(
        &self,
        request: &Request,
        back: &LeaseReturn,
        now: Timestamp,
    ) -> Result<Answer, Undecided> {
        match self.return_together(request, back, now).await {
            // Counters in many parts are too many keys together, but not one by one.
            Err(error) if error.is_too_large() && request.descriptors.len() > 1 => {
                let (verdict, metadata) = (Verdict::Allow, None);
                let mut answer = Answer { verdict, statuses: Vec::new(), metadata };
                for (descriptor, lease) in request.descriptors.iter().zip(&back.leases) {
                    let descriptors = vec![descriptor.clone()];
                    let (domain, hits) = (request.domain.clone(), request.hits);
                    let one = Request { domain, descriptors, hits };
                    let back = LeaseReturn { call: back.call, leases: vec![*lease] };
                    answer.statuses.extend(self.return_together(&one, &back, now).await?.statuses);
                }
                Ok(answer)
            }
            done => done,
        }
    }

    async fn return_together(
        &self,
        request: &Request,
        back: &LeaseReturn,
        now: Timestamp,
    ) -> Result<Answer, Undecided> {
        let (limits, seed) = (self.limits.load(), self.counters.seed());
        let matched = match_limits(&limits.rules, request);
        let site = self.holdings_site(&limits);
        let now = site.now(now);
        let mut plan = site.plan(&matched.each, request, self.modes, now);
        let first_record = plan.keys.len();
        let ids = request.descriptors.iter().zip(&back.leases);
        plan.keys.extend(ids.map(|(_, id)| record_key(seed, *id)));
        let mut taken = Taken::default();
        let mut update = |entries: &mut Entries<'_>| {
            taken = Taken::default();
            let mut words = plan.read(entries);
            for (index, descriptor) in request.descriptors.iter().enumerate() {
                let record = first_record + index;
                if record == plan.keys.len() {
                    break;
                }
                let tokens = match descriptor.direction {
                    Direction::Refund => request.charge_of(descriptor).hits().get(),
                    Direction::Take => 0,
                };
                let one = Return { descriptor: index, record, tokens, call: back.call, seed, now };
                plan.take_back(entries, &mut words, &one, &mut taken);
            }
            let peek = |ask: &LimitCheck<'_>| {
                decide(&mut words[ask.state.clone()], ask.quota, PEEK_AT_REFUND, now)
            };
            taken.decisions.extend(plan.asks.iter().map(peek));
            plan.write(entries, &mut words, &plan.keep_until(&taken.decisions));
        };
        self.counters.update(&plan.keys, now, &mut update).await?;
        self.lease_room.apply(&taken.room_changes);
        if taken.tokens.iter().any(|tokens| *tokens > 0) {
            site.watch(&plan);
        }
        let decided = Decided::new(&limits, request, &matched, &taken.decisions, now);
        let returned = taken.tokens.iter().enumerate().filter(|(_, tokens)| **tokens > 0);
        for (index, tokens) in returned {
            decided.each_limit(index, |of, entries| {
                limits.observer.returned(of, entries, *tokens);
            });
        }
        self.observer.tokens_returned();
        Ok(Answer { verdict: Verdict::Allow, statuses: decided.statuses(), metadata: None })
    }
}

impl Plan<'_> {
    /// Accepts tokens from the lease of a record, and notes how many.
    fn take_back(
        &self,
        entries: &mut Entries<'_>,
        words: &mut [u64],
        one: &Return,
        taken: &mut Taken,
    ) {
        let Return { descriptor, record, tokens, call, seed, now } = *one;
        taken.tokens.push(0);
        let mut entry = entries.get(record);
        let Some(mut record) = Record::read(&entry) else { return };
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
            return;
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
            taken.room_changes.push(RoomChange::Remove(*entry.expires_at));
        }
        record.write(&mut entry, EXPIRY_SLACK);
        taken.tokens[descriptor] = tokens.into();
    }
}
