//! Counts by rule, found by the address of the rule, so that a decision looks nothing up by name.

use crate::counter::{Counter, CounterFamily};
use crate::snapshot::{Family, Kind, labels};
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_authority::{LimitObserver, Shadow};
use tidegate_core::{Charge, Decision, Entry, Hits};
use tidegate_limits::escaped;
use tidegate_limits::{Limit, Rule, Rules};

/// The most series that values of requests may create. Eight counters of about 300 bytes each take some
/// 10 MB in all, and a scrape of them about 3 MB.
const DETAILED_SERIES_MAX: usize = 4_096;
/// The longest value in a name, in characters.
const VALUE_CHARS_MAX: usize = 128;
/// The name for limits that requests bring along.
const OVERRIDES: &str = "(override)";

/// What is counted for each rule and limit.
#[derive(Debug, Clone, Default)]
struct PerLimit<T> {
    total_hits: T,
    within_limit: T,
    near_limit: T,
    over_limit: T,
    shadow_mode: T,
    leases_granted: T,
    leased_tokens: T,
    returned_tokens: T,
}

/// The handles of one limit, so that a decision looks nothing up by label.
type LimitCounters = PerLimit<Counter>;

impl<T> PerLimit<T> {
    /// Each with the name and the help of its family.
    fn each(&self) -> [(&'static str, &'static str, &T); 8] {
        let near = "Hits that had room in the last fifth of the limit, by rule";
        let leased = "Tokens leased in addition to the hits of requests, by rule";
        [
            ("total_hits", "Hits of requests, by rule", &self.total_hits),
            ("within_limit", "Hits that had room, by rule", &self.within_limit),
            ("near_limit", near, &self.near_limit),
            ("over_limit", "Hits that had no room, by rule", &self.over_limit),
            ("shadow_mode", "Hits that a shadow rule would have denied", &self.shadow_mode),
            ("leases_granted", "Leases granted to proxies, by rule", &self.leases_granted),
            ("leased_tokens", leased, &self.leased_tokens),
            ("returned_tokens", "Leased tokens returned unused, by rule", &self.returned_tokens),
        ]
    }
}

/// The counts of all rules and limits, by path. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct RuleMetrics {
    families: PerLimit<CounterFamily<String>>,
    detailed: Arc<Mutex<DetailedSeries>>,
}

/// The counters of the rules in force.
#[derive(Debug)]
pub(crate) struct RuleCounters {
    /// By address: a rule does not move while it is in force.
    limits: ByAddress,
    unlimited: ByAddress,
    overrides: LimitCounters,
    metrics: RuleMetrics,
}

type ByAddress = HashMap<usize, LimitCounters, BuildHasherDefault<AddressHasher>>;

