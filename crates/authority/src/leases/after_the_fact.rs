//! Debits: hits that have happened already, and refunds of hits that have not.
//!
//! A debit counts even if it does not fit, by itself, whatever becomes of the others in its call. What its algorithm
//! does with hits beyond the limit is that of limits that count denied hits. Limits stay leasable, unlike those.
//!
//! A call is counted once, however often it arrives: the number of the last call of its sequence is recorded in the
//! same update. A call that is too much for one update is counted descriptor by descriptor, and the record says which
//! ones are counted. Those that could not be counted then have [`Status::uncounted`]: they count under a later number.
//! Without room for the record a call that arrives twice counts twice, and refunds nothing.
//!
//! A refund is made only in the window that counted the hits: they may belong to an earlier one.

use super::grant::{Granted, Leasing};
use super::records::{DescriptorSet, LastDebit, debits_key};
use super::room::RoomChange;
use super::update::{Run, Verdicts};
use crate::answer::Decided;
use crate::applied::{MatchedLimits, Replaced, match_streams};
use crate::authority::Authority;
use crate::counters::{Patience, Undecided};
use crate::holdings::{Round, Site, Takes};
use crate::in_force::LimitsInForce;
use crate::outcome::Passing;
use crate::plan::{DECISIONS, Plan};
use smallvec::SmallVec;
use tidegate_core::{
    Answer, Charge, DebitRequest, Decision, Hits, LeaseRequest, LimitCheck, Nanos, Request, Status,
    Timestamp, Verdict, charge_each,
};

/// How long the last debit of a sequence is kept after its call. The filter sends a debit again for half of that.
pub(crate) const DEBIT_KEPT: Nanos = Nanos::from_secs(120);

/// Whether the descriptors of an update have been counted before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counted {
    /// By this update.
    Now,
    Before,
    /// Some of them before, so the others must be counted one by one.
    InPart,
}

/// The sequence of a call in its update.
struct Sequence<'a> {
    debit: &'a DebitRequest,
    /// The descriptors of the update.
    descriptors: Part,
    /// The index of its key.
    key: usize,
    /// Whether a new record may be made.
    has_room: bool,
}

/// The descriptors of a call that are in one update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    All,
    One(usize),
}

impl Part {
    fn set(self) -> DescriptorSet {
        match self {
            Part::All => DescriptorSet::ALL,
            Part::One(index) => DescriptorSet::of(index),
        }
    }

    /// The index in the call of a descriptor of the update.
    fn in_call(self, index: usize) -> usize {
        match self {
            Part::All => index,
            Part::One(first) => first + index,
        }
    }
}

/// A call of debits.
struct Call<'a> {
    limits: &'a LimitsInForce,
    debit: &'a DebitRequest,
    lease: Option<&'a LeaseRequest>,
    patience: Patience,
    now: Timestamp,
}

