//! What becomes of a request, without a host call: how an ask can fail, what its client is told, and
//! `failure`, the one place that applies `failure_mode`.

use crate::config::{Config, FailureMode, HeaderStyle};
use crate::leases::told::Told;
use crate::reply::{self, Header, Policy, Reply};
use tidegate_core::{Timestamp, Verdict};

/// How an ask failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AskError {
    /// Envoy could not send it.
    NotSent,
    /// The call ended with this gRPC status.
    Status(u32),
    /// The answer's bytes make no sense.
    Malformed,
}

impl AskError {
    /// No answer came in time.
    pub(crate) const TIMEOUT: AskError = AskError::Status(4);

    /// Whether the sidecar itself refused: it answers, and others may be served.
    pub(crate) fn is_refusal(self) -> bool {
        matches!(self, AskError::Status(3 | 8))
    }
}

impl std::fmt::Display for AskError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            AskError::NotSent => f.write_str("the call could not be sent"),
            AskError::Status(3) => f.write_str("it refused an ask (gRPC status 3)"),
            AskError::Status(4) => f.write_str("no answer in time (gRPC status 4)"),
            AskError::Status(8) => f.write_str("it has no room for a new counter (gRPC status 8)"),
            AskError::Status(14) => f.write_str("not reachable (gRPC status 14)"),
            AskError::Status(status) => write!(f, "gRPC status {status}"),
            AskError::Malformed => f.write_str("the answer could not be read"),
        }
    }
}

/// What becomes of a request that nobody could decide: it passes, or gets this reply.
#[must_use]
pub(crate) fn failure(config: &Config) -> Option<Reply> {
    match config.failure_mode {
        FailureMode::Allow => None,
        FailureMode::Deny => Some(reply::undecided()),
    }
}

/// What a client is told of one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shown {
    /// The limit.
    pub(crate) told: Told,
    /// Tokens at hand, beside what the sidecar has left.
    pub(crate) at_hand: u64,
    /// Whether it has room.
    pub(crate) verdict: Verdict,
}

/// The headers of a response to an allowed request.
#[must_use]
pub(crate) fn headers(config: &Config, shown: &[Shown], now: Timestamp) -> Vec<Header> {
    if config.headers == HeaderStyle::Off {
        return Vec::new();
    }
    reply::limit_headers(config.headers, &policies(shown, now))
}

/// The reply to a denied request.
#[must_use]
pub(crate) fn denial(config: &Config, shown: &[Shown], now: Timestamp) -> Reply {
    reply::denied(config, &policies(shown, now))
}

/// The limits of these. Descriptors without one have nothing to tell.
fn policies(shown: &[Shown], now: Timestamp) -> Vec<Policy<'_>> {
    let known = shown.iter().filter(|shown| shown.told.is_known());
    known
        .map(|Shown { told, at_hand, verdict }| {
            let left = u64::from(told.remaining).saturating_add(*at_hand);
            Policy {
                name: told.name(),
                quota: told.quota,
                window_secs: (told.window_secs > 0).then(|| told.window_secs.into()),
                remaining: match verdict {
                    Verdict::Allow => u32::try_from(left).unwrap_or(u32::MAX),
                    Verdict::Deny => 0,
                },
                reset_secs: told.resets_at.saturating_since(now).as_secs_ceil(),
                verdict: *verdict,
            }
        })
        .collect()
}
