//! The recipes of descriptors, compiled: what is read of a request, what is asked of it, and the
//! bytes of entries as [`crate::request::descriptors::RequestDescriptors`] has them.
//!
//! Every thing that can be read has one number in a configuration, wherever it is used, so that it is
//! read at most once a request.

use super::encoded::Encoded;
use crate::matching::address::AddressMatcher;
use crate::matching::header::{HeaderMatcher, Sense};
use crate::matching::query::QueryMatcher;

/// The recipe of one descriptor: at most one entry per action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateLimit {
    /// Whether its descriptor can deny.
    pub enforcement: Enforcement,
    /// The requests it is for: all of these hold.
    pub conditions: Vec<Condition>,
    /// What a request costs.
    pub hits: HitsAddend,
    /// Its steps; never empty.
    pub actions: Vec<Action>,
}

/// Whether what is decided is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enforcement {
    /// It is.
    Enforced,
    /// It is only counted.
    Shadow,
}

/// What must hold for a recipe to be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// What must be there.
    pub fact: Fact,
    /// It must be one of these.
    pub one_of: Vec<String>,
}

/// What a request costs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HitsAddend {
    /// Always the same.
    Number(u64),
    /// What this header says.
    Header(Fact),
}

/// The most that a request may cost, as in Envoy.
pub const HITS_MAX: u64 = 1_000_000_000;

/// The recipe of one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// An entry that is always the same (`generic_key`).
    Constant(Encoded),
    /// The value of a fact (`request_headers`, `query_parameters`, `metadata`, `source_cluster`,
    /// `destination_cluster`).
    Value {
        /// The entry's key.
        key: Encoded,
        /// Its value.
        fact: Fact,
        /// What a request without it gets.
        when_absent: WhenAbsent,
    },
    /// The client's address as Envoy trusts it, without the port (`remote_address`).
    Address {
        /// The entry's key.
        key: Encoded,
        /// The address.
        address: Fact,
    },
    /// Its network (`masked_remote_address`).
    Network {
        /// The entry's key.
        key: Encoded,
        /// The address.
        address: Fact,
        /// How many bits of an IPv4 address count.
        v4_prefix_mask_len: u32,
        /// How many bits of an IPv6 address count.
        v6_prefix_mask_len: u32,
    },
    /// A constant entry for some addresses (`remote_address_match`).
    AddressMatch {
        /// The entry.
        entry: Encoded,
        /// The address.
        address: Fact,
        /// Which ones.
        matcher: AddressMatcher,
    },
    /// A constant entry for requests with some headers (`header_value_match`).
    HeaderMatch {
        /// The entry.
        entry: Encoded,
        /// All of them must pass.
        matchers: Vec<(Fact, HeaderMatcher)>,
        /// Whether they do, or not all of them (`expect_match`).
        sense: Sense,
    },
    /// A constant entry for requests with some query parameters (`query_parameter_value_match`).
    QueryMatch {
        /// The entry.
        entry: Encoded,
        /// All of them must pass.
        matchers: Vec<(Fact, QueryMatcher)>,
        /// Whether they do, or not all of them (`expect_match`).
        sense: Sense,
    },
}

/// What an action does when the request lacks what it asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WhenAbsent {
    /// Drop the whole descriptor.
    DropDescriptor,
    /// Leave out this entry (`skip_if_absent`).
    SkipEntry,
    /// This entry instead (`default_value`).
    Entry(Encoded),
}

/// Something that is read of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// Its number in this configuration.
    pub(crate) number: usize,
    /// Where it is.
    pub(crate) source: Source,
}

/// Where a fact is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Source {
    /// The first value of a header; its name is in lower case, or a pseudo-header's such as `:path`.
    Header(String),
    /// The first value of a query parameter, decoded; so is its name.
    Parameter(String),
    /// A property of Envoy.
    Property(Vec<String>),
    /// A property of Envoy that counts only when it is a text, and not an empty one.
    Text(Vec<String>),
}

/// The most parts that the path of a property has: a bound for the array it is handed over in.
pub(crate) const PROPERTY_PARTS_MAX: usize = 16;
