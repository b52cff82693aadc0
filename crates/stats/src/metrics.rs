//! The counts of one process.

use crate::counter::{Counter, CounterFamily};
use crate::rule_counters::DetailedSeries;
use crate::snapshot::{Family, Kind, Labels, Number, Snapshot, labels};
use crate::store;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate_authority::{LimitObserver, Observer, Undecided};
use tidegate_core::Verdict;
use tidegate_limits::Rules;
use tidegate_store::{Cluster, UpdateError};

/// A counter for each code of an answer: a family would need a lock.
#[derive(Debug, Clone, Default)]
struct Answers {
    allowed: Counter,
    denied: Counter,
    returned: Counter,
    refused: Counter,
}

/// The counters of all rules and limits, by path.
pub(crate) type RuleFamily = CounterFamily<String>;
/// By a label whose values are fixed in the code.
type FixedFamily = CounterFamily<&'static str>;

/// The handles of all metrics; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    answers: Answers,
    undecided: FixedFamily,
    shed: FixedFamily,
    connections_refused: FixedFamily,
    connections_gave_way: FixedFamily,
    pub(crate) total_hits: RuleFamily,
    pub(crate) within_limit: RuleFamily,
    pub(crate) near_limit: RuleFamily,
    pub(crate) over_limit: RuleFamily,
    pub(crate) shadow_mode: RuleFamily,
    pub(crate) leases_granted: RuleFamily,
    pub(crate) leased_tokens: RuleFamily,
    pub(crate) returned_tokens: RuleFamily,
    global_shadow_mode: Counter,
    domain_not_found: Counter,
    /// By path and status.
    http_requests: CounterFamily<(&'static str, u16)>,
    limits_loaded: Counter,
    limits_failed: Counter,
    limits_current: Arc<AtomicU64>,
    limits_loaded_at_secs: Arc<AtomicU64>,
    pub(crate) detailed: Arc<Mutex<DetailedSeries>>,
}

/// The handles of one limit, so that a decision looks nothing up by label.
#[derive(Debug)]
pub(crate) struct LimitCounters {
    pub(crate) total_hits: Counter,
    pub(crate) within_limit: Counter,
    pub(crate) near_limit: Counter,
    pub(crate) over_limit: Counter,
    pub(crate) shadow_mode: Counter,
    pub(crate) leases_granted: Counter,
    pub(crate) leased_tokens: Counter,
    pub(crate) returned_tokens: Counter,
}

impl Metrics {
    pub(crate) fn limit_counters(&self, path: &str) -> LimitCounters {
        let path = path.to_owned();
        let of = |family: &RuleFamily| family.counter(&path);
        LimitCounters {
            total_hits: of(&self.total_hits),
            within_limit: of(&self.within_limit),
            near_limit: of(&self.near_limit),
            over_limit: of(&self.over_limit),
            shadow_mode: of(&self.shadow_mode),
            leases_granted: of(&self.leases_granted),
            leased_tokens: of(&self.leased_tokens),
            returned_tokens: of(&self.returned_tokens),
        }
    }

    /// These metrics, and the counts that the store keeps for all processes.
    pub fn with_store(&self, store: Arc<Cluster>) -> Registry {
        Registry { metrics: self.clone(), store, scope: Scope::WithStore }
    }

    /// The counts of this process alone.
    pub fn without_store(&self, store: Arc<Cluster>) -> Registry {
        Registry { metrics: self.clone(), store, scope: Scope::Process }
    }

    fn families(&self) -> Vec<Family> {
        let mut families: Vec<Family> = [
            ("total_hits", "Hits asked for, by rule", &self.total_hits),
            ("within_limit", "Hits that had room, by rule", &self.within_limit),
            (
                "near_limit",
                "Hits that had room in the last fifth of the limit, by rule",
                &self.near_limit,
            ),
            ("over_limit", "Hits that had no room, by rule", &self.over_limit),
            ("shadow_mode", "Hits that a shadow rule would have denied", &self.shadow_mode),
            ("leases_granted", "Leases granted to proxies, by rule", &self.leases_granted),
            (
                "leased_tokens",
                "Tokens leased in addition to the hits asked for, by rule",
                &self.leased_tokens,
            ),
            ("returned_tokens", "Leased tokens returned unused, by rule", &self.returned_tokens),
        ]
        .map(|(name, help, family)| {
            let samples = family.samples(|rule| labels([("rule", rule)]));
            Family::new(name, help, Kind::Counter, samples)
        })
        .into();
        families.extend(
            [
                (
                    "global_shadow_mode",
                    "Rate limit calls allowed only by the global shadow mode",
                    &self.global_shadow_mode,
                ),
                (
                    "domain_not_found",
                    "Descriptors of a domain that no limits file has",
                    &self.domain_not_found,
                ),
            ]
            .map(|(name, help, counter)| {
                Family::single(name, help, Kind::Counter, counter.value())
            }),
        );
        families.push(self.answers.family());
        families.extend(
            [
                (
                    "undecided",
                    "Requests that the store could not decide, by cause",
                    "cause",
                    &self.undecided,
                ),
                ("shed", "Calls refused undecided under overload, by door", "door", &self.shed),
                (
                    "connections_refused",
                    "Connections refused above the maximum, by door",
                    "door",
                    &self.connections_refused,
                ),
                (
                    "connections_gave_way",
                    "Connections closed to make room for another client, by door",
                    "door",
                    &self.connections_gave_way,
                ),
            ]
            .map(|(name, help, label, family)| {
                let samples = family.samples(|value| labels([(label, value)]));
                Family::new(name, help, Kind::Counter, samples)
            }),
        );
        families.extend(self.config_families());
        let by_status = |(path, status): &(&'static str, u16)| -> Labels {
            labels([("path", path), ("status", &status.to_string())])
        };
        families.push(Family::new(
            "http_requests",
            "Requests answered at the HTTP door, by path and status",
            Kind::Counter,
            self.http_requests.samples(by_status),
        ));
        families
    }

