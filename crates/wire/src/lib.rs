//! Envoy's rate limit protocol: the messages, and their mapping to and from `tidegate-core`.
//!
//! The only place with wire spellings and wire defaults (an absent `hits_addend` becomes 1 here,
//! once). Both ends use it: the sidecar decodes requests and encodes answers, the filter the
//! other way round. It moves no bytes itself and decides nothing. Both tell clients of limits in the same
//! [`headers`].

mod envoy;
pub mod headers;
mod lease;
mod mapping;
mod reader;
pub mod rls;
mod writer;

pub use envoy::{CLUSTER_NAME_BYTES_MAX, grpc_service_of_cluster};
pub use lease::{lease_ask_from, lease_ask_metadata, returned_from, returned_metadata};
pub use mapping::{
    DESCRIPTORS_MAX, ENTRIES_MAX, WireError, decode_answer, encode_request, request_from_wire,
    response_to_wire,
};
pub use prost_types::{Struct, Value, value::Kind};
pub use reader::{RequestReader, decode_request};
pub use writer::encode_answer;

/// The RLS method, as gRPC names it.
pub const RLS_METHOD: &str = "ShouldRateLimit";
/// The RLS service, as gRPC names it.
pub const RLS_SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";
