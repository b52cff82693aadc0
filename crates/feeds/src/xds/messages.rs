//! The messages of `envoy.service.discovery.v3` and `ratelimit.config.ratelimit.v3` as prost types, with the fields
//! that are read or written here; protobuf skips the others.
//!
//! Lists of messages are lists of bytes that share the memory of what arrived, and each is decoded when it is
//! needed: two bytes of a message could otherwise take a hundred of memory.

use bytes::Bytes;
use prost_types::Struct;

/// The type of the resources.
pub(super) const RATE_LIMIT_CONFIG: &str =
    "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";
/// The method of the service, for all types of resources.
pub(super) const STREAM_AGGREGATED: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct DiscoveryRequest {
    /// Of the resources in use; empty at first.
    #[prost(string, tag = "1")]
    pub(super) version_info: String,
    #[prost(message, optional, tag = "2")]
    pub(super) node: Option<Node>,
    #[prost(string, tag = "4")]
    pub(super) type_url: String,
    /// Of the response that is acknowledged or refused.
    #[prost(string, tag = "5")]
    pub(super) response_nonce: String,
    /// Why the response is refused.
    #[prost(message, optional, tag = "6")]
    pub(super) error_detail: Option<Status>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Node {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(message, optional, tag = "3")]
    pub(super) metadata: Option<Struct>,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct Status {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
    #[prost(string, tag = "2")]
    pub(super) message: String,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct DiscoveryResponse {
    #[prost(string, tag = "1")]
    pub(super) version_info: String,
    /// Each an [`Any`].
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub(super) resources: Vec<Bytes>,
    #[prost(string, tag = "4")]
    pub(super) type_url: String,
    #[prost(string, tag = "5")]
    pub(super) nonce: String,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct Any {
    #[prost(string, tag = "1")]
    pub(super) type_url: String,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) value: Bytes,
}

/// The limits of one domain.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct RateLimitConfig {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) domain: String,
    /// Each a [`RateLimitDescriptor`].
    #[prost(bytes = "bytes", repeated, tag = "3")]
    pub(super) descriptors: Vec<Bytes>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RateLimitDescriptor {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
    #[prost(message, optional, tag = "3")]
    pub(super) rate_limit: Option<RateLimitPolicy>,
    /// Each a [`RateLimitDescriptor`].
    #[prost(bytes = "bytes", repeated, tag = "4")]
    pub(super) descriptors: Vec<Bytes>,
    #[prost(bool, tag = "5")]
    pub(super) shadow_mode: bool,
    #[prost(bool, tag = "6")]
    pub(super) detailed_metric: bool,
    #[prost(bool, tag = "7")]
    pub(super) quota_mode: bool,
    #[prost(message, optional, tag = "8")]
    pub(super) metadata: Option<Struct>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct RateLimitPolicy {
    /// See [`unit_name`].
    #[prost(int32, tag = "1")]
    pub(super) unit: i32,
    #[prost(uint32, tag = "2")]
    pub(super) requests_per_unit: u32,
    #[prost(bool, tag = "3")]
    pub(super) unlimited: bool,
    #[prost(string, tag = "4")]
    pub(super) name: String,
    /// Each a [`RateLimitReplace`].
    #[prost(bytes = "bytes", repeated, tag = "5")]
    pub(super) replaces: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct RateLimitReplace {
    #[prost(string, tag = "1")]
    pub(super) name: String,
}

/// The name of a unit in a limits file; none if it is not set or unknown.
pub(super) fn unit_name(unit: i32) -> Option<&'static str> {
    ["second", "minute", "hour", "day", "month", "year", "week"]
        .get(usize::try_from(unit.checked_sub(1)?).ok()?)
        .copied()
}
