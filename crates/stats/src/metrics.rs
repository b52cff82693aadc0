//! The counts of one process.

use crate::counter::{Counter, CounterFamily};
use crate::rule_counters::RuleMetrics;
use crate::shared::{SharedCounts, SharedMetrics};
use crate::snapshot::{Family, Kind, Number, Snapshot, labels};
use crate::store;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate_authority::{Failure, LimitObserver, Observer, Undecided};
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

/// By a label whose values are fixed in the code.
type FixedFamily = CounterFamily<&'static str>;

/// The handles of all metrics; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    rules: RuleMetrics,
    answers: Answers,
    shared: SharedMetrics,
    global_shadow_mode: Counter,
    domain_not_found: Counter,
    undecided: FixedFamily,
    shed: FixedFamily,
    connections_refused: FixedFamily,
    connections_gave_way: FixedFamily,
    /// By path and status.
    http_requests: CounterFamily<(&'static str, u16)>,
    limits_loaded: Counter,
    limits_failed: Counter,
    limits_current: Arc<AtomicU64>,
    limits_loaded_at_secs: Arc<AtomicU64>,
}

impl Metrics {
    /// All values of this process now. `shared` is of the engine of shared counters, if there is one.
    pub fn snapshot(&self, store: &Cluster, shared: Option<SharedCounts>) -> Snapshot {
        let mut families: Vec<Family> = self.rules.families().into();
        families.extend(self.call_families());
        families.extend(self.refusal_families());
        families.extend(self.config_families());
        families.push(self.http_family());
        families.push(store::blocked_seconds(store));
        families.extend(shared.iter().flat_map(|counts| self.shared.families(counts)));
        Snapshot { families }
    }

    /// All values of this process now, and the counts that the store keeps for all processes. Takes milliseconds,
    /// as the store is scanned.
    pub fn snapshot_with_store(&self, store: &Cluster, shared: Option<SharedCounts>) -> Snapshot {
        let mut snapshot = self.snapshot(store, shared);
        snapshot.families.extend(store::families(store));
        snapshot
    }

    fn call_families(&self) -> [Family; 3] {
        let shadowed = "Rate limit calls allowed only by the global shadow mode";
        let unknown = "Descriptors of a domain that no limits file has";
        let single = |name, help, counter: &Counter| {
            Family::single(name, help, Kind::Counter, counter.value())
        };
        [
            single("global_shadow_mode", shadowed, &self.global_shadow_mode),
            single("domain_not_found", unknown, &self.domain_not_found),
            self.answers.family(),
        ]
    }

    fn refusal_families(&self) -> [Family; 4] {
        let undecided = "Requests that the store could not decide, by cause";
        let shed = "Calls refused undecided under overload, by endpoint";
        let refused = "Connections refused above the maximum, by endpoint";
        let gave_way = "Connections closed to make room for another client, by endpoint";
        [
            ("undecided", undecided, "cause", &self.undecided),
            ("shed", shed, "door", &self.shed),
            ("connections_refused", refused, "door", &self.connections_refused),
            ("connections_gave_way", gave_way, "door", &self.connections_gave_way),
        ]
        .map(|(name, help, label, family)| {
            let samples = family.samples(|value| labels([(label, value)]));
            Family::new(name, help, Kind::Counter, samples)
        })
    }

    fn http_family(&self) -> Family {
        let help = "Requests answered over HTTP, by path and status";
        let samples = self
            .http_requests
            .samples(|(path, status)| labels([("path", path), ("status", &status.to_string())]));
        Family::new("http_requests", help, Kind::Counter, samples)
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
        Box::new(self.rules.counters_of(rules))
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

    fn refilled(&self, tokens: u64) {
        self.shared.refills.inc();
        self.shared.taken.inc_by(tokens);
    }

    fn gave_back(&self, tokens: u64) {
        self.shared.returned.inc_by(tokens);
    }

    fn shared_failed(&self, _error: &Undecided) {
        self.shared.failed.inc();
    }

    fn decided_without(&self, failure: Failure) {
        self.shared.decided_without(failure);
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

/// The label for a cause.
fn cause_of(error: &Undecided) -> &'static str {
    let error = match error {
        Undecided::Store(error) => error,
        Undecided::Unreachable { .. } => return "unreachable",
        _ => return "other",
    };
    match error {
        UpdateError::Busy { .. } => "busy",
        UpdateError::Crowded { .. } => "crowded",
        UpdateError::Full { .. } => "full",
        UpdateError::DataLoss => "lost",
        UpdateError::TooLarge { .. } => "too_much",
        _ => "other",
    }
}
