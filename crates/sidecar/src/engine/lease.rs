//! Decisions for clients that understand leases: beside the answer, tokens that are charged ahead, in
//! the same update as the decision.
//!
//! A descriptor is leased tokens of all its limits or of none, and only if the request passes. One that is
//! over is told until when it stays so. Nothing of this ever stands in the way of the decision: where
//! the store has no room for a lease, there is none.
//!
//! Refuses where a holder would not do what the sidecar does: rules that replace others or are replaced, quotas,
//! limits that count denied hits, limits that the request brought along, refunds.

use super::denials::Denials;
use super::lease_nodes::{Digest, Proxy, Record, Users, record_key, users_key};
use super::lease_room::LeaseRoom;
use super::met::{AllMet, Met, Replaced};
use super::{DECISIONS, Decided, EXPIRY_SLACK, Ends, Engine, Plan, Words};
use smallvec::SmallVec;
use std::ops::Range;
use tidegate_core::{
    Answer, Charge, Decision, Decisions, Demand, DeniedHits, Descriptor, Direction, Enforcement,
    Hits, Lease, LeaseRequest, Nanos, Outcome, Request, Status, Timestamp, Verdict, decide,
    decide_all, lease_tokens,
};
use tidegate_store::{Entries, Room, UpdateError};

/// The shortest lease of tokens. A shorter one may be over when the answer arrives, and its tokens lost.
const LEASE_MIN: Nanos = Nanos::new(10_000_000);
/// The longest that a denial is told for: a limit may be raised, a counter erased.
const DENIAL_MAX: Nanos = Nanos::from_secs(5);
/// The same while tokens may still be given back, the client's own as well: of an answer that it never got.
const DENIAL_MAX_WHILE_HELD: Nanos = Nanos::new(200_000_000);

/// What a request may be leased, and what it is.
struct Leasing<'a> {
    ask: &'a LeaseRequest,
    proxy: Proxy,
    ttl: Nanos,
    seed: u64,
    room: &'a LeaseRoom,
    offers: SmallVec<[Offer; 4]>,
    /// For each counter of the plan, the place of its users among the keys, if it is part of an offer.
    users: SmallVec<[Option<usize>; 8]>,
    /// For each descriptor.
    leases: SmallVec<[Option<Lease>; 4]>,
}

/// A descriptor that may be leased tokens, or a denial.
struct Offer {
    descriptor: usize,
    /// Its asks among those of the plan.
    asks: Range<usize>,
    demand: Demand,
    /// The id of a lease, and the place of its record among the keys; none if no tokens are wanted.
    record: Option<(u64, usize)>,
    /// Whether a denial may be told for a while.
    denial_lasts: bool,
}

/// What is in hand while an update is made.
struct Hand<'w, 'e> {
    words: &'w mut Words,
    keep_until: &'w mut Ends,
    entries: &'w mut Entries<'e>,
    now: Timestamp,
}