/// Hashes addresses by one multiplication (Knuth's, with the golden ratio). No client can choose an address.
#[derive(Debug, Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_usize(usize::from(*byte)));
    }

    fn write_usize(&mut self, address: usize) {
        // The map takes its index from the low bits and its tag from the high ones.
        let spread = (self.0 ^ address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = spread ^ (spread >> 32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The series that values of requests have created since the rules were put in force.
#[derive(Debug, Default)]
struct DetailedSeries {
    series: HashMap<String, Arc<LimitCounters>>,
    /// The names of the series of the rules themselves.
    of_rules: HashSet<String>,
}

impl RuleMetrics {
    pub(crate) fn families(&self) -> [Family; 8] {
        self.families.each().map(|(name, help, family)| {
            Family::new(name, help, Kind::Counter, family.samples(|rule| labels([("rule", rule)])))
        })
    }

    /// The counters of `rules`. Series of rules that no longer exist are removed.
    pub(crate) fn counters_of(&self, rules: &Rules) -> RuleCounters {
        let mut names: HashSet<String> = HashSet::from([OVERRIDES.to_owned()]);
        let (mut limits, mut unlimited) = (ByAddress::default(), ByAddress::default());
        for rule in rules.rules() {
            if rule.limits().is_empty() {
                unlimited.insert(address(&**rule), self.series(&rule.path));
                names.insert(rule.path.clone());
            }
            for limit in rule.limits() {
                limits.insert(address(limit), self.series(&limit.path));
                names.insert(limit.path.clone());
            }
        }
        let overrides = self.series(OVERRIDES);
        let mut detailed = self.detailed();
        let before = std::mem::replace(&mut detailed.of_rules, names);
        // Requests create detailed series again, unless a rule has the name by now.
        let series = std::mem::take(&mut detailed.series).into_keys();
        for gone in
            before.into_iter().chain(series).filter(|name| !detailed.of_rules.contains(name))
        {
            for (.., family) in self.families.each() {
                family.remove(&gone);
            }
        }
        drop(detailed);
        RuleCounters { limits, unlimited, overrides, metrics: self.clone() }
    }

    fn series(&self, name: &str) -> LimitCounters {
        let name = name.to_owned();
        let of = |family: &CounterFamily<String>| family.counter(&name);
        LimitCounters {
            total_hits: of(&self.families.total_hits),
            within_limit: of(&self.families.within_limit),
            near_limit: of(&self.families.near_limit),
            over_limit: of(&self.families.over_limit),
            shadow_mode: of(&self.families.shadow_mode),
            leases_granted: of(&self.families.leases_granted),
            leased_tokens: of(&self.families.leased_tokens),
            returned_tokens: of(&self.families.returned_tokens),
        }
    }

    /// The counters of this name; none if there are too many already.
    fn detailed_series(&self, name: String) -> Option<Arc<LimitCounters>> {
        let mut detailed = self.detailed();
        if let Some(counters) = detailed.series.get(&name) {
            return Some(counters.clone());
        }
        if detailed.series.len() >= DETAILED_SERIES_MAX {
            return None;
        }
        let counters = Arc::new(self.series(&name));
        detailed.series.insert(name, counters.clone());
        Some(counters)
    }

    fn detailed(&self) -> MutexGuard<'_, DetailedSeries> {
        self.detailed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The address of a rule or limit: its identity while it is in force. Never dereferenced.
fn address<T>(of: &T) -> usize {
    std::ptr::from_ref(of).addr()
}

impl LimitObserver for RuleCounters {
    fn decided(
        &self,
        of: Option<(&Rule, &Limit)>,
        entries: &[Entry],
        charge: Charge,
        decision: &Decision,
        capacity: u32,
        shadow: Shadow,
    ) {
        let Some((rule, limit)) = of else {
            return self.overrides.count(charge, decision, capacity, shadow);
        };
        // A charge that counts nothing must not create a series either.
        if counted(charge).is_some() {
            self.of_limit(rule, limit, entries, |counters| {
                counters.count(charge, decision, capacity, shadow);
            });
        }
    }

    fn leased(&self, (rule, limit): (&Rule, &Limit), entries: &[Entry], tokens: u32) {
        self.of_limit(rule, limit, entries, |counters| {
            counters.leases_granted.inc();
            counters.leased_tokens.inc_by(tokens.into());
        });
    }

    fn returned(&self, (rule, limit): (&Rule, &Limit), entries: &[Entry], tokens: u64) {
        self.of_limit(rule, limit, entries, |counters| {
            counters.returned_tokens.inc_by(tokens);
        });
    }

    fn unlimited(&self, rule: &Rule, entries: &[Entry], charge: Charge) {
        if rule.metric_values.contains(&true)
            && counted(charge).is_some()
            && let Some(counters) = self.metrics.detailed_series(with_values(rule, entries))
        {
            return counters.within(charge);
        }
        if let Some(counters) = self.unlimited.get(&address(rule)) {
            counters.within(charge);
        }
    }
}

impl RuleCounters {
    fn of_limit(
        &self,
        rule: &Rule,
        limit: &Limit,
        entries: &[Entry],
        count: impl FnOnce(&LimitCounters),
    ) {
        if rule.metric_values.contains(&true) {
            let name = with_values(rule, entries) + &limit.path[rule.path.len()..];
            if let Some(counters) = self.metrics.detailed_series(name) {
                return count(&counters);
            }
        }
        if let Some(counters) = self.limits.get(&address(limit)) {
            count(counters);
        }
    }
}

/// The path of a rule, with the values of the request where `metric_values` requires them.
fn with_values(rule: &Rule, entries: &[Entry]) -> String {
    let mut segments = rule.path.split('/');
    let mut name = segments.next().unwrap_or_default().to_owned();
    for ((segment, entry), wanted) in segments.zip(entries).zip(&rule.metric_values) {
        name.push('/');
        if *wanted {
            let value: String = entry.value.chars().take(VALUE_CHARS_MAX).collect();
            name.push_str(&escaped(&entry.key));
            name.push('=');
            name.push_str(&escaped(&value));
        } else {
            name.push_str(segment);
        }
    }
    name
}

impl LimitCounters {
    /// Counts one decision. Peeks and refunds count nothing.
    fn count(&self, charge: Charge, decision: &Decision, capacity: u32, shadow: Shadow) {
        let Some(hits) = counted(charge) else { return };
        self.total_hits.inc_by(hits);
        if decision.is_allow() {
            self.within_limit.inc_by(hits);
            let capacity = u64::from(capacity);
            let taken = capacity.saturating_sub(decision.remaining);
            let near = taken.saturating_sub(capacity * 4 / 5).min(hits);
            if near > 0 {
                self.near_limit.inc_by(near);
            }
        } else {
            self.over_limit.inc_by(hits);
            if shadow == Shadow::Yes {
                self.shadow_mode.inc_by(hits);
            }
        }
    }

    fn within(&self, charge: Charge) {
        let Some(hits) = counted(charge) else { return };
        self.total_hits.inc_by(hits);
        self.within_limit.inc_by(hits);
    }
}

/// The hits of a charge, capped because callers choose the number and counters must not wrap.
fn counted(charge: Charge) -> Option<u64> {
    match charge {
        Charge::Take(hits) | Charge::Force(hits) if hits != Hits::PEEK => {
            Some(hits.get().min(u64::from(u32::MAX)))
        }
        _ => None,
    }
}
