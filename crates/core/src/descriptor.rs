//! What a request says about itself: a domain, and descriptors made of entries of key and value.

use crate::units::{Charge, Hits, Unit};

/// One fact about a request, such as `("remote_address", "203.0.113.9")`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Entry {
    /// What the fact is about; never empty in a valid request.
    pub key: String,
    /// The fact; may be empty.
    pub value: String,
}

impl Entry {
    /// An entry of `key` and `value`.
    pub fn new(key: impl Into<String>, value: impl Into<String>) -> Self {
        Entry { key: key.into(), value: value.into() }
    }
}

/// An ordered list of entries that is looked up among the rules as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    /// The entries, outermost first.
    pub entries: Vec<Entry>,
    /// What this descriptor costs, when it differs from the request.
    pub hits: Option<Hits>,
    /// Whether it takes its hits or gives them back.
    pub direction: Direction,
    /// A limit that the request brings along, instead of what the rules say.
    pub limit: Option<LimitOverride>,
}

impl Descriptor {
    /// A descriptor that takes what its request says, by the rules.
    #[must_use]
    pub fn new(entries: Vec<Entry>) -> Self {
        Descriptor { entries, hits: None, direction: Direction::Take, limit: None }
    }
}

/// Whether hits are taken or given back (`is_negative_hits`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Direction {
    /// Taken.
    #[default]
    Take,
    /// Given back.
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

/// A question to the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The set of rules that answers.
    pub domain: String,
    /// Every descriptor must have room, or nothing is taken from any.
    pub descriptors: Vec<Descriptor>,
    /// What the request costs for descriptors that do not say.
    pub hits: Hits,
}

impl Request {
    /// What `descriptor` is charged.
    #[must_use]
    pub fn charge_of(&self, descriptor: &Descriptor) -> Charge {
        let hits = descriptor.hits.unwrap_or(self.hits);
        match descriptor.direction {
            Direction::Take => Charge::Take(hits),
            Direction::Refund => Charge::Refund(hits),
        }
    }
}
