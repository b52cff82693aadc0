//! The part of Envoy's configuration messages that the filter needs: the target of a callout.

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

/// The longest cluster name that [`grpc_service_of_cluster`] accepts, in bytes. The outer message then has
/// 127 bytes, the longest length that protobuf encodes in one byte below 0x80.
pub const CLUSTER_NAME_BYTES_MAX: usize = 125;

/// The callout target for an Envoy cluster, as a serialized `GrpcService`. None if the name is longer than
/// [`CLUSTER_NAME_BYTES_MAX`].
///
/// Envoy also accepts a bare cluster name, but first tries to parse it as this message: a name whose bytes
/// happen to parse would be a target that does not exist. The serialized form is never ambiguous. It is a string, as
/// proxy-wasm hosts take one: tags and lengths below 0x80 are ASCII, and the name is UTF-8.
#[must_use]
pub fn grpc_service_of_cluster(cluster: &str) -> Option<String> {
    if cluster.len() > CLUSTER_NAME_BYTES_MAX {
        return None;
    }
    let envoy_grpc = Some(EnvoyGrpc { cluster_name: cluster.to_owned() });
    String::from_utf8(GrpcService { envoy_grpc }.encode_to_vec()).ok()
}
