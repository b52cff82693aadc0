//! Statistics: outcomes of requests by the values of their descriptors, over years.
//!
//! Owns the way of a count from a decision to an answer: aggregation in memory (`aggregator`, `declared`), what
//! crosses processes and outages (`batch`, `backlog`), the SQL database (`database`) with its writer (`writer`), and
//! queries. Decides nothing, and delays no decision: whatever happens to the database, recording is a short lock
//! in memory, and what cannot be kept is counted.
//!
//! What a service does with it: in each process that decides, a [`Recorder`] hears the sums of `tidegate_recent`. Every
//! [`SLOT_SECONDS`] the process takes a [`Batch`] of it, and adds that to a [`writer::Writer`] of its own. Several write to
//! one database.
//!
//! ```
//! # use std::time::Duration;
//! # use tidegate_statistics::{Aggregator, Bounds, Counts, Declared, database, respond, writer};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let directory = tempfile::tempdir()?;
//! let limits = directory.path().join("shop.yaml");
//! std::fs::write(&limits, "domain: shop\nstatistics: [{ name: app-calls, by: [app] }]\n")?;
//! let loaded = tidegate_limits::load(&limits, tidegate_limits::SameDomain::Refuse)?;
//!
//! // What became of a descriptor, and the batch of a slot.
//! let declared = Declared::of(&loaded.rules);
//! let aggregator = Aggregator::new(Bounds::default());
//! let counts = Counts { allowed: 1, denied: 0, hits: 1 };
//! declared.record(&aggregator, "shop", &[("app", "web")].into_iter(), counts);
//! let now = 1_795_600_800;
//! let settings = database::Settings::sqlite(&directory.path().join("statistics.db"));
//! let writer = writer::Writer::start(settings.clone(), writer::BACKLOG_BYTES_MAX)?;
//! writer.add(aggregator.take(now));
//! writer.finish(Duration::from_secs(60)).await;
//!
//! // `GET /v1/statistics/app-calls?app=web&last=1h`
//! let database = database::Database::open(settings).await?;
//! let question = ("app-calls", "app=web&last=1h");
//! let answer = respond::respond(&declared, Some(&database), question, now.cast_signed()).await;
//! assert_eq!((answer.status, &answer.body["series"][0]["total"]["allowed"]), (200, &1.into()));
//! # Ok(())
//! # }
//! ```

#![allow(missing_docs, reason = "used in this workspace alone; a good name is not explained again")]

mod aggregator;
mod backlog;
mod batch;
pub mod database;
mod declared;
mod label;
pub mod query;
mod recorder;
pub mod render;
pub mod respond;
pub mod retention;
mod series;
mod sketch;
mod sums;
#[cfg(test)]
mod testing;
pub mod writer;

pub use aggregator::{Aggregator, Bounds};
pub use batch::Batch;
pub use declared::Declared;
pub use label::{label, labelled};
pub use recorder::Recorder;
pub use series::{Counts, Series};
pub use sketch::{Sketch, SketchError};

/// How long counts are in memory before they are written.
pub const SLOT_SECONDS: u64 = 15;
/// The finest width of points: batches of a minute add up in one.
pub const MINUTE: u64 = 60;
