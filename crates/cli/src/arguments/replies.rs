//! Flags for headers about limits.

use clap::{Args, ValueEnum};
use hyper::header::HeaderName;
use tidegate_servers::{HeaderNames, Replies};

/// Headers about limits.
#[derive(Debug, Args)]
pub(crate) struct ReplyOptions {
    /// Headers about limits that Envoy adds to its responses
    #[arg(long, value_name = "FORM", env = "TIDEGATE_RESPONSE_HEADERS", default_value = "off")]
    pub(crate) response_headers: HeaderForm,

    /// Name of the header with the limit, for --response-headers ratelimit
    #[arg(
        long,
        value_name = "NAME",
        env = "TIDEGATE_RATELIMIT_LIMIT_HEADER",
        default_value = "RateLimit-Limit",
        value_parser = header_name
    )]
    pub(crate) ratelimit_limit_header: String,

    /// Name of the header with the remaining hits, for --response-headers ratelimit
    #[arg(
        long,
        value_name = "NAME",
        env = "TIDEGATE_RATELIMIT_REMAINING_HEADER",
        default_value = "RateLimit-Remaining",
        value_parser = header_name
    )]
    pub(crate) ratelimit_remaining_header: String,

    /// Name of the header with the seconds until more hits are available, for --response-headers ratelimit
    #[arg(
        long,
        value_name = "NAME",
        env = "TIDEGATE_RATELIMIT_RESET_HEADER",
        default_value = "RateLimit-Reset",
        value_parser = header_name
    )]
    pub(crate) ratelimit_reset_header: String,
}

/// Forms of headers about limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum HeaderForm {
    /// None
    Off,
    /// RateLimit-Limit, -Remaining and -Reset of the tightest limit, as in envoyproxy/ratelimit
    Ratelimit,
    /// x-ratelimit-limit, -remaining and -reset, as in Envoy's own filter
    XRatelimit,
    /// RateLimit-Policy and RateLimit of the current IETF draft, and Retry-After when denied
    Ietf,
}

impl ReplyOptions {
    pub(crate) fn replies(&self) -> Replies {
        match self.response_headers {
            HeaderForm::Off => Replies::Off,
            HeaderForm::Ratelimit => Replies::Plain(HeaderNames {
                limit: self.ratelimit_limit_header.clone(),
                remaining: self.ratelimit_remaining_header.clone(),
                reset: self.ratelimit_reset_header.clone(),
            }),
            HeaderForm::XRatelimit => Replies::Draft03,
            HeaderForm::Ietf => Replies::Ietf,
        }
    }
}

/// A valid header name: Envoy drops an answer with an invalid one.
fn header_name(text: &str) -> Result<String, String> {
    match HeaderName::try_from(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err("expected a header's name, such as RateLimit-Limit".to_owned()),
    }
}
