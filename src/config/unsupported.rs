//! Fields of Envoy's own rate limit filter without support here. Each is refused by name, with an
//! alternative, since ignoring it would limit other requests than intended.
//!
//! A field at its protobuf default has no effect and is accepted.

use super::tree::Tree;

/// A field, and the message about it.
pub(super) type Unsupported = (&'static str, &'static str);

pub(super) const OF_THE_FILTER: [Unsupported; 6] = [
    ("timeout", "use `sidecar.timeout_ms`, in milliseconds"),
    ("failure_mode_deny", "use `failure_mode`: \"allow\" or \"deny\""),
    ("rate_limit_service", "use `sidecar.cluster`"),
    ("enable_x_ratelimit_headers", "use `headers`: \"draft03\" or \"off\""),
    ("rate_limited_status", "use `denied.status`"),
    ("stat_prefix", "the names of the filter's stats are fixed"),
];

pub(super) const OF_A_RATE_LIMIT: [Unsupported; 2] = [
    ("limit", "requests cannot override the sidecar's limits"),
    ("x_ratelimit_option", "use `headers`, for the whole filter"),
];

pub(super) const OF_AN_ACTION: [Unsupported; 1] =
    [("extension", "a Wasm filter cannot call Envoy's descriptor extensions")];

pub(super) const OF_A_TEXT: [Unsupported; 1] =
    [("custom", "a Wasm filter cannot call Envoy's matcher extensions")];

/// Whether this value equals an absent field, by protobuf's rules for fields without presence.
pub(super) fn is_default(value: &Tree) -> bool {
    match value {
        Tree::Null | Tree::Flag(false) | Tree::Whole(0) => true,
        Tree::Text(text) => text.is_empty() || text == "UNSPECIFIED",
        Tree::Flag(true) | Tree::Whole(_) | Tree::OtherNumber | Tree::List(_) | Tree::Object(_) => {
            false
        }
    }
}
