//! Counts that the store keeps itself, read when a page is asked for.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;
use std::sync::Arc;
use tidegate_store::{Class, Cluster, Occupancy};

/// Reads how long threads of this process have waited for others, when asked.
pub(crate) struct BlockedCollector(pub(crate) Arc<Cluster>);

impl fmt::Debug for BlockedCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BlockedCollector")
    }
}

impl Collector for BlockedCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let counter = ConstCounter::new(self.0.blocked_time().as_secs_f64());
        let help = "Time that threads waited for locks of other threads and processes";
        let kind = counter.metric_type();
        counter.encode(encoder.encode_descriptor("blocked_seconds", help, None, kind)?)
    }
}

/// Reads the store's own counts when asked.
pub(crate) struct StoreCollector(pub(crate) Arc<Cluster>);

impl fmt::Debug for StoreCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreCollector")
    }
}

impl Collector for StoreCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let store = &*self.0;
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
        gauge(tidegate_data_dir::ahead(store)).encode(ahead)?;
        let stuck = gauge(tidegate_data_dir::stuck(store).len() as u64);
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
pub fn store_help(name: &str) -> &'static str {
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
