//! Decisions for clients that understand leases. Tokens of a lease are charged ahead, in the same update as the
//! decision.
//!
//! A descriptor gets tokens of all its limits or of none, and only if the request is allowed. A denied descriptor
//! may get a denial to cache. The decision comes first: where the store has no room for a lease, none is granted.
//!
//! Grants nothing where a holder would decide differently from the sidecar: rules that replace or are replaced,
//! quotas, limits that count denied hits, limits in requests, refunds.

use super::denials::Denials;
use super::leasable::{is_leasable, is_plain};
use super::records::{CounterUsers, Digest, Proxy, Record, record_key, users_key};
use super::room::RoomChange;
use super::update::{Run, Verdicts};
use crate::answer::Decided;
use crate::applied::{Applied, MatchedLimits, Replaced};
use crate::authority::Authority;
use crate::counters::{Patience, Undecided};
use crate::holdings::{Round, Takes};
use crate::outcome::Passing;
use crate::plan::{DECISIONS, EXPIRY_SLACK, Ends, Plan, Words};
use smallvec::SmallVec;
use std::ops::Range;
use tidegate_core::{
    Answer, Charge, Decision, Demand, Enforcement, Hits, Lease, LeaseRequest, Nanos, Outcome,
    Quota, Request, Status, Timestamp, Verdict, decide, decide_all, lease_tokens,
};
use tidegate_store::{Entries, Room};

/// The shortest lease of tokens. A shorter one may end before the answer arrives, and its tokens would be lost.
const LEASE_MIN: Nanos = Nanos::new(10_000_000);
/// The longest time that a denial is cached: a limit may be raised, or a counter erased.
const DENIAL_MAX: Nanos = Nanos::from_secs(5);
/// The same while leased tokens may still come back, even from the client itself: its last answer may be lost.
const DENIAL_MAX_WHILE_HELD: Nanos = Nanos::new(200_000_000);

/// The leases of one request that its update may grant.
pub(super) struct Leasing<'a> {
    ask: &'a LeaseRequest,
    proxy: Proxy,
    ttl: Nanos,
    seed: u64,
    /// The keys of the plan without those of offers.
    keys: usize,
    offers: SmallVec<[Offer; 4]>,
    /// For each counter of the plan, the index of its users' key, if it is part of an offer.
    users: SmallVec<[Option<usize>; 8]>,
}

/// What the last run of the update granted.
pub(super) struct Granted {
    /// One for each descriptor.
    leases: SmallVec<[Option<Lease>; 4]>,
    pub(super) room_changes: SmallVec<[RoomChange; 4]>,
}

/// A descriptor that may get tokens or a denial to cache.
struct Offer {
    descriptor: usize,
    /// Its range in the asks of the plan.
    asks: Range<usize>,
    demand: Demand,
    /// The id of a lease and the index of its record's key; none if no tokens are wanted.
    record: Option<(u64, usize)>,
    /// Whether a denial may be cached.
    caches_denial: bool,
}

/// The states of one update.
pub(super) struct Update<'w, 'e> {
    pub(super) words: &'w mut Words,
    pub(super) keep_until: &'w mut Ends,
    pub(super) entries: &'w mut Entries<'e>,
    pub(super) granted: &'w mut Granted,
    pub(super) now: Timestamp,
}

impl Authority {
    /// Decides `request` at `now`, for a client that understands leases.
    pub async fn decide_leasing(
        &self,
        request: &Request,
        ask: &LeaseRequest,
        now: Timestamp,
    ) -> Result<Answer, Undecided> {
        self.decide_leasing_within(Patience::Waits, request, ask, now).await
    }

