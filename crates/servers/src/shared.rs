//! What the endpoints of a process share.

use crate::health::Health;
use crate::overload::Overload;
use crate::replies::Replies;
use std::sync::Arc;
use tidegate_authority::{Authority, Observer};
use tidegate_traces::Tracer;

/// The authority that endpoints ask, and what their answers depend on; clones share everything.
#[derive(Clone)]
pub struct Shared {
    pub authority: Arc<Authority>,
    pub observer: Arc<dyn Observer>,
    pub replies: Arc<Replies>,
    pub health: Health,
    pub overload: Arc<Overload>,
    /// None unless spans of calls are exported.
    pub tracer: Option<Tracer>,
}
