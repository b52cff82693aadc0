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

/// The callout target for an Envoy cluster, as a serialized `GrpcService`.
///
/// Envoy also accepts a bare cluster name, but first tries to parse it as this message: a name whose bytes
/// happen to parse would be a target that does not exist. The serialized form is never ambiguous. It is bytes, not
/// text: the length of a long name is no UTF-8.
#[must_use]
pub fn grpc_service_of_cluster(cluster: &str) -> Vec<u8> {
    let envoy_grpc = Some(EnvoyGrpc { cluster_name: cluster.to_owned() });
    GrpcService { envoy_grpc }.encode_to_vec()
}