    pub(crate) async fn decide_leasing_within(
        &self,
        patience: Patience,
        request: &Request,
        ask: &LeaseRequest,
        now: Timestamp,
    ) -> Result<Answer, Undecided> {
        let ttl = self.modes.lease_ttl_for(ask);
        let (limits, seed) = (self.limits.load(), self.counters.seed());
        let matched = self.matched(&limits, request)?;
        let site = self.site(&limits, &matched, request);
        let mut round = Round::new(&site, Takes::Together, patience, now)?;
        let mut plan = site.plan(&matched.each, request, self.modes, round.now);
        let mut leasing = Leasing::new(ask, ttl.unwrap_or(Nanos::ZERO), seed, &plan);
        let mut granted = Granted::nothing(request);
        let may_lease = ttl.is_some() && matched.replaced == Replaced::Nothing && !site.is_shared();
        if may_lease {
            let (room, denials) = (self.lease_room.left(round.now), &limits.denials);
            leasing.offer(&mut plan, request, &matched, room, denials);
        }
        let (mut leasing, mut decisions) = (Some(leasing), DECISIONS.take());
        let decide = |run: &mut Run<'_, '_, '_>| {
            let verdict = decide_all(run.words, run.asks, run.now, run.decisions);
            (verdict, Some(Verdicts::Joint(verdict)))
        };
        let (grants, made) = ((&mut leasing, &mut granted), &mut decisions);
        let at = (&site, &mut round);
        let verdict = match site.is_apart(&plan) {
            true => self.decide_apart(at, &plan, made).await?,
            false => self.update_leasing(at, &mut plan, grants, made, decide).await?,
        };
        let now = round.now;
        self.lease_room.apply(&granted.room_changes);
        if verdict == Verdict::Allow
            && may_lease
            && let Some(leasing) = &leasing
        {
            leasing.lease_unlimited(request, &matched, now, &mut granted);
        }
        let decided = Decided::new(&limits, request, &matched, decisions.all(), now);
        let passing = Passing::Together(verdict);
        let mut answer = self.answer(&decided, &mut plan, verdict, passing);
        decided.add_details(&mut answer.statuses, self.modes);
        granted.add_to(&mut answer, &plan, &decided);
        DECISIONS.set(decisions);
        Ok(answer)
    }
}

impl Plan<'_> {
    /// Subtracts leased tokens from `remaining` of their descriptor, also where it comes again later in the
    /// request. All its limits were charged, so the tightest limit stays the tightest.
    fn subtract_leased(&self, statuses: &mut [Status], descriptor: usize, tokens: u32) {
        let asks = || self.asks.iter().zip(&self.counter_of_ask);
        let own = asks().find(|(ask, _)| ask.descriptor == descriptor);
        let mut last = None;
        for (ask, counter) in asks().filter(|(ask, _)| ask.descriptor >= descriptor) {
            let is_same = own.is_some_and(|(_, own)| own == counter);
            if is_same && last.replace(ask.descriptor) != Some(ask.descriptor) {
                let status = &mut statuses[ask.descriptor];
                status.remaining = status.remaining.saturating_sub(tokens);
                for further in status.details.iter_mut().flat_map(|details| &mut details.further) {
                    further.remaining = further.remaining.saturating_sub(tokens);
                }
            }
        }
    }
}

impl Granted {
    pub(super) fn nothing(request: &Request) -> Granted {
        let leases = SmallVec::from_elem(None, request.descriptors.len());
        Granted { leases, room_changes: SmallVec::new() }
    }

    /// Adds the leases to an answer, and reports them.
    pub(super) fn add_to(&self, answer: &mut Answer, plan: &Plan<'_>, decided: &Decided<'_, '_>) {
        for (index, &lease) in self.leases.iter().enumerate() {
            answer.statuses[index].lease = lease;
            let tokens = lease.map_or(0, |lease| lease.tokens);
            if tokens > 0 && tokens < Lease::UNLIMITED {
                plan.subtract_leased(&mut answer.statuses, index, tokens);
                decided.each_limit(index, |of, entries| {
                    decided.limits.observer.leased(of, entries, tokens);
                });
            }
        }
    }
}

impl<'a> Leasing<'a> {
    pub(super) fn new(ask: &'a LeaseRequest, ttl: Nanos, seed: u64, plan: &Plan<'_>) -> Self {
        Leasing {
            ask,
            proxy: Proxy::new(ask.proxy),
            ttl,
            seed,
            keys: plan.keys.len(),
            offers: SmallVec::new(),
            users: SmallVec::from_elem(None, plan.counters.len()),
        }
    }

    /// What the client wants beyond the hits of the request.
    pub(super) fn demand(&self, descriptor: usize) -> Demand {
        let of = |numbers: &[u64]| numbers.get(descriptor).copied().unwrap_or(0);
        Demand { waiting: of(&self.ask.waiting), wanted: of(&self.ask.wanted) }
    }

