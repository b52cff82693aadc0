//! What a request says about itself: a domain, and descriptors made of entries of key and value.

use crate::units::Hits;

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
    /// The cost that `descriptor` is charged.
    #[must_use]
    pub fn hits_of(&self, descriptor: &Descriptor) -> Hits {
        descriptor.hits.unwrap_or(self.hits)
    }
}
