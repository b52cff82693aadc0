//! What `/metrics` says, in the OpenMetrics text format.
//!
//! Labels come from configuration only, so their number is bounded. The one exception is asked for
//! by rules with `value_to_metric` or `detailed_metric`, and has a bound of its own.

mod rule_counters;
mod sum;

pub(crate) use rule_counters::{RuleCounters, Shadow};
pub(crate) use sum::Page;

use crate::engine::Engine;
use crate::keeper;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use rule_counters::Detailed;
use std::fmt;
use std::sync::{Arc, Mutex};
use tidegate_core::Verdict;
use tidegate_store::{Class, Occupancy, UpdateError};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RuleLabel {
    rule: String,
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

/// The handles of all metrics; clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Metrics {
    answers: Answers,
    undecided: Family<CauseLabel, Counter>,
    shed: Family<DoorLabel, Counter>,
    connections_refused: Family<DoorLabel, Counter>,
    connections_gave_way: Family<DoorLabel, Counter>,
    total_hits: Family<RuleLabel, Counter>,
    within_limit: Family<RuleLabel, Counter>,
    near_limit: Family<RuleLabel, Counter>,
    over_limit: Family<RuleLabel, Counter>,
    shadow_mode: Family<RuleLabel, Counter>,
    leases_granted: Family<RuleLabel, Counter>,
    leased_tokens: Family<RuleLabel, Counter>,
    returned_tokens: Family<RuleLabel, Counter>,
    global_shadow_mode: Counter,
    domain_not_found: Counter,
    detailed: Arc<Mutex<Detailed>>,
}

/// The handles of one limit, so that a decision looks nothing up by label.
#[derive(Debug)]
pub(crate) struct LimitCounters {
    total_hits: Counter,
    within_limit: Counter,
    near_limit: Counter,
    over_limit: Counter,
    shadow_mode: Counter,
    leases_granted: Counter,
    leased_tokens: Counter,
    returned_tokens: Counter,
}

impl Metrics {
    fn limit_counters(&self, path: &str) -> LimitCounters {
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

    pub(crate) fn answered(&self, verdict: Verdict) {
        match verdict {
            Verdict::Allow => self.answers.allowed.inc(),
            Verdict::Deny => self.answers.denied.inc(),
        };
    }

    /// Counts an answer that only the global shadow mode turned into an allow.
    pub(crate) fn shadowed(&self) {
        self.global_shadow_mode.inc();
    }

    /// Counts descriptors of a domain that no limits file has.
    pub(crate) fn missed_domain(&self, descriptors: u64) {
        self.domain_not_found.inc_by(descriptors);
    }

    #[cfg(test)]
    pub(crate) fn missed_domains(&self) -> u64 {
        self.domain_not_found.get()
    }

    /// Counts an answer to a return of tokens.
    pub(crate) fn took_back(&self) {
        self.answers.returned.inc();
    }

    pub(crate) fn refused(&self) {
        self.answers.refused.inc();
    }

    /// Counts a request that the store could not decide.
    pub(crate) fn undecided(&self, error: &UpdateError) {
        self.undecided.get_or_create(&CauseLabel { cause: cause_of(error) }).inc();
    }

    /// Counts a call that was refused since there are more than can be decided in time.
    pub(crate) fn shed(&self, door: &'static str) {
        self.shed.get_or_create(&DoorLabel { door }).inc();
    }

    /// Counts a connection that was closed since there are as many as there may be.
    pub(crate) fn refused_connection(&self, door: &'static str) {
        self.connections_refused.get_or_create(&DoorLabel { door }).inc();
    }

    /// Counts connections that were closed since another client needed their place.
    pub(crate) fn gave_way(&self, door: &'static str) -> Counter {
        self.connections_gave_way.get_or_create(&DoorLabel { door }).clone()
    }

    /// A registry of these metrics and of the store behind `engine`.
    pub(crate) fn registry(&self, engine: Arc<Engine>) -> Registry {
        let mut registry = self.registry_without_store();
        registry.register_collector(Box::new(StoreCollector(engine)));
        registry
    }

    /// A registry of what this process counts itself. What the store counts is of all processes.
    pub(crate) fn registry_without_store(&self) -> Registry {
        let mut registry = Registry::with_prefix("tidegate");
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
        registry
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

/// Reads how long threads of this process have waited for others, when asked.
pub(crate) struct BlockedCollector(pub(crate) Arc<Engine>);

impl fmt::Debug for BlockedCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BlockedCollector")
    }
}

impl Collector for BlockedCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let counter = ConstCounter::new(self.0.store().blocked_time().as_secs_f64());
        let help = "Time that threads waited for locks of other threads and processes";
        let kind = counter.metric_type();
        counter.encode(encoder.encode_descriptor("blocked_seconds", help, None, kind)?)
    }
}

