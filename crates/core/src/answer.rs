//! What comes back for a request, in no transport's words.

use crate::lease::Lease;
use crate::metadata::Value;
use crate::units::{Nanos, Unit};

/// Whether a request may pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It may.
    Allow,
    /// It is over a limit.
    Deny,
}

/// The answer to a [`Request`](crate::Request): one status per descriptor, in its order.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// For the request as a whole.
    pub verdict: Verdict,
    /// For each descriptor.
    pub statuses: Vec<Status>,
    /// What the rules that were met say to pass on (`dynamic_metadata`), none unless asked for.
    pub metadata: Option<Value>,
}

/// How one descriptor stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Whether this descriptor has room.
    pub verdict: Verdict,
    /// The limit that applies, none when the descriptor meets no limit.
    pub limit: Option<LimitView>,
    /// Hits left under that limit.
    pub remaining: u32,
    /// Time until the quota is back, or until a denied ask may succeed.
    pub reset: Nanos,
    /// What the client may go by without asking again, none unless it understands leases.
    pub lease: Option<Lease>,
}

impl Status {
    /// A descriptor that meets no limit.
    pub const NO_LIMIT: Status = Status {
        verdict: Verdict::Allow,
        limit: None,
        remaining: 0,
        reset: Nanos::ZERO,
        lease: None,
    };

    /// A descriptor that is configured as unlimited.
    pub const UNLIMITED: Status = Status {
        verdict: Verdict::Allow,
        limit: None,
        remaining: u32::MAX,
        reset: Nanos::ZERO,
        lease: None,
    };
}

/// A limit as clients are told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitView {
    /// Hits per unit.
    pub requests: u32,
    /// The unit, none when the period is not one of the named units.
    pub unit: Option<Unit>,
    /// The configured name, empty when it has none.
    pub name: String,
}
