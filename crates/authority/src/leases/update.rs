//! One update that decides, and grants leases for what it has decided.
//!
//! Owns the order: the decision, the leases, the write. Where keys of leases make the update too large, it is made
//! without leases.

use super::grant::{Granted, Leasing, Update};
use crate::authority::Authority;
use crate::counters::Undecided;
use crate::holdings::{Round, Site};
use crate::plan::{Plan, Words};
use tidegate_core::{Decisions, Demand, LimitCheck, Timestamp, Verdict};
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
    /// The asks to decide.
    pub(super) asks: &'r [LimitCheck<'p>],
    pub(super) now: Timestamp,
    pub(super) words: &'r mut Words,
    pub(super) entries: &'r mut Entries<'e>,
    pub(super) decisions: &'r mut Decisions,
}

impl Authority {
    /// Decides by `decide`, which says how leases follow from its verdict or that nothing changes, and grants leases in
    /// the same update. Their records are dropped before the request is. Returns the verdict.
    pub(super) async fn update_leasing<'p>(
        &self,
        (site, round): (&Site<'_>, &mut Round<'p>),
        plan: &mut Plan<'p>,
        (leasing, granted): (&mut Option<Leasing<'_>>, &mut Granted),
        decisions: &mut Decisions,
        mut decide: impl FnMut(&mut Run<'_, 'p, '_>) -> (Verdict, Option<Verdicts>) + Send,
    ) -> Result<Verdict, Undecided> {
        round.prepare(site, plan).await;
        let mut verdict = Verdict::Deny;
        loop {
            let now = round.now;
            let mut update = |entries: &mut Entries<'_>| {
                let words = &mut plan.read(entries);
                let offers = leasing.as_ref();
                let ahead = |descriptor| match offers {
                    Some(offers) => offers.demand(descriptor),
                    None => Demand::default(),
                };
                if round.lacks_tokens(site, plan, words, ahead) {
                    return;
                }
                let asks = round.asks(plan);
                let mut run = Run { plan, asks, now, words, entries, decisions };
                let (decided, verdicts) = decide(&mut run);
                verdict = decided;
                let Some(verdicts) = verdicts else { return };
                let keep_until = &mut plan.keep_until(decisions.all());
                if let Some(leasing) = leasing {
                    let mut update = Update { words, keep_until, entries, granted, now };
                    leasing.grant_offers(plan, &mut update, verdicts, decisions.all());
                }
                round.note_low(site, plan, words);
                plan.write(entries, words, keep_until);
            };
            let updated = site.counters.update(&plan.keys, now, &mut update).await;
            if updated.as_ref().is_err_and(Undecided::is_too_large)
                && let Some(leasing) = leasing
                && leasing.has_keys(plan)
            {
                leasing.withdraw(plan);
                continue;
            }
            if round.is_decided(site, plan, updated, (&mut verdict, decisions)).await? {
                return Ok(verdict);
            }
        }
    }
}
