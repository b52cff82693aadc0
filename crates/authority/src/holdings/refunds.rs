//! Refunds of hits, which are decided directly over the shared counters.
//!
//! What this process holds of a counter counts as used there, so a refund would be accepted for tokens that are held. And
//! a denial of its holding would outlive the refund. So the tokens go back before a refund, and the denial ends after it.

use super::{Holdings, Target, holding_key};
use crate::counters::wait;
use crate::plan::Plan;
use std::sync::Arc;
use tidegate_core::{Charge, Held, KeyHash, Quota};
use tidegate_store::Entries;

impl Holdings {
    /// Gives back what is held of the counters that a request refunds.
    pub(super) async fn surrender(self: &Arc<Self>, plan: &Plan<'_>) {
        let Some(now) = self.now() else { return };
        for (hash, of) in refunded(plan) {
            let target = Target { hash, quota: Quota::held(Arc::new(of.clone())) };
            let key = self.key(&target);
            // Without the local counters nothing is held that could be given back.
            if let Ok((_, _, back)) = self.take_out(&target, key, now, |_| Some(0)).await
                && back.tokens + back.older > 0
            {
                self.give_back_task(target, back).await;
            }
        }
    }

    /// Ends the denials of the counters that a request has refunded.
    pub(super) fn end_denials(&self, plan: &Plan<'_>) {
        let Some(now) = self.now() else { return };
        for (hash, _) in refunded(plan) {
            let keys = [holding_key(self.local.seed(), hash)];
            let mut end = |entries: &mut Entries<'_>| {
                if let Some(state) = entries.get(0).state.first_chunk_mut() {
                    Held::end_denial(state);
                }
            };
            // Local counters answer at once. Where they do not, the denial ends by itself.
            let _ = wait(self.local.update(&keys, now, &mut end));
        }
    }
}

/// The counters of refunds, and their quotas.
fn refunded<'r>(plan: &'r Plan<'_>) -> impl Iterator<Item = (KeyHash, &'r Quota)> {
    let asks = plan.asks.iter().zip(&plan.counter_of_ask);
    let refunds = asks.filter(|(ask, _)| matches!(ask.charge, Charge::Refund(_)));
    refunds.filter_map(|(ask, counter)| Some((plan.counters.get(*counter)?.hash, ask.quota)))
}
