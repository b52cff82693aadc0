//! Counters that threads share, alone and by label.

use crate::snapshot::{Labels, Number, Samples};
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Clones share one value.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counter(Arc<AtomicU64>);

impl Counter {
    pub(crate) fn inc(&self) {
        self.inc_by(1);
    }

    pub(crate) fn inc_by(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn value(&self) -> Number {
        Number::Whole(self.get())
    }
}

/// One counter for each value of its labels, created on first use. Clones share the counters.
#[derive(Debug, Clone)]
pub(crate) struct CounterFamily<K>(Arc<RwLock<HashMap<K, Counter>>>);

impl<K> Default for CounterFamily<K> {
    fn default() -> Self {
        CounterFamily(Arc::default())
    }
}

impl<K: Eq + Hash + Clone> CounterFamily<K> {
    pub(crate) fn counter(&self, key: &K) -> Counter {
        if let Some(counter) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(key) {
            return counter.clone();
        }
        let mut counters = self.0.write().unwrap_or_else(PoisonError::into_inner);
        counters.entry(key.clone()).or_default().clone()
    }

    pub(crate) fn remove(&self, key: &K) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    pub(crate) fn retain(&self, keeps: impl Fn(&K) -> bool) {
        let mut counters = self.0.write().unwrap_or_else(PoisonError::into_inner);
        counters.retain(|key, _| keeps(key));
    }

    pub(crate) fn keys(&self) -> Vec<K> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    /// Passes on each counter that has counted.
    pub(crate) fn each_used(&self, mut with: impl FnMut(&K, u64)) {
        for (key, counter) in self.0.read().unwrap_or_else(PoisonError::into_inner).iter() {
            let count = counter.get();
            if count > 0 {
                with(key, count);
            }
        }
    }

    pub(crate) fn samples(&self, labels: impl Fn(&K) -> Labels) -> Samples {
        let counters = self.0.read().unwrap_or_else(PoisonError::into_inner);
        counters.iter().map(|(key, counter)| (labels(key), counter.value())).collect()
    }
}