impl Engine {
    /// Decides `request` at `now`, for a client that understands leases.
    pub(crate) fn decide_leasing(
        &self,
        request: &Request,
        ask: &LeaseRequest,
        now: Timestamp,
    ) -> Result<Answer, UpdateError> {
        let Some(ttl) = self.modes.lease_ttl else { return self.decide(request, now) };
        let in_force = self.rules.load();
        let met = self.meet(&in_force.rules, request);
        let seed = self.store.seed();
        let mut plan = Plan::of(&met.each, request, self.modes, seed, now);
        let counter_keys = plan.keys.len();
        let mut leasing = Leasing {
            ask,
            proxy: Proxy::new(ask.proxy),
            ttl,
            seed,
            room: &self.lease_room,
            offers: SmallVec::new(),
            users: SmallVec::from_elem(None, plan.counters.len()),
            leases: SmallVec::from_elem(None, request.descriptors.len()),
        };
        leasing.offer(&mut plan, &met, request, &in_force.denials, now);
        let mut decisions = DECISIONS.take();
        let verdict = loop {
            let decided = self.store.update_many(&plan.keys, now.as_nanos(), |entries| {
                plan.decide_leasing(entries, now, &mut decisions, &mut leasing)
            });
            match decided {
                Err(UpdateError::TooMuch { .. }) if plan.keys.len() > counter_keys => {
                    plan.keys.truncate(counter_keys);
                    leasing.offers.clear();
                    leasing.users.fill(None);
                }
                decided => break decided?,
            }
        };
        if verdict == Verdict::Allow {
            leasing.free(&met, request, now);
        }
        let decided = Decided { request, met: &met.each, decisions: decisions.all(), now };
        decided.count(&in_force.counters);
        decided.note_debits(&in_force.debits);
        let mut answer = self.answer(&decided, &mut plan, verdict);
        for (index, lease) in leasing.leases.into_iter().enumerate() {
            answer.statuses[index].lease = lease;
            let tokens = lease.map_or(0, |lease| lease.tokens);
            if tokens > 0 && tokens < Lease::UNLIMITED {
                plan.lessen(&mut answer.statuses, index, tokens);
                decided.each_limit(index, |of, entries| {
                    in_force.counters.leased(of, entries, tokens);
                });
            }
        }
        DECISIONS.set(decisions);
        Ok(answer)
    }
}

impl Plan<'_> {
    /// Takes leased tokens off what is told to be left: of their descriptor, and of it again where it comes
    /// later in the request. All its limits have been charged, so the tightest is still that.
    fn lessen(&self, statuses: &mut [Status], descriptor: usize, tokens: u32) {
        let asks = || self.asks.iter().zip(&self.counter_of_ask);
        let own = asks().find(|(ask, _)| ask.descriptor == descriptor);
        let mut last = None;
        for (ask, counter) in asks().filter(|(ask, _)| ask.descriptor >= descriptor) {
            let is_same = own.is_some_and(|(_, own)| own == counter);
            if is_same && last.replace(ask.descriptor) != Some(ask.descriptor) {
                let status = &mut statuses[ask.descriptor];
                status.remaining = status.remaining.saturating_sub(tokens);
            }
        }
    }

    fn decide_leasing(
        &self,
        entries: &mut Entries<'_>,
        now: Timestamp,
        decisions: &mut Decisions,
        leasing: &mut Leasing<'_>,
    ) -> Verdict {
        let mut words = self.read(entries);
        let verdict = decide_all(&mut words, &self.asks, now, decisions);
        let mut keep_until = self.keep_until(decisions.all());
        let hand = &mut Hand { words: &mut words, keep_until: &mut keep_until, entries, now };
        leasing.settle(self, hand, verdict, decisions.all());
        self.write(entries, &mut words, &keep_until);
        verdict
    }
}

