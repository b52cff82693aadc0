//! From decisions on limits to an answer: a status for each descriptor, reports, metadata.

use crate::applied::{Applied, AppliedLimit, MatchedLimits};
use crate::in_force::LimitsInForce;
use crate::modes::Modes;
use crate::outcome::{Outcome, Passing};
use tidegate_core::{
    Charge, Decision, Enforcement, Entry, FurtherLimit, LimitView, Request, Status, StatusDetails,
    Timestamp, Value, Verdict,
};
use tidegate_limits::{Limit, Rule};

/// A request that was decided.
pub(crate) struct Decided<'a, 'm> {
    pub(crate) limits: &'a LimitsInForce,
    pub(crate) request: &'a Request,
    pub(crate) applied: &'a [Applied<'m>],
    /// One for each limit that was applied, in the order of the descriptors.
    pub(crate) decisions: &'a [Decision],
    pub(crate) now: Timestamp,
}

impl<'a, 'm> Decided<'a, 'm> {
    pub(crate) fn new(
        limits: &'a LimitsInForce,
        request: &'a Request,
        matched: &'a MatchedLimits<'m>,
        decisions: &'a [Decision],
        now: Timestamp,
    ) -> Self {
        Decided { limits, request, applied: &matched.each, decisions, now }
    }

