//! Who is limited now: the hottest and the most denied descriptors, by name.
//!
//! [`Recorder`] is the observer. It keeps, of each rule and of the descriptors of each domain that met no rule, a
//! sketch of its heavy hitters (`sketch`), with rates that decay. [`Summary`] is what a process knows at one moment;
//! summaries of several processes merge. [`respond`] answers questions. [`Decision`]s are for those who watch single ones.
//!
//! Clients choose the values of descriptors, so everything is bounded in bytes, whatever they choose, and nothing is
//! kept for longer than the decay lets it count. Knows no server, and nothing of the past: that is what statistics are
//! for.

#![allow(missing_docs, reason = "used in this workspace alone; a good name is not explained again")]

mod decisions;
mod groups;
mod name;
mod recorder;
pub mod respond;
mod sampler;
mod sketch;
mod summary;

pub use decisions::{Decision, Filter, Verdict};
pub use recorder::Recorder;
pub use summary::{GroupSummary, MetKind, Rates, Row, Summary};

/// Hits count for this long, on average: each counts e times less after every such time. A constant rate of R hits a
/// second has a sum of R times this, so the sum divided by it is the rate.
pub const DECAY_SECONDS: f64 = 10.0;
