//! Several observers as one: each gets every event, in their order.
//!
//! An authority with a single observer has it directly, and pays nothing for this.

use crate::counters::Undecided;
use crate::holdings::Failure;
use crate::observer::{LimitObserver, Observer};
use crate::outcome::Outcome;
use std::sync::Arc;
use std::time::Duration;
use tidegate_core::{Entry, Verdict};
use tidegate_limits::{Limit, Rule, Rules};

/// Passes each event to all who want it.
#[derive(Debug, Clone)]
pub struct Observers {
    all: Vec<Arc<dyn Observer>>,
    /// Those that are not idle.
    busy: Vec<Arc<dyn Observer>>,
}

/// Passes each event of limits to all of these.
#[derive(Debug)]
struct LimitObservers {
    busy: Vec<Box<dyn LimitObserver>>,
}

/// Methods that call the one of the same name on each.
macro_rules! passes_on {
    ($($event:ident($($name:ident: $type:ty),*);)*) => {
        $(fn $event(&self, $($name: $type),*) {
            self.busy.iter().for_each(|each| each.$event($($name),*));
        })*
    };
}

impl Observers {
    #[must_use]
    pub fn new(all: Vec<Arc<dyn Observer>>) -> Observers {
        let busy = all.iter().filter(|each| !each.is_idle()).cloned().collect();
        Observers { all, busy }
    }
}

impl Observer for Observers {
    fn limits_replaced(&self, rules: &Rules) -> Box<dyn LimitObserver> {
        let each = self.all.iter().map(|observer| observer.limits_replaced(rules));
        let mut busy: Vec<_> = each.filter(|observer| !observer.is_idle()).collect();
        match busy.len() {
            1 => busy.remove(0),
            _ => Box::new(LimitObservers { busy }),
        }
    }

    passes_on! {
        answered(verdict: Verdict);
        shadowed();
        domain_not_found(descriptors: u64);
        tokens_returned();
        refused();
        undecided(error: &Undecided);
        refilled(tokens: u64);
        gave_back(tokens: u64);
        shared_failed(error: &Undecided);
        decided_without(failure: Failure);
        shed(endpoint: &'static str);
        answered_within(endpoint: &'static str, calls: u64, time: Duration);
        connection_opened(endpoint: &'static str);
        connection_closed(endpoint: &'static str);
        tls_failed(cause: &'static str);
        connection_refused(endpoint: &'static str);
        connection_gave_way(endpoint: &'static str);
        http_answered(path: &'static str, status: u16);
        limits_loaded();
        limits_failed();
        limits_current(is_current: bool);
    }
}

impl LimitObserver for LimitObservers {
    passes_on! {
        decided(outcome: &Outcome<'_>);
        leased(of: (&Rule, &Limit), entries: &[Entry], tokens: u32);
        returned(of: (&Rule, &Limit), entries: &[Entry], tokens: u64);
    }
}