    /// One status per descriptor.
    pub(crate) fn statuses(&self) -> Vec<Status> {
        let mut decisions = self.decisions.iter();
        let status = |applied: &Applied<'_>| match applied {
            Applied::UnknownDomain | Applied::NoRule | Applied::Replaced => Status::NO_LIMIT,
            Applied::Unlimited(_) => Status::UNLIMITED,
            Applied::Rule { .. } | Applied::Override(_) => {
                let decided = applied.limits().zip(decisions.by_ref());
                decided
                    .min_by_key(|(_, decision)| self.closeness(decision))
                    .map_or(Status::NO_LIMIT, |(limit, decision)| self.status(limit, decision))
            }
        };
        self.applied.iter().map(status).collect()
    }

    /// Adds what only clients that understand leases get, to the few statuses that have it. `modes` are those
    /// that the request was decided by.
    pub(crate) fn add_details(&self, statuses: &mut [Status], modes: Modes) {
        let mut decided = 0;
        for (applied, status) in self.applied.iter().zip(statuses) {
            let limits = applied.limits().count();
            let decisions = self.decisions.get(decided..decided + limits).unwrap_or_default();
            decided += limits;
            if limits > 1 || decisions.iter().any(|decision| !decision.is_allow()) {
                status.details = self.details(applied, decisions, modes);
            }
        }
    }

    #[cold]
    fn details(
        &self,
        applied: &Applied<'_>,
        decisions: &[Decision],
        modes: Modes,
    ) -> Option<Box<StatusDetails>> {
        let denies_in_shadow = |(limit, decision): (AppliedLimit<'_>, &Decision)| {
            let own = modes.enforcement_without_shadow(limit.enforcement);
            // Of quotas it depends on the others of the request, so they are not reported.
            !decision.is_allow()
                && own != Enforcement::Quota
                && modes.enforcement(own) == Enforcement::Shadow
        };
        let without_shadow = match applied.limits().zip(decisions).any(denies_in_shadow) {
            true => Verdict::Deny,
            false => Verdict::Allow,
        };
        let mut all: Vec<_> = applied.limits().zip(decisions).collect();
        // The first is the one that the status itself reports.
        all.sort_by_key(|(_, decision)| self.closeness(decision));
        let further = all.into_iter().skip(1).take(StatusDetails::FURTHER_MAX);
        let further: Vec<FurtherLimit> = further
            .map(|(limit, decision)| FurtherLimit {
                limit: view(&limit),
                remaining: u32::try_from(decision.remaining).unwrap_or(u32::MAX),
                reset: decision.wait(self.now),
                verdict: if decision.is_allow() { Verdict::Allow } else { Verdict::Deny },
            })
            .collect();
        let is_plain = further.is_empty() && without_shadow == Verdict::Allow;
        (!is_plain)
            .then(|| Box::new(StatusDetails { further, without_shadow, is_uncounted: false }))
    }

    /// Orders the limits of one descriptor. The first is reported: the limit that denies for longest, or
    /// else the limit with the least remaining.
    fn closeness(&self, decision: &Decision) -> (bool, u64, std::cmp::Reverse<u64>) {
        let wait = decision.wait(self.now).as_nanos();
        let remaining = if decision.is_allow() { decision.remaining } else { 0 };
        (decision.is_allow(), remaining, std::cmp::Reverse(wait))
    }

    fn status(&self, limit: AppliedLimit<'_>, decision: &Decision) -> Status {
        let shadowed = limit.enforcement == Enforcement::Shadow;
        Status {
            verdict: if decision.is_allow() || shadowed { Verdict::Allow } else { Verdict::Deny },
            limit: Some(view(&limit)),
            remaining: u32::try_from(decision.remaining).unwrap_or(u32::MAX),
            reset: decision.wait(self.now),
            lease: None,
            details: None,
        }
    }

    /// Reports what became of each descriptor. Calls `peeked_or_denied` for the decisions of configured limits that
    /// took nothing, which are rare.
    pub(crate) fn report(
        &self,
        passing: Passing,
        peeked_or_denied: impl Fn(&Limit, Charge, &Decision),
    ) {
        let (observer, domain) = (&*self.limits.observer, self.request.domain.as_str());
        let mut rest = self.decisions;
        for (applied, descriptor) in self.applied.iter().zip(&self.request.descriptors) {
            let charge = self.request.charge_of(descriptor);
            let (decisions, others) = rest.split_at(applied.limits().count().min(rest.len()));
            rest = others;
            let of = (domain, descriptor.entries.as_slice());
            observer.decided(&Outcome::decided(of, applied, charge, decisions, passing));
            for (limit, decision) in applied.limits().zip(decisions) {
                if (charge == Charge::PEEK || !decision.is_allow())
                    && let Some(limit) = limit.limit
                {
                    peeked_or_denied(limit, charge, decision);
                }
            }
        }
    }

    /// Calls `each` for each configured limit that applies to a descriptor.
    pub(crate) fn each_limit(
        &self,
        descriptor: usize,
        mut each: impl FnMut((&Rule, &Limit), &[Entry]),
    ) {
        let applied = self.applied.get(descriptor).zip(self.request.descriptors.get(descriptor));
        let Some((applied, descriptor)) = applied else { return };
        for limit in applied.limits() {
            if let Some(of) = applied.rule().zip(limit.limit) {
                each(of, &descriptor.entries);
            }
        }
    }

    /// The parsed request and the metadata of rules whose descriptors were allowed. The first value of a key
    /// wins.
    pub(crate) fn metadata(&self, statuses: &[Status]) -> Value {
        let number = |number: u64| Value::Number(number as f64);
        let descriptors = self.request.descriptors.iter().map(|descriptor| {
            let entries = descriptor.entries.iter();
            let entries =
                entries.map(|entry| Value::Text(format!("{}={}", entry.key, entry.value)));
            let mut fields = vec![("entries".to_owned(), Value::List(entries.collect()))];
            if let Some(limit) = descriptor.limit {
                let unit = Value::Text(limit.unit.name().to_uppercase());
                let requests = number(limit.requests.into());
                let limit = [("requestsPerUnit".to_owned(), requests), ("unit".to_owned(), unit)];
                fields.push(("limit".to_owned(), Value::Map(limit.into())));
            }
            if let Some(hits) = descriptor.hits {
                fields.push(("hitsAddend".to_owned(), number(hits.get())));
            }
            Value::Map(fields)
        });
        let mut merged: Vec<(String, Value)> = Vec::new();
        for (applied, _) in
            self.applied.iter().zip(statuses).filter(|(_, s)| s.verdict == Verdict::Allow)
        {
            if let Some(Value::Map(fields)) = applied.rule().and_then(|rule| rule.metadata.as_ref())
            {
                for (key, value) in fields {
                    if !merged.iter().any(|(known, _)| known == key) {
                        merged.push((key.clone(), value.clone()));
                    }
                }
            }
        }
        let mut all = vec![
            ("domain".to_owned(), Value::Text(self.request.domain.clone())),
            ("descriptors".to_owned(), Value::List(descriptors.collect())),
            ("hitsAddend".to_owned(), number(self.request.hits.get())),
        ];
        if !merged.is_empty() {
            all.push(("metadata".to_owned(), Value::Map(merged)));
        }
        Value::Map(all)
    }
}

/// A limit as clients see it. `remaining` counts down from the capacity, so the capacity is the limit to report.
/// A bucket whose burst differs from its rate has no unit that fits that number.
fn view(limit: &AppliedLimit<'_>) -> LimitView {
    let (capacity, unit) = (limit.quota.capacity(), limit.quota.period().unit());
    let name = limit.limit.and_then(|limit| limit.name.clone());
    LimitView {
        requests: capacity,
        unit: unit.filter(|_| capacity == limit.quota.requests()),
        name: name.unwrap_or_default(),
    }
}
