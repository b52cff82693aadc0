//! The counts of one process.

use crate::limits::Detailed;
use crate::store::{BlockedCollector, StoreCollector};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry as PrometheusRegistry;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate_authority::{LimitObserver, Observer};
use tidegate_core::Verdict;
use tidegate_limits::Rules;
use tidegate_store::{Cluster, UpdateError};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RuleLabel {
    pub(crate) rule: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AnswerLabel {
    code: &'static str,
}

/// The counts of answers, and a handle for each code: a look into the family would take a lock.
#[derive(Debug, Clone)]
struct Answers {
    family: Family<AnswerLabel, Counter>,
    allowed: Counter,
    denied: Counter,
    returned: Counter,
    refused: Counter,
}

impl Default for Answers {
    fn default() -> Self {
        let family = Family::<AnswerLabel, Counter>::default();
        let of = |code| family.get_or_create(&AnswerLabel { code }).clone();
        let (allowed, denied) = (of("ok"), of("over_limit"));
        let (returned, refused) = (of("returned"), of("error"));
        Answers { family, allowed, denied, returned, refused }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CauseLabel {
    cause: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DoorLabel {
    door: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HttpLabel {
    path: &'static str,
    status: u16,
}

/// The handles of all metrics; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    answers: Answers,
    undecided: Family<CauseLabel, Counter>,
    shed: Family<DoorLabel, Counter>,
    connections_refused: Family<DoorLabel, Counter>,
    connections_gave_way: Family<DoorLabel, Counter>,
    pub(crate) total_hits: Family<RuleLabel, Counter>,
    pub(crate) within_limit: Family<RuleLabel, Counter>,
    pub(crate) near_limit: Family<RuleLabel, Counter>,
    pub(crate) over_limit: Family<RuleLabel, Counter>,
    pub(crate) shadow_mode: Family<RuleLabel, Counter>,
    pub(crate) leases_granted: Family<RuleLabel, Counter>,
    pub(crate) leased_tokens: Family<RuleLabel, Counter>,
    pub(crate) returned_tokens: Family<RuleLabel, Counter>,
    global_shadow_mode: Counter,
    domain_not_found: Counter,
    http_requests: Family<HttpLabel, Counter>,
    limits_loaded: Counter,
    limits_failed: Counter,
    limits_current: Gauge,
    limits_loaded_at: Gauge,
    pub(crate) detailed: Arc<Mutex<Detailed>>,
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
        let label = RuleLabel { rule: path.to_owned() };
        let of = |family: &Family<RuleLabel, Counter>| family.get_or_create(&label).clone();
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

    /// The page of these metrics and of all that the store behind them counts, for all processes.
    pub fn with_store(&self, store: Arc<Cluster>) -> Registry {
        let mut registry = self.registry(store.clone());
        registry.register_collector(Box::new(StoreCollector(store)));
        Registry(Arc::new(registry))
    }

    /// The page of what this process counts itself.
    pub fn without_store(&self, store: Arc<Cluster>) -> Registry {
        Registry(Arc::new(self.registry(store)))
    }

    fn registry(&self, store: Arc<Cluster>) -> PrometheusRegistry {
        let mut registry = PrometheusRegistry::with_prefix("tidegate");
        let families = [
            ("total_hits", "Hits asked for, by rule", &self.total_hits),
            ("within_limit", "Hits that had room, by rule", &self.within_limit),
            (
                "near_limit",
                "Hits that had room in the last fifth of the limit, by rule",
                &self.near_limit,
            ),
            ("over_limit", "Hits that had no room, by rule", &self.over_limit),
            ("shadow_mode", "Hits that a shadow rule would have denied", &self.shadow_mode),
            ("leases_granted", "Leases of tokens given to proxies, by rule", &self.leases_granted),
            (
                "leased_tokens",
                "Tokens leased, beside the hits asked for, by rule",
                &self.leased_tokens,
            ),
            ("returned_tokens", "Leased tokens given back unused, by rule", &self.returned_tokens),
        ];
        for (name, help, family) in families {
            registry.register(name, help, family.clone());
        }
        let help = "Rate limit calls allowed only by the global shadow mode";
        registry.register("global_shadow_mode", help, self.global_shadow_mode.clone());
        let help = "Descriptors of a domain that no limits file has";
        registry.register("domain_not_found", help, self.domain_not_found.clone());
        registry.register(
            "answers",
            "Rate limit calls answered, by code",
            self.answers.family.clone(),
        );
        let help = "Requests that the store could not decide, by cause";
        registry.register("undecided", help, self.undecided.clone());
        let help = "Calls refused undecided under overload, by door";
        registry.register("shed", help, self.shed.clone());
        let help = "Connections refused beyond the most that there may be, by door";
        registry.register("connections_refused", help, self.connections_refused.clone());
        let help = "Connections that were closed since another client needed their place, by door";
        registry.register("connections_gave_way", help, self.connections_gave_way.clone());
        let help = "Times that the limits were read and put in force";
        registry.register("config_load_success", help, self.limits_loaded.clone());
        let help = "Times that the limits were read and had a mistake";
        registry.register("config_load_error", help, self.limits_failed.clone());
        let help = "Whether the limits in force are those on disk: 1, or 0";
        registry.register("config_current", help, self.limits_current.clone());
        let help = "When the limits in force were read, in seconds since 1970";
        registry.register("config_loaded_timestamp_seconds", help, self.limits_loaded_at.clone());
        let help = "Requests answered at the HTTP door, by path and status";
        registry.register("http_requests", help, self.http_requests.clone());
        registry.register_collector(Box::new(BlockedCollector(store)));
        registry
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

    fn undecided(&self, error: &UpdateError) {
        self.undecided.get_or_create(&CauseLabel { cause: cause_of(error) }).inc();
    }

    fn shed(&self, endpoint: &'static str) {
        self.shed.get_or_create(&DoorLabel { door: endpoint }).inc();
    }

    fn connection_refused(&self, endpoint: &'static str) {
        self.connections_refused.get_or_create(&DoorLabel { door: endpoint }).inc();
    }

    fn connection_gave_way(&self, endpoint: &'static str) {
        self.connections_gave_way.get_or_create(&DoorLabel { door: endpoint }).inc();
    }

    fn http_answered(&self, path: &'static str, status: u16) {
        self.http_requests.get_or_create(&HttpLabel { path, status }).inc();
    }

    fn limits_loaded(&self) {
        self.limits_loaded.inc();
        self.limits_current.set(1);
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.limits_loaded_at.set(i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX));
    }

    fn limits_failed(&self) {
        self.limits_failed.inc();
    }

    fn limits_current(&self, is_current: bool) {
        self.limits_current.set(i64::from(is_current));
    }
}

/// The metrics that one process puts on its page. Clones are of the same metrics.
#[derive(Debug, Clone)]
pub struct Registry(Arc<PrometheusRegistry>);

impl Registry {
    /// The page as it is now. Looks through the store, if that is in it, which may take milliseconds.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.0);
        text
    }
}

/// What is counted of an error of the store.
fn cause_of(error: &UpdateError) -> &'static str {
    match error {
        UpdateError::Busy { .. } => "busy",
        UpdateError::Crowded { .. } => "crowded",
        UpdateError::Full { .. } => "full",
        UpdateError::DataLoss => "lost",
        UpdateError::TooLarge { .. } => "too_much",
        _ => "other",
    }
}