    fn config_families(&self) -> [Family; 4] {
        let gauge = |gauge: &AtomicU64| Number::Whole(gauge.load(Ordering::Relaxed));
        [
            (
                "config_load_success",
                "Times that the limits were read and put in force",
                Kind::CommonCounter,
                self.limits_loaded.value(),
            ),
            (
                "config_load_error",
                "Times that the limits were read and had a mistake",
                Kind::CommonCounter,
                self.limits_failed.value(),
            ),
            (
                "config_current",
                "Whether the limits in force are those on disk: 1, or 0",
                Kind::LowestGauge,
                gauge(&self.limits_current),
            ),
            (
                "config_loaded_timestamp_seconds",
                "When the limits in force were read, in seconds since 1970",
                Kind::LowestGauge,
                gauge(&self.limits_loaded_at_secs),
            ),
        ]
        .map(|(name, help, kind, value)| Family::single(name, help, kind, value))
    }
}

impl Answers {
    fn family(&self) -> Family {
        let samples = [
            ("ok", &self.allowed),
            ("over_limit", &self.denied),
            ("returned", &self.returned),
            ("error", &self.refused),
        ]
        .map(|(code, counter)| (labels([("code", code)]), counter.value()));
        Family::new("answers", "Rate limit calls answered, by code", Kind::Counter, samples.into())
    }
}

impl Observer for Metrics {
    fn limits_replaced(&self, rules: &Rules) -> Box<dyn LimitObserver> {
        Box::new(self.rule_counters(rules))
    }

    fn answered(&self, verdict: Verdict) {
        match verdict {
            Verdict::Allow => self.answers.allowed.inc(),
            Verdict::Deny => self.answers.denied.inc(),
        };
    }

    fn shadowed(&self) {
        self.global_shadow_mode.inc();
    }

    fn domain_not_found(&self, descriptors: u64) {
        self.domain_not_found.inc_by(descriptors);
    }

    fn tokens_returned(&self) {
        self.answers.returned.inc();
    }

    fn refused(&self) {
        self.answers.refused.inc();
    }

    fn undecided(&self, error: &Undecided) {
        self.undecided.counter(&cause_of(error)).inc();
    }

    fn shed(&self, endpoint: &'static str) {
        self.shed.counter(&endpoint).inc();
    }

    fn connection_refused(&self, endpoint: &'static str) {
        self.connections_refused.counter(&endpoint).inc();
    }

    fn connection_gave_way(&self, endpoint: &'static str) {
        self.connections_gave_way.counter(&endpoint).inc();
    }

    fn http_answered(&self, path: &'static str, status: u16) {
        self.http_requests.counter(&(path, status)).inc();
    }

    fn limits_loaded(&self) {
        self.limits_loaded.inc();
        self.limits_current(true);
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.limits_loaded_at_secs.store(since_epoch.as_secs(), Ordering::Relaxed);
    }

    fn limits_failed(&self) {
        self.limits_failed.inc();
    }

    fn limits_current(&self, is_current: bool) {
        self.limits_current.store(is_current.into(), Ordering::Relaxed);
    }
}

/// The metrics of one process, or of it and the store. Clones share the metrics.
#[derive(Debug, Clone)]
pub struct Registry {
    metrics: Metrics,
    store: Arc<Cluster>,
    scope: Scope,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    Process,
    WithStore,
}

impl Registry {
    /// All values now. With the store this takes milliseconds, as it is scanned.
    pub fn snapshot(&self) -> Snapshot {
        let mut families = self.metrics.families();
        families.push(store::blocked_seconds(&self.store));
        if self.scope == Scope::WithStore {
            families.extend(store::families(&self.store));
        }
        Snapshot { families }
    }
}

/// The label for a cause.
fn cause_of(error: &Undecided) -> &'static str {
    let Undecided::Store(error) = error else { return "other" };
    match error {
        UpdateError::Busy { .. } => "busy",
        UpdateError::Crowded { .. } => "crowded",
        UpdateError::Full { .. } => "full",
        UpdateError::DataLoss => "lost",
        UpdateError::TooLarge { .. } => "too_much",
        _ => "other",
    }
}
