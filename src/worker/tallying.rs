//! Reports what this worker decided by itself: hits let through by tokens, and hits denied by a
//! cached denial, by descriptor.
//!
//! Counted in the record that decided; the first hit since the last report marks it. Any call takes
//! along up to [`REPORT_MAX`] descriptors of its domain. Every few seconds a round begins, in which
//! all that is marked is reported, by calls of their own if no other ones go out.
//!
//! A hit is reported once: its count moves from the record into a report, and that is sent, if need
//! be again and again under its number, until a call with it was answered. The sidecar counts a
//! number once. Hits are lost only if Envoy ends, or where a bound says so, and then counted.

use super::Worker;
use super::local_decisions::ENTRIES_BYTES_MAX;
use super::tallies::{LeftTallies, REPORT_BYTES_MAX, REPORT_MAX, SentReport, Share};
use crate::config::encoded::domain_of;
use crate::host::Host;
use crate::host::stats::Counter;
use crate::leases::local_table::{KeyTally, LocalRecord};
use crate::request::descriptors::{DescriptorRef, Descriptors};
use crate::worker::call_error::CallError;
use crate::worker::pending_calls::{PendingCall, Purpose, needed_by_own};
use tidegate_core::{Lease, TalliedHits, Timestamp};
use tidegate_wire::returned_metadata;

/// A round begins when something has waited for this many ticks: four seconds, so that all is told
/// within five.
const ROUND_TICKS: u32 = 40;
/// The records that one report looks at. Those of another domain stay.
const LOOKS: usize = 64;

impl<H: Host> Worker<H> {
    /// Some of these were let through for the first time since their last report.
    #[cold]
    #[inline(never)]
    pub(super) fn begin_tallies(&mut self, descriptors: &Descriptors) {
        for descriptor in descriptors.iter() {
            self.begin_tally(&descriptor);
        }
    }

    /// Has a tally reported, if there is one.
    pub(super) fn begin_tally(&mut self, descriptor: &DescriptorRef<'_>) {
        let Some(index) = self.local.find(descriptor.key) else { return };
        let Some(record) = self.local.get_mut(index) else { return };
        if record.tally.is_empty() {
            return;
        }
        if record.entries.is_empty() && descriptor.entries.len() <= ENTRIES_BYTES_MAX {
            record.entries = Box::from(descriptor.entries);
        }
        let is_long = record.entries.is_empty();
        self.local.begin_tally(index);
        // The table has no place for long ones.
        if is_long && let Some(tally) = self.local.take_tally(index) {
            self.keep_tally(KeyTally { entries: Box::from(descriptor.entries), ..tally });
        }
    }

    /// Counts the hits of a request that was denied by local state.
    #[inline(never)]
    pub(super) fn tally_denial(
        &mut self,
        descriptors: &Descriptors,
        indexes: &[usize],
        now: Timestamp,
    ) {
        for (place, descriptor) in descriptors.iter().enumerate() {
            let needed = needed_by_own(descriptors, &descriptor);
            let index = indexes.get(place).copied().or_else(|| self.local.find(descriptor.key));
            let record = index.and_then(|index| self.local.at_mut(index, descriptor.key));
            let Some(record) = record else {
                self.tally_stranger(&descriptor);
                continue;
            };
            let is_first = record.tally.is_empty();
            let hits = match record.state.is_denied(needed, now) {
                true => &mut record.tally.denied,
                false => &mut record.tally.denied_elsewhere,
            };
            *hits = hits.saturating_add(descriptor.hits);
            if is_first {
                self.begin_tally(&descriptor);
            }
        }
    }

    /// Counts a descriptor that this worker knows nothing of, in a request that another one denied.
    #[cold]
    fn tally_stranger(&mut self, descriptor: &DescriptorRef<'_>) {
        if descriptor.hits == 0 {
            return;
        }
        let hits = TalliedHits { denied_elsewhere: descriptor.hits, ..TalliedHits::default() };
        let (key, entries) = (descriptor.key, Box::from(descriptor.entries));
        let tally = KeyTally { key, entries, hits, over: Vec::new() };
        let added = self.tallies.add(tally, Share::Half);
        self.count_lost(added);
    }

    /// Keeps a tally whose record is gone.
    pub(super) fn keep_tally(&mut self, tally: KeyTally) {
        let added = self.tallies.add(tally, Share::All);
        self.count_lost(added);
    }

    fn count_lost(&mut self, added: Result<(), u64>) {
        if let Err(hits) = added {
            self.stats.add(Counter::ReportsLost, hits);
        }
    }

    /// The limits of a record are about to change. Its denials so far belong to those it has now.
    pub(super) fn set_aside(&mut self, index: usize) {
        let has_several =
            |record: &LocalRecord| record.tally.denied > 0 && !record.further.is_empty();
        if self.local.get(index).is_some_and(has_several) {
            self.set_aside_now(index);
        }
    }

    #[cold]
    fn set_aside_now(&mut self, index: usize) {
        if let Some(tally) = self.local.take_tally(index) {
            self.keep_tally(tally);
        }
    }

