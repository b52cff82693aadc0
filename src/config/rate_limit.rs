//! Compiled entries of `rate_limits`: the facts to read from a request, their matchers, and encoded
//! entries.
//!
//! Each fact has one number in a configuration, so that it is read at most once per request.

use super::encoded::Encoded;
use super::format::{Command, Format};
use crate::matching::address::AddressMatcher;
use crate::matching::value::{Sense, ValueMatcher};

/// The actions of one descriptor: at most one entry each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateLimit {
    /// Whether its descriptor can deny.
    pub enforcement: Enforcement,
    /// It applies to requests that meet all of these.
    pub conditions: Vec<Condition>,
    /// The cost of a request.
    pub hits: HitsAddend,
    /// Never empty.
    pub actions: Vec<Action>,
}

/// Whether a decision is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enforcement {
    /// It is.
    Enforced,
    /// It is only counted.
    Shadow,
}

/// A condition of an entry of `rate_limits`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// The fact to check.
    pub fact: Fact,
    /// It must equal one of these.
    pub one_of: Vec<String>,
}

/// The cost of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HitsAddend {
    /// A constant.
    Number(u64),
    /// The value of this header.
    Header(Fact),
    /// The value of this command.
    Command(Box<Command>),
}

/// The highest cost of a request, as in Envoy.
pub const HITS_MAX: u64 = 1_000_000_000;

/// Makes one entry of a descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A constant entry (`generic_key`).
    Constant(Encoded),
    /// The value of a fact (`request_headers`, `query_parameters`, `metadata`, `source_cluster`,
    /// `destination_cluster`).
    Value {
        /// The entry's key.
        key: Encoded,
        /// Its value.
        fact: Fact,
        /// The effect if the value is absent.
        when_absent: WhenAbsent,
    },
    /// The client's trusted address, without the port (`remote_address`).
    Address {
        /// The entry's key.
        key: Encoded,
    },
    /// The network of that address (`masked_remote_address`).
    Network {
        /// The entry's key.
        key: Encoded,
        /// Significant bits of an IPv4 address.
        v4_prefix_mask_len: u32,
        /// Significant bits of an IPv6 address.
        v6_prefix_mask_len: u32,
    },
    /// A constant entry for some addresses (`remote_address_match`).
    AddressMatch {
        /// The entry.
        entry: Encoded,
        /// The matching addresses.
        matcher: AddressMatcher,
    },
    /// A constant entry for requests with some headers (`header_value_match`) or query parameters
    /// (`query_parameter_value_match`).
    ValueMatch {
        /// The entry.
        entry: Encoded,
        /// All of them must match.
        matchers: Vec<(Fact, ValueMatcher)>,
        /// Inverted: not all of them may match (`expect_match`).
        sense: Sense,
    },
    /// An entry with a format as its value.
    Formatted(Box<Formatted>),
}

/// An entry with a format as its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Formatted {
    /// The action whose entry it is, with an empty entry. Without a match, the descriptor is
    /// dropped.
    pub(crate) action: Action,
    /// The entry's key.
    pub(crate) key: Encoded,
    /// Its value.
    pub(crate) format: Format,
    /// The entry if that is empty (`default_value`); without one, the descriptor is dropped.
    pub(crate) default: Option<Encoded>,
}

/// The effect of an action on a request without the value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WhenAbsent {
    /// Drops the whole descriptor.
    DropDescriptor,
    /// Leaves out this entry (`skip_if_absent`).
    SkipEntry,
    /// Appends this entry instead (`default_value`).
    Entry(Encoded),
}

/// A value of a request that actions read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// Its number in this configuration.
    pub(crate) number: usize,
    /// Its source.
    pub(crate) source: Source,
}

/// The source of a fact.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Source {
    /// The first value of a header; the name is in lower case, or that of a pseudo-header such as
    /// `:path`.
    Header(String),
    /// The first value of a query parameter, decoded; so is the name.
    Parameter(String),
    /// A property of Envoy.
    Property(Vec<String>),
    /// A property of Envoy, which counts only if it is a non-empty text.
    Text(Vec<String>),
    /// The first value of a header of the response.
    ResponseHeader(String),
}

/// The most parts of a property's path; bounds the array in which it is passed.
pub(crate) const PROPERTY_PARTS_MAX: usize = 16;
