//! A small sidecar: fixed windows of a second, leases that end with them, and accounts of charges
//! to compare with spending.
//!
//! Names of descriptors select their limit: `free` none, `never` one of 50 that is never leased,
//! `<n>...` one of n.

use super::world::{MILLI, Sent};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use tidegate_core::{
    Answer, Charge, DebitRequest, Descriptor, Direction, Lease, LeaseRequest, LeaseReturn,
    LimitView, Nanos, Status, TalliedHits, Timestamp, Verdict,
};
use tidegate_wire::{
    debit_from, lease_request_from, report_of, request_from_wire, response_to_wire, returned_from,
    rls,
};

const WINDOW: u64 = 1_000 * MILLI;
const TTL: u64 = 2_000 * MILLI;

/// Key and window.
pub(super) type Count = (String, u64);

#[derive(Debug, Default)]
pub(super) struct Authority {
    /// Hits charged, in leases or directly.
    pub(super) charged: BTreeMap<Count, u64>,
    /// Tokens that holders may spend, or have spent: granted and not returned.
    pub(super) leased: BTreeMap<Count, u64>,
    pub(super) returned: u64,
    leases: BTreeMap<u64, (Count, u64, u64)>,
    /// Accepted returns.
    seen: BTreeSet<u64>,
    /// The last debit of each sequence.
    debits: BTreeMap<u64, u64>,
    /// Hits that workers have reported, by name.
    pub(super) reported: BTreeMap<String, TalliedHits>,
    /// The limits that denied, of those reported.
    pub(super) over: BTreeMap<String, Vec<(Vec<String>, u64)>>,
    /// The last report of each sequence.
    reports: BTreeMap<u64, u64>,
}

/// The window at a time.
pub(super) fn window_of(now: u64) -> u64 {
    now / WINDOW
}

impl Authority {
    /// Decides a call that arrives now.
    pub(super) fn decide(&mut self, call: &Sent, now: u64) -> Vec<u8> {
        self.count_report(call);
        let request = rls::RateLimitRequest::decode(&*call.message).unwrap();
        let request = request_from_wire(request).unwrap();
        let value_of = |name: &'static str| call.metadata(name).map(str::as_bytes);
        let count = request.descriptors.len();
        let returned = returned_from(count, value_of).unwrap();
        let pending = lease_request_from(count, value_of).unwrap();
        let debit = debit_from(count, value_of).unwrap();
        let needs: Vec<(String, u64)> = request
            .descriptors
            .iter()
            .map(|descriptor| {
                let hits = match request.charge_of(descriptor) {
                    Charge::Take(hits) | Charge::Force(hits) | Charge::Refund(hits) => hits.get(),
                };
                (descriptor.entries[0].value.clone(), hits)
            })
            .collect();
        if let Some(debit) = debit {
            let refunds = |descriptor: &Descriptor| descriptor.direction == Direction::Refund;
            let refunds = request.descriptors.iter().map(refunds).collect::<Vec<_>>();
            let answer = self.debit(&needs, &refunds, &debit, pending.as_ref(), now);
            return response_to_wire(&answer).encode_to_vec();
        }
        let answer = match returned {
            Some(back) => self.take_back(&needs, &back, now),
            None => self.take(&needs, pending.as_ref(), now),
        };
        response_to_wire(&answer).encode_to_vec()
    }

    /// Counts the report of a call, if it is new.
    pub(super) fn count_report(&mut self, call: &Sent) {
        let Some(report) = report_of(&call.message) else { return };
        if self.reports.get(&report.sequence).is_some_and(|last| !report.is_newer(*last)) {
            return;
        }
        self.reports.insert(report.sequence, report.number);
        for tally in report.tallies {
            let name = &tally.entries[0].value;
            self.reported.entry(name.clone()).or_default().add(tally.hits);
            if tally.hits.denied > 0 {
                let over = self.over.entry(name.clone()).or_default();
                over.push((tally.over, tally.hits.denied));
            }
        }
    }

    fn take_back(&mut self, needs: &[(String, u64)], back: &LeaseReturn, now: u64) -> Answer {
        let leases = if self.seen.insert(back.call) { back.leases.as_slice() } else { &[] };
        for ((key, hits), id) in needs.iter().zip(leases) {
            let Some((count, outstanding, ends)) = self.leases.get_mut(id) else { continue };
            if count.0 != *key || now >= *ends {
                continue;
            }
            let taken = (*hits).min(*outstanding);
            *outstanding -= taken;
            *self.charged.get_mut(count).unwrap() -= taken;
            *self.leased.get_mut(count).unwrap() -= taken;
            self.returned += taken;
        }
        Answer {
            verdict: Verdict::Allow,
            statuses: vec![Status::NO_LIMIT; needs.len()],
            metadata: None,
        }
    }

