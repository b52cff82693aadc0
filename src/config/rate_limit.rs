//! Compiled entries of `rate_limits`: the facts to read from a request, their matchers, and encoded
//! entries.
//!
//! Each fact has one number in a configuration, so that it is read at most once per request.

use super::denied::ReplyContent;
use super::encoded::Encoded;
use super::format::{Command, Format};
#[cfg(feature = "cel")]
use super::when::When;
use crate::matching::address::AddressMatcher;
use crate::matching::text::TextMatcher;
use crate::matching::value::{Sense, ValueMatcher};

/// The actions of one descriptor: at most one entry each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateLimit {
    /// Whether its descriptor can deny.
    pub enforcement: Enforcement,
    /// It applies to requests that meet all of these.
    pub conditions: Vec<Condition>,
    /// It applies to requests for which this holds, too.
    #[cfg(feature = "cel")]
    pub when: Option<Box<When>>,
    /// The cost of a request.
    pub hits: HitsAddend,
    /// Never empty.
    pub actions: Vec<Action>,
    /// What it says of replies. Moved into the configuration's list when that has been read.
    pub options: EntryOptions,
}

/// Whether headers show the limits of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum XRateLimitOption {
    /// As the filter's `headers` say.
    #[default]
    Unspecified,
    /// They do not.
    Off,
    /// `x-ratelimit-*` do, whatever the filter's `headers` say.
    DraftVersion03,
}

/// What an entry says of the replies about its limits.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EntryOptions {
    /// Whether headers show its limits.
    pub x_ratelimit_option: XRateLimitOption,
    /// The content of its denials, if it differs from that of others.
    pub denied: Option<Box<ReplyContent>>,
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
    /// It must equal one of these,
    pub one_of: Vec<String>,
    /// or match one of these.
    pub matchers: Vec<TextMatcher>,
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
    /// The number of the entry of `rate_limits`: makes no entry of the descriptor, but records where
    /// it comes from. Always first, in all entries or in none.
    Origin(u8),
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
    /// An entry with a format as its value. If it is for some requests only, the action before it
    /// matches these, with an empty entry.
    Formatted(Box<Formatted>),
    /// A claim of a token in a header or a cookie (`jwt_claim`).
    Claim(Box<Claim>),
    /// An override of the limit, after all entries (`limit`).
    Limit(Box<LimitSource>),
}

/// A claim of a token in a header or a cookie, which is not verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The entry's key.
    pub(crate) key: Encoded,
    /// The header or the cookie.
    pub(crate) fact: Fact,
    /// The text before the token.
    pub(crate) prefix: String,
    /// The names that lead to the claim.
    pub(crate) path: Vec<String>,
    /// The effect if it has no such text.
    pub(crate) when_absent: WhenAbsent,
}

/// The source of an override of the limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LimitSource {
    /// The encoded override.
    Constant(Encoded),
    /// In metadata.
    Metadata {
        /// A number.
        requests_per_unit: Fact,
        /// The name of a unit.
        unit: Fact,
    },
}

/// An entry with a format as its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Formatted {
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
    /// A property of Envoy.
    Property(Vec<String>),
    /// A property of Envoy, which counts only if it is a non-empty text.
    Text(Vec<String>),
    /// The first value of a query parameter, decoded; so is the name.
    Parameter(String),
    /// The first value of a header of the response.
    ResponseHeader(String),
    /// The first value of a cookie, in all `cookie` headers.
    Cookie(String),
}

/// The most parts of a property's path; bounds the array in which it is passed.
pub(crate) const PROPERTY_PARTS_MAX: usize = 16;
