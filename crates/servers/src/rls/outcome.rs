//! What a rate limit call ends with: an answer with its headers, or a status.

use super::Endpoint;
use crate::spans::add_decision;
use tidegate_authority::{CallError, Undecided};
use tidegate_core::{Answer, Request};
use tidegate_grpc::{Code, Status};
use tidegate_store::UpdateError;
use tidegate_traces::{Ended, Span};
use tidegate_wire::encode_answer;

/// Appends an answer with its headers.
pub(super) fn encode(endpoint: &Endpoint, request: &Request, decided: &Answer, to: &mut Vec<u8>) {
    encode_answer(decided, endpoint.shared.replies.headers(request, decided), to);
}

/// Ends the span of a call that was answered.
pub(super) fn end_decided(
    mut span: Span,
    endpoint: &Endpoint,
    request: &Request,
    decided: &Answer,
) {
    add_decision(&mut span, &endpoint.shared.authority, request, decided);
    span.end(Ended { code: Code::Ok as u16, error: None });
}

/// Ends the span of a call without an answer, if it has one.
pub(super) fn end_refused(span: Option<Span>, status: &Status) {
    if let Some(span) = span {
        span.end(Ended { code: status.code as u16, error: Some(&status.message) });
    }
}

/// Reports a call without an answer, and returns its status.
pub(super) fn refuse(endpoint: &Endpoint, refused: CallError) -> Status {
    endpoint.shared.observer.refused();
    if let CallError::Undecided(error) = &refused {
        endpoint.shared.observer.undecided(error);
    }
    status_of(refused)
}

/// The status of a call without a decision.
pub(super) fn status_of(error: CallError) -> Status {
    match error {
        CallError::Invalid(message) => {
            tracing::debug!(error = message, "refused a request");
            Status::new(Code::InvalidArgument, message)
        }
        CallError::Undecided(error) => {
            tracing::debug!(%error, "no decision");
            Status::new(code_of(&error), error.to_string())
        }
    }
}

/// The status code without a decision, by which clients choose. Tidegate's filter has a mode for each:
/// `failure_mode` for causes that no client can provoke, `overload_mode` for the rest.
fn code_of(error: &Undecided) -> Code {
    match error {
        // Only these counters are busy: others can be used.
        Undecided::Store(UpdateError::Busy { .. }) => Code::Aborted,
        Undecided::Store(UpdateError::DataLoss) => Code::DataLoss,
        Undecided::Unreachable { .. } | Undecided::LimitsAwaited => Code::Unavailable,
        _ => Code::ResourceExhausted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_decision_the_code_depends_on_the_cause() {
        for (error, code) in [
            (UpdateError::Busy { pid: 1, millis: 5 }, Code::Aborted),
            (UpdateError::DataLoss, Code::DataLoss),
            (UpdateError::Crowded { millis: 5 }, Code::ResourceExhausted),
            (
                UpdateError::TooLarge { keys: 1, words: 1, keys_max: 1, words_max: 1 },
                Code::ResourceExhausted,
            ),
        ] {
            assert_eq!(status_of(CallError::Undecided(error.clone().into())).code, code, "{error}");
        }
        let unreachable = Undecided::Unreachable { cause: "refused".into() };
        for error in [unreachable, Undecided::LimitsAwaited] {
            assert_eq!(status_of(error.into()).code, Code::Unavailable);
        }
    }
}