    /// Whether the plan has keys of offers.
    pub(super) fn has_keys(&self, plan: &Plan<'_>) -> bool {
        plan.keys.len() > self.keys
    }

    /// Offers nothing, so that the plan has no keys of offers.
    pub(super) fn withdraw(&mut self, plan: &mut Plan<'_>) {
        plan.keys.truncate(self.keys);
        self.offers.clear();
        self.users.fill(None);
    }

    /// Makes an offer for each descriptor that may get a lease, and adds its keys to the plan. Records may take
    /// `room` nodes.
    pub(super) fn offer(
        &mut self,
        plan: &mut Plan<'_>,
        request: &Request,
        matched: &MatchedLimits<'_>,
        mut room: u64,
        denials: &Denials,
    ) {
        let mut asks = 0..0;
        for (index, (applied, descriptor)) in
            matched.each.iter().zip(&request.descriptors).enumerate()
        {
            let own = plan.asks[asks.end..].iter().take_while(|ask| ask.descriptor == index);
            asks = asks.end..asks.end + own.count();
            if asks.is_empty() || !is_leasable(plan, &asks, applied, descriptor) {
                continue;
            }
            let demand = self.demand(index);
            let most = plan.asks[asks.clone()]
                .iter()
                .map(|ask| lease_tokens(u64::MAX, ask.quota.capacity(), 1, demand));
            let id = LeaseRequest::lease_id(self.ask.call, index);
            // The record, and the users of each counter.
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
            let may_be_cached = |rule| denials.may_be_cached(&request.domain, rule);
            let caches_denial = applied.rule().is_some_and(may_be_cached);
            let asks = asks.clone();
            self.offers.push(Offer { descriptor: index, asks, demand, record, caches_denial });
        }
    }

    /// Turns offers into leases, once the request is decided.
    pub(super) fn grant_offers(
        &self,
        plan: &Plan<'_>,
        update: &mut Update<'_, '_>,
        verdicts: Verdicts,
        decisions: &[Decision],
    ) {
        let now = update.now;
        update.granted.room_changes.clear();
        let mut users: SmallVec<[Option<CounterUsers>; 8]> = SmallVec::new();
        for key in &self.users {
            users.push(key.map(|key| {
                CounterUsers::read(&update.entries.get(key), self.proxy, self.ttl, now)
            }));
        }
        for offer in &self.offers {
            let is_over = !decisions[offer.asks.clone()].iter().all(Decision::is_allow);
            let lease = match (verdicts, is_over) {
                (Verdicts::Joint(Verdict::Allow) | Verdicts::Single, false) => {
                    self.grant(plan, update, &mut users, offer)
                }
                (Verdicts::Joint(Verdict::Deny) | Verdicts::Single, true)
                    if offer.caches_denial =>
                {
                    self.denial(plan, update, &users, offer)
                }
                _ => None,
            };
            update.granted.leases[offer.descriptor] = lease;
        }
        for (key, users) in self.users.iter().zip(&users) {
            if let Some((key, users)) = key.zip(*users) {
                let mut entry = update.entries.get(key);
                let (was_new, expired_at) = (entry.is_new(), *entry.expires_at);
                if users.write(&mut entry, self.ttl, EXPIRY_SLACK, now) {
                    if !was_new {
                        update.granted.room_changes.push(RoomChange::Remove(expired_at));
                    }
                    update.granted.room_changes.push(RoomChange::Enter(*entry.expires_at));
                }
            }
        }
    }

