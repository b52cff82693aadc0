//! What Envoy's own rate limit filter has in these places and this one has not: refused by name, with
//! what to do instead, since leaving it out silently would limit other things than was meant.
//!
//! A field at its protobuf default says nothing, and may be there.

use super::document::Tree;

/// A field, and the sentence about it.
pub(super) type Unsupported = (&'static str, &'static str);

pub(super) const OF_THE_FILTER: [Unsupported; 11] = [
    ("stage", "Envoy's field has no meaning here: a filter uses all of its `rate_limits`"),
    ("request_type", "internal and external requests cannot be told apart here"),
    ("timeout", "Envoy's field is `sidecar.timeout_ms` here, in milliseconds"),
    ("failure_mode_deny", "Envoy's field is `failure_mode` here: \"allow\" or \"deny\""),
    ("rate_limit_service", "Envoy's field is `sidecar.cluster` here"),
    ("enable_x_ratelimit_headers", "Envoy's field is `headers` here: \"draft03\" or \"off\""),
    ("disable_x_envoy_ratelimited_header", "the header cannot be left out here"),
    ("rate_limited_status", "Envoy's field is `denied.status` here"),
    ("status_on_error", "the status is always 500 here"),
    ("stat_prefix", "the names of the filter's stats are fixed"),
    ("filter_enforced", "a share of requests cannot be enforced here; see `shadow`"),
];

pub(super) const OF_A_RATE_LIMIT: [Unsupported; 5] = [
    ("stage", "only stage 0 is supported: a filter uses all of its `rate_limits`"),
    ("disable_key", "a Wasm filter cannot read Envoy's runtime"),
    ("limit", "limits come from the sidecar; requests cannot override them here"),
    ("apply_on_stream_done", "hits are only counted when a request comes, not when it ends"),
    ("x_ratelimit_option", "headers are chosen for the whole filter, by `headers`"),
];

pub(super) const OF_AN_ACTION: [Unsupported; 2] = [
    ("dynamic_metadata", "it is deprecated in Envoy; use `metadata` with source DYNAMIC"),
    ("extension", "a Wasm filter cannot call Envoy's descriptor extensions"),
];

pub(super) const OF_HITS: [Unsupported; 1] =
    [("is_negative_hits", "a filter only takes hits; refunds go to the sidecar itself")];

pub(super) const OF_A_TEXT: [Unsupported; 1] =
    [("custom", "a Wasm filter cannot call Envoy's matcher extensions")];

/// Whether a field of this value is the same as none, by protobuf's rules for fields without presence.
pub(super) fn is_default(value: &Tree) -> bool {
    match value {
        Tree::Null | Tree::Flag(false) | Tree::Whole(0) => true,
        Tree::Text(text) => text.is_empty() || text == "UNSPECIFIED",
        Tree::Flag(true) | Tree::Whole(_) | Tree::OtherNumber | Tree::List(_) | Tree::Object(_) => {
            false
        }
    }
}
