//! Hears the hits of descriptors, summed up, and adds them to the groups of a stripe; and observes single decisions while
//! somebody asks for them.

use crate::decisions::{Decision, Filter, Tap};
use crate::groups::{BYTES_MAX, Groups};
use crate::sampler::sample;
use crate::summary::{MetKind, Summary};
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_authority::{LimitObserver, Met, Observer, Outcome};
use tidegate_core::Entry;
use tidegate_limits::{Limit, Rule, Rules};
use tidegate_recent::{Pairs, Sink, Sum, now_ms};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Each takes up to [`BYTES_MAX`], so a process takes up to 64 MiB.
const STRIPES: usize = 8;
/// A sum of as many hits is recorded in any case.
const SAMPLED_BELOW: u64 = 8;

/// Records for a process. Clones record together.
#[derive(Debug, Clone)]
pub struct Recorder(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    stripes: [Mutex<Groups>; STRIPES],
    tap: Tap,
    /// Clients choose what is hashed.
    seed: u64,
}

/// The hits of a descriptor, and where they belong.
#[derive(Debug, Clone)]
pub(crate) struct Event<'a> {
    /// Of its domain and entries.
    pub(crate) hash: u64,
    pub(crate) domain: &'a str,
    pub(crate) entries: Pairs<'a>,
    pub(crate) met: MetKind,
    /// Of what its group is.
    pub(crate) group_hash: u64,
    pub(crate) group_domain: &'a str,
    pub(crate) rule: Option<&'a str>,
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    /// Denied by another limit of the request.
    pub(crate) elsewhere: u64,
    /// Of all these, those that the filter decided.
    pub(crate) in_envoy: u64,
    pub(crate) retry_at_ms: Option<u64>,
    pub(crate) left: Option<(u64, u32)>,
}

impl Default for Recorder {
    fn default() -> Self {
        let stripes = std::array::from_fn(|_| Mutex::new(Groups::new(BYTES_MAX)));
        Recorder(Arc::new(Inner {
            stripes,
            tap: Tap::default(),
            seed: RandomState::new().hash_one(0),
        }))
    }
}

impl Recorder {
    /// What it has heard up to now.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let now = now_ms();
        let mut sum = Summary::default();
        for stripe in &self.0.stripes {
            let summary = stripe.lock().unwrap_or_else(PoisonError::into_inner).summary(now);
            sum.merge(summary);
        }
        sum
    }

    /// The decisions that are asked for, as server-sent events. Decisions are kept for five seconds from now on.
    #[must_use]
    pub fn events(&self, filter: &Filter) -> String {
        self.0.tap.open(now_ms());
        self.0.tap.events(filter)
    }

    /// Takes the decisions that are kept, for another process, and keeps more for five seconds from now on.
    #[must_use]
    pub fn take_decisions(&self) -> Vec<Decision> {
        self.0.tap.open(now_ms());
        self.0.tap.take()
    }

    /// Adds decisions of another process.
    pub fn add_decisions(&self, decisions: Vec<Decision>) {
        self.0.tap.add(decisions);
    }
}

impl Sink for Recorder {
    fn add(&self, sum: &Sum<'_>) {
        let is_sampled = !sum.is_asked && sum.hits.all() < SAMPLED_BELOW;
        let weight = if is_sampled { sample(now_ms()) } else { Some(1) };
        let Some(weight) = weight else { return };
        let event = event(sum, weight, self.0.seed);
        // Groups are whole between any two records, so a thread that panicked leaves nothing half done.
        let stripe = &self.0.stripes[sum.stripe % STRIPES];
        let mut groups = stripe.lock().unwrap_or_else(PoisonError::into_inner);
        groups.record(&event, sum.last.at_ms);
    }
}

/// Of single decisions.
impl Observer for Recorder {
    fn is_idle(&self) -> bool {
        true
    }

    fn limits_replaced(&self, _rules: &Rules) -> Box<dyn LimitObserver> {
        Box::new(self.clone())
    }
}

impl LimitObserver for Recorder {
    fn decided(&self, outcome: &Outcome<'_>) {
        if self.0.tap.is_open(now_ms) {
            self.0.tap.keep(outcome, now_ms());
        }
    }

    fn leased(&self, _of: (&Rule, &Limit), _entries: &[Entry], _tokens: u32) {}
    fn returned(&self, _of: (&Rule, &Limit), _entries: &[Entry], _tokens: u64) {}
}

fn event<'a>(sum: &'a Sum<'_>, weight: u64, seed: u64) -> Event<'a> {
    // Domains without limits are chosen by clients, so they make no groups.
    let (group_domain, rule) = match sum.met {
        Met::Rule(rule) => (sum.domain, Some(rule.path.as_str())),
        Met::NoRule | Met::Replaced => (sum.domain, None),
        Met::Override | Met::UnknownDomain => ("", None),
    };
    let met = MetKind::from(sum.met);
    let group_hash = hash(rule.unwrap_or(group_domain), seed.wrapping_add(met as u64));
    let named = sum.entries.clone().flat_map(|(key, value)| [key, value]);
    let hash = named.fold(hash(sum.domain, seed), |seed, part| hash(part, seed));
    let weighed = |hits: u64| hits.saturating_mul(weight);
    Event {
        hash,
        domain: sum.domain,
        entries: sum.entries.clone(),
        met,
        group_hash,
        group_domain,
        rule,
        allowed: weighed(sum.hits.allowed),
        denied: weighed(sum.hits.denied),
        elsewhere: weighed(sum.hits.elsewhere),
        in_envoy: weighed(sum.hits.in_envoy),
        retry_at_ms: sum.last.retry_at_ms,
        left: sum.last.left,
    }
}

fn hash(text: &str, seed: u64) -> u64 {
    xxh3_64_with_seed(text.as_bytes(), seed)
}

#[cfg(test)]
mod tests;