/// An update of debits, after its commit.
struct Made<'a, 'p> {
    plan: Plan<'p>,
    leasing: Option<Leasing<'a>>,
    granted: Granted,
    counted: Counted,
    verdict: Verdict,
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
        self.debit_within(Patience::Waits, request, debit, lease, now).await
    }

    pub(crate) async fn debit_within(
        &self,
        patience: Patience,
        request: &Request,
        debit: &DebitRequest,
        lease: Option<&LeaseRequest>,
        now: Timestamp,
    ) -> Result<Answer, Undecided> {
        let limits = self.limits.load();
        let matched = match_streams(&limits.rules, request, &debit.streams);
        self.check_domain(&limits, request, &matched)?;
        let call = Call { limits: &limits, debit, lease, patience, now };
        let made = self.count(&call, request, &matched, Part::All).await;
        if let Ok(Some(answer)) = made {
            return Ok(answer);
        }
        // Some would be counted before others have to wait.
        if patience == Patience::AtOnce && self.answers().may_come_later() {
            return Err(Undecided::WouldWait { is_rare: false });
        }
        match made {
            Ok(_) => {}
            // Descriptors with counters in many parts are too many keys together, but not one by one.
            Err(error) if error.is_too_large() && request.descriptors.len() > 1 => {}
            Err(error) => return Err(error),
        }
        self.count_one_by_one(&Call { lease: None, ..call }, request, matched).await
    }

    /// Counts each descriptor by an update of its own. An error means that none is counted, or that the call must
    /// come again.
    async fn count_one_by_one(
        &self,
        call: &Call<'_>,
        request: &Request,
        matched: MatchedLimits<'_>,
    ) -> Result<Answer, Undecided> {
        let mut answer = Answer { verdict: Verdict::Allow, statuses: Vec::new(), metadata: None };
        let (mut has_counted, mut failure) = (false, None);
        let MatchedLimits { each, replaced, .. } = matched;
        for (index, (applied, descriptor)) in each.into_iter().zip(&request.descriptors).enumerate()
        {
            let one = Request {
                domain: request.domain.clone(),
                descriptors: vec![descriptor.clone()],
                hits: request.hits,
            };
            let each = SmallVec::from_iter([applied]);
            let matched = MatchedLimits { each, replaced, without_domain: 0 };
            match self.count(call, &one, &matched, Part::One(index)).await {
                Ok(counted) => {
                    answer.statuses.extend(counted.into_iter().flat_map(|one| one.statuses));
                    has_counted = true;
                }
                Err(error) if error.may_be_committed() => return Err(error),
                Err(error) => {
                    answer.statuses.push(Status::uncounted());
                    failure.get_or_insert(error);
                }
            }
        }
        if answer.statuses.iter().any(|status| status.verdict == Verdict::Deny) {
            answer.verdict = Verdict::Deny;
        }
        match failure {
            Some(error) if !has_counted => Err(error),
            _ => Ok(answer),
        }
    }

    /// Counts a part of a call by one update; none if some of it was counted before, or if no update reaches all of it.
    async fn count(
        &self,
        call: &Call<'_>,
        request: &Request,
        matched: &MatchedLimits<'_>,
        part: Part,
    ) -> Result<Option<Answer>, Undecided> {
        let &Call { limits, debit, patience, now, .. } = call;
        let site = self.site(limits, matched, request);
        let mut round = Round::new(&site, Takes::Each, patience, now)?;
        let (now, seed) = (round.now, site.counters.seed());
        let mut plan = site.plan(&matched.each, request, self.modes, now);
        let has_room = self.debit_room.left(now) > 0;
        let key = plan.keys.len();
        let sequence = Sequence { debit, descriptors: part, key, has_room };
        let mut record = debits_key(seed, debit.sequence);
        if site.is_shared() {
            if site.is_apart(&plan) {
                return Ok(None);
            }
            // One update has to reach it, too.
            record = plan.beside(record);
        }
        plan.keys.push(record);
        let mut leasing = self.debit_leasing(call, request, matched, &site, &mut plan);
        let mut granted = Granted::nothing(request);
        let mut record_changes = SmallVec::<[RoomChange; 2]>::new();
        let (mut counted, mut decisions) = (Counted::Now, DECISIONS.take());
        let charge = |run: &mut Run<'_, '_, '_>| {
            let asks;
            (counted, asks) = sequence.asks(run, &mut record_changes);
            let verdict = charge_each(run.words, &asks, run.now, run.decisions);
            (verdict, (counted == Counted::Now).then_some(Verdicts::Single))
        };
        let (grants, made) = ((&mut leasing, &mut granted), &mut decisions);
        let at = (&site, &mut round);
        let verdict = self.update_leasing(at, &mut plan, grants, made, charge).await?;
        if counted != Counted::Now {
            // Tokens that were refilled for these debits are left over.
            site.watch(&plan);
        }
        let made = Made { plan, leasing, granted, counted, verdict, now: round.now };
        if counted == Counted::Now {
            self.lease_room.apply(&made.granted.room_changes);
            self.debit_room.apply(&record_changes);
        }
        let answer = self.answer_debit(call, request, matched, made, decisions.all());
        DECISIONS.set(decisions);
        Ok(answer)
    }

    /// The leases that an update of debits may grant, if its client asks for any.
    fn debit_leasing<'a>(
        &self,
        call: &Call<'a>,
        request: &Request,
        matched: &MatchedLimits<'_>,
        site: &Site<'_>,
        plan: &mut Plan<'_>,
    ) -> Option<Leasing<'a>> {
        let lease = call.lease.filter(|_| !site.is_shared())?;
        let ttl = self.modes.lease_ttl_for(lease)?;
        let mut leasing = Leasing::new(lease, ttl, site.counters.seed(), plan);
        if matched.replaced == Replaced::Nothing {
            let room = self.lease_room.left(site.now(call.now));
            leasing.offer(plan, request, matched, room, &call.limits.denials);
        }
        Some(leasing)
    }

    /// The answer to debits; none if only some of them were counted before. Reports those that were counted now.
    fn answer_debit(
        &self,
        call: &Call<'_>,
        request: &Request,
        matched: &MatchedLimits<'_>,
        made: Made<'_, '_>,
        decisions: &[Decision],
    ) -> Option<Answer> {
        let Made { mut plan, leasing, mut granted, counted, verdict, now } = made;
        let decided = Decided::new(call.limits, request, matched, decisions, now);
        match counted {
            Counted::InPart => None,
            Counted::Before => {
                Some(Answer { verdict, statuses: decided.statuses(), metadata: None })
            }
            Counted::Now => {
                if let Some(leasing) = &leasing
                    && matched.replaced == Replaced::Nothing
                {
                    leasing.lease_unlimited(request, matched, now, &mut granted);
                }
                let mut answer = self.answer(&decided, &mut plan, verdict, Passing::Each);
                if call.lease.is_some() {
                    decided.add_details(&mut answer.statuses, self.modes);
                }
                granted.add_to(&mut answer, &plan, &decided);
                Some(answer)
            }
        }
    }
}