    /// Counts each descriptor by itself.
    fn debit(
        &mut self,
        needs: &[(String, u64)],
        refunds: &[bool],
        debit: &DebitRequest,
        pending: Option<&LeaseRequest>,
        now: u64,
    ) -> Answer {
        let last = self.debits.insert(debit.sequence, debit.call);
        let is_new = last.is_none_or(|last| debit.is_newer(last));
        let window = window_of(now);
        let mut statuses = Vec::new();
        for (index, (key, hits)) in needs.iter().enumerate() {
            let charged = self.charged.entry((key.clone(), window)).or_default();
            let taken_in = window_of(now - debit.ages[index].as_nanos());
            match (is_new, refunds[index]) {
                (false, _) => {}
                (true, true) if taken_in == window => *charged = charged.saturating_sub(*hits),
                (true, true) => {}
                (true, false) => *charged += hits,
            }
            let fit = limit_of(key).is_none_or(|limit| *charged <= limit);
            let lease = pending
                .filter(|_| is_new)
                .and_then(|pending| self.lease(key, pending, index, (fit, true), now));
            statuses.push(self.status(key, fit, lease, now));
        }
        let over = statuses.iter().any(|status| status.verdict == Verdict::Deny);
        let verdict = if over { Verdict::Deny } else { Verdict::Allow };
        Answer { verdict, statuses, metadata: None }
    }

    fn status(&self, key: &str, fit: bool, lease: Option<Lease>, now: u64) -> Status {
        let charged = self.charged.get(&(key.to_owned(), window_of(now))).copied().unwrap_or(0);
        let limit = limit_of(key).map(|limit| LimitView {
            requests: u32::try_from(limit).unwrap(),
            unit: None,
            name: String::new(),
        });
        let left = limit_of(key).unwrap_or(0).saturating_sub(charged);
        Status {
            verdict: if fit { Verdict::Allow } else { Verdict::Deny },
            remaining: if fit { u32::try_from(left).unwrap() } else { 0 },
            reset: Nanos::new(WINDOW - now % WINDOW),
            limit,
            lease,
            details: None,
        }
    }

    fn take(
        &mut self,
        needs: &[(String, u64)],
        pending: Option<&LeaseRequest>,
        now: u64,
    ) -> Answer {
        let window = window_of(now);
        let before = self.charged.clone();
        let mut fits = Vec::new();
        for (key, hits) in needs {
            let charged = self.charged.entry((key.clone(), window)).or_default();
            let fit = limit_of(key).is_none_or(|limit| *charged + (*hits).max(1) <= limit);
            if fit {
                *charged += hits;
            }
            fits.push(fit);
        }
        let allowed = fits.iter().all(|fit| *fit);
        if !allowed {
            self.charged = before;
        }
        let statuses = needs.iter().zip(fits).enumerate().map(|(index, ((key, _), fit))| {
            let lease =
                pending.and_then(|pending| self.lease(key, pending, index, (fit, allowed), now));
            self.status(key, fit, lease, now)
        });
        let statuses = statuses.collect();
        let verdict = if allowed { Verdict::Allow } else { Verdict::Deny };
        Answer { verdict, statuses, metadata: None }
    }

    fn lease(
        &mut self,
        key: &str,
        pending: &LeaseRequest,
        index: usize,
        (fit, allowed): (bool, bool),
        now: u64,
    ) -> Option<Lease> {
        if key == "never" {
            return None;
        }
        let lasts = TTL.min(WINDOW - now % WINDOW);
        let until = |lasts| pending.clock.saturating_add(Nanos::new(lasts));
        let id = LeaseRequest::lease_id(pending.call, index);
        let Some(limit) = limit_of(key) else {
            return Some(Lease { id, tokens: Lease::UNLIMITED, valid_until: until(lasts) });
        };
        let count = (key.to_owned(), window_of(now));
        if !fit {
            let lasts = lasts.min(200 * MILLI);
            return Some(Lease { id, tokens: 0, valid_until: until(lasts) });
        }
        let charged = self.charged.entry(count.clone()).or_default();
        let left = limit.saturating_sub(*charged);
        let waiting = pending.waiting[index].min(left);
        let tokens = waiting + pending.wanted[index].min((left - waiting) / 4);
        if tokens == 0 || !allowed || self.leases.contains_key(&id) {
            return None;
        }
        *charged += tokens;
        *self.leased.entry(count.clone()).or_default() += tokens;
        self.leases.insert(id, (count, tokens, now + lasts));
        let tokens = u32::try_from(tokens).unwrap();
        Some(Lease { id, tokens, valid_until: until(lasts) })
    }
}

fn limit_of(key: &str) -> Option<u64> {
    match key {
        "free" => None,
        "never" => Some(50),
        _ => key.trim_end_matches(char::is_alphabetic).parse().ok(),
    }
}

/// The bytes of an invented response.
pub(super) fn made_up(verdict: Verdict, statuses: Vec<Status>) -> Vec<u8> {
    response_to_wire(&Answer { verdict, statuses, metadata: None }).encode_to_vec()
}

/// A status with a lease.
pub(super) fn status(verdict: Verdict, tokens: u32, ends: u64) -> Status {
    let limit = LimitView { requests: 100, unit: None, name: "n".into() };
    let lease = Lease { id: 7, tokens, valid_until: Timestamp::from_nanos(ends) };
    let reset = Nanos::from_secs(5);
    Status { verdict, limit: Some(limit), remaining: 40, reset, lease: Some(lease), details: None }
}
