//! Metrics of an authority and its servers.
//!
//! Owns the names of metrics, the counts of one process, their sum over several processes, and the OpenMetrics
//! text. Labels come from configuration only, so their number is bounded; the exception, rules with
//! `value_to_metric` or `detailed_metric`, has a bound of its own. Refuses to know the server of the page.

#![allow(missing_docs, reason = "used in this workspace alone; a good name is not explained again")]

mod cold;
mod counter;
mod metrics;
mod process;
mod prometheus;
mod rule_counters;
mod rule_use;
mod shared;
mod snapshot;
mod spans;
mod statistics;
mod store;
mod times;

pub use cold::{ColdCounts, cold_help};
pub use metrics::{Metrics, MoreCounts};
pub use rule_use::{RuleHits, RuleUse};
pub use shared::SharedCounts;
pub use snapshot::{Label, Snapshot};
pub use spans::SpanCounts;
pub use statistics::StatisticsCounts;
pub use store::store_help;