impl Leasing<'_> {
    /// Makes an offer for each descriptor that may be leased, and adds its keys to the plan.
    fn offer(
        &mut self,
        plan: &mut Plan<'_>,
        met: &AllMet<'_>,
        request: &Request,
        denials: &Denials,
        now: Timestamp,
    ) {
        if met.replaced == Replaced::Something {
            return;
        }
        let mut asks = 0..0;
        let mut room = self.room.left(now);
        for (index, (met, descriptor)) in met.each.iter().zip(&request.descriptors).enumerate() {
            let own = plan.asks[asks.end..].iter().take_while(|ask| ask.descriptor == index);
            asks = asks.end..asks.end + own.count();
            if asks.is_empty() || !is_leasable(plan, &asks, met, descriptor) {
                continue;
            }
            let of = |numbers: &[u64]| numbers.get(index).copied().unwrap_or(0);
            let demand = Demand { waiting: of(&self.ask.waiting), wanted: of(&self.ask.wanted) };
            let most = plan.asks[asks.clone()]
                .iter()
                .map(|ask| lease_tokens(u64::MAX, ask.quota.capacity(), 1, demand));
            let id = LeaseRequest::lease_id(self.ask.call, index);
            // The record, and for each counter its users.
            let nodes = asks.len() as u64 + 1;
            let may_be = most.min() > Some(0) && id != Lease::NO_ID && nodes <= room;
            let record = may_be.then(|| {
                room -= nodes;
                plan.keys.push(record_key(self.seed, id));
                (id, plan.keys.len() - 1)
            });
            for counter in &plan.counter_of_ask[asks.clone()] {
                if self.users[*counter].is_none() {
                    self.users[*counter] = Some(plan.keys.len());
                    plan.keys.push(users_key(self.seed, plan.counters[*counter].hash));
                }
            }
            let told = |rule| denials.may_be_told(&request.domain, rule);
            let denial_lasts = met.rule().is_some_and(told);
            let asks = asks.clone();
            self.offers.push(Offer { descriptor: index, asks, demand, record, denial_lasts });
        }
    }

    /// Makes leases of the offers, once the request is decided.
    fn settle(
        &mut self,
        plan: &Plan<'_>,
        hand: &mut Hand<'_, '_>,
        verdict: Verdict,
        decisions: &[Decision],
    ) {
        let now = hand.now;
        let mut users: SmallVec<[Option<Users>; 8]> = SmallVec::new();
        users.extend(self.users.iter().map(|key| {
            key.map(|key| Users::read(&hand.entries.get(key), self.proxy, self.ttl, now))
        }));
        for offer in &self.offers {
            let is_over = !decisions[offer.asks.clone()].iter().all(Decision::is_allow);
            self.leases[offer.descriptor] = match (verdict, is_over) {
                (Verdict::Allow, false) => self.grant(plan, hand, &mut users, offer),
                (Verdict::Deny, true) if offer.denial_lasts => {
                    self.denial(plan, hand, &users, offer)
                }
                _ => None,
            };
        }
        for (key, users) in self.users.iter().zip(users) {
            if let Some((key, users)) = key.zip(users) {
                let mut entry = hand.entries.get(key);
                let expired_at = (!entry.is_new()).then_some(*entry.expires_at);
                if users.write(&mut entry, self.ttl, EXPIRY_SLACK, now) {
                    expired_at.inspect(|at| self.room.gone(*at));
                    self.room.made(*entry.expires_at);
                }
            }
        }
    }

    /// Charges tokens ahead, as many as there may be.
    fn grant(
        &self,
        plan: &Plan<'_>,
        hand: &mut Hand<'_, '_>,
        users: &mut [Option<Users>],
        offer: &Offer,
    ) -> Option<Lease> {
        let (id, record_key) = offer.record?;
        let now = hand.now;
        let (asks, counters) =
            (&plan.asks[offer.asks.clone()], &plan.counter_of_ask[offer.asks.clone()]);
        let mut tokens = Lease::UNLIMITED;
        let mut until = now.saturating_add(self.ttl);
        for (ask, counter) in asks.iter().zip(counters) {
            if hand.entries.get(self.users[*counter]?).room() != Room::There {
                return None;
            }
            let state = &mut hand.words[ask.state.clone()];
            let left = decide(state, ask.quota, Charge::PEEK, now).remaining;
            let proxies = users[*counter]?.active();
            tokens = tokens.min(lease_tokens(left, ask.quota.capacity(), proxies, offer.demand));
            until = until.min(ask.quota.spendable_until(state, now));
        }
        let time_left = until.saturating_since(now);
        let record = hand.entries.get(record_key);
        if tokens == 0 || time_left < LEASE_MIN || !record.is_new() || record.room() != Room::There
        {
            return None;
        }
        let valid_until = Lease::deadline(time_left, self.ask.clock)?;
        let before = hand.words.clone();
        let (mut digest, mut charged_at) = (Digest::default(), Timestamp::from_nanos(u64::MAX));
        for (ask, counter) in asks.iter().zip(counters) {
            let state = &mut hand.words[ask.state.clone()];
            let charge = Charge::Take(Hits::new(tokens.into()));
            let decision = decide(state, ask.quota, charge, now);
            if !decision.is_allow() {
                // Of two limits on one counter the first took what the second said is left.
                *hand.words = before;
                return None;
            }
            let keep_until = &mut hand.keep_until[*counter];
            *keep_until = decision.keep_until.as_nanos().max(*keep_until);
            let window_end = ask.quota.spendable_until(state, now);
            digest = digest.with(self.seed, plan.counters[*counter].hash, window_end);
            charged_at = charged_at.min(ask.quota.effective_time(state, now));
            if let Some(users) = &mut users[*counter] {
                users.lend(until, now, self.ttl);
            }
        }
        let record = Record::new(tokens, until, digest, charged_at);
        let mut entry = hand.entries.get(record_key);
        record.write(&mut entry, EXPIRY_SLACK);
        self.room.made(*entry.expires_at);
        Some(Lease { id, tokens, valid_until })
    }

    /// How long a descriptor stays over, if it has nothing left at all.
    fn denial(
        &self,
        plan: &Plan<'_>,
        hand: &mut Hand<'_, '_>,
        users: &[Option<Users>],
        offer: &Offer,
    ) -> Option<Lease> {
        let now = hand.now;
        let mut denied_for = Nanos::ZERO;
        for index in offer.asks.clone() {
            let ask = &plan.asks[index];
            if ask.enforcement != Enforcement::Enforce {
                continue;
            }
            let state = &mut hand.words[ask.state.clone()];
            let one_hit = decide(state, ask.quota, Charge::PEEK, now).outcome;
            if let Outcome::Deny { retry_after } = one_hit {
                let is_held =
                    users[plan.counter_of_ask[index]].is_some_and(|users| users.held_until() > now);
                let most = if is_held { DENIAL_MAX_WHILE_HELD } else { DENIAL_MAX };
                denied_for = denied_for.max(retry_after.min(most));
            }
        }
        let valid_until = Lease::deadline(denied_for, self.ask.clock)?;
        Some(Lease { id: Lease::NO_ID, tokens: 0, valid_until })
    }

    /// Leases of any number of hits, where no limit applies.
    fn free(&mut self, met: &AllMet<'_>, request: &Request, now: Timestamp) {
        if met.replaced == Replaced::Something {
            return;
        }
        let time_left = now.saturating_add(self.ttl).saturating_since(now);
        let Some(valid_until) = Lease::deadline(time_left, self.ask.clock) else { return };
        for (index, (met, descriptor)) in met.each.iter().zip(&request.descriptors).enumerate() {
            let is_free = match met {
                Met::Nothing => true,
                Met::Unlimited(rule) => rule.replaces().next().is_none(),
                Met::Rule { .. } | Met::Override(_) => false,
            };
            if is_free && is_plain(descriptor) {
                let (id, tokens) = (Lease::NO_ID, Lease::UNLIMITED);
                self.leases[index] = Some(Lease { id, tokens, valid_until });
            }
        }
    }
}

/// Whether a descriptor takes hits by the rules, as its holder will again.
fn is_plain(descriptor: &Descriptor) -> bool {
    descriptor.direction == Direction::Take && descriptor.limit.is_none()
}

/// Whether the sidecar would do no more with later hits of the descriptor than count them.
fn is_leasable(
    plan: &Plan<'_>,
    asks: &Range<usize>,
    met: &Met<'_>,
    descriptor: &Descriptor,
) -> bool {
    is_plain(descriptor)
        && met.rule().is_some_and(|rule| rule.replaces().next().is_none())
        && plan.asks[asks.clone()]
            .iter()
            .all(|ask| ask.enforcement != Enforcement::Quota && ask.denied == DeniedHits::Ignore)
}
