//! The calls of one connection whose answers come later, since the counters do.
//!
//! Each is a task of its own, which goes on when its call is reset or its connection closes: its charges may have been
//! committed. A connection keeps its slot until its last task has ended, so the bounds here hold for clients that
//! leave and return as well. The requests of all connections share a budget of memory.

use super::Endpoint;
use super::outcome::{encode, refuse};
use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tidegate_authority::{Ask, clock};
use tidegate_core::{Descriptor, Entry, Request};
use tidegate_grpc::server::{Call, CallId, Outcome};
use tidegate_grpc::{Code, Status};
use tidegate_wire::decode_request;
use tokio::task::{self, JoinSet};

/// Calls that wait at a time: as many as a connection has streams. A call that was ended for taking too long is no
/// stream, but its task still counts.
pub(super) const CALLS_MAX: usize = 128;
/// The memory of the waiting requests of a connection. One alone may have more.
const BYTES_MAX: usize = 8 * 1024 * 1024;
/// The memory of a call besides its request: its task and its answer.
const CALL_BYTES: usize = 2 * 1024;
/// The memory of a descriptor besides its entries: its limits, keys, states and decisions.
const DESCRIPTOR_BYTES: usize = 1024;
/// What an allocation takes beyond its bytes, at most, for a short string.
const ALLOCATION_BYTES: usize = 32;

/// Calls of all connections that wait at a time.
pub(super) const ENDPOINT_CALLS_MAX: usize = 32 * 1024;

/// The message of an answer, or the status of a call without one.
type Answer = Result<Vec<u8>, Status>;

/// The calls that wait.
pub(super) struct LaterCalls {
    endpoint: Arc<Endpoint>,
    /// None until the first call.
    tasks: Option<JoinSet<Answer>>,
    /// The call of each task, and its memory.
    calls: HashMap<task::Id, (CallId, usize)>,
    bytes: usize,
}

impl LaterCalls {
    pub(super) fn new(endpoint: Arc<Endpoint>) -> LaterCalls {
        LaterCalls { endpoint, tasks: None, calls: HashMap::new(), bytes: 0 }
    }

    /// Begins a rate limit call.
    pub(super) fn begin(&mut self, call: &Call<'_>) -> Outcome {
        let endpoint = &self.endpoint;
        let read = decode_request(call.message).map_err(Into::into);
        let read = read.and_then(|request| {
            let ask = Ask::read(&request, |name| call.metadata.get(name))?;
            Ok((request, ask))
        });
        let (request, ask) = match read {
            Ok(read) => read,
            Err(refused) => return Outcome::Refused(refuse(endpoint, refused)),
        };
        let bytes = capacity_bytes(&request);
        let tasks = self.tasks.get_or_insert_default();
        let is_too_much = self.bytes > 0 && self.bytes + bytes > BYTES_MAX;
        if is_too_much || tasks.len() >= CALLS_MAX {
            endpoint.shared.observer.refused();
            let message = "too many calls of this connection wait for their answers";
            return Outcome::Refused(Status::new(Code::ResourceExhausted, message));
        }
        let Some(permit) = endpoint.later.take(bytes) else {
            endpoint.shared.observer.refused();
            let message = "too many calls wait for their answers";
            return Outcome::Refused(Status::new(Code::ResourceExhausted, message));
        };
        let endpoint = endpoint.clone();
        let task = tasks.spawn(async move {
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
            drop(permit);
            answer
        });
        self.bytes += bytes;
        self.calls.insert(task.id(), (call.id, bytes));
        Outcome::Later
    }

    /// The next call that has ended, and its answer; none while no call waits.
    pub(super) fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<(CallId, Answer)>> {
        let Some(tasks) = &mut self.tasks else { return Poll::Ready(None) };
        while let Some(ended) = ready!(tasks.poll_join_next_with_id(context)) {
            let (task, answer) = ended.unwrap_or_else(|error| {
                tracing::error!(%error, "a call panicked");
                self.endpoint.shared.observer.refused();
                (error.id(), Err(Status::new(Code::Internal, "the call failed")))
            });
            if let Some((call, bytes)) = self.calls.remove(&task) {
                self.bytes -= bytes;
                return Poll::Ready(Some((call, answer)));
            }
        }
        Poll::Ready(None)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Waits until every task has ended.
    pub(super) async fn all_ended(&mut self) {
        while std::future::poll_fn(|context| self.poll_next(context)).await.is_some() {}
    }
}

/// The memory of a call that waits, by the capacity of its request.
fn capacity_bytes(request: &Request) -> usize {
    let text = |text: &String| text.capacity() + ALLOCATION_BYTES;
    let entries = request.descriptors.iter().flat_map(|descriptor| &descriptor.entries);
    let texts: usize = entries.map(|entry| text(&entry.key) + text(&entry.value)).sum();
    let capacities = request.descriptors.iter().map(|descriptor| descriptor.entries.capacity());
    let entries = capacities.sum::<usize>() * size_of::<Entry>();
    let descriptors = request.descriptors.capacity() * size_of::<Descriptor>()
        + request.descriptors.len() * DESCRIPTOR_BYTES;
    CALL_BYTES + text(&request.domain) + texts + entries + descriptors
}
