//! Counters in rare use: a request whose counters were all not asked for in the last second is decided by one update of the
//! shared counters.
//!
//! A refill would take the same round trip, and two updates of a holding that nobody may need again. The second request
//! within a second has the holding refilled, so only keys in rare use come here. Refuses counters whose holding owes hits,
//! which a refill charges, and more than [`RARE_MAX`] requests at a time: they wait for refills, whose number is bounded too.
//!
//! Invariant: hits happen where they were counted, as held tokens do. If their window has ended when the answer comes, they
//! are lost, and the request takes others.

use super::Holdings;
use super::round::target;
use crate::answer::Decided;
use crate::authority::Authority;
use crate::counters::{Patience, Undecided};
use crate::outcome::Passing;
use crate::plan::{Counter, DECISIONS, Plan};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidegate_core::{Answer, Decision, Nanos, Quota, Request, Timestamp, Verdict};
use tidegate_store::Entries;

/// Requests under way. With as many refills they are half of what an engine takes.
pub(super) const RARE_MAX: usize = 16_384;

/// For so long hits of a token bucket happen as they were counted. Held tokens last for one to two seconds.
const BUCKET_SPENT_WITHIN: Nanos = Nanos::from_secs(1);

/// A request under way.
struct UnderWay<'h>(&'h AtomicUsize);

impl<'h> UnderWay<'h> {
    fn begin(rare: &'h AtomicUsize) -> UnderWay<'h> {
        // Relaxed, here and below: it bounds memory, and nothing depends on the order.
        rare.fetch_add(1, Ordering::Relaxed);
        UnderWay(rare)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Holdings {
    /// Whether all counters of a plan over holdings are in rare use. From now on they are not, for a second. None of them
    /// has the tokens.
    pub(super) fn claim_rare(&self, plan: &Plan<'_>, now: Timestamp) -> bool {
        let is_recent = |counter: &Counter| self.recent.has(counter.hash, now);
        let has_room = self.rare.load(Ordering::Relaxed) < RARE_MAX;
        if !has_room || plan.counters.iter().any(is_recent) {
            return false;
        }
        let targets: SmallVec<[_; 4]> =
            (0..plan.counters.len()).filter_map(|counter| target(plan, counter)).collect();
        if targets.len() < plan.counters.len() {
            return false;
        }
        let desk = self.desk();
        if targets.iter().any(|target| desk.counters.contains_key(&self.key(target))) {
            return false;
        }
        drop(desk);
        for counter in &plan.counters {
            self.recent.note(counter.hash, now);
        }
        true
    }
}

impl Authority {
    /// Decides a request that has claimed its counters as rare ones. If the shared counters cannot be reached, the holdings
    /// decide by the failure mode.
    pub(crate) async fn decide_rare(
        &self,
        holdings: &Arc<Holdings>,
        request: &Request,
        local: Timestamp,
    ) -> Result<Answer, Undecided> {
        let limits = self.limits.load();
        // Boxed, here and below: pieces of less than a kilobyte are allocated faster than one of two.
        let matched = Box::new(self.matched(&limits, request)?);
        let site = self.true_site();
        let now = site.now(local);
        let mut plan = Box::new(site.plan(&matched.each, request, self.modes, now));
        // The limits may be others than before.
        let is_direct = self.site(&limits, &matched, request).is_shared();
        if is_direct || site.is_apart(&plan) {
            return Box::pin(self.decide_within(Patience::Waits, request, local)).await;
        }
        let _under_way = UnderWay::begin(&holdings.rare);
        holdings.register(now);
        let (mut verdict, mut end) = (Verdict::Deny, Timestamp::default());
        let mut decisions: SmallVec<[Decision; 2]> = SmallVec::new();
        let mut update = |entries: &mut Entries<'_>| {
            let mut buffers = DECISIONS.take();
            let words;
            (verdict, words) = plan.decide(entries, now, &mut buffers);
            decisions = SmallVec::from_slice(buffers.all());
            DECISIONS.set(buffers);
            let ends = plan.asks.iter().map(|ask| match ask.quota {
                Quota::TokenBucket(_) => now.saturating_add(BUCKET_SPENT_WITHIN),
                quota => {
                    let words = words.get(ask.state.clone()).unwrap_or_default();
                    quota.spendable_until(words, now)
                }
            });
            end = ends.min().unwrap_or(now);
        };
        let updated = site.counters.update(&plan.keys, now, &mut update).await;
        match updated {
            Ok(()) => {
                holdings.note(Ok(()));
                if verdict == Verdict::Allow && site.now(now) >= end {
                    return Box::pin(self.decide_within(Patience::Waits, request, local)).await;
                }
            }
            Err(error @ Undecided::Unreachable { .. }) => {
                holdings.note(Err(&error));
                return Box::pin(self.decide_within(Patience::Failed, request, local)).await;
            }
            Err(error) => return Err(error),
        }
        let decided = Decided::new(&limits, request, &matched, &decisions, now);
        let answer = self.answer(&decided, &mut plan, verdict, Passing::Together(verdict));
        Ok(answer)
    }
}
