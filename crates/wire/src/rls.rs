//! The messages of `envoy.service.ratelimit.v3` (RLS) as prost types, with the field numbers of
//! Envoy 1.40. Fields that Tidegate neither reads nor writes are left out; protobuf skips them.

/// A question: is there room for this request?
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitRequest {
    /// Whose limits apply.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// What the request says about itself.
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// What it costs; 0 is read as 1.
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

/// An ordered list of facts, looked up as a whole.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitDescriptor {
    /// The facts.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<DescriptorEntry>,
    /// A limit that the request brings along.
    #[prost(message, optional, tag = "2")]
    pub limit: Option<RateLimitOverride>,
    /// What this descriptor costs; 0 asks without taking.
    #[prost(message, optional, tag = "3")]
    pub hits_addend: Option<u64>,
    /// Gives hits back instead of taking them.
    #[prost(bool, tag = "4")]
    pub is_negative_hits: bool,
}

/// One fact.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DescriptorEntry {
    /// What it is about; never empty.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The fact.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// A limit brought along by the request.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct RateLimitOverride {
    /// Hits per unit.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// `envoy.type.v3.RateLimitUnit`.
    #[prost(int32, tag = "2")]
    pub unit: i32,
}

/// The answer.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitResponse {
    /// For the request as a whole.
    #[prost(enumeration = "Code", tag = "1")]
    pub overall_code: i32,
    /// One per descriptor, in the request's order.
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<DescriptorStatus>,
    /// Headers that Envoy adds to the response to its client.
    #[prost(message, repeated, tag = "3")]
    pub response_headers_to_add: Vec<HeaderValue>,
    /// Headers that Envoy adds to the request to its upstream.
    #[prost(message, repeated, tag = "4")]
    pub request_headers_to_add: Vec<HeaderValue>,
    /// The body with which Envoy answers a denied request.
    #[prost(bytes = "vec", tag = "5")]
    pub raw_body: Vec<u8>,
    /// What Envoy adds to the dynamic metadata of the request.
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

/// The answer without its metadata, for which the filter has no use: reading a Struct only to drop
/// it would take time, and a good part of the module.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ResponseToFilter {
    /// As in [`RateLimitResponse`].
    #[prost(enumeration = "Code", tag = "1")]
    pub(crate) overall_code: i32,
    /// As in [`RateLimitResponse`].
    #[prost(message, repeated, tag = "2")]
    pub(crate) statuses: Vec<DescriptorStatus>,
}

/// How one descriptor stands.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DescriptorStatus {
    /// Whether it has room.
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
    /// What may be spent without asking again: a lease. Only for clients that ask for one.
    #[prost(message, optional, tag = "5")]
    pub quota: Option<Quota>,
}

/// `RateLimitResponse.Quota`, in which a lease is told.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Quota {
    /// Hits that may be spent.
    #[prost(uint32, tag = "1")]
    pub requests: u32,
    /// Until when.
    #[prost(message, optional, tag = "2")]
    pub valid_until: Option<prost_types::Timestamp>,
    /// Its name.
    #[prost(string, tag = "3")]
    pub id: String,
}

/// A limit as clients are told of it.
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
    /// There is room.
    Ok = 1,
    /// There is none.
    OverLimit = 2,
}

/// `RateLimitResponse.RateLimit.Unit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum RateLimitUnit {
    /// No unit of this list.
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
