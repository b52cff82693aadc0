//! The quotas of held tokens, for the limits in force.
//!
//! A limit that counts denied hits has none: its count depends on each denied request.

use std::collections::HashMap;
use std::sync::Arc;
use tidegate_core::{DeniedHits, Quota};
use tidegate_limits::{Limit, Rules};

/// By the address of the limit, which is stable while the limits are in force.
#[derive(Debug, Default)]
pub(crate) struct HeldQuotas {
    quotas: HashMap<usize, Quota>,
}

impl HeldQuotas {
    pub(crate) fn of(rules: &Rules) -> HeldQuotas {
        let held = rules.limits().into_iter().filter(|limit| limit.denied == DeniedHits::Ignore);
        let quota = |limit: &Limit| Quota::held(Arc::new(limit.quota.clone()));
        HeldQuotas { quotas: held.map(|limit| (address(limit), quota(limit))).collect() }
    }

    pub(crate) fn get(&self, limit: &Limit) -> Option<&Quota> {
        self.quotas.get(&address(limit))
    }
}

/// Compared and never followed.
fn address(limit: &Limit) -> usize {
    std::ptr::from_ref(limit).addr()
}
