//! The plugin configuration: JSON, checked whole before any request is served.
//!
//! The document is a tree of values (`document`), and `read` makes the validated [`Config`] of it in
//! one pass. There is no layer of structs as they are spelt: deriving their readers made a third of
//! the module, all of which every virtual machine of Envoy compiles. An error names the field by its
//! path, such as `rate_limits[0].actions[1].request_headers.header_name`.

mod document;
pub(crate) mod encoded;
mod interner;
mod node;
mod rate_limit;
mod read;
mod structured;
#[cfg(test)]
mod tests;
mod unsupported;

pub use encoded::Encoded;
pub(crate) use rate_limit::PROPERTY_PARTS_MAX;
pub use rate_limit::{
    Action, Condition, Enforcement, Fact, HITS_MAX, HitsAddend, RateLimit, Source, WhenAbsent,
};

use crate::matching::query::Parameters;
use std::time::Duration;

/// A valid configuration.
#[derive(Debug, PartialEq, Eq)]
pub struct Config {
    /// The domain of every ask.
    pub domain: String,
    /// The Envoy cluster that is the sidecar.
    pub cluster: String,
    /// That cluster as the target of a gRPC call, in the form that Envoy wants.
    pub call_target: String,
    /// How long an ask may take before the sidecar counts as late.
    pub timeout: Duration,
    /// What happens to a request while the sidecar does not answer.
    pub failure_mode: FailureMode,
    /// What happens to a request that there is no room to decide.
    pub overload_mode: OverloadMode,
    /// How descriptors are made; each yields at most one.
    pub rate_limits: Vec<RateLimit>,
    /// The query parameters that they ask for.
    pub parameters: Parameters,
    /// What has them in it.
    pub path: Fact,
    /// Which rate limit headers clients get.
    pub headers: HeaderStyle,
    /// The reply to a denied request.
    pub denied: DeniedReply,
    /// The leases that are held in Envoy.
    pub leases: Leases,
}

/// The table of leases that all workers of an Envoy process share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leases {
    /// How many slots it has, each for a few leases; 0 to hold none and ask every time.
    pub slots: u32,
}

impl Default for Leases {
    fn default() -> Self {
        // With at most 857 bytes a slot, at most 7 MB of Envoy's memory.
        Leases { slots: 8_192 }
    }
}

/// What happens to a request while the sidecar does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FailureMode {
    /// It passes.
    #[default]
    Allow,
    /// It is answered with 500, as Envoy's own filter does.
    Deny,
}

/// What happens to a request that there is no room to decide. Clients can bring that about, so a limit
/// holds only where such requests are denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OverloadMode {
    /// It is answered with 503 and `Retry-After`.
    #[default]
    Deny,
    /// It passes.
    Allow,
}

/// Which headers tell clients about their limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HeaderStyle {
    /// `RateLimit-Policy` and `RateLimit` of the current IETF draft.
    #[default]
    Ietf,
    /// `x-ratelimit-limit`, `-remaining` and `-reset`, as Envoy's own filter has them.
    Draft03,
    /// None.
    Off,
}

/// The reply to a denied request.
#[derive(Debug, PartialEq, Eq)]
pub struct DeniedReply {
    /// HTTP status, 400 to 599.
    pub status: u32,
    /// The body; may be empty.
    pub body: String,
}

/// A mistake in the configuration.
#[derive(Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Where it is; empty for the document as a whole.
    pub path: String,
    /// What is wrong, and what was expected.
    pub message: String,
}

impl ConfigError {
    fn new(path: String, message: &str) -> Self {
        ConfigError { path, message: message.to_owned() }
    }
}

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.path.is_empty() {
            write!(f, "plugin configuration: {}", self.message)
        } else {
            write!(f, "plugin configuration: {}: {}", self.path, self.message)
        }
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// Reads and checks a configuration as Envoy hands it over: the text of a JSON object, or
    /// the bytes of a protobuf Struct.
    ///
    /// # Errors
    /// The first mistake, with the path of its field.
    pub fn from_envoy(bytes: &[u8]) -> Result<Config, ConfigError> {
        read::config(&document::object(bytes)?)
    }
}
