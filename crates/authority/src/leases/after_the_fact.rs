//! Debits: hits that have happened already, and refunds of hits that have not.
//!
//! A debit counts even if it does not fit, by itself, whatever becomes of the others in its call. What its algorithm
//! does with hits beyond the limit is that of limits that count denied hits. Limits stay leasable, unlike those.
//!
//! A call is counted once, however often it arrives: the number of the last call of its sequence is recorded in the
//! same update. Without room for that record a call that arrives twice counts twice, and refunds nothing.
//!
//! A refund is made only in the window that counted the hits: they may belong to an earlier one.

use super::grant::{Granted, Leasing, Update, Verdicts};
use super::records::{LastDebit, debits_key};
use super::room::RoomChange;
use crate::answer::Decided;
use crate::applied::{Replaced, match_streams};
use crate::authority::Authority;
use crate::counters::Undecided;
use crate::holdings::{Next, Round, Takes};
use crate::plan::{DECISIONS, Plan, Words};
use smallvec::SmallVec;
use tidegate_core::{
    Answer, Charge, DebitRequest, Hits, LeaseRequest, LimitCheck, Nanos, Request, Timestamp,
    Verdict, charge_each,
};
use tidegate_store::Entries;

/// How long the last debit of a sequence is kept after its call. The filter sends a debit again for half of that.
pub(crate) const DEBIT_KEPT: Nanos = Nanos::from_secs(120);

/// Whether a call has been counted before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counted {
    /// By this update.
    Now,
    Before,
}

/// The sequence of a call in its update.
struct Sequence<'a> {
    debit: &'a DebitRequest,
    /// The index of its key.
    key: usize,
    /// Whether a new record may be made.
    has_room: bool,
    now: Timestamp,
}

impl Authority {
    /// Counts the hits of `request` at `now`, whether or not they fit.
    pub async fn debit(
        &self,
        request: &Request,
        debit: &DebitRequest,
        lease: Option<&LeaseRequest>,
        now: Timestamp,
    ) -> Result<Answer, Undecided> {
        match self.debit_together(request, debit, lease, now).await {
            // Streams with counters in many parts are too many keys together, but not one by one.
            Err(error) if error.is_too_large() && debit.streams.len() > 1 => {
                self.debit_one_by_one(request, debit, now).await
            }
            done => done,
        }
    }

    async fn debit_one_by_one(
        &self,
        request: &Request,
        debit: &DebitRequest,
        now: Timestamp,
    ) -> Result<Answer, Undecided> {
        let mut answer = Answer { verdict: Verdict::Allow, statuses: Vec::new(), metadata: None };
        let mut first = 0;
        for count in &debit.streams {
            let all = first..first + count;
            let (domain, hits) = (request.domain.clone(), request.hits);
            let descriptors = request.descriptors[all.clone()].to_vec();
            let one = Request { domain, descriptors, hits };
            let of_one = DebitRequest {
                // A client numbers its calls in larger steps than there are descriptors.
                call: debit.call.wrapping_add(first as u64),
                sequence: debit.sequence,
                streams: vec![*count],
                ages: debit.ages[all].to_vec(),
            };
            let one = self.debit_together(&one, &of_one, None, now).await?;
            answer.statuses.extend(one.statuses);
            if one.verdict == Verdict::Deny {
                answer.verdict = Verdict::Deny;
            }
            first += count;
        }
        Ok(answer)
    }

