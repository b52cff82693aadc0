//! What the filter needs of Envoy's own messages: where to send a callout.

use prost::Message;

/// `envoy.config.core.v3.GrpcService`, reduced to `envoy_grpc`.
#[derive(Clone, PartialEq, Message)]
struct GrpcService {
    #[prost(message, optional, tag = "1")]
    envoy_grpc: Option<EnvoyGrpc>,
}

/// `envoy.config.core.v3.GrpcService.EnvoyGrpc`, reduced to the cluster.
#[derive(Clone, PartialEq, Message)]
struct EnvoyGrpc {
    #[prost(string, tag = "1")]
    cluster_name: String,
}

/// The longest cluster name that [`grpc_service_of_cluster`] takes, in bytes. With it the outer
/// message has 127 bytes, the most whose length protobuf writes as one byte below 0x80.
pub const CLUSTER_NAME_BYTES_MAX: usize = 125;

/// The callout target for an Envoy cluster, as a serialized `GrpcService`; none when the name is
/// longer than [`CLUSTER_NAME_BYTES_MAX`].
///
/// Envoy also takes a bare cluster name, but first tries to parse it as this message: a name
/// whose bytes happen to parse would send the callout nowhere. The serialized form is never
/// ambiguous. It is a string because the proxy-wasm SDK wants one: tags and lengths below 0x80
/// are ASCII, and the name is UTF-8 itself.
#[must_use]
pub fn grpc_service_of_cluster(cluster: &str) -> Option<String> {
    if cluster.len() > CLUSTER_NAME_BYTES_MAX {
        return None;
    }
    let envoy_grpc = Some(EnvoyGrpc { cluster_name: cluster.to_owned() });
    String::from_utf8(GrpcService { envoy_grpc }.encode_to_vec()).ok()
}
