//! Replies to denied requests: status, bodies, and the choice among bodies.

use super::filter_options::{AddedHeader, Fraction};
use crate::matching::text::TextMatcher;
use std::rc::Rc;

/// The longest name of a limit; a longer one is cut.
pub(crate) const LIMIT_NAME_BYTES_MAX: usize = 64;

/// The reply to a denied request.
#[derive(Debug, PartialEq, Eq)]
pub struct DeniedReply {
    /// Status and bodies, unless a rule has its own.
    pub content: ReplyContent,
    /// Whether any entry of `rate_limits` or any limit has its own content.
    pub has_rules: bool,
    /// The content for limits with such a name; the first match counts.
    pub by_limit: Vec<(TextMatcher, ReplyContent)>,
    /// The share of the wait that `retry-after` may add to it.
    pub retry_after_jitter: Option<Fraction>,
    /// Whether a gRPC client gets RESOURCE_EXHAUSTED instead of UNAVAILABLE.
    pub is_resource_exhausted: bool,
    /// Whether it has `x-envoy-ratelimited`.
    pub is_marked: bool,
    /// Headers besides the filter's own.
    pub added: Vec<AddedHeader>,
}

/// The status and the bodies of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplyContent {
    /// HTTP status, 400 to 599.
    pub status: u32,
    /// The body as text; may be empty. Also the message for gRPC clients.
    pub text: String,
    /// The other formats; none if every body is text.
    pub formats: Option<Box<Formats>>,
}

/// The formats of a reply besides text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Formats {
    /// The format, or its choice.
    pub choice: FormatChoice,
    /// The configured JSON body; without one, the filter writes it.
    pub json: Option<Rc<str>>,
    /// The configured body as `application/problem+json`; likewise.
    pub problem: Option<Rc<str>>,
}

/// The choice among the formats of a body. gRPC clients always get text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FormatChoice {
    /// `application/json`.
    Json,
    /// `application/problem+json` (RFC 9457).
    Problem,
    /// By the request's header `accept`; text if it accepts anything.
    Accept,
}