    /// Charges tokens ahead, as many as the rules of leases allow.
    fn grant(
        &self,
        plan: &Plan<'_>,
        update: &mut Update<'_, '_>,
        users: &mut [Option<CounterUsers>],
        offer: &Offer,
    ) -> Option<Lease> {
        let (id, record_key) = offer.record?;
        let now = update.now;
        let (asks, counters) =
            (&plan.asks[offer.asks.clone()], &plan.counter_of_ask[offer.asks.clone()]);
        let mut tokens = Lease::UNLIMITED;
        let mut until = now.saturating_add(self.ttl);
        for (ask, counter) in asks.iter().zip(counters) {
            if update.entries.get(self.users[*counter]?).room() != Room::Available {
                return None;
            }
            let state = &mut update.words[ask.state.clone()];
            let left = decide(state, ask.quota, Charge::PEEK, now).remaining;
            let left = ask.quota.chargeable(state, left, now);
            let proxies = users[*counter]?.active();
            tokens = tokens.min(lease_tokens(left, ask.quota.capacity(), proxies, offer.demand));
            until = until.min(ask.quota.next_spendable_until(state, now));
        }
        let time_left = until.saturating_since(now);
        let record = update.entries.get(record_key);
        if tokens == 0
            || time_left < LEASE_MIN
            || !record.is_new()
            || record.room() != Room::Available
        {
            return None;
        }
        let valid_until = Lease::deadline(time_left, self.ask.clock)?;
        let (mut digest, mut charged_at) = (Digest::default(), Timestamp::from_nanos(u64::MAX));
        for (ask, counter) in asks.iter().zip(counters) {
            let state = &mut update.words[ask.state.clone()];
            let charge = Charge::Take(Hits::new(tokens.into()));
            // It fits, and nothing has to be undone: a peek has just found so many tokens, and no earlier limit
            // has charged this counter. Limits of one rule that would share a counter are refused when they are
            // read.
            let decision = decide(state, ask.quota, charge, now);
            debug_assert!(decision.is_allow());
            let keep_until = &mut update.keep_until[*counter];
            *keep_until = decision.keep_until.as_nanos().max(*keep_until);
            if let Quota::Held(..) = ask.quota {
                // Tokens come back to a holding, even if it is empty.
                *keep_until = until.as_nanos().max(*keep_until);
            }
            let window_end = ask.quota.spendable_until(state, now);
            digest = digest.with(self.seed, plan.counters[*counter].hash, window_end);
            charged_at = charged_at.min(ask.quota.effective_time(state, now));
            if let Some(users) = &mut users[*counter] {
                users.note_lease(until, now, self.ttl);
            }
        }
        let record = Record::new(tokens, until, digest, charged_at);
        let mut entry = update.entries.get(record_key);
        record.write(&mut entry, EXPIRY_SLACK);
        update.granted.room_changes.push(RoomChange::Enter(*entry.expires_at));
        Some(Lease { id, tokens, valid_until })
    }

    /// The time that a denial may be cached, if not even one hit fits.
    fn denial(
        &self,
        plan: &Plan<'_>,
        update: &mut Update<'_, '_>,
        users: &[Option<CounterUsers>],
        offer: &Offer,
    ) -> Option<Lease> {
        let now = update.now;
        let mut denied_for = Nanos::ZERO;
        for index in offer.asks.clone() {
            let ask = &plan.asks[index];
            if ask.enforcement != Enforcement::Enforce {
                continue;
            }
            let state = &mut update.words[ask.state.clone()];
            let one_hit = decide(state, ask.quota, Charge::PEEK, now).outcome;
            if let Outcome::Deny { retry_after } = one_hit {
                let is_held =
                    users[plan.counter_of_ask[index]].is_some_and(|users| users.held_until() > now);
                let most = if is_held { DENIAL_MAX_WHILE_HELD } else { DENIAL_MAX };
                let certain = ask.quota.denied_for(state, 1, retry_after, now);
                denied_for = denied_for.max(certain.min(most));
            }
        }
        let valid_until = Lease::deadline(denied_for, self.ask.clock)?;
        Some(Lease { id: Lease::NO_ID, tokens: 0, valid_until })
    }

    /// Grants any number of hits where no limit applies.
    pub(super) fn lease_unlimited(
        &self,
        request: &Request,
        matched: &MatchedLimits<'_>,
        now: Timestamp,
        granted: &mut Granted,
    ) {
        let time_left = now.saturating_add(self.ttl).saturating_since(now);
        let Some(valid_until) = Lease::deadline(time_left, self.ask.clock) else { return };
        for (index, (applied, descriptor)) in
            matched.each.iter().zip(&request.descriptors).enumerate()
        {
            let is_free = match applied {
                Applied::Unlimited(rule) => rule.replaces().next().is_none(),
                applied => applied.is_nothing(),
            };
            if is_free && is_plain(descriptor) {
                let (id, tokens) = (Lease::NO_ID, Lease::UNLIMITED);
                granted.leases[index] = Some(Lease { id, tokens, valid_until });
            }
        }
    }
}