    async fn debit_together(
        &self,
        request: &Request,
        debit: &DebitRequest,
        lease: Option<&LeaseRequest>,
        now: Timestamp,
    ) -> Result<Answer, Undecided> {
        let limits = self.limits.load();
        let matched = match_streams(&limits.rules, request, &debit.streams);
        if matched.without_domain > 0 {
            self.observer.domain_not_found(matched.without_domain);
        }
        let site = self.site(&limits, &matched, request);
        let mut round = Round::new(&site, Takes::Each, now);
        let (now, seed) = (round.now, site.counters.seed());
        let mut plan = site.plan(&matched.each, request, self.modes, now);
        let has_room = self.debit_room.left(now) > 0;
        let key = plan.keys.len();
        plan.keys.push(debits_key(seed, debit.sequence));
        let keys = plan.keys.len();
        let ttl = lease.and_then(|lease| self.modes.lease_ttl_for(lease));
        let ttl = ttl.filter(|_| !site.is_shared());
        let mut leasing = ttl.zip(lease).map(|(ttl, lease)| {
            let mut leasing = Leasing::new(lease, ttl, seed, &plan);
            if matched.replaced == Replaced::Nothing {
                let room = self.lease_room.left(now);
                leasing.offer(&mut plan, request, &matched, room, &limits.denials);
            }
            leasing
        });
        let mut granted = Granted::nothing(request);
        let mut record_changes = SmallVec::<[RoomChange; 2]>::new();
        let (mut counted, mut verdict) = (Counted::Now, Verdict::Deny);
        let mut decisions = DECISIONS.take();
        let now = loop {
            let now = round.now;
            let sequence = Sequence { debit, key, has_room, now };
            let mut update = |entries: &mut Entries<'_>| {
                let mut words = plan.read(entries);
                let ahead = |descriptor| {
                    leasing.as_ref().map(|leasing| leasing.demand(descriptor)).unwrap_or_default()
                };
                if round.lacks_tokens(&site, &plan, &mut words, ahead) {
                    return;
                }
                let asks;
                (counted, asks) = sequence.asks(&plan, &words, entries, &mut record_changes);
                verdict = charge_each(&mut words, &asks, now, &mut decisions);
                if counted == Counted::Before {
                    return;
                }
                let mut keep_until = plan.keep_until(decisions.all());
                if let Some(leasing) = &leasing {
                    let mut update = Update {
                        words: &mut words,
                        keep_until: &mut keep_until,
                        entries,
                        granted: &mut granted,
                        now,
                    };
                    leasing.grant_offers(&plan, &mut update, Verdicts::Single, decisions.all());
                }
                round.note_low(&site, &plan, &mut words);
                plan.write(entries, &mut words, &keep_until);
            };
            let updated = site.counters.update(&plan.keys, now, &mut update).await;
            let updated = match (updated, &mut leasing) {
                // The records of leases are dropped before the debit is.
                (Err(error), Some(leasing)) if error.is_too_large() && plan.keys.len() > keys => {
                    leasing.withdraw(&mut plan, keys);
                    continue;
                }
                (updated, _) => updated,
            };
            match round.next(&site, &plan, updated).await? {
                Next::Again => {}
                Next::Done | Next::Without => break now,
            }
        };
        let decided = Decided::new(&limits, request, &matched, decisions.all(), now);
        let answer = match counted {
            Counted::Before => Answer { verdict, statuses: decided.statuses(), metadata: None },
            Counted::Now => {
                self.lease_room.apply(&granted.room_changes);
                self.debit_room.apply(&record_changes);
                if let Some(leasing) = &leasing
                    && matched.replaced == Replaced::Nothing
                {
                    leasing.lease_unlimited(request, &matched, now, &mut granted);
                }
                let mut answer = self.answer(&decided, &mut plan, verdict);
                if lease.is_some() {
                    decided.add_details(&mut answer.statuses, self.modes);
                }
                granted.add_to(&mut answer, &plan, &decided);
                answer
            }
        };
        DECISIONS.set(decisions);
        Ok(answer)
    }
}

impl Sequence<'_> {
    /// What to ask of each limit: the debits and refunds of a new call, which is recorded, or peeks.
    fn asks<'p>(
        &self,
        plan: &Plan<'p>,
        words: &Words,
        entries: &mut Entries<'_>,
        record_changes: &mut SmallVec<[RoomChange; 2]>,
    ) -> (Counted, SmallVec<[LimitCheck<'p>; 4]>) {
        let mut asks = plan.asks.clone();
        let mut record = entries.get(self.key);
        let last = LastDebit::read(&record);
        if last.is_some_and(|last| !self.debit.is_newer(last.call)) {
            asks.iter_mut().for_each(|ask| ask.charge = Charge::PEEK);
            return (Counted::Before, asks);
        }
        record_changes.clear();
        let expired_at = *record.expires_at;
        let this = LastDebit { call: self.debit.call };
        let expires_at = self.now.saturating_add(DEBIT_KEPT);
        let is_recorded = (last.is_some() || self.has_room) && this.write(&mut record, expires_at);
        if is_recorded {
            record_changes.extend(last.map(|_| RoomChange::Remove(expired_at)));
            record_changes.push(RoomChange::Enter(*record.expires_at));
        }
        for ask in &mut asks {
            if let Charge::Refund(hits) = ask.charge {
                let age = self.debit.ages.get(ask.descriptor).copied().unwrap_or(Nanos::ZERO);
                let since = self.now.as_nanos().saturating_sub(age.as_nanos());
                let (state, since) = (&words[ask.state.clone()], Timestamp::from_nanos(since));
                let worth = ask.quota.refundable(state, hits.get(), since, self.now);
                ask.charge = Charge::Refund(Hits::new(if is_recorded { worth } else { 0 }));
            }
        }
        (Counted::Now, asks)
    }
}
