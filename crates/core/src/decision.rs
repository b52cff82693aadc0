//! The decision on one charge against one counter.

use crate::units::{Nanos, Timestamp};

/// The decision of one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// Allow or deny.
    pub outcome: Outcome,
    /// Hits that are left after this decision.
    pub remaining: u64,
    /// When more hits become available: the end of the window, or the next token of the bucket.
    pub reset_at: Timestamp,
    /// How long the state must be kept; afterwards a new state decides the same.
    pub keep_until: Timestamp,
}

impl Decision {
    /// Whether the request fits under this limit.
    #[must_use]
    pub fn is_allow(&self) -> bool {
        self.outcome == Outcome::Allow
    }

    /// The time until more hits are available: until the same charge can fit if denied, until `reset_at` if
    /// allowed.
    #[must_use]
    pub fn wait(&self, now: Timestamp) -> Nanos {
        match self.outcome {
            Outcome::Allow => self.reset_at.saturating_since(now),
            Outcome::Deny { retry_after } => retry_after,
        }
    }
}

/// Whether the hits fit. Being over a limit is an outcome and not an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The hits fit and were taken.
    Allow,
    /// The hits do not fit, and nothing was taken unless the charge was forced.
    Deny {
        /// The time until the same charge can fit, if no other hits come. If it exceeds the capacity and so
        /// never fits: the time until the counter is full, or a period if it is full already. Never zero.
        retry_after: Nanos,
    },
}

impl Outcome {
    /// Allows hits that fit, and denies others until `fits_at`.
    #[inline]
    pub(crate) fn new(fits: bool, now: Timestamp, fits_at: impl FnOnce() -> Timestamp) -> Outcome {
        if fits {
            Outcome::Allow
        } else {
            Outcome::Deny { retry_after: fits_at().saturating_since(now) }
        }
    }
}
