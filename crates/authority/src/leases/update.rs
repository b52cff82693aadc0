//! One update that decides, and grants leases for what it has decided.
//!
//! Owns the order: the decision, the leases, the write. Where keys of leases make the update too large, it is made
//! without leases.

use super::grant::{Granted, Leasing, Update};
use crate::authority::Authority;
use crate::counters::Undecided;
use crate::plan::{Plan, Words};
use tidegate_core::{Decisions, Timestamp, Verdict};
use tidegate_store::Entries;

/// Whether the descriptors of a call pass together or each by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdicts {
    /// All have this verdict.
    Joint(Verdict),
    /// Each passes if its limits have room.
    Single,
}

/// One run of an update, before its decision.
pub(super) struct Run<'r, 'p, 'e> {
    pub(super) plan: &'r Plan<'p>,
    pub(super) words: &'r mut Words,
    pub(super) entries: &'r mut Entries<'e>,
    pub(super) decisions: &'r mut Decisions,
}

impl Authority {
    /// Decides by `decide`, which says how leases follow from it or that nothing changes, and grants leases in the
    /// same update. Their records are dropped before the request is.
    pub(super) async fn update_leasing<'p>(
        &self,
        plan: &mut Plan<'p>,
        (leasing, granted): (&mut Option<Leasing<'_>>, &mut Granted),
        decisions: &mut Decisions,
        now: Timestamp,
        mut decide: impl FnMut(&mut Run<'_, 'p, '_>) -> Option<Verdicts> + Send,
    ) -> Result<(), Undecided> {
        loop {
            let mut update = |entries: &mut Entries<'_>| {
                let words = &mut plan.read(entries);
                let mut run = Run { plan, words, entries, decisions };
                let Some(verdicts) = decide(&mut run) else { return };
                let keep_until = &mut plan.keep_until(decisions.all());
                if let Some(leasing) = leasing {
                    let mut update = Update { words, keep_until, entries, granted, now };
                    leasing.grant_offers(plan, &mut update, verdicts, decisions.all());
                }
                plan.write(entries, words, keep_until);
            };
            match (self.counters.update(&plan.keys, now, &mut update).await, &mut *leasing) {
                (Err(error), Some(leasing)) if error.is_too_large() && leasing.has_keys(plan) => {
                    leasing.withdraw(plan);
                }
                (updated, _) => return updated,
            }
        }
    }
}
