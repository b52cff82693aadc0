//! The calls of one connection whose answers come later, since the counters that they need do.
//!
//! They are polled by the task of their connection, so that all that are ready at once are answered by one write. Each goes
//! on when its call is reset or its connection closes: its charges may have been committed. A connection keeps its slot
//! until its last call has ended, so the bounds here hold for clients that leave and return as well. The requests of all
//! connections share a budget of memory.

use super::Endpoint;
use super::outcome::{encode, end_decided, end_refused, refuse};
use crate::later::LaterPermit;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;
use tidegate_authority::{LaterCall, Observer, clock};
use tidegate_core::{Descriptor, Entry, Request};
use tidegate_grpc::server::{CallId, Outcome};
use tidegate_grpc::{Code, Status};
use tidegate_traces::Span;

/// Calls that wait at a time: as many as a connection has streams. A call that was ended for taking too long is no
/// stream, but still counts.
pub(super) const CALLS_MAX: usize = 128;
/// The memory of the waiting requests of a connection. One alone may have more.
const BYTES_MAX: usize = 8 * 1024 * 1024;
/// The memory of a call besides its request: its future and its answer.
const CALL_BYTES: usize = 2 * 1024;
/// The memory of a descriptor besides its entries: its limits, keys, states and decisions.
const DESCRIPTOR_BYTES: usize = 1024;
/// Most answers take less.
const ANSWER_BYTES: usize = 64;
/// What an allocation takes beyond its bytes, at most, for a short string.
const ALLOCATION_BYTES: usize = 32;

/// Calls of all connections that wait at a time.
pub(super) const ENDPOINT_CALLS_MAX: usize = 32 * 1024;

/// The message of an answer, or the status of a call without one.
type Answer = Result<Vec<u8>, Status>;

/// The calls that wait.
pub(super) struct LaterCalls {
    endpoint: Arc<Endpoint>,
    calls: FuturesUnordered<Waiting>,
    bytes: usize,
}

/// A call that waits.
struct Waiting {
    id: CallId,
    /// The memory that it takes.
    bytes: usize,
    observer: Arc<dyn Observer>,
    deciding: Pin<Box<dyn Future<Output = Answer> + Send>>,
}

impl Future for Waiting {
    type Output = (CallId, usize, Answer);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // The other calls of the connection must not end with it. After a panic it is not polled again.
        let polling = AssertUnwindSafe(|| self.deciding.as_mut().poll(context));
        let answer = match std::panic::catch_unwind(polling) {
            Ok(polled) => ready!(polled),
            Err(_) => {
                tracing::error!("a call panicked");
                self.observer.refused();
                Err(Status::new(Code::Internal, "the call failed"))
            }
        };
        Poll::Ready((self.id, self.bytes, answer))
    }
}

/// A call that was read and has its part of the bounds.
struct Admitted {
    call: Box<LaterCall>,
    span: Option<Span>,
    start: Instant,
    _permit: LaterPermit,
}

impl Admitted {
    async fn answer(mut self, endpoint: Arc<Endpoint>) -> Answer {
        let answer = self.decide(&endpoint).await;
        endpoint.shared.observer.answered_within("grpc", 1, self.start.elapsed());
        answer
    }

    async fn decide(&mut self, endpoint: &Endpoint) -> Answer {
        let (authority, now) = (&endpoint.shared.authority, clock::now());
        let request = &self.call.request;
        match authority.answer_later(&self.call, now).await {
            Ok(decided) => {
                let mut answer = Vec::with_capacity(ANSWER_BYTES);
                encode(endpoint, request, &decided, &mut answer);
                if let Some(span) = self.span.take() {
                    end_decided(span, endpoint, request, &decided);
                }
                Ok(answer)
            }
            Err(error) => {
                let status = refuse(endpoint, error.into());
                end_refused(self.span.take(), &status);
                Err(status)
            }
        }
    }
}

impl LaterCalls {
    pub(super) fn new(endpoint: Arc<Endpoint>) -> LaterCalls {
        LaterCalls { endpoint, calls: FuturesUnordered::new(), bytes: 0 }
    }

    /// Begins a rate limit call, whose span ends with it.
    pub(super) fn begin(
        &mut self,
        id: CallId,
        call: Box<LaterCall>,
        span: Option<Span>,
    ) -> Outcome {
        let start = Instant::now();
        match self.admit(&call.request) {
            Ok((bytes, permit)) => {
                self.bytes += bytes;
                let admitted = Admitted { call, span, start, _permit: permit };
                let deciding = Box::pin(admitted.answer(self.endpoint.clone()));
                let observer = self.endpoint.shared.observer.clone();
                self.calls.push(Waiting { id, bytes, observer, deciding });
                Outcome::Later
            }
            Err(status) => {
                end_refused(span, &status);
                Outcome::Refused(status)
            }
        }
    }

    /// Takes the part of the bounds that a request needs. Returns also its memory.
    fn admit(&self, request: &Request) -> Result<(usize, LaterPermit), Status> {
        let endpoint = &self.endpoint;
        let bytes = capacity_bytes(request);
        let refused = |message| {
            endpoint.shared.observer.refused();
            Status::new(Code::ResourceExhausted, message)
        };
        let is_too_much = self.bytes > 0 && self.bytes + bytes > BYTES_MAX;
        if is_too_much || self.calls.len() >= CALLS_MAX {
            return Err(refused("too many calls of this connection wait for their answers"));
        }
        let permit = endpoint.later.take(bytes);
        let permit = permit.ok_or_else(|| refused("too many calls wait for their answers"))?;
        Ok((bytes, permit))
    }

    /// The next call that has ended, and its answer; none while no call waits.
    pub(super) fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<(CallId, Answer)>> {
        let ended = ready!(self.calls.poll_next_unpin(context));
        Poll::Ready(ended.map(|(call, bytes, answer)| {
            self.bytes -= bytes;
            (call, answer)
        }))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Waits until every call has ended.
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