impl Sequence<'_> {
    /// What to ask of each limit: the debits and refunds of a new call, which is recorded, or peeks.
    fn asks<'p>(
        &self,
        run: &mut Run<'_, 'p, '_>,
        record_changes: &mut SmallVec<[RoomChange; 2]>,
    ) -> (Counted, SmallVec<[LimitCheck<'p>; 4]>) {
        let mut asks = run.plan.asks.clone();
        let mut record = run.entries.get(self.key);
        let last = LastDebit::read(&record);
        let before = match last {
            Some(last) if last.call == self.debit.call => last.counted,
            Some(last) if !self.debit.is_newer(last.call) => DescriptorSet::ALL,
            _ => DescriptorSet::NONE,
        };
        let counted = match (self.descriptors, before.contains(self.descriptors.set())) {
            (_, true) => Counted::Before,
            (Part::All, false) if before != DescriptorSet::NONE => Counted::InPart,
            _ => Counted::Now,
        };
        if counted != Counted::Now {
            asks.iter_mut().for_each(|ask| ask.charge = Charge::PEEK);
            return (counted, asks);
        }
        record_changes.clear();
        let expired_at = *record.expires_at;
        let counted = before.with(self.descriptors.set());
        let this = LastDebit { call: self.debit.call, counted };
        let expires_at = run.now.saturating_add(DEBIT_KEPT);
        let is_recorded = (last.is_some() || self.has_room) && this.write(&mut record, expires_at);
        if is_recorded {
            record_changes.extend(last.map(|_| RoomChange::Remove(expired_at)));
            record_changes.push(RoomChange::Enter(*record.expires_at));
        }
        for ask in &mut asks {
            if let Charge::Refund(hits) = ask.charge {
                let age = self
                    .debit
                    .ages
                    .get(self.descriptors.in_call(ask.descriptor))
                    .copied()
                    .unwrap_or(Nanos::ZERO);
                let since = run.now.as_nanos().saturating_sub(age.as_nanos());
                let (state, since) = (&run.words[ask.state.clone()], Timestamp::from_nanos(since));
                let worth = ask.quota.refundable(state, hits.get(), since, run.now);
                ask.charge = Charge::Refund(Hits::new(if is_recorded { worth } else { 0 }));
            }
        }
        (Counted::Now, asks)
    }
}
