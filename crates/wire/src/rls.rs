//! The messages of `envoy.service.ratelimit.v3` (RLS) as prost types, with the field numbers of Envoy 1.40.
//! Fields that Tidegate neither reads nor writes are absent; protobuf skips them.

/// A request for a decision.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitRequest {
    /// The domain whose limits apply.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// The descriptors of the request.
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// Hits that the request costs; 0 is read as 1.
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

/// An ordered list of entries, looked up as a whole.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitDescriptor {
    /// The entries.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<DescriptorEntry>,
    /// A limit that overrides the configured one.
    #[prost(message, optional, tag = "2")]
    pub limit: Option<RateLimitOverride>,
    /// Hits that this descriptor costs; 0 checks without charging.
    #[prost(message, optional, tag = "3")]
    pub hits_addend: Option<u64>,
    /// Returns hits instead of taking them.
    #[prost(bool, tag = "4")]
    pub is_negative_hits: bool,
}

/// A key and a value.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DescriptorEntry {
    /// The key; never empty.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// A limit that overrides the configured one.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct RateLimitOverride {
    /// Hits per unit.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// `envoy.type.v3.RateLimitUnit`.
    #[prost(int32, tag = "2")]
    pub unit: i32,
}

/// The decision.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitResponse {
    /// The decision on the whole request.
    #[prost(enumeration = "Code", tag = "1")]
    pub overall_code: i32,
    /// One per descriptor, in the request's order.
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<DescriptorStatus>,
    /// Headers for the response to the client.
    #[prost(message, repeated, tag = "3")]
    pub response_headers_to_add: Vec<HeaderValue>,
    /// Headers for the request to the upstream.
    #[prost(message, repeated, tag = "4")]
    pub request_headers_to_add: Vec<HeaderValue>,
    /// The body of the response to a denied request.
    #[prost(bytes = "vec", tag = "5")]
    pub raw_body: Vec<u8>,
    /// Dynamic metadata for the request.
    #[prost(message, optional, tag = "6")]
    pub dynamic_metadata: Option<prost_types::Struct>,
}

/// `envoy.config.core.v3.HeaderValue`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HeaderValue {
    /// Its name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Its value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// An answer without its additions: prost's code for a Struct would be a good part of the module's size, so
/// `additions` reads these by hand.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ResponseToFilter {
    /// As in [`RateLimitResponse`].
    #[prost(enumeration = "Code", tag = "1")]
    pub(crate) overall_code: i32,
    /// As in [`RateLimitResponse`].
    #[prost(message, repeated, tag = "2")]
    pub(crate) statuses: Vec<DescriptorStatus>,
}

/// The status of one descriptor.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DescriptorStatus {
    /// The decision on the descriptor.
    #[prost(enumeration = "Code", tag = "1")]
    pub code: i32,
    /// The limit that applies.
    #[prost(message, optional, tag = "2")]
    pub current_limit: Option<RateLimit>,
    /// Hits left.
    #[prost(uint32, tag = "3")]
    pub limit_remaining: u32,
    /// Time until the limit resets.
    #[prost(message, optional, tag = "4")]
    pub duration_until_reset: Option<prost_types::Duration>,
    /// Hits that may be spent without a call: a lease. Only for clients that request one.
    #[prost(message, optional, tag = "5")]
    pub quota: Option<Quota>,
    /// The limits that the descriptor meets besides `current_limit`. Tidegate's own field, as the next one:
    /// only for clients that request leases; others would skip it.
    #[prost(message, repeated, tag = "1001")]
    pub further_limits: Vec<FurtherLimit>,
    /// The descriptor would be denied if its rule were not in shadow.
    #[prost(bool, tag = "1002")]
    pub shadow_denied: bool,
    /// The descriptor is a debit that was not counted, although others of its call were.
    #[prost(bool, tag = "1003")]
    pub uncounted: bool,
}

/// One more limit that a descriptor meets; Tidegate's own message.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FurtherLimit {
    /// The limit.
    #[prost(message, optional, tag = "1")]
    pub limit: Option<RateLimit>,
    /// Hits left.
    #[prost(uint32, tag = "2")]
    pub remaining: u32,
    /// Time until the limit resets.
    #[prost(message, optional, tag = "3")]
    pub duration_until_reset: Option<prost_types::Duration>,
    /// The limit has no room for the hits of the request.
    #[prost(bool, tag = "4")]
    pub is_over: bool,
}

/// `RateLimitResponse.Quota`, which carries a lease.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Quota {
    /// Hits of the lease.
    #[prost(uint32, tag = "1")]
    pub requests: u32,
    /// The end of the lease.
    #[prost(message, optional, tag = "2")]
    pub valid_until: Option<prost_types::Timestamp>,
    /// The id of the lease.
    #[prost(string, tag = "3")]
    pub id: String,
}

/// A limit as clients see it.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RateLimit {
    /// Hits per unit.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// The unit.
    #[prost(enumeration = "RateLimitUnit", tag = "2")]
    pub unit: i32,
    /// The configured name.
    #[prost(string, tag = "3")]
    pub name: String,
}

/// `RateLimitResponse.Code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Code {
    /// Not set.
    Unknown = 0,
    /// Allowed.
    Ok = 1,
    /// Denied.
    OverLimit = 2,
}

/// `RateLimitResponse.RateLimit.Unit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum RateLimitUnit {
    /// Not a named unit.
    Unknown = 0,
    /// 1 s
    Second = 1,
    /// 60 s
    Minute = 2,
    /// 3,600 s
    Hour = 3,
    /// 86,400 s
    Day = 4,
    /// 30 days
    Month = 5,
    /// 365 days
    Year = 6,
    /// 7 days
    Week = 7,
}
