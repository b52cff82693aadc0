//! The variables and functions of conditions: a subset of Envoy's attributes, with their names and
//! types.

use super::compile::Type;
use crate::config::when::Form;

/// What a variable stands for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Variable {
    /// A header.
    Header(&'static str, Form),
    /// A property of Envoy.
    Property(&'static [&'static str], Form),
    /// The headers of the request, by name.
    Headers,
    /// The namespaces of the dynamic metadata.
    Metadata,
    /// The payload that `jwt_authn` puts into the metadata, under the name `payload`.
    Claims,
}

/// The place of the claims in the metadata.
pub(super) const CLAIMS: [&str; 2] = ["envoy.filters.http.jwt_authn", "payload"];

use Form::{Bool, Int, Query, Text, UrlPath};
use Variable::{Claims, Header, Headers, Metadata, Property};

pub(super) const VARIABLES: [(&str, Variable); 27] = [
    ("request.method", Header(":method", Text)),
    ("request.path", Header(":path", Text)),
    ("request.url_path", Header(":path", UrlPath)),
    ("request.query", Header(":path", Query)),
    ("request.host", Header(":authority", Text)),
    ("request.scheme", Header(":scheme", Text)),
    ("request.headers", Headers),
    ("request.referer", Header("referer", Text)),
    ("request.useragent", Header("user-agent", Text)),
    ("request.id", Header("x-request-id", Text)),
    ("request.protocol", Property(&["request", "protocol"], Text)),
    ("request.size", Property(&["request", "size"], Int)),
    ("source.address", Property(&["source", "address"], Text)),
    ("source.port", Property(&["source", "port"], Int)),
    ("destination.address", Property(&["destination", "address"], Text)),
    ("destination.port", Property(&["destination", "port"], Int)),
    ("connection.mtls", Property(&["connection", "mtls"], Bool)),
    ("connection.requested_server_name", Property(&["connection", "requested_server_name"], Text)),
    ("connection.tls_version", Property(&["connection", "tls_version"], Text)),
    (
        "connection.subject_peer_certificate",
        Property(&["connection", "subject_peer_certificate"], Text),
    ),
    (
        "connection.dns_san_peer_certificate",
        Property(&["connection", "dns_san_peer_certificate"], Text),
    ),
    (
        "connection.uri_san_peer_certificate",
        Property(&["connection", "uri_san_peer_certificate"], Text),
    ),
    ("xds.route_name", Property(&["xds", "route_name"], Text)),
    ("xds.virtual_host_name", Property(&["xds", "virtual_host_name"], Text)),
    ("xds.cluster_name", Property(&["xds", "cluster_name"], Text)),
    ("metadata.filter_metadata", Metadata),
    ("jwt.claims", Claims),
];

pub(super) const FUNCTIONS: [&str; 8] =
    ["has", "size", "int", "double", "startsWith", "endsWith", "contains", "matches"];

pub(super) fn type_of(form: Form) -> Type {
    match form {
        Text | UrlPath | Query => Type::Text,
        Int => Type::Int,
        Bool => Type::Bool,
    }
}
