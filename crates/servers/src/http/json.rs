//! `POST /json`: one request in proto-JSON, decided as the same gRPC call would be, for clients without gRPC.
//! Leases are available only over gRPC.

use super::body::{self, Page, ReadError};
use super::{ENDPOINT, Http, MetricsPage, proto_json};
use crate::http1::slots::{Phase, Slot};
use crate::later::{self, Unfinished};
use crate::spans::add_decision;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::{Request, StatusCode};
use std::sync::Arc;
use tidegate_authority::{Answers, Undecided, clock, wait};
use tidegate_core::{self as core, Verdict};
use tidegate_traces::{Door, Ended, Span};
use tidegate_wire::{WireError, request_from_wire, response_to_wire};
use tokio::sync::OwnedSemaphorePermit;

const JSON: &str = "application/json";
/// Bodies up to this size take tens of microseconds. A request of 128 descriptors of ten values has some 10 KiB.
const SMALL_BYTES_MAX: usize = 16 * 1024;

/// Why a request is not decided.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("the body is not a RateLimitRequest in proto-JSON: {0}")]
    Malformed(#[from] proto_json::Malformed),
    #[error(transparent)]
    Invalid(#[from] WireError),
    #[error("no decision: {0}")]
    Undecided(#[from] Undecided),
    #[error("overloaded; try again")]
    Overloaded,
}

/// A status and its text.
type Decided = (StatusCode, String);

impl Refusal {
    fn status(&self) -> StatusCode {
        match self {
            Refusal::Malformed(_) | Refusal::Invalid(_) => StatusCode::BAD_REQUEST,
            Refusal::Undecided(_) | Refusal::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

pub(super) async fn answer<M: MetricsPage>(
    http: &Arc<Http<M>>,
    request: Request<Incoming>,
    slot: &Arc<Slot>,
) -> Page {
    if http.shared.overload.is_late() {
        body::discard(request).await;
        return refuse(http, &Refusal::Overloaded);
    }
    let tracer = http.shared.tracer.as_ref();
    let span = tracer.and_then(|tracer| {
        let headers = request.headers();
        tracer.begin(Door::Json, |name| headers.get(name).map(HeaderValue::as_bytes))
    });
    let body = match body::read(request, slot).await {
        Ok(body) => body,
        Err(ReadError::Refused(page)) => {
            http.shared.observer.refused();
            return page;
        }
        Err(ReadError::Overloaded) => return refuse(http, &Refusal::Overloaded),
    };
    slot.set_phase(Phase::Deciding);
    match answer_in_time(http, body, span).await {
        Ok(page) => page,
        Err(Unfinished::Overloaded) => refuse(http, &Refusal::Overloaded),
        Err(Unfinished::NoAnswer) => {
            // The operation reports its outcome when it has one.
            let page = Page::text(
                StatusCode::SERVICE_UNAVAILABLE,
                "no decision: the counters do not answer\n",
            );
            page.with_header(header::CONNECTION, HeaderValue::from_static("close"))
        }
    }
}

fn refuse<M>(http: &Http<M>, refused: &Refusal) -> Page {
    tracing::debug!(error = %refused, "refused a request");
    let page = Page::text(refused.status(), format!("{refused}\n"));
    if let Refusal::Overloaded = refused {
        http.shared.observer.shed(ENDPOINT);
        return page.with_header(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    http.shared.observer.refused();
    if let Refusal::Undecided(error) = refused {
        http.shared.observer.undecided(error);
    }
    page
}

/// Answers a body, unless the process is overloaded. Large bodies, which clients rarely need, do not delay others:
/// they are read and answered on another thread, one at a time.
async fn answer_in_time<M: MetricsPage>(
    http: &Arc<Http<M>>,
    body: Bytes,
    mut span: Option<Span>,
) -> Result<Page, Unfinished> {
    if http.shared.overload.is_late() {
        return Err(Unfinished::Overloaded);
    }
    let (own, bytes) = (http.clone(), body.len());
    if bytes <= SMALL_BYTES_MAX {
        let answer = async move {
            let decided = decide(&own, &body, &mut span).await;
            page_of(&own, decided, span)
        };
        return later::complete(&http.shared, &http.later, bytes, answer).await;
    }
    let permit = http.large_bodies.clone().try_acquire_owned();
    let permit = permit.map_err(|_| Unfinished::Overloaded)?;
    match http.shared.authority.answers() {
        Answers::AtOnce => {
            let work = move || {
                let decided = wait(decide(&own, &body, &mut span));
                page_of(&own, decided, span)
            };
            aside(permit, work).await
        }
        Answers::MostlyAtOnce | Answers::Later => {
            let answer = async move {
                let answer = decide_aside(&own, body, permit, &mut span).await;
                page_of(&own, answer, span)
            };
            later::complete(&http.shared, &http.later, bytes, answer).await
        }
    }
}

/// Does `work` on another thread, and returns `permit` after it.
async fn aside<T: Send + 'static>(
    permit: OwnedSemaphorePermit,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Unfinished> {
    let work = move || {
        let done = work();
        drop(permit);
        done
    };
    // It fails only at the end of the program.
    tokio::task::spawn_blocking(work).await.map_err(|_| Unfinished::Overloaded)
}

/// As [`decide`], on another thread before and after the counters answer, but not meanwhile.
async fn decide_aside<M: MetricsPage>(
    http: &Arc<Http<M>>,
    body: Bytes,
    permit: OwnedSemaphorePermit,
    span: &mut Option<Span>,
) -> Result<Decided, Refusal> {
    let request = aside(permit, move || read(&body)).await.unwrap_or(Err(Refusal::Overloaded))?;
    let answer = http.shared.authority.decide(&request, clock::now()).await?;
    trace(http, span, &request, &answer);
    // The decision was made, so its answer waits for its turn. The semaphore is never closed.
    let permit = http.large_bodies.clone().acquire_owned().await;
    let permit = permit.map_err(|_| Refusal::Overloaded)?;
    let own = http.clone();
    let written = aside(permit, move || write(&own, &request, &answer)).await;
    written.map_err(|_| Refusal::Overloaded)
}

async fn decide<M>(
    http: &Http<M>,
    body: &[u8],
    span: &mut Option<Span>,
) -> Result<Decided, Refusal> {
    let request = read(body)?;
    let answer = http.shared.authority.decide(&request, clock::now()).await?;
    trace(http, span, &request, &answer);
    Ok(write(http, &request, &answer))
}

fn read(body: &[u8]) -> Result<core::Request, Refusal> {
    Ok(request_from_wire(proto_json::read(body)?)?)
}

fn write<M>(http: &Http<M>, request: &core::Request, answer: &core::Answer) -> Decided {
    let mut response = response_to_wire(answer);
    response.response_headers_to_add = http.shared.replies.headers(request, answer);
    let status = match answer.verdict {
        Verdict::Allow => StatusCode::OK,
        Verdict::Deny => StatusCode::TOO_MANY_REQUESTS,
    };
    (status, proto_json::write(response))
}

fn trace<M>(
    http: &Http<M>,
    span: &mut Option<Span>,
    request: &core::Request,
    answer: &core::Answer,
) {
    if let Some(span) = span {
        add_decision(span, &http.shared.authority, request, answer);
    }
}

/// The page, with which the span ends.
fn page_of<M>(http: &Http<M>, decided: Result<Decided, Refusal>, span: Option<Span>) -> Page {
    if let Some(span) = span {
        let (code, error) = match &decided {
            Ok((status, _)) => (*status, None),
            Err(refused) => (refused.status(), Some(refused.to_string())),
        };
        span.end(Ended { code: code.as_u16(), error: error.as_deref() });
    }
    match decided {
        Ok((status, text)) => Page::new(status, JSON, text),
        Err(refused) => refuse(http, &refused),
    }
}
