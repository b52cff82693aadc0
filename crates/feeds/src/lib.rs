//! Where limits come from. A [`Feed`] keeps the limits of an authority as its source has them; files today.
//!
//! Owns when a source is read and what is logged of changes. Refuses to read the syntax of limits and to decide.

#![allow(missing_docs, reason = "used in this workspace alone; a good name is not explained again")]

mod files;

pub use files::{FileFeed, Settings, Watch};

use std::fs::File;
use std::pin::Pin;
use std::sync::Arc;
use tidegate_authority::Authority;

/// A source of limits.
pub trait Feed: Send + Sync {
    /// Asks for the limits to be read again, as on SIGHUP.
    fn reload(&self);

    /// The limits in force, for another process that starts with them; none if the feed keeps no such copy.
    fn handout(&self) -> Option<Arc<File>>;

    /// Keeps the limits of `authority` as the source has them, until it is aborted.
    fn run(self: Arc<Self>, authority: Arc<Authority>) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}
