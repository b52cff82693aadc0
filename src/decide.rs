//! What becomes of a request: the filter's whole judgement, without a host call.
//!
//! A decision has two moments. [`first_step`] is what the filter can say at once from what it
//! holds itself; only when that is not enough is the sidecar asked, and [`conclude`] judges what
//! came back. Whatever goes wrong in between ends in [`failure`], the one place that applies
//! `failure_mode`.

use crate::config::{Config, FailureMode};
use crate::descriptors::{RequestFacts, descriptors};
use crate::reply::{self, Reply};
use tidegate_core::{Answer, Hits, Request, Verdict};

/// Where the decision on a request stands.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// It is made.
    Decided(Ruling),
    /// The sidecar must be asked.
    Ask(Request),
}

/// A decision, ready to be carried out.
#[derive(Debug, PartialEq, Eq)]
pub enum Ruling {
    /// The request passes; these headers go on its response.
    Allow(Vec<reply::Header>),
    /// The request is answered here.
    Deny(Reply),
}

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

/// What can be said of a request before anybody is asked.
pub fn first_step(config: &Config, facts: &impl RequestFacts) -> Step {
    let descriptors = descriptors(&config.rate_limits, facts);
    if descriptors.is_empty() {
        return Step::Decided(Ruling::Allow(Vec::new()));
    }
    Step::Ask(Request { domain: config.domain.clone(), descriptors, hits: Hits::ONE })
}

/// What the sidecar's answer to `asked` means.
#[must_use]
pub fn conclude(config: &Config, asked: &Request, answer: &Answer) -> Ruling {
    let policies = reply::policies(asked, answer);
    match answer.verdict {
        Verdict::Allow => Ruling::Allow(reply::limit_headers(config.headers, &policies)),
        Verdict::Deny => Ruling::Deny(reply::denied(config, &policies)),
    }
}

/// What becomes of a request that nobody could decide.
#[must_use]
pub fn failure(config: &Config) -> Ruling {
    match config.failure_mode {
        FailureMode::Allow => Ruling::Allow(Vec::new()),
        FailureMode::Deny => Ruling::Deny(reply::undecided()),
    }
}
