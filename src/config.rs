//! The plugin configuration: JSON or a protobuf Struct, validated completely before any request is
//! served.
//!
//! `document` parses it into a tree of values, and `read` makes the validated [`Config`] in one
//! pass. There is no layer of raw structs: their derived deserializers were a third of the module,
//! which every virtual machine of Envoy compiles. An error names its field by path, such as
//! `rate_limits[0].actions[1].request_headers.header_name`. Refuses unknown fields, and those of
//! Envoy that have no effect here (`unsupported`).

mod denied;
mod document;
pub(crate) mod encoded;
mod filter_options;
pub(crate) mod format;
mod interner;
mod late;
mod node;
mod rate_limit;
pub(crate) mod read;
mod reports;
pub(crate) mod structured;
#[cfg(test)]
mod tests;
mod tree;
mod unsupported;
mod virtual_hosts;
#[cfg(feature = "cel")]
pub(crate) mod when;

pub(crate) use denied::LIMIT_NAME_BYTES_MAX;
pub use denied::{DeniedReply, FormatChoice, Formats, ReplyContent};
pub use encoded::Encoded;
pub use filter_options::{AddedHeader, AppendAction, Fraction, RequestType, Selection};
pub use format::{Command, Format, Piece, Show};
pub(crate) use late::CostMoment;
pub use late::{LateCharge, LateCost};
pub(crate) use rate_limit::PROPERTY_PARTS_MAX;
pub use rate_limit::{
    Action, Claim, Condition, Enforcement, EntryOptions, Fact, Formatted, HITS_MAX, HitsAddend,
    LimitSource, RateLimit, Source, WhenAbsent, XRateLimitOption,
};
pub use reports::{FilterState, Reports};
pub use virtual_hosts::VirtualHosts;
pub(crate) use virtual_hosts::{ByName, NOTHING, OF_OTHER_HOSTS, VirtualHost};
#[cfg(feature = "cel")]
pub use when::When;

use crate::matching::query::Parameters;
use std::time::Duration;

/// A valid configuration.
#[derive(Debug, PartialEq, Eq)]
pub struct Config {
    /// The domain of every call.
    pub domain: String,
    /// The Envoy cluster of the sidecar.
    pub cluster: String,
    /// That cluster as Envoy's target of a gRPC call.
    pub call_target: Vec<u8>,
    /// The time for a call, after which the sidecar counts as late.
    pub timeout: Duration,
    /// The mode for requests while the sidecar does not answer. `Deny` answers with 500, as Envoy's own
    /// filter does by default.
    pub failure_mode: UndecidedMode,
    /// The share of such requests that are answered with an error, whatever the failure mode.
    pub failure_mode_deny_percent: Option<Fraction>,
    /// The status of these errors, 400 to 599.
    pub status_on_error: u32,
    /// The mode for requests during overload. Clients can cause overload, so limits hold only with
    /// `Deny`, which answers with 503 and `Retry-After`.
    pub overload_mode: UndecidedMode,
    /// The requests that the filter looks at; without it, all. Others pass.
    pub selection: Option<Selection>,
    /// The share of denials that are carried out. All others are only counted.
    pub filter_enforced: Fraction,
    /// The actions that make descriptors; each entry makes at most one. Empty if there are
    /// `virtual_hosts`.
    pub rate_limits: Vec<RateLimit>,
    /// The same by virtual host and route.
    pub virtual_hosts: Option<Box<VirtualHosts>>,
    /// What entries say of replies, by the numbers that their descriptors have. Empty if none says
    /// anything; then descriptors have no numbers.
    pub entry_options: Vec<EntryOptions>,
    /// The charges of entries that are charged when the stream ends, or that refund. The hits of
    /// such an entry stand for its index here.
    pub late_charges: Vec<LateCharge>,
    /// Whether there is a `selection`, or a late charge.
    pub is_special: bool,
    /// The query parameters that the actions need.
    pub parameters: Parameters,
    /// The header with the path.
    pub path: Fact,
    /// The style of the headers about limits.
    pub headers: HeaderStyle,
    /// The same for entries of `rate_limits` that leave it to the filter; never `ByEntry`.
    pub headers_by_default: HeaderStyle,
    /// The reply to a denied request.
    pub denied: DeniedReply,
    /// Reports beside the decision.
    pub reports: Reports,
    /// The size of the table of leases that all workers of an Envoy process share, in slots for a few
    /// leases each; 0 disables leases, so that every request needs a call.
    pub lease_slots: u32,
}

/// The mode for requests that the sidecar does not decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UndecidedMode {
    /// They pass.
    Allow,
    /// They are answered with an error.
    Deny,
}

/// The style of the headers about limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderStyle {
    /// `RateLimit-Policy` and `RateLimit` of the current IETF draft.
    Ietf,
    /// `x-ratelimit-limit`, `-remaining` and `-reset`, as Envoy's own filter sends them.
    Draft03,
    /// None.
    Off,
    /// By the `x_ratelimit_option` of each entry of `rate_limits`.
    ByEntry,
}

/// A mistake in the configuration.
#[derive(Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The field's path; empty for the document as a whole.
    pub path: String,
    /// The mistake and the expected value.
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
    /// The entries of all lists.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &RateLimit> {
        let lists = self.virtual_hosts.iter().flat_map(|hosts| &hosts.lists);
        self.rate_limits.iter().chain(lists.flatten())
    }

    /// Reads and validates a configuration from Envoy: the text of a JSON object, or the bytes of a
    /// protobuf Struct.
    ///
    /// # Errors
    /// The first mistake, with the path of its field.
    pub fn from_envoy(bytes: &[u8]) -> Result<Config, ConfigError> {
        read::config(&document::object(bytes)?)
    }
}
