//! Counts by rule, found by the address of the rule, so that a decision looks nothing up by name.

use crate::counter::{Counter, CounterFamily};
use crate::rule_use::{RuleHits, RuleUse};
use crate::snapshot::{Family, Kind, Samples, labels};
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_authority::{DecidedIn, Fate, LimitObserver, LimitOutcome, Met, Outcome, Shadow};
use tidegate_core::{Charge, Entry, Hits};
use tidegate_limits::{Limit, Rule, Rules};
use tidegate_limits::{escaped, unescaped};

/// The most series that values of requests may create. Ten counters of about 300 bytes each take some
/// 12 MB in all, and a scrape of them about 4 MB.
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
    denied_elsewhere: T,
    shadow_mode: T,
    decided_in_envoy: T,
    leases_granted: T,
    leased_tokens: T,
    returned_tokens: T,
}

/// The handles of one limit, so that a decision looks nothing up by label.
type LimitCounters = PerLimit<Counter>;

impl<T> PerLimit<T> {
    /// Each with the name and the help of its family.
    fn each(&self) -> [(&'static str, &'static str, &T); 10] {
        let near = "Hits that were let through in the last fifth of the limit, by rule";
        let elsewhere = "Hits that had room, and that another limit denied, by rule";
        let in_envoy = "Hits that the filter decided by itself, by rule";
        let leased = "Tokens leased in addition to the hits of requests, by rule";
        [
            ("total_hits", "Hits of requests, by rule", &self.total_hits),
            (
                "within_limit",
                "Hits that had room and were let through, by rule",
                &self.within_limit,
            ),
            ("near_limit", near, &self.near_limit),
            ("over_limit", "Hits that had no room, by rule", &self.over_limit),
            ("denied_elsewhere", elsewhere, &self.denied_elsewhere),
            ("shadow_mode", "Hits that a shadow rule would have denied", &self.shadow_mode),
            ("decided_in_envoy", in_envoy, &self.decided_in_envoy),
            ("leases_granted", "Leases granted to proxies, by rule", &self.leases_granted),
            ("leased_tokens", leased, &self.leased_tokens),
            ("returned_tokens", "Leased tokens returned unused, by rule", &self.returned_tokens),
        ]
    }
}

/// What became of the hits of descriptors that met a rule of a domain. Each counts once, however many limits it met.
#[derive(Debug, Clone, Default)]
struct DomainCounters {
    allowed: Counter,
    denied: Counter,
    denied_elsewhere: Counter,
    shadowed: Counter,
    in_envoy: Counter,
}

impl DomainCounters {
    fn count(&self, hits: u64, fate: Fate, by: DecidedIn) {
        match fate {
            Fate::Allowed => self.allowed.inc_by(hits),
            Fate::Denied => self.denied.inc_by(hits),
            Fate::DeniedElsewhere => self.denied_elsewhere.inc_by(hits),
            Fate::Shadowed => self.shadowed.inc_by(hits),
        }
        if by == DecidedIn::Envoy {
            self.in_envoy.inc_by(hits);
        }
    }
}

/// The counts of all rules and limits, by path. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct RuleMetrics {
    families: PerLimit<CounterFamily<String>>,
    /// By name.
    domains: Arc<Mutex<HashMap<String, Arc<DomainCounters>>>>,
    /// By domain.
    unmatched: CounterFamily<String>,
    detailed: Arc<Mutex<DetailedSeries>>,
}

/// The counters of the rules in force.
#[derive(Debug)]
pub(crate) struct RuleCounters {
    /// By address: a rule does not move while it is in force.
    limits: ByAddress<LimitCounters>,
    unlimited: ByAddress<LimitCounters>,
    overrides: LimitCounters,
    /// Those of its domain, by the address of each rule.
    domain_of: ByAddress<Arc<DomainCounters>>,
    domains: HashMap<String, Arc<DomainCounters>>,
    /// Of each domain that is configured: clients choose the names of others.
    unmatched: HashMap<String, Counter>,
    metrics: RuleMetrics,
}

