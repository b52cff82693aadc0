//! Why a call failed, and `undecided`, the only place that applies `failure_mode` and
//! `overload_mode`.

use super::replies::{self, Denial};
use crate::config::{Config, UndecidedMode};
use crate::host::stats::Counter;

/// Why a call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallError {
    /// Envoy refused the call.
    NotSent,
    /// The connection failed.
    Unreachable,
    /// The sidecar has not answered any call for a while.
    Silent,
    /// The sidecar answered with this gRPC status.
    Status(u32),
    /// The response cannot be decoded.
    Malformed,
    /// No response in time, though the sidecar may answer others.
    Late,
    /// The sidecar has no room: too many calls, or no space for a new counter.
    Shed,
    /// The sidecar refused this call.
    Refused,
    /// The sidecar answers, but a stopped process holds a counter of this call.
    Stuck,
    /// Envoy has too many pending calls to the cluster.
    Overflow,
}

/// Why a request has no decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Undecided {
    /// The sidecar does not answer, or cannot use this counter: `failure_mode` decides.
    Failure,
    /// Overload: `overload_mode` decides. Clients can cause it.
    Overload,
}

impl CallError {
    /// The error of a call that ended without a response, by gRPC status and message. Envoy ends
    /// calls that it abandons with UNAVAILABLE, and only the message says why (as of Envoy 1.40).
    #[must_use]
    pub fn from_grpc_close(status: u32, message: &[u8]) -> CallError {
        const ENVOYS_LIMITS: [&[u8]; 2] = [b"reset reason: overflow", b"remote refused stream"];
        const ENVOYS_TIMEOUT: &[u8] = b"upstream request timeout";
        let says = |text: &[u8]| message.windows(text.len()).any(|window| window == text);
        match status {
            // OK, but without a response.
            0 => CallError::Malformed,
            3 => CallError::Refused,
            4 => CallError::Late,
            8 => CallError::Shed,
            10 => CallError::Stuck,
            14 if says(ENVOYS_TIMEOUT) => CallError::Late,
            14 if ENVOYS_LIMITS.into_iter().any(says) => CallError::Overflow,
            14 => CallError::Unreachable,
            status => CallError::Status(status),
        }
    }

    /// The mode that decides requests after this error.
    #[must_use]
    pub fn undecided_reason(self) -> Undecided {
        match self {
            CallError::NotSent
            | CallError::Unreachable
            | CallError::Silent
            | CallError::Status(_)
            | CallError::Stuck
            | CallError::Malformed => Undecided::Failure,
            CallError::Late | CallError::Shed | CallError::Refused | CallError::Overflow => {
                Undecided::Overload
            }
        }
    }

    /// Whether the sidecar reported the error itself: then it charged and granted nothing.
    pub(crate) fn is_answer(self) -> bool {
        matches!(self, CallError::Shed | CallError::Refused | CallError::Stuck)
    }

    /// Whether the sidecar cannot have charged or granted anything.
    pub(crate) fn is_without_effect(self) -> bool {
        self.is_answer() || matches!(self, CallError::NotSent | CallError::Overflow)
    }

    /// The counter of its cause; the log distinguishes the same causes.
    pub(crate) fn counter(self) -> Counter {
        match self {
            CallError::NotSent | CallError::Unreachable => Counter::AsksUnreachable,
            CallError::Silent => Counter::AsksUnanswered,
            CallError::Status(_) | CallError::Malformed => Counter::AsksFailed,
            CallError::Late => Counter::AsksLate,
            CallError::Shed => Counter::AsksShed,
            CallError::Refused => Counter::AsksRefused,
            CallError::Stuck => Counter::AsksStuck,
            CallError::Overflow => Counter::AsksOverflowed,
        }
    }
}

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CallError::NotSent => f.write_str("Envoy could not send the call"),
            CallError::Unreachable => f.write_str("not reachable (gRPC status 14)"),
            CallError::Silent => f.write_str("it answers no call"),
            CallError::Status(status) => write!(f, "it answered with gRPC status {status}"),
            CallError::Malformed => f.write_str("the answer could not be read"),
            CallError::Late => f.write_str("an answer came too late"),
            CallError::Shed => f.write_str("it has no room (gRPC status 8)"),
            CallError::Refused => f.write_str("it refused a call (gRPC status 3)"),
            CallError::Stuck => f.write_str("a stopped process holds a counter (gRPC status 10)"),
            CallError::Overflow => f.write_str("Envoy has too many pending calls to it"),
        }
    }
}

/// The reply to a request without a decision; none if it passes.
///
/// The only place that applies the two modes. Invariant: clients cannot cause `Failure` while the
/// sidecar answers. (A stopped process that holds a counter is a `Failure` too, but clients cannot
/// cause that.)
#[must_use]
pub(crate) fn undecided(
    config: &Config,
    why: Undecided,
    random: impl FnOnce() -> u64,
) -> Option<Denial> {
    match why {
        Undecided::Failure => {
            let denies = match config.failure_mode_deny_percent {
                Some(share) => share.includes(random),
                None => config.failure_mode == UndecidedMode::Deny,
            };
            denies.then(|| replies::unavailable(config))
        }
        Undecided::Overload => {
            (config.overload_mode == UndecidedMode::Deny).then(|| replies::overloaded(config))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Envoy ended a timed-out call with the same status as a call to an unreachable sidecar, so
    /// the log said "not reachable" exactly when the sidecar was slow.
    #[test]
    fn the_end_of_a_call_says_why() {
        let overflow =
            "upstream connect error or disconnect/reset before headers. reset reason: overflow";
        let refused = "upstream connect error or disconnect/reset before headers. reset reason: \
                       remote connection failure";
        let table = [
            (0, "", CallError::Malformed, Undecided::Failure),
            (3, "", CallError::Refused, Undecided::Overload),
            (4, "", CallError::Late, Undecided::Overload),
            (8, "overloaded", CallError::Shed, Undecided::Overload),
            (10, "", CallError::Stuck, Undecided::Failure),
            (12, "", CallError::Status(12), Undecided::Failure),
            (14, "", CallError::Unreachable, Undecided::Failure),
            (14, refused, CallError::Unreachable, Undecided::Failure),
            (14, overflow, CallError::Overflow, Undecided::Overload),
            (
                14,
                "reset reason: remote refused stream reset",
                CallError::Overflow,
                Undecided::Overload,
            ),
            (
                14,
                "upstream request timeout{response_timeout}",
                CallError::Late,
                Undecided::Overload,
            ),
        ];
        for (status, message, error, mode) in table {
            let found = CallError::from_grpc_close(status, message.as_bytes());
            assert_eq!((found, found.undecided_reason()), (error, mode), "{status} {message}");
        }
    }
}
