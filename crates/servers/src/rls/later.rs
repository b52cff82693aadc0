//! The calls of one connection whose answers come later, since the counters that they need do.
//!
//! Each is a task of its own, which goes on when its call is reset or its connection closes: its charges may have been
//! committed. A connection keeps its slot until its last task has ended, so the bounds here hold for clients that
//! leave and return as well. The requests of all connections share a budget of memory.

use super::Endpoint;
use super::outcome::{encode, end_decided, end_refused, refuse};
use crate::later::LaterPermit;
use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;
use tidegate_authority::{Ask, clock};
use tidegate_core::{Descriptor, Entry, Report, Request};
use tidegate_grpc::server::{Call, CallId, Outcome};
use tidegate_grpc::{Code, Status};
use tidegate_traces::Span;
use tidegate_wire::{decode_request, report_of};
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

/// A call that was read and has its part of the bounds.
struct Admitted {
    request: Request,
    ask: Ask,
    report: Option<Report>,
    bytes: usize,
    permit: LaterPermit,
}

impl LaterCalls {
    pub(super) fn new(endpoint: Arc<Endpoint>) -> LaterCalls {
        LaterCalls { endpoint, tasks: None, calls: HashMap::new(), bytes: 0 }
    }

    /// Begins a rate limit call, whose span ends with it.
    pub(super) fn begin(&mut self, call: &Call<'_>, span: Option<Span>) -> Outcome {
        let start = Instant::now();
        let admitted = match self.admit(call) {
            Ok(admitted) => admitted,
            Err(status) => {
                end_refused(span, &status);
                return Outcome::Refused(status);
            }
        };
        let Admitted { request, ask, report, bytes, permit } = admitted;
        let endpoint = self.endpoint.clone();
        let task = self.tasks.get_or_insert_default().spawn(async move {
            let deciding = async {
                let (authority, now) = (&endpoint.shared.authority, clock::now());
                match authority.answer_ask(&request, &ask, report.as_ref(), now).await {
                    Ok(decided) => {
                        let mut answer = Vec::new();
                        encode(&endpoint, &request, &decided, &mut answer);
                        if let Some(span) = span {
                            end_decided(span, &endpoint, &request, &decided);
                        }
                        Ok(answer)
                    }
                    Err(error) => {
                        let status = refuse(&endpoint, error.into());
                        end_refused(span, &status);
                        Err(status)
                    }
                }
            };
            let answer = endpoint.shared.overload.watch(deciding).await;
            drop(permit);
            endpoint.shared.observer.answered_within("grpc", 1, start.elapsed());
            answer
        });
        self.bytes += bytes;
        self.calls.insert(task.id(), (call.id, bytes));
        Outcome::Later
    }

    /// Reads a call, and takes its part of the bounds. An error was reported.
    fn admit(&mut self, call: &Call<'_>) -> Result<Admitted, Status> {
        let endpoint = &self.endpoint;
        let read = decode_request(call.message).map_err(Into::into);
        let read = read.and_then(|request| {
            let ask = Ask::read(&request, |name| call.metadata.get(name))?;
            Ok((request, ask, report_of(call.message)))
        });
        let (request, ask, report) = read.map_err(|refused| refuse(endpoint, refused))?;
        let bytes = capacity_bytes(&request);
        let refused = |message| {
            endpoint.shared.observer.refused();
            Status::new(Code::ResourceExhausted, message)
        };
        let is_too_much = self.bytes > 0 && self.bytes + bytes > BYTES_MAX;
        if is_too_much || self.tasks.as_ref().is_some_and(|tasks| tasks.len() >= CALLS_MAX) {
            return Err(refused("too many calls of this connection wait for their answers"));
        }
        let permit = endpoint.later.take(bytes);
        let permit = permit.ok_or_else(|| refused("too many calls wait for their answers"))?;
        Ok(Admitted { request, ask, report, bytes, permit })
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