type ByAddress<T> = HashMap<usize, T, BuildHasherDefault<AddressHasher>>;

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
    pub(crate) fn families(&self) -> Vec<Family> {
        let of_rules = self.families.each().map(|(name, help, family)| {
            Family::new(name, help, Kind::Counter, family.samples(|rule| labels([("rule", rule)])))
        });
        of_rules.into_iter().chain(self.families_of_domains()).collect()
    }

    /// Those by domain alone: few, however many rules there are.
    pub(crate) fn families_of_domains(&self) -> Vec<Family> {
        Vec::from([self.unmatched_family()]).into_iter().chain(self.domain_families()).collect()
    }

    /// The use of each rule and limit that was met.
    pub(crate) fn rule_use(&self) -> RuleUse {
        let mut found = RuleUse::default();
        let families = &self.families;
        for (family, place) in [
            (&families.total_hits, RuleHits::HITS),
            (&families.within_limit, RuleHits::ALLOWED),
            (&families.over_limit, RuleHits::OVER),
            (&families.denied_elsewhere, RuleHits::DENIED_ELSEWHERE),
            (&families.shadow_mode, RuleHits::SHADOWED),
            (&families.decided_in_envoy, RuleHits::IN_ENVOY),
        ] {
            family.each_used(|name, count| found.add_count(name, place, count));
        }
        found
    }

    fn unmatched_family(&self) -> Family {
        let help = "Hits of descriptors that met no rule, by domain";
        let samples = self.unmatched.samples(|domain| labels([("domain", domain)]));
        Family::new("unmatched_descriptors", help, Kind::Counter, samples)
    }

    fn domain_families(&self) -> [Family; 2] {
        let (mut hits, mut in_envoy) = (Samples::new(), Samples::new());
        for (domain, counters) in self.domains().iter() {
            for (verdict, counter) in [
                ("allowed", &counters.allowed),
                ("denied", &counters.denied),
                ("denied_elsewhere", &counters.denied_elsewhere),
                ("shadowed", &counters.shadowed),
            ] {
                hits.insert(labels([("domain", domain), ("verdict", verdict)]), counter.value());
            }
            in_envoy.insert(labels([("domain", domain)]), counters.in_envoy.value());
        }
        let help = "Hits of descriptors that met a rule, by domain and by what became of them";
        let help_in_envoy = "Hits of them that the filter decided by itself, by domain";
        [
            Family::new("domain_hits", help, Kind::Counter, hits),
            Family::new("domain_hits_in_envoy", help_in_envoy, Kind::Counter, in_envoy),
        ]
    }

    fn domains(&self) -> MutexGuard<'_, HashMap<String, Arc<DomainCounters>>> {
        self.domains.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The counters of the domains of `rules`. Those of others are removed.
    fn domains_of(&self, rules: &Rules) -> HashMap<String, Arc<DomainCounters>> {
        let mut domains = self.domains();
        domains.retain(|domain, _| rules.has_domain(domain));
        for domain in rules.domain_names() {
            domains.entry(domain.to_owned()).or_default();
        }
        domains.clone()
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
        let (unmatched, domains) = (self.unmatched_of(rules), self.domains_of(rules));
        let domain_of = rules.rules().into_iter().filter_map(|rule| {
            let name = rule.path.split('/').next().unwrap_or_default();
            Some((address(&**rule), domains.get(&unescaped(name))?.clone()))
        });
        let domain_of = domain_of.collect();
        let metrics = self.clone();
        RuleCounters { limits, unlimited, overrides, domain_of, domains, unmatched, metrics }
    }

    /// The counters of the domains of `rules`. Series of others are removed.
    fn unmatched_of(&self, rules: &Rules) -> HashMap<String, Counter> {
        self.unmatched.retain(|domain| rules.has_domain(domain));
        let domains = rules.domain_names().into_iter().map(str::to_owned);
        domains.map(|domain| (domain.clone(), self.unmatched.counter(&domain))).collect()
    }

    fn series(&self, name: &str) -> LimitCounters {
        let name = name.to_owned();
        let of = |family: &CounterFamily<String>| family.counter(&name);
        LimitCounters {
            total_hits: of(&self.families.total_hits),
            within_limit: of(&self.families.within_limit),
            near_limit: of(&self.families.near_limit),
            over_limit: of(&self.families.over_limit),
            denied_elsewhere: of(&self.families.denied_elsewhere),
            shadow_mode: of(&self.families.shadow_mode),
            decided_in_envoy: of(&self.families.decided_in_envoy),
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
    fn decided(&self, outcome: &Outcome<'_>) {
        // A charge that counts nothing must not create a series either.
        let Some(hits) = counted(outcome) else { return };
        let by = outcome.decided_in;
        let domain = match outcome.met {
            Met::Rule(rule) => self.domain_of.get(&address(rule)),
            Met::Override => self.domains.get(outcome.domain),
            Met::NoRule | Met::Replaced | Met::UnknownDomain => None,
        };
        if let Some(domain) = domain {
            domain.count(hits, outcome.fate, by);
        }
        match outcome.met {
            Met::Rule(rule) if rule.limits().is_empty() => {
                self.of_unlimited(rule, outcome.entries, |counters| {
                    counters.count_fate(hits, outcome.fate, by);
                });
            }
            Met::Rule(rule) => {
                for met in outcome.limits() {
                    let Some(limit) = met.limit else { continue };
                    self.of_limit(rule, limit, outcome.entries, |counters| {
                        counters.count(hits, &met, by);
                    });
                }
            }
            Met::Override if by == DecidedIn::Envoy => {
                self.overrides.count_fate(hits, outcome.fate, by);
            }
            Met::Override => outcome.limits().for_each(|met| self.overrides.count(hits, &met, by)),
            Met::NoRule => {
                if let Some(unmatched) = self.unmatched.get(outcome.domain) {
                    unmatched.inc_by(hits);
                }
            }
            Met::Replaced | Met::UnknownDomain => {}
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
}

impl RuleCounters {
    fn of_unlimited(&self, rule: &Rule, entries: &[Entry], count: impl FnOnce(&LimitCounters)) {
        if rule.metric_values.contains(&true)
            && let Some(counters) = self.metrics.detailed_series(with_values(rule, entries))
        {
            return count(&counters);
        }
        if let Some(counters) = self.unlimited.get(&address(rule)) {
            count(counters);
        }
    }

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
    /// Counts hits that met a limit.
    fn count(&self, hits: u64, met: &LimitOutcome<'_>, by: DecidedIn) {
        self.count_fate(hits, met.fate, by);
        match (met.fate, met.shadow) {
            (Fate::Allowed, _) => {
                let Some(remaining) = met.remaining else { return };
                let capacity = u64::from(met.capacity);
                let taken = capacity.saturating_sub(remaining);
                let near = taken.saturating_sub(capacity * 4 / 5).min(hits);
                if near > 0 {
                    self.near_limit.inc_by(near);
                }
            }
            (Fate::Shadowed | Fate::Denied, Shadow::Yes) => self.shadow_mode.inc_by(hits),
            _ => {}
        }
    }

    fn count_fate(&self, hits: u64, fate: Fate, by: DecidedIn) {
        self.total_hits.inc_by(hits);
        match fate {
            Fate::Allowed => self.within_limit.inc_by(hits),
            Fate::Denied | Fate::Shadowed => self.over_limit.inc_by(hits),
            Fate::DeniedElsewhere => self.denied_elsewhere.inc_by(hits),
        }
        if by == DecidedIn::Envoy {
            self.decided_in_envoy.inc_by(hits);
        }
    }
}

/// The hits of an outcome, capped because callers choose the number and counters must not wrap. Those of a report are
/// the sum of many requests. Peeks and refunds count nothing.
fn counted(outcome: &Outcome<'_>) -> Option<u64> {
    let most = match outcome.decided_in {
        DecidedIn::Sidecar => u64::from(u32::MAX),
        DecidedIn::Envoy => 1 << 42,
    };
    match outcome.charge {
        Charge::Take(hits) | Charge::Force(hits) if hits != Hits::PEEK => {
            Some(hits.get().min(most))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
