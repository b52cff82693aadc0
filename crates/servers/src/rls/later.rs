//! The calls of one connection whose answers come later, since the counters do.
//!
//! Each is a task of its own, which goes on when its call is reset or its connection closes: its charges may have been
//! committed. A connection keeps its slot until its last task has ended, so the bounds here hold for clients that
//! leave and return as well.

use super::Endpoint;
use super::outcome::{encode, refuse};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tidegate_authority::{Ask, clock};
use tidegate_grpc::server::{Call, CallId, Outcome};
use tidegate_grpc::{Code, Status};
use tidegate_wire::decode_request;
use tokio::task::JoinSet;

/// Calls that wait at a time: as many as a connection has streams. A call that was ended for taking too long is no
/// stream, but its task still counts.
pub(super) const CALLS_MAX: usize = 128;
/// The memory of all waiting requests. One alone may have more.
const BYTES_MAX: usize = 8 * 1024 * 1024;
/// A request takes at most this multiple of its message.
const BYTES_PER_MESSAGE_BYTE: usize = 16;

/// The calls that wait.
#[derive(Debug, Default)]
pub(super) struct LaterCalls {
    /// None until the first call.
    tasks: Option<JoinSet<Answered>>,
    bytes: usize,
}

/// An answer to hand in.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) call: CallId,
    pub(super) answer: Result<Vec<u8>, Status>,
    bytes: usize,
}

impl LaterCalls {
    /// Begins a rate limit call.
    pub(super) fn begin(&mut self, endpoint: &Arc<Endpoint>, call: &Call<'_>) -> Outcome {
        let read = decode_request(call.message).map_err(Into::into);
        let read = read.and_then(|request| {
            let ask = Ask::read(&request, |name| call.metadata.get(name))?;
            Ok((request, ask))
        });
        let (request, ask) = match read {
            Ok(read) => read,
            Err(refused) => return Outcome::Refused(refuse(endpoint, refused)),
        };
        let bytes = call.message.len() * BYTES_PER_MESSAGE_BYTE;
        let is_too_much = self.bytes > 0 && self.bytes + bytes > BYTES_MAX;
        let tasks = self.tasks.get_or_insert_default();
        if is_too_much || tasks.len() >= CALLS_MAX {
            endpoint.shared.observer.refused();
            let message = "too many calls of this connection wait for their answers";
            return Outcome::Refused(Status::new(Code::ResourceExhausted, message));
        }
        self.bytes += bytes;
        let (endpoint, call) = (endpoint.clone(), call.id);
        tasks.spawn(async move {
            let deciding = async {
                let decided =
                    endpoint.shared.authority.answer_ask(&request, &ask, clock::now()).await;
                match decided {
                    Ok(decided) => {
                        let mut answer = Vec::new();
                        encode(&endpoint, &request, &decided, &mut answer);
                        Ok(answer)
                    }
                    Err(error) => Err(refuse(&endpoint, error.into())),
                }
            };
            let answer = endpoint.shared.overload.watch(deciding).await;
            Answered { call, answer, bytes }
        });
        Outcome::Later
    }

    /// The next answer; none while no call waits.
    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Answered>> {
        let Some(tasks) = &mut self.tasks else { return Poll::Ready(None) };
        while let Some(ended) = ready!(tasks.poll_join_next(context)) {
            match ended {
                Ok(answered) => {
                    self.bytes -= answered.bytes;
                    return Poll::Ready(Some(answered));
                }
                Err(error) => tracing::error!(%error, "a call panicked"),
            }
        }
        self.bytes = 0;
        Poll::Ready(None)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tasks.as_ref().is_none_or(JoinSet::is_empty)
    }

    /// The memory of waiting requests, at most.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Waits until every task has ended.
    pub(super) async fn all_ended(&mut self) {
        while std::future::poll_fn(|context| self.poll_next(context)).await.is_some() {}
    }
}
