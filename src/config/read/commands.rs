//! The substitution commands of Envoy 1.40: those whose values a Wasm filter can see, and why the
//! others are refused.

use super::metadata::{CLUSTER_ENTRY, DYNAMIC, Root};
use crate::config::ConfigError;
use crate::config::format::Show;
use crate::config::node::Node;

/// The source of a command's value.
#[derive(Clone, Copy)]
pub(super) enum From {
    /// A header of the request, or another one.
    Header,
    /// The same of the response.
    ResponseHeader,
    Parameter,
    Path,
    /// The metadata below a root.
    Metadata(&'static Root),
    /// The metadata below the root that its first argument names.
    AnyMetadata,
    /// A text in the filter state.
    FilterState,
    /// A property, without arguments.
    Property(&'static Root, Show),
    /// The same, known when the stream ends.
    EndProperty(&'static Root, Show),
}

const COMMANDS: [(&str, From); 34] = [
    ("REQ", From::Header),
    ("REQUEST_HEADER", From::Header),
    ("RESP", From::ResponseHeader),
    ("RESPONSE_HEADER", From::ResponseHeader),
    ("PATH", From::Path),
    ("QUERY_PARAM", From::Parameter),
    ("DYNAMIC_METADATA", From::Metadata(DYNAMIC)),
    ("CLUSTER_METADATA", From::Metadata(CLUSTER_ENTRY)),
    ("METADATA", From::AnyMetadata),
    ("PROTOCOL", From::Property(&["request", "protocol"], Show::Bytes)),
    ("DOWNSTREAM_REMOTE_ADDRESS", From::Property(REMOTE, Show::Bytes)),
    ("DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT", From::Property(REMOTE, Show::WithoutPort)),
    ("DOWNSTREAM_REMOTE_PORT", From::Property(&["source", "port"], Show::Whole)),
    ("DOWNSTREAM_LOCAL_ADDRESS", From::Property(LOCAL, Show::Bytes)),
    ("DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT", From::Property(LOCAL, Show::WithoutPort)),
    ("DOWNSTREAM_LOCAL_PORT", From::Property(&["destination", "port"], Show::Whole)),
    ("REQUESTED_SERVER_NAME", connection(&["connection", "requested_server_name"])),
    ("DOWNSTREAM_TLS_VERSION", connection(&["connection", "tls_version"])),
    ("DOWNSTREAM_PEER_SUBJECT", connection(&["connection", "subject_peer_certificate"])),
    ("DOWNSTREAM_LOCAL_SUBJECT", connection(&["connection", "subject_local_certificate"])),
    ("DOWNSTREAM_PEER_URI_SAN", connection(&["connection", "uri_san_peer_certificate"])),
    ("DOWNSTREAM_LOCAL_URI_SAN", connection(&["connection", "uri_san_local_certificate"])),
    ("DOWNSTREAM_PEER_DNS_SAN", connection(&["connection", "dns_san_peer_certificate"])),
    ("DOWNSTREAM_LOCAL_DNS_SAN", connection(&["connection", "dns_san_local_certificate"])),
    ("DOWNSTREAM_PEER_FINGERPRINT_256", connection(PEER_DIGEST)),
    ("CONNECTION_ID", From::Property(&["connection", "id"], Show::Whole)),
    ("ROUTE_NAME", From::Property(&["xds", "route_name"], Show::Bytes)),
    ("UPSTREAM_CLUSTER", From::Property(&["xds", "cluster_name"], Show::Bytes)),
    ("UPSTREAM_CLUSTER_RAW", From::Property(&["xds", "cluster_name"], Show::Bytes)),
    ("FILTER_CHAIN_NAME", From::Property(&["xds", "filter_chain_name"], Show::Bytes)),
    ("FILTER_STATE", From::FilterState),
    ("RESPONSE_CODE", From::EndProperty(&["response", "code"], Show::Whole)),
    ("BYTES_RECEIVED", From::EndProperty(&["request", "size"], Show::Whole)),
    ("BYTES_SENT", From::EndProperty(&["response", "size"], Show::Whole)),
];

const REMOTE: &Root = &["source", "address"];
const LOCAL: &Root = &["destination", "address"];
const PEER_DIGEST: &Root = &["connection", "sha256_peer_certificate_digest"];

const fn connection(path: &'static Root) -> From {
    From::Property(path, Show::Bytes)
}

/// Envoy's other commands, by the reason why they are refused.
const REFUSED: [(&str, &str); 4] = [
    (
        "a Wasm filter cannot see it",
        "ACCESS_LOG_TYPE BYTES_RETRANSMITTED CEL COALESCE CUSTOM_FLAGS DOWNSTREAM_CX_RTT \
         DOWNSTREAM_DIRECT_LOCAL_ADDRESS DOWNSTREAM_DIRECT_LOCAL_ADDRESS_ENDPOINT_ID \
         DOWNSTREAM_DIRECT_LOCAL_ADDRESS_WITHOUT_PORT DOWNSTREAM_DIRECT_LOCAL_PORT \
         DOWNSTREAM_DIRECT_REMOTE_ADDRESS DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT \
         DOWNSTREAM_DIRECT_REMOTE_PORT DOWNSTREAM_LOCAL_ADDRESS_ENDPOINT_ID \
         DOWNSTREAM_LOCAL_EMAIL_SAN DOWNSTREAM_LOCAL_IP_SAN DOWNSTREAM_LOCAL_OTHERNAME_SAN \
         DOWNSTREAM_PEER_CERT DOWNSTREAM_PEER_CERT_V_END DOWNSTREAM_PEER_CERT_V_START \
         DOWNSTREAM_PEER_CHAIN_FINGERPRINTS_1 DOWNSTREAM_PEER_CHAIN_FINGERPRINTS_256 \
         DOWNSTREAM_PEER_CHAIN_SERIALS DOWNSTREAM_PEER_EMAIL_SAN DOWNSTREAM_PEER_FINGERPRINT_1 \
         DOWNSTREAM_PEER_IP_SAN DOWNSTREAM_PEER_ISSUER DOWNSTREAM_PEER_ISSUER_FINGERPRINT_256 \
         DOWNSTREAM_PEER_ISSUER_SERIAL DOWNSTREAM_PEER_OTHERNAME_SAN DOWNSTREAM_PEER_SERIAL \
         DOWNSTREAM_TLS_CIPHER DOWNSTREAM_TLS_GROUP DOWNSTREAM_TLS_SESSION_ID ENVIRONMENT \
         HOSTNAME LISTENER_NAME PACKETS_RETRANSMITTED QUERY_PARAMS REQUEST_HEADERS_BYTES \
         ROUTE_RESOLUTION_COUNT ROUTE_RESOLUTION_TIME_US STREAM_INFO_REQ TLS_JA3_FINGERPRINT \
         TLS_JA4_FINGERPRINT VIRTUAL_CLUSTER_NAME XFCC_VALUE",
    ),
    (
        "it differs from request to request, so it would limit nothing",
        "EMIT_TIME EMIT_TIME_LOCAL SPAN_ID START_TIME START_TIME_LOCAL STREAM_ID TRACE_ID \
         UNIQUE_ID",
    ),
    (
        "it has no value when a request arrives",
        "UPSTREAM_CONNECTION_ID UPSTREAM_CONNECTION_IDS_ATTEMPTED \
         UPSTREAM_CONNECTION_POOL_READY_DURATION UPSTREAM_DECOMPRESSED_HEADER_BYTES_RECEIVED \
         UPSTREAM_DECOMPRESSED_HEADER_BYTES_SENT UPSTREAM_DETECTED_CLOSE_TYPE \
         UPSTREAM_FILTER_STATE UPSTREAM_HEADER_BYTES_RECEIVED UPSTREAM_HEADER_BYTES_SENT \
         UPSTREAM_HOST UPSTREAM_HOSTS_ATTEMPTED UPSTREAM_HOSTS_ATTEMPTED_WITHOUT_PORT \
         UPSTREAM_HOST_NAME UPSTREAM_HOST_NAMES_ATTEMPTED \
         UPSTREAM_HOST_NAMES_ATTEMPTED_WITHOUT_PORT UPSTREAM_HOST_NAME_WITHOUT_PORT \
         UPSTREAM_LOCAL_ADDRESS UPSTREAM_LOCAL_ADDRESS_WITHOUT_PORT UPSTREAM_LOCAL_CLOSE_REASON \
         UPSTREAM_LOCAL_DNS_SAN UPSTREAM_LOCAL_IP_SAN UPSTREAM_LOCAL_PORT \
         UPSTREAM_LOCAL_URI_SAN UPSTREAM_METADATA UPSTREAM_PEER_CERT UPSTREAM_PEER_CERT_V_END \
         UPSTREAM_PEER_CERT_V_START UPSTREAM_PEER_DNS_SAN UPSTREAM_PEER_IP_SAN \
         UPSTREAM_PEER_ISSUER UPSTREAM_PEER_SUBJECT UPSTREAM_PEER_URI_SAN UPSTREAM_PROTOCOL \
         UPSTREAM_REMOTE_ADDRESS UPSTREAM_REMOTE_ADDRESS_ENDPOINT_ID \
         UPSTREAM_REMOTE_ADDRESS_WITHOUT_PORT UPSTREAM_REMOTE_PORT \
         UPSTREAM_REQUEST_ATTEMPT_COUNT UPSTREAM_SERVER_NAME UPSTREAM_TLS_CIPHER \
         UPSTREAM_TLS_GROUP UPSTREAM_TLS_SESSION_ID UPSTREAM_TLS_VERSION \
         UPSTREAM_TRANSPORT_FAILURE_REASON UPSTREAM_WIRE_BYTES_RECEIVED \
         UPSTREAM_WIRE_BYTES_SENT",
    ),
    (
        "it describes the end of a stream; costs may use `%RESP(name)%`, `%RESPONSE_CODE%`, \
         `%BYTES_SENT%`, `%BYTES_RECEIVED%` and metadata there",
        "COMMON_DURATION CONNECTION_TERMINATION_DETAILS \
         DOWNSTREAM_DECOMPRESSED_HEADER_BYTES_RECEIVED DOWNSTREAM_DECOMPRESSED_HEADER_BYTES_SENT \
         DOWNSTREAM_DETECTED_CLOSE_TYPE DOWNSTREAM_HANDSHAKE_DURATION \
         DOWNSTREAM_HEADER_BYTES_RECEIVED DOWNSTREAM_HEADER_BYTES_SENT \
         DOWNSTREAM_LOCAL_CLOSE_REASON DOWNSTREAM_TRANSPORT_FAILURE_REASON \
         DOWNSTREAM_WIRE_BYTES_RECEIVED DOWNSTREAM_WIRE_BYTES_SENT DURATION GRPC_STATUS \
         GRPC_STATUS_NUMBER LOCAL_REPLY_BODY REQUEST_DURATION REQUEST_TX_DURATION \
         RESPONSE_CODE_DETAILS RESPONSE_DURATION RESPONSE_FLAGS RESPONSE_FLAGS_LONG \
         RESPONSE_HEADERS_BYTES RESPONSE_TRAILER RESPONSE_TRAILERS_BYTES RESPONSE_TX_DURATION \
         ROUNDTRIP_DURATION TRAILER",
    ),
];

/// The source of a command, or why it is refused.
pub(super) fn known(node: &Node<'_>, name: &str) -> Result<From, ConfigError> {
    if let Some((_, from)) = COMMANDS.iter().find(|(known, _)| *known == name) {
        return Ok(*from);
    }
    let of = |(_, names): &&(&str, &str)| names.split(' ').any(|refused| refused == name);
    match REFUSED.iter().find(of) {
        Some((reason, _)) => Err(node.error(&format!("`%{name}%` is not supported: {reason}"))),
        None => Err(node.unknown("command", name, &COMMANDS.map(|(known, _)| known))),
    }
}

/// All commands.
#[cfg(test)]
pub(super) fn names() -> std::collections::BTreeSet<&'static str> {
    let refused = REFUSED.iter().flat_map(|(_, names)| names.split(' '));
    COMMANDS.iter().map(|(name, _)| *name).chain(refused).collect()
}
