//! Spans of calls for OpenTelemetry.
//!
//! Owns the trace that a call belongs to (`context`), the choice among calls (`sampler`), what a span holds (`span`), and
//! the export by OTLP: a bounded queue, and a thread of its own that sends what is in it (`queue`, `export`, `otlp`).
//! [`Settings`] come from the variables that OpenTelemetry specifies. A call waits for none of this: a span for which the
//! queue has no room is dropped and counted. Refuses to know the servers of the calls.

#![allow(missing_docs, reason = "used in this workspace alone; a good name is not explained again")]

mod connect;
mod context;
mod export;
mod otlp;
mod queue;
mod random;
mod sampler;
mod settings;
mod span;
mod tracer;

pub use queue::SpanCounts;
pub use sampler::Sampler;
pub use settings::{Flags, Protocol, Settings, pairs};
pub use span::{Door, Ended, Span};
pub use tracer::Tracer;
