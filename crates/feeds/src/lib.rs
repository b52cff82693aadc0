//! Sources of limits. A [`Feed`] keeps the limits of an authority as they are in its source; today, in files.
//!
//! Owns the times of reloads and the log of changes. Knows no syntax of limits and decides nothing.

#![allow(missing_docs, reason = "used in this workspace alone; a good name is not explained again")]

mod files;

pub use files::{FileFeed, Settings, Watch};

use std::fs::File;
use std::pin::Pin;
use std::sync::Arc;
use tidegate_authority::Authority;

/// A source of limits.
pub trait Feed: Send + Sync {
    /// Requests a reload, as SIGHUP does.
    fn reload(&self);

    /// A copy of the limits in force, for a process that starts with them; none if the feed keeps none.
    fn copy(&self) -> Option<Arc<File>>;

    /// Keeps the limits of `authority` as they are in the source, until it is aborted.
    fn run(self: Arc<Self>, authority: Arc<Authority>) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}