    /// The report for a call of this domain, if there is something to tell and no other call does.
    pub(super) fn next_report(&mut self, domain: &str) -> Option<Box<SentReport>> {
        let has_none = self.tallies.is_empty() && !self.local.has_tallies();
        if has_none || self.tallies.is_under_way {
            return None;
        }
        let again = self.tallies.take_unanswered(domain, &self.config.domain);
        let report = match again {
            Some(report) => report,
            None if self.tallies.must_repeat() => return None,
            None => self.new_report(domain)?,
        };
        self.tallies.is_under_way = true;
        Some(Box::new(report))
    }

    fn new_report(&mut self, domain: &str) -> Option<SentReport> {
        let own_domain = &self.config.domain;
        let is_of_it = |entries: &[u8]| domain_of(entries).unwrap_or(own_domain) == domain;
        let (mut tallies, mut bytes) = (Vec::new(), 0_usize);
        let mut looks = LOOKS;
        while tallies.len() < REPORT_MAX && bytes < REPORT_BYTES_MAX {
            let next = match self.tallies.take(is_of_it) {
                Some(tally) => Some(tally),
                None => {
                    let Some(left) = looks.checked_sub(1) else { break };
                    looks = left;
                    let from = self.tallies.next_record;
                    let Some((index, _)) = self.local.next_tallied(from) else { break };
                    self.tallies.next_record = index.saturating_add(1);
                    let record = self.local.get(index);
                    match record.is_some_and(|record| is_of_it(&record.entries)) {
                        true => self.local.take_tally(index),
                        false => None,
                    }
                }
            };
            if let Some(tally) = next {
                bytes = bytes.saturating_add(tally.entries.len());
                tallies.push(tally);
            }
        }
        if tallies.is_empty() {
            return None;
        }
        let sequence = *self.tallies.sequence.get_or_insert_with(|| self.host.random());
        // Not that of its call, which may be an old one that is sent again.
        let number = self.next_call_number();
        Some(SentReport { sequence, number, tallies })
    }

    /// The call with a report has ended.
    pub(super) fn report_ended(
        &mut self,
        report: SentReport,
        purpose: Purpose,
        error: Option<CallError>,
        now: Timestamp,
    ) {
        match error {
            None => self.tallies.is_under_way = false,
            // It would be refused again.
            Some(CallError::Refused) if purpose == Purpose::Report => {
                self.tallies.is_under_way = false;
                self.stats.add(Counter::ReportsLost, report.hits());
                self.log_untold(now);
            }
            Some(_) => self.tallies.failed(report),
        }
    }

    /// A tick has passed: begins a round if one is due, and continues it.
    pub(super) fn tick_reports(&mut self, now: Timestamp) {
        if self.tallies.is_empty() && !self.local.has_tallies() {
            self.tallies.ticks = 0;
            return;
        }
        self.tallies.ticks = self.tallies.ticks.saturating_add(1);
        if self.tallies.ticks >= ROUND_TICKS {
            self.tallies.ticks = 0;
            self.local.make_tallies_due();
            self.tallies.begin_round();
        }
        self.send_report(now);
    }

    /// Sends a call that only carries a report, if one is due and no call has one.
    pub(super) fn send_report(&mut self, now: Timestamp) {
        let is_due = self.tallies.is_due() || self.local.has_due_tallies();
        if !is_due || self.tallies.is_under_way || !self.calls.may_call() {
            return;
        }
        let record = self.local.next_tallied(self.tallies.next_record);
        let record = record.and_then(|(index, _)| self.local.get(index));
        let entries = self.tallies.any().or_else(|| record.map(|record| &*record.entries));
        let Some(entries) = entries else { return };
        let mut about = Descriptors::default();
        about.append(entries);
        about.finish_refund(self.process.seed, 0);
        if self.breaker.is_closed() {
            let number = self.next_call_number();
            // A return of nothing: it takes no hits, and the counters need not be asked.
            let metadata = returned_metadata(number, &[Lease::NO_ID]);
            let descriptors = about.to_vec();
            let pending =
                PendingCall { descriptors: about, ..self.new_call(Purpose::Report, number) };
            let _ = self.send(descriptors, &metadata, pending, now);
        } else if self.breaker.probe(now) {
            // There may be no requests that would probe.
            self.probe(&about, now);
        }
    }

    /// Takes all that was not told, when this worker ends.
    pub(super) fn take_tallies(&mut self) -> LeftTallies {
        let mut left = self.tallies.take_all();
        while let Some((index, _)) = self.local.next_tallied(0) {
            left.others.extend(self.local.take_tally(index));
        }
        left
    }

    /// Takes over what an ended worker was still to tell.
    pub(super) fn adopt_tallies(&mut self, left: LeftTallies) {
        for report in left.unanswered {
            let adopted = self.tallies.adopt(report);
            self.count_lost(adopted);
        }
        for tally in left.others {
            self.keep_tally(tally);
        }
    }
}
