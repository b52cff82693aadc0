//! What becomes of a request, without a host call: how an ask can fail, what its client is told, and
//! `undecided`, the one place that applies `failure_mode` and `overload_mode`.

use super::replies;
use crate::config::{Config, FailureMode, OverloadMode};
use crate::host::Reply;

/// How an ask failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AskError {
    /// Envoy did not take the call.
    NotSent,
    /// The connection failed.
    Unreachable,
    /// The sidecar left every call unanswered for a while.
    Silent,
    /// The sidecar answered with this gRPC status.
    Status(u32),
    /// The answer's bytes make no sense.
    Malformed,
    /// No answer came in time, though the sidecar may answer others.
    Late,
    /// The sidecar has no room: too many calls, or no place for a new counter.
    Shed,
    /// The sidecar refused this ask.
    Refused,
    /// The sidecar answers, but a process that does not move holds a counter of this ask.
    Stuck,
    /// Envoy has too many calls to the cluster under way.
    Overflow,
}

/// Why a request has no decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Undecided {
    /// The sidecar does not answer, or cannot use this counter: `failure_mode` decides.
    Failure,
    /// There is too much to do: `overload_mode` decides. Clients can bring this about.
    Overload,
}

impl AskError {
    /// What the end of a call says that brought no answer: its gRPC status and message. Envoy ends calls
    /// that it gives up with UNAVAILABLE, and only the message says why (as of Envoy 1.40).
    #[must_use]
    pub fn of_close(status: u32, message: &[u8]) -> AskError {
        const ENVOYS_LIMITS: [&[u8]; 2] = [b"reset reason: overflow", b"remote refused stream"];
        const ENVOYS_TIMEOUT: &[u8] = b"upstream request timeout";
        let says = |text: &[u8]| message.windows(text.len()).any(|window| window == text);
        match status {
            // A good end without an answer.
            0 => AskError::Malformed,
            3 => AskError::Refused,
            4 => AskError::Late,
            8 => AskError::Shed,
            10 => AskError::Stuck,
            14 if says(ENVOYS_TIMEOUT) => AskError::Late,
            14 if ENVOYS_LIMITS.into_iter().any(says) => AskError::Overflow,
            14 => AskError::Unreachable,
            status => AskError::Status(status),
        }
    }

    /// Which mode decides the requests of such an ask.
    #[must_use]
    pub fn leaves(self) -> Undecided {
        match self {
            AskError::NotSent
            | AskError::Unreachable
            | AskError::Silent
            | AskError::Status(_)
            | AskError::Stuck
            | AskError::Malformed => Undecided::Failure,
            AskError::Late | AskError::Shed | AskError::Refused | AskError::Overflow => {
                Undecided::Overload
            }
        }
    }

    /// Whether the sidecar itself said so: then it took nothing and granted nothing.
    pub(crate) fn is_answer(self) -> bool {
        matches!(self, AskError::Shed | AskError::Refused | AskError::Stuck)
    }

    /// Whether the sidecar cannot have taken or granted anything.
    pub(crate) fn is_without_effect(self) -> bool {
        self.is_answer() || matches!(self, AskError::NotSent | AskError::Overflow)
    }

    /// Its place among the causes that are counted and logged.
    pub(crate) fn cause(self) -> Cause {
        match self {
            AskError::NotSent | AskError::Unreachable => Cause::Unreachable,
            AskError::Silent => Cause::Silent,
            AskError::Status(_) | AskError::Malformed => Cause::Failed,
            AskError::Late => Cause::Late,
            AskError::Shed => Cause::Shed,
            AskError::Refused => Cause::Refused,
            AskError::Stuck => Cause::Stuck,
            AskError::Overflow => Cause::Overflow,
        }
    }
}

/// The causes of undecided requests that operators can tell apart: each has a count and a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    Unreachable,
    Silent,
    Failed,
    Late,
    Shed,
    Refused,
    Stuck,
    Overflow,
    /// Too many requests wait in this worker.
    Full,
}

impl Cause {
    pub(crate) const COUNT: usize = 9;
}

impl std::fmt::Display for AskError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            AskError::NotSent => f.write_str("Envoy could not send the call"),
            AskError::Unreachable => f.write_str("not reachable (gRPC status 14)"),
            AskError::Silent => f.write_str("it answers no call"),
            AskError::Status(status) => write!(f, "it answered with gRPC status {status}"),
            AskError::Malformed => f.write_str("the answer could not be read"),
            AskError::Late => f.write_str("an answer did not come in time"),
            AskError::Shed => f.write_str("it has no room (gRPC status 8)"),
            AskError::Refused => f.write_str("it refused an ask (gRPC status 3)"),
            AskError::Stuck => {
                f.write_str("a process that does not move holds a counter (gRPC status 10)")
            }
            AskError::Overflow => f.write_str("Envoy has too many calls to it under way"),
        }
    }
}

/// What becomes of a request that has no decision: it passes, or gets this reply.
///
/// The only place that applies the two modes. Invariant: what clients send never leads to `Failure` while
/// the sidecar answers. (It answers also where a process beside it stands still with a counter in its hands,
/// which is `Failure`, and no doing of clients.)
#[must_use]
pub(crate) fn undecided(config: &Config, why: Undecided) -> Option<Reply> {
    match why {
        Undecided::Failure => match config.failure_mode {
            FailureMode::Allow => None,
            FailureMode::Deny => Some(replies::unavailable()),
        },
        Undecided::Overload => match config.overload_mode {
            OverloadMode::Allow => None,
            OverloadMode::Deny => Some(replies::overloaded()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Envoy ended a call that had timed out with the same status as one to a sidecar that was gone, so
    /// the log said "not reachable" exactly when the sidecar was there but slow.
    #[test]
    fn the_end_of_a_call_says_why() {
        let overflow =
            "upstream connect error or disconnect/reset before headers. reset reason: overflow";
        let refused = "upstream connect error or disconnect/reset before headers. reset reason: \
                       remote connection failure";
        let table = [
            (0, "", AskError::Malformed, Undecided::Failure),
            (3, "", AskError::Refused, Undecided::Overload),
            (4, "", AskError::Late, Undecided::Overload),
            (8, "overloaded", AskError::Shed, Undecided::Overload),
            (10, "", AskError::Stuck, Undecided::Failure),
            (12, "", AskError::Status(12), Undecided::Failure),
            (14, "", AskError::Unreachable, Undecided::Failure),
            (14, refused, AskError::Unreachable, Undecided::Failure),
            (14, overflow, AskError::Overflow, Undecided::Overload),
            (
                14,
                "reset reason: remote refused stream reset",
                AskError::Overflow,
                Undecided::Overload,
            ),
            (14, "upstream request timeout{response_timeout}", AskError::Late, Undecided::Overload),
        ];
        for (status, message, error, mode) in table {
            let found = AskError::of_close(status, message.as_bytes());
            assert_eq!((found, found.leaves()), (error, mode), "{status} {message}");
        }
    }
}
