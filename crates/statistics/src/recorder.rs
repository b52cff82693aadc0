//! Hears what became of hits, summed up by descriptor, and adds it to the series of the statistics in force.
//!
//! Counts hits, as rules do, of the sidecar and of Envoy alike. A hit that passed is allowed, in shadow mode too. A hit is
//! denied if any limit of its request denied it. Looks and refunds are no hits.

use crate::aggregator::{Aggregator, Bounds};
use crate::batch::Batch;
use crate::declared::Declared;
use crate::series::Counts;
use std::sync::{Arc, PoisonError, RwLock};
use tidegate_limits::Rules;
use tidegate_recent::{Sink, Sum};

/// Records for a process. Clones record together.
#[derive(Debug, Clone)]
pub struct Recorder(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    aggregator: Aggregator,
    declared: RwLock<Arc<Declared>>,
}

impl Recorder {
    #[must_use]
    pub fn new(bounds: Bounds) -> Recorder {
        Recorder(Arc::new(Inner {
            aggregator: Aggregator::new(bounds),
            declared: RwLock::default(),
        }))
    }

    /// The statistics in force.
    #[must_use]
    pub fn declared(&self) -> Arc<Declared> {
        self.0.declared.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes what was heard since the last call, at `now` in seconds since 1970.
    #[must_use]
    pub fn take(&self, now: u64) -> Batch {
        self.0.aggregator.take(now)
    }
}

impl Sink for Recorder {
    fn limits_replaced(&self, rules: &Rules) {
        let declared = Arc::new(Declared::of(rules));
        *self.0.declared.write().unwrap_or_else(PoisonError::into_inner) = declared;
    }

    fn add(&self, sum: &Sum<'_>) {
        let denied = sum.hits.denied.saturating_add(sum.hits.elsewhere);
        let counts = Counts { allowed: sum.hits.allowed, denied, hits: sum.hits.all() };
        let declared = self.declared();
        declared.record(&self.0.aggregator, sum.domain, &sum.entries, counts);
    }
}
