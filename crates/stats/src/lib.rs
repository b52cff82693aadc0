//! Metrics of an authority and its servers.
//!
//! Owns the names of metrics, the counts of one process, their sum over several processes, and the OpenMetrics
//! text. Labels come from configuration only, so their number is bounded; the exception, rules with
//! `value_to_metric` or `detailed_metric`, has a bound of its own. Refuses to know the server of the page.

#![allow(missing_docs, reason = "used in this workspace alone; a good name is not explained again")]

mod counter;
mod metrics;
mod rule_counters;
mod shared;
mod snapshot;
mod store;

pub use metrics::Metrics;
pub use shared::SharedCounts;
pub use snapshot::Snapshot;
pub use store::store_help;
