//! One counter in memory. As in a store, the parts of its state are found by label.

use std::collections::BTreeMap;
use tidegate_core::{Charge, Decision, Quota, Timestamp, decide};

/// An unused counter. Parts never expire, which does not affect decisions.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    parts: BTreeMap<u64, Vec<u64>>,
    words: Vec<u64>,
}

impl Counter {
    /// Decides one charge.
    pub(crate) fn decide(&mut self, quota: &Quota, charge: Charge, now: Timestamp) -> Decision {
        let (parts, size) = (quota.parts(now), quota.state_size().words());
        self.words.clear();
        for label in parts.labels() {
            self.words.extend(self.parts.entry(*label).or_insert_with(|| vec![0; size]).iter());
        }
        let decision = decide(&mut self.words, quota, charge, now);
        for (label, words) in parts.labels().iter().zip(self.words.chunks(size)) {
            self.parts.insert(*label, words.to_vec());
        }
        decision
    }

    /// The words of its state at `now`, in the form that [`decide`] expects.
    pub(crate) fn words(&self, quota: &Quota, now: Timestamp) -> Vec<u64> {
        let unused = vec![0; quota.state_size().words()];
        let parts = quota.parts(now);
        let of = |label| self.parts.get(label).unwrap_or(&unused).iter().copied();
        parts.labels().iter().flat_map(of).collect()
    }
}
