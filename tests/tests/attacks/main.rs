//! Attacks by clients: bursts on a real Envoy, and hostile bytes on the endpoints of a sidecar.

mod bursts;
mod grpc;
mod http;
