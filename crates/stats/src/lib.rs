//! Metrics: what an authority and its servers report, as OpenMetrics pages.
//!
//! Owns the names of metrics, the counts of one process, and the sum over several processes. Labels come from
//! configuration only, so their number is bounded. The one exception is asked for by rules with
//! `value_to_metric` or `detailed_metric`, and has a bound of its own. Refuses to know who serves the page.

#![allow(missing_docs, reason = "used in this workspace alone; a good name is not explained again")]

mod limits;
mod metrics;
mod store;
mod sum;

pub use metrics::{Metrics, Registry};
pub use store::store_help;
pub use sum::Page;
