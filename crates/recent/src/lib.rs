//! What became of descriptors lately: the hits of each are summed up before anybody hears of them.
//!
//! A descriptor that comes again costs one look into a table of its thread and a few additions, however many want to
//! know. [`Recent`] is the observer; a [`Sink`] hears a [`Sum`] at latest after a second of traffic, or when it asks. Sums
//! are exact: what leaves a table for lack of room is passed on before.
//!
//! Clients choose what comes, so tables are bounded in bytes, and a descriptor that is never seen again costs a constant
//! number of steps. Knows neither what is done with sums, nor any server.

#![allow(missing_docs, reason = "used in this workspace alone; a good name is not explained again")]

mod recorder;
mod sum;
mod table;

pub use recorder::{Recent, Sink, Sinks, now_ms};
pub use sum::{Hits, Last, Pairs, Sum};
