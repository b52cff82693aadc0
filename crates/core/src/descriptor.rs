//! Requests: a domain, and descriptors of key-value entries.

use crate::units::{Charge, Hits, Unit};

/// One property of a request, such as `("remote_address", "203.0.113.9")`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The name of the property; never empty in a valid request.
    pub key: String,
    /// The value; may be empty.
    pub value: String,
}

impl Entry {
    /// An entry of `key` and `value`.
    pub fn new(key: impl Into<String>, value: impl Into<String>) -> Self {
        Entry { key: key.into(), value: value.into() }
    }
}

/// An ordered list of entries that is looked up in the rules as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    /// The entries, outermost first.
    pub entries: Vec<Entry>,
    /// The cost of this descriptor, if it differs from the request's.
    pub hits: Option<Hits>,
    /// Whether its hits are taken or refunded.
    pub direction: Direction,
    /// A limit from the request, which overrides the rules.
    pub limit: Option<LimitOverride>,
}

impl Descriptor {
    /// A descriptor that takes the hits of its request, under the limits of the rules.
    #[must_use]
    pub fn new(entries: Vec<Entry>) -> Self {
        Descriptor { entries, hits: None, direction: Direction::Take, limit: None }
    }
}

/// Whether hits are taken or refunded (`is_negative_hits`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Direction {
    /// Taken.
    #[default]
    Take,
    /// Refunded.
    Refund,
}

/// A limit in a request: a fixed window of one unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitOverride {
    /// Hits per unit.
    pub requests: u32,
    /// The unit.
    pub unit: Unit,
}

/// A request for a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Selects the rules.
    pub domain: String,
    /// If one of them has no room, nothing is taken from any.
    pub descriptors: Vec<Descriptor>,
    /// The cost of descriptors without a cost of their own.
    pub hits: Hits,
}

impl Request {
    /// The charge for `descriptor`.
    #[must_use]
    pub fn charge_of(&self, descriptor: &Descriptor) -> Charge {
        let hits = descriptor.hits.unwrap_or(self.hits);
        match descriptor.direction {
            Direction::Take => Charge::Take(hits),
            Direction::Refund => Charge::Refund(hits),
        }
    }
}
