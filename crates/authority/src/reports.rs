//! Decisions of the filter that it reports afterwards: counted once, and passed to the observer.
//!
//! The number of the last report of a sequence is recorded in the local store, as that of a debit is. So a report whose
//! answer was lost is sent again and counts once, whichever process on the data directory gets it. Without room for a
//! record it may count twice, since it is better to count it than to lose it. Counters are not changed.

use crate::authority::Authority;
use crate::leases::{DescriptorSet, LastDebit, RoomChange, reports_key};
use crate::outcome::{Fate, Met, Outcome};
use smallvec::SmallVec;
use tidegate_core::{Charge, Hits, Nanos, Report, Tally, Timestamp};
use tidegate_limits::{Lookup, Rules};
use tidegate_store::Entries;

/// How long the number of the last report is kept after it. The filter waits far less until it sends one again, unless
/// the sidecar is away.
pub(crate) const REPORT_KEPT: Nanos = Nanos::from_secs(120);

impl Authority {
    /// Counts a report about descriptors of `domain`, unless it was counted before.
    pub(crate) async fn count_report(&self, domain: &str, report: &Report, now: Timestamp) {
        let limits = self.limits.load();
        // It comes again, when its limits may be there.
        if limits.rules.is_awaited() && !limits.rules.has_domain(domain) {
            return;
        }
        if !self.is_new(report, now).await {
            return;
        }
        for tally in &report.tallies {
            let met = met_by(&limits.rules, domain, tally);
            let hits = tally.hits;
            for (fate, hits) in [
                (Fate::Allowed, hits.allowed),
                (Fate::Denied, hits.denied),
                (Fate::DeniedElsewhere, hits.denied_elsewhere),
            ] {
                if hits > 0 {
                    let (of, charge) = ((domain, &*tally.entries), Charge::Take(Hits::new(hits)));
                    limits.observer.decided(&Outcome::tallied(of, met, charge, fate, &tally.over));
                }
            }
        }
    }

    /// Whether a report was not counted before. Records its number.
    async fn is_new(&self, report: &Report, now: Timestamp) -> bool {
        let keys = [reports_key(self.counters.seed(), report.sequence)];
        let has_room = self.report_room.left(now) > 0;
        let (mut is_new, mut changes) = (true, SmallVec::<[RoomChange; 2]>::new());
        let mut update = |entries: &mut Entries<'_>| {
            changes.clear();
            let mut record = entries.get(0);
            let last = LastDebit::read(&record);
            is_new = last.is_none_or(|last| report.is_newer(last.call));
            if !is_new || (last.is_none() && !has_room) {
                return;
            }
            let expired_at = *record.expires_at;
            let this = LastDebit { call: report.number, counted: DescriptorSet::ALL };
            if this.write(&mut record, now.saturating_add(REPORT_KEPT)) {
                changes.extend(last.map(|_| RoomChange::Remove(expired_at)));
                changes.push(RoomChange::Enter(*record.expires_at));
            }
        };
        if self.counters.update(&keys, now, &mut update).await.is_err() {
            // Nothing is recorded, and the report counts.
            return true;
        }
        self.report_room.apply(&changes);
        is_new
    }
}

fn met_by<'a>(rules: &'a Rules, domain: &str, tally: &Tally) -> Met<'a> {
    if tally.limit.is_some() {
        return Met::Override;
    }
    match rules.find(domain, &tally.entries) {
        Lookup::UnknownDomain => Met::UnknownDomain,
        Lookup::NoRule => Met::NoRule,
        Lookup::Rule(found) => Met::Rule(found.rule),
    }
}
