//! Descriptors whose hits a holder may count by itself.

use crate::applied::Applied;
use crate::plan::Plan;
use std::ops::Range;
use tidegate_core::{DeniedHits, Descriptor, Direction, Enforcement};

/// Whether a descriptor takes hits under configured rules, as later ones will.
pub(super) fn is_plain(descriptor: &Descriptor) -> bool {
    descriptor.direction == Direction::Take && descriptor.limit.is_none()
}

/// Whether the sidecar would only count later hits of the descriptor.
pub(super) fn is_leasable(
    plan: &Plan<'_>,
    asks: &Range<usize>,
    applied: &Applied<'_>,
    descriptor: &Descriptor,
) -> bool {
    is_plain(descriptor)
        && applied.rule().is_some_and(|rule| rule.replaces().next().is_none())
        && plan.asks[asks.clone()]
            .iter()
            .all(|ask| ask.enforcement != Enforcement::Quota && ask.denied == DeniedHits::Ignore)
}
