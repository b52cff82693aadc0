//! The observer of decisions: sums up the hits of descriptors in the stripe of the thread.
//!
//! A stripe is a lock and its table. Threads have different stripes as long as there are enough, so they wait for no
//! other thread but one that passes on some sums. Looks and refunds are no hits.

use crate::sum::{Hits, Last, Sum};
use crate::table::{Asked, Bounds, Event, Hearer, Table};
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::fmt::Debug;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_authority::{DecidedIn, LimitObserver, Met, Observer, Outcome};
use tidegate_core::{Charge, Entry};
use tidegate_limits::{Limit, Rule, Rules};

/// Of threads; each takes up to 6 MiB.
const STRIPES: usize = 8;
/// Sums that are passed on under one lock: some 30 µs.
const CHUNK: usize = 64;

/// Sums up for a process. Clones sum up together.
#[derive(Debug, Clone)]
pub struct Recent(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    stripes: [Stripe; STRIPES],
    sinks: Sinks,
}

/// Threads that write to different stripes share no cache line, nor the pair of lines that processors fetch together.
#[derive(Debug)]
#[repr(align(128))]
struct Stripe(Mutex<Table>);

/// Who hears of sums.
#[derive(Debug, Clone, Default)]
pub struct Sinks {
    /// Hears of hits within a second, as long as others follow.
    pub prompt: Option<Arc<dyn Sink>>,
    /// Hears of them when it asks; only of domains in which the limits have statistics.
    pub patient: Option<Arc<dyn Sink>>,
}

/// Hears of sums. On the path of requests, so it must not block.
pub trait Sink: Debug + Send + Sync {
    /// Other rules are in force. All hits under those before were passed on, except those of the same moment.
    fn limits_replaced(&self, _rules: &Rules) {}
    fn add(&self, sum: &Sum<'_>);
}

/// Sums up under one set of rules.
#[derive(Debug)]
struct Recording {
    recent: Recent,
    /// By address.
    rules: HashMap<usize, Arc<Rule>>,
    /// The domains whose descriptors are summed up; none for all.
    domains: Option<Vec<Arc<str>>>,
}

thread_local! {
    static STRIPE: Cell<Option<usize>> = const { Cell::new(None) };
}

impl Sinks {
    pub(crate) fn each(&self, add: impl Fn(&dyn Sink)) {
        [&self.prompt, &self.patient].into_iter().flatten().for_each(|sink| add(&**sink));
    }
}

impl Recent {
    #[must_use]
    pub fn new(sinks: Sinks) -> Recent {
        Recent::bounded(sinks, Bounds::default())
    }

    pub(crate) fn bounded(sinks: Sinks, bounds: Bounds) -> Recent {
        // Clients choose what is hashed.
        let seed = RandomState::new().hash_one(0);
        let stripes = std::array::from_fn(|stripe| Stripe::new(Table::new(stripe, seed, bounds)));
        Recent(Arc::new(Inner { stripes, sinks }))
    }

    /// Passes on to the prompt one all that was recorded before.
    pub fn pass_on_prompt(&self) {
        self.pass_on(Hearer::Prompt);
    }

    /// Passes on to the patient one all that was recorded before.
    pub fn pass_on_patient(&self) {
        self.pass_on(Hearer::Patient);
    }

    /// In small steps, as each holds up a thread that records.
    fn pass_on(&self, to: Hearer) {
        for stripe in &self.0.stripes {
            let mut end = usize::MAX;
            while end > 0 {
                let to = (to, Asked::Yes);
                end = stripe.table().pass_on((end, CHUNK), to, now_ms(), &self.0.sinks);
            }
        }
    }
}

impl Stripe {
    fn new(table: Table) -> Stripe {
        Stripe(Mutex::new(table))
    }

    /// A table is whole between any two records, so a thread that panicked leaves nothing half done.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Recent {
    fn is_idle(&self) -> bool {
        true
    }

    fn limits_replaced(&self, rules: &Rules) -> Box<dyn LimitObserver> {
        let sinks = &self.0.sinks;
        self.pass_on_prompt();
        self.pass_on_patient();
        sinks.each(|sink| sink.limits_replaced(rules));
        let of_statistics = rules.statistics().iter().map(|statistic| statistic.domain.clone());
        let domains = match &sinks.prompt {
            Some(_) => None,
            None if sinks.patient.is_none() || rules.statistics().is_empty() => {
                return Box::new(());
            }
            None => Some(of_statistics.collect()),
        };
        let address = |rule: &Arc<Rule>| std::ptr::from_ref(&**rule).addr();
        let rules = rules.rules().into_iter().map(|rule| (address(rule), rule.clone())).collect();
        Box::new(Recording { recent: self.clone(), rules, domains })
    }
}

impl LimitObserver for Recording {
    fn decided(&self, outcome: &Outcome<'_>) {
        let (Charge::Take(hits) | Charge::Force(hits)) = outcome.charge else { return };
        let is_asked_for = |domains: &Vec<Arc<str>>| domains.iter().any(|d| **d == *outcome.domain);
        if hits.get() == 0 || !self.domains.as_ref().is_none_or(is_asked_for) {
            return;
        }
        let Inner { stripes, sinks } = &*self.recent.0;
        let mut hits = Hits::of(outcome.fate, hits.get());
        if outcome.decided_in == DecidedIn::Envoy {
            hits.in_envoy = hits.all();
        }
        let now_ms = now_ms();
        let last = match &sinks.prompt {
            Some(_) => Last::of(outcome, now_ms),
            None => Last { at_ms: now_ms, ..Last::default() },
        };
        let Outcome { domain, entries, met, .. } = *outcome;
        let event = Event { domain, entries, met, hits, last };
        let keep = || match met {
            Met::Rule(rule) => self.rules.get(&std::ptr::from_ref(rule).addr()).cloned(),
            _ => None,
        };
        stripes[stripe_of_thread()].table().record(&event, keep, sinks);
    }

    fn leased(&self, _of: (&Rule, &Limit), _entries: &[Entry], _tokens: u32) {}
    fn returned(&self, _of: (&Rule, &Limit), _entries: &[Entry], _tokens: u64) {}
}

fn stripe_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    STRIPE.get().unwrap_or_else(|| {
        let stripe = NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES;
        STRIPE.set(Some(stripe));
        stripe
    })
}

/// The time since the machine started. In steps of some milliseconds, which cost less than a precise clock.
#[must_use]
pub fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000 + now.tv_nsec.unsigned_abs() / 1_000_000
}

#[cfg(test)]
mod tests;
