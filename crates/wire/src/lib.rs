//! Envoy's rate limit protocol: the messages, and their mapping to and from `tidegate-core`.
//!
//! The only place for wire spellings and wire defaults (an absent `hits_addend` becomes 1 here, once). The
//! sidecar decodes requests and encodes answers, the filter the other way round, and both describe limits to
//! clients by the same [`headers`]. Moves no bytes and decides nothing.

mod additions;
mod envoy;
mod error;
pub mod headers;
mod lease;
mod mapping;
mod reader;
mod report;
pub mod rls;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod writer;

pub use additions::Additions;
pub use envoy::grpc_service_of_cluster;
pub use error::{DESCRIPTORS_MAX, ENTRIES_MAX, WireError};
pub use lease::{
    debit_from, debit_metadata, lease_request_from, lease_request_metadata, returned_from,
    returned_metadata,
};
pub use mapping::{decode_answer, encode_request, request_from_wire, response_to_wire};
pub use prost_types::{Struct, Value, value::Kind};
pub use reader::{RequestReader, decode_request};
pub use report::{TALLIES_MAX, append_report, report_of};
pub use writer::encode_answer;

/// The RLS method, in gRPC's spelling.
pub const RLS_METHOD: &str = "ShouldRateLimit";
/// The RLS service, in gRPC's spelling.
pub const RLS_SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";
