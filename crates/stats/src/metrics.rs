//! The counts of one process.

use crate::cold::{self, ColdCounts};
use crate::counter::{Counter, CounterFamily};
use crate::process;
use crate::rule_counters::RuleMetrics;
use crate::rule_use::RuleUse;
use crate::shared::{SharedCounts, SharedMetrics};
use crate::snapshot::{Family, Kind, Number, Samples, Snapshot, labels};
use crate::spans::{self, SpanCounts};
use crate::statistics::{self, StatisticsCounts};
use crate::store;
use crate::times::Times;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
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

/// What others have counted.
#[derive(Debug, Clone, Copy, Default)]
pub struct MoreCounts {
    /// Of the engine of shared counters, if there is one.
    pub shared: Option<SharedCounts>,
    /// None if counters stay in memory.
    pub cold: Option<ColdCounts>,
    /// None if no statistics are kept.
    pub statistics: Option<StatisticsCounts>,
    /// None if no traces are exported.
    pub spans: Option<SpanCounts>,
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
    connections_accepted: FixedFamily,
    connections_closed: FixedFamily,
    connections_refused: FixedFamily,
    connections_gave_way: FixedFamily,
    tls_failures: FixedFamily,
    worker_restarts: Counter,
    /// By path and status.
    http_requests: CounterFamily<(&'static str, u16)>,
    times: Times,
    limits_loaded: Counter,
    limits_failed: Counter,
    limits_current: Arc<AtomicU64>,
    limits_loaded_at_secs: Arc<AtomicU64>,
}

impl Metrics {
    /// All values of this process now.
    pub fn snapshot(&self, store: &Cluster, more: MoreCounts) -> Snapshot {
        let mut families = self.rules.families();
        families.extend(self.call_families());
        families.extend(self.refusal_families());
        families.extend(self.config_families());
        families.extend(self.times.families());
        families.push(self.connections());
        families.push(self.http_family());
        families.extend([process::build_info(), clock_steps()]);
        families.extend(process::families());
        families.push(store::blocked_seconds(store));
        families.extend(more.shared.iter().flat_map(|counts| self.shared.families(counts)));
        families.extend(more.cold.iter().flat_map(cold::families));
        families.extend(more.statistics.iter().flat_map(statistics::families));
        families.extend(more.spans.iter().flat_map(spans::families));
        Snapshot { families }
    }

    /// All values of this process now, and the counts that the store keeps for all processes. Takes milliseconds,
    /// as the store is scanned.
    pub fn snapshot_with_store(&self, store: &Cluster, more: MoreCounts) -> Snapshot {
        let mut snapshot = self.snapshot(store, more);
        snapshot.families.extend(store::families(store));
        snapshot
    }

    /// The supervisor started a worker again that had ended.
    pub fn worker_restarted(&self) {
        self.worker_restarts.inc();
    }

    /// The values of this process now that are few, however many rules there are.
    pub fn brief(&self, more: MoreCounts) -> Snapshot {
        let mut families = self.rules.families_of_domains();
        families.extend(self.call_families());
        families.extend(self.refusal_families());
        families.extend(more.shared.iter().flat_map(|counts| self.shared.families(counts)));
        families.extend(more.cold.iter().flat_map(cold::families));
        families.extend(more.statistics.iter().flat_map(statistics::families));
        families.extend(more.spans.iter().flat_map(spans::families));
        Snapshot { families }
    }

    /// The same, and the counts that the store keeps for all processes.
    pub fn brief_with_store(&self, store: &Cluster, more: MoreCounts) -> Snapshot {
        let mut snapshot = self.brief(more);
        snapshot.families.extend(store::families(store));
        snapshot
    }

    /// The use of each rule and limit that was met.
    pub fn rule_use(&self) -> RuleUse {
        self.rules.rule_use()
    }

    fn call_families(&self) -> [Family; 4] {
        let shadowed = "Rate limit calls allowed only by the global shadow mode";
        let unknown = "Descriptors of a domain that no limits file has";
        let restarted = "Workers that ended and were started again";
        let single = |name, help, counter: &Counter| {
            Family::single(name, help, Kind::Counter, counter.value())
        };
        [
            single("global_shadow_mode", shadowed, &self.global_shadow_mode),
            single("domain_not_found", unknown, &self.domain_not_found),
            single("worker_restarts", restarted, &self.worker_restarts),
            self.answers.family(),
        ]
    }

    /// The open ones are those that were accepted and not closed.
    fn connections(&self) -> Family {
        let open = |endpoint: &&'static str| {
            let closed = self.connections_closed.counter(endpoint).value();
            let accepted = self.connections_accepted.counter(endpoint).value();
            Number::Whole((accepted.real() - closed.real()).max(0.0) as u64)
        };
        let mut samples = Samples::new();
        for endpoint in self.connections_accepted.keys() {
            samples.insert(labels([("door", endpoint)]), open(&endpoint));
        }
        Family::new("connections", "Connections that are open, by endpoint", Kind::Gauge, samples)
    }

    fn refusal_families(&self) -> [Family; 6] {
        let undecided = "Requests that the store could not decide, by cause";
        let shed = "Calls refused undecided under overload, by endpoint";
        let refused = "Connections refused above the maximum, by endpoint";
        let accepted = "Connections accepted, by endpoint";
        let tls = "TLS handshakes that failed, by cause";
        let gave_way = "Connections closed to make room for another client, by endpoint";
        [
            ("undecided", undecided, "cause", &self.undecided),
            ("shed", shed, "door", &self.shed),
            ("connections_accepted", accepted, "door", &self.connections_accepted),
            ("tls_failures", tls, "cause", &self.tls_failures),
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

    fn answered_within(&self, endpoint: &'static str, calls: u64, time: Duration) {
        self.times.note(endpoint, calls, time);
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

    fn connection_opened(&self, endpoint: &'static str) {
        self.connections_accepted.counter(&endpoint).inc();
    }

    fn connection_closed(&self, endpoint: &'static str) {
        self.connections_closed.counter(&endpoint).inc();
    }

    fn tls_failed(&self, cause: &'static str) {
        self.tls_failures.counter(&cause).inc();
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

/// All processes of a machine see the same ones.
fn clock_steps() -> Family {
    let steps = tidegate_data_dir::clock_steps();
    let sample = |direction, count| (labels([("direction", direction)]), Number::Whole(count));
    let samples = [sample("ahead", steps.ahead), sample("back", steps.back)].into();
    let help = "Times that the system clock was set by a second or more, by direction";
    Family::new("clock_steps", help, Kind::CommonCounter, samples)
}

/// The label for a cause.
fn cause_of(error: &Undecided) -> &'static str {
    let error = match error {
        Undecided::Store(error) => error,
        Undecided::Unreachable { .. } => return "unreachable",
        Undecided::LimitsAwaited => return "limits_awaited",
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