/// The page of a registry. Looks through the store, if that is in it, which may take milliseconds.
pub(crate) async fn page(registry: Arc<Registry>) -> anyhow::Result<String> {
    let encoded = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).map(|()| text)
    });
    Ok(encoded.await??)
}

/// Reads the store's own counts when asked.
struct StoreCollector(Arc<Engine>);

impl fmt::Debug for StoreCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreCollector")
    }
}

impl Collector for StoreCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let store = self.0.store();
        for (name, value) in store.stats().named() {
            let counter = ConstCounter::new(value);
            let name = format!("store_{name}");
            let help = store_help(&name);
            counter.encode(encoder.encode_descriptor(
                &name,
                help,
                None,
                counter.metric_type(),
            )?)?;
        }
        let help = "Seconds that the system clock is ahead of time known to have passed; 0 while it is trusted";
        let ahead =
            encoder.encode_descriptor("clock_ahead_seconds", help, None, MetricType::Gauge)?;
        gauge(keeper::ahead(store)).encode(ahead)?;
        let stuck = gauge(keeper::stuck(&self.0).len() as u64);
        let help = "Processes that hold locks of counters and do not move";
        let kind = stuck.metric_type();
        stuck.encode(encoder.encode_descriptor("store_stuck_processes", help, None, kind)?)?;
        let unsaved = gauge(store.unsaved_for().as_secs());
        let help = "Seconds since the last snapshot was complete, or since the start";
        let kind = unsaved.metric_type();
        unsaved.encode(encoder.encode_descriptor("store_unsaved_seconds", help, None, kind)?)?;
        let occupancies: Vec<_> = Class::ALL
            .into_iter()
            .filter_map(|class| Some((class.name(), store.occupancy(class)?)))
            .collect();
        let mut gauges = |name, help, of: &dyn Fn(&Occupancy) -> u64| {
            let mut descriptor = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            occupancies.iter().try_for_each(|(class, occupancy)| {
                let labels = [("class", *class)];
                gauge(of(occupancy)).encode(descriptor.encode_family(&labels)?)
            })
        };
        gauges("store_nodes", "Nodes that there are", &|occupancy| occupancy.nodes)?;
        gauges("store_occupied", "Nodes with a counter, live or expired", &|occupancy| {
            occupancy.occupied
        })?;
        let help = "Key-nodes by how many of their nodes have a counter, of those looked at";
        let mut descriptor =
            encoder.encode_descriptor("store_chains", help, None, MetricType::Gauge)?;
        for (class, occupancy) in &occupancies {
            for (length, count) in occupancy.chains.iter().enumerate() {
                let length = length.to_string();
                let labels = [("class", *class), ("length", length.as_str())];
                gauge(*count).encode(descriptor.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

fn gauge(value: u64) -> ConstGauge {
    ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX))
}

/// What a count of the store means; all of them are since the data directory was made, by all
/// processes together.
pub(crate) fn store_help(name: &str) -> &'static str {
    match name {
        "store_updates" => "Counters written",
        "store_created" => "Counters created",
        "store_evicted_expired" => "Expired counters whose node was taken back",
        "store_evicted_live" => "Live counters that gave way to new ones",
        "store_erased" => "Counters erased",
        "store_refused" => "Updates refused for want of a node",
        "store_dropped_torn" => "Nodes dropped on open since they were torn or damaged",
        "store_dropped_foreign" => {
            "Nodes dropped on open since they did not belong where they were"
        }
        "store_dropped_duplicate" => "Nodes dropped on open since their key had another",
        "store_recovered" => "Killed threads that were cleaned up after",
        "store_completed" => "Updates of killed threads that were completed",
        _ => "A count of the store",
    }
}
