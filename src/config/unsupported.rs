//! Fields of Envoy's own rate limit filter without support here. Each is refused by name, with an
//! alternative, since ignoring it would limit other requests than intended.
//!
//! A field at its protobuf default has no effect and is accepted.

use super::tree::Tree;

/// A field, and the message about it.
pub(super) type Unsupported = (&'static str, &'static str);

/// What a pasted block of Envoy needs.
const TRANSLATE: &str =
    "this is a block of Envoy's configuration, which `tidegate translate` turns into this one's";

pub(super) const OF_THE_FILTER: [Unsupported; 10] = [
    ("name", TRANSLATE),
    ("typed_config", TRANSLATE),
    ("@type", TRANSLATE),
    ("timeout", "use `sidecar.timeout_ms`, in milliseconds"),
    ("failure_mode_deny", "use `failure_mode`: \"allow\" or \"deny\""),
    (
        "rate_limit_service",
        "use `sidecar.cluster`; `tidegate translate` turns Envoy's block into this one's",
    ),
    ("enable_x_ratelimit_headers", "use `headers`: \"draft03\" or \"off\""),
    ("rate_limited_status", "use `denied.status`"),
    ("metadata_namespace", "a Wasm filter cannot set dynamic metadata"),
    ("enable_retry_after_header", "denials always have `retry-after`"),
];

#[cfg(not(feature = "cel"))]
pub(super) const OF_A_RATE_LIMIT: [Unsupported; 1] =
    [("when", "conditions need the module tidegate-cel.wasm in place of this one")];
#[cfg(feature = "cel")]
pub(super) const OF_A_RATE_LIMIT: [Unsupported; 0] = [];

pub(super) const OF_A_VIRTUAL_HOST: [Unsupported; 3] = [
    ("domains", TRANSLATE),
    ("typed_per_filter_config", PER_ROUTE),
    ("vh_rate_limits", "it belongs into `per_route`"),
];

pub(super) const OF_A_ROUTE: [Unsupported; 5] = [
    ("match", TRANSLATE),
    ("route", TRANSLATE),
    ("typed_per_filter_config", PER_ROUTE),
    ("vh_rate_limits", "it belongs into `per_route`"),
    ("domain", "it belongs into `per_route`"),
];

const PER_ROUTE: &str = "use `per_route`, for what it has for `envoy.filters.http.ratelimit`; \
     `tidegate translate` does so";

pub(super) const OF_A_PER_ROUTE: [Unsupported; 2] =
    [("@type", "leave it out"), ("override_option", "Envoy does not implement it either")];

pub(super) const OF_AN_ENGINE: [Unsupported; 1] =
    [("max_program_size", "it is deprecated in Envoy; the filter has its own bounds")];

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
