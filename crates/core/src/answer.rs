//! The answer to a request, independent of any transport.

use crate::lease::Lease;
use crate::metadata::Value;
use crate::units::{Nanos, Unit};

/// Whether a request may pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The request may pass.
    Allow,
    /// The request is over a limit.
    Deny,
}

/// The answer to a [`Request`](crate::Request): one status per descriptor, in its order.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The verdict on the whole request.
    pub verdict: Verdict,
    /// One for each descriptor.
    pub statuses: Vec<Status>,
    /// Metadata of the rules that applied, if asked for (`dynamic_metadata`).
    pub metadata: Option<Value>,
}

/// The result for one descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Whether this descriptor has room.
    pub verdict: Verdict,
    /// The limit that applies; none if the descriptor meets no limit.
    pub limit: Option<LimitView>,
    /// Hits left under that limit.
    pub remaining: u32,
    /// Time until the counter is full again, or until a denied request may succeed.
    pub reset: Nanos,
    /// Tokens to spend without a further call; none unless the client supports leases.
    pub lease: Option<Lease>,
    /// None unless the client supports leases and the descriptor meets several limits, or one in shadow that
    /// has no room, or is a debit that was not counted.
    pub details: Option<Box<StatusDetails>>,
}

/// A part of a [`Status`] that Envoy's protocol has no field for. Few statuses have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusDetails {
    /// The limits that the descriptor meets besides [`Status::limit`], the tightest first; at most
    /// [`StatusDetails::FURTHER_MAX`].
    pub further: Vec<FurtherLimit>,
    /// The verdict on the descriptor if no rule were in shadow.
    pub without_shadow: Verdict,
    /// It is a debit that was not counted, although others of its call were.
    pub is_uncounted: bool,
}

impl StatusDetails {
    /// So a status has up to four limits. Each takes room beside every lease of the descriptor.
    pub const FURTHER_MAX: usize = 3;
}

/// One more limit that a descriptor meets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FurtherLimit {
    /// The limit.
    pub limit: LimitView,
    /// Hits left under it.
    pub remaining: u32,
    /// As [`Status::reset`].
    pub reset: Nanos,
    /// Whether this limit has room.
    pub verdict: Verdict,
}

impl Status {
    /// A descriptor that meets no limit.
    pub const NO_LIMIT: Status = Status {
        verdict: Verdict::Allow,
        limit: None,
        remaining: 0,
        reset: Nanos::ZERO,
        lease: None,
        details: None,
    };

    /// A descriptor that is configured as unlimited.
    pub const UNLIMITED: Status = Status {
        verdict: Verdict::Allow,
        limit: None,
        remaining: u32::MAX,
        reset: Nanos::ZERO,
        lease: None,
        details: None,
    };

    /// A debit that was not counted, although others of its call were.
    #[must_use]
    pub fn uncounted() -> Status {
        let (further, without_shadow) = (Vec::new(), Verdict::Allow);
        let details = StatusDetails { further, without_shadow, is_uncounted: true };
        Status { verdict: Verdict::Deny, details: Some(Box::new(details)), ..Status::NO_LIMIT }
    }

    /// Whether this is [`Status::uncounted`].
    #[must_use]
    pub fn is_uncounted(&self) -> bool {
        self.details.as_ref().is_some_and(|details| details.is_uncounted)
    }
}

/// A limit as clients see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitView {
    /// Hits per unit.
    pub requests: u32,
    /// The unit; none if the period is not a named unit.
    pub unit: Option<Unit>,
    /// The configured name; empty if there is none.
    pub name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_uncounted_if_it_says_so() {
        assert!(Status::uncounted().is_uncounted());
        let details = Status::uncounted()
            .details
            .map(|details| StatusDetails { is_uncounted: false, ..*details });
        let counted = Status { details: details.map(Box::new), ..Status::NO_LIMIT };
        assert!(counted.details.is_some());
        assert!(!counted.is_uncounted() && !Status::NO_LIMIT.is_uncounted());
    }
}
