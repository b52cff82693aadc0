//! `POST /json`: one request in proto-JSON, decided as the same gRPC call would be, for clients without gRPC.
//! Leases are available only over gRPC.

use super::body::{self, Page, ReadError};
use super::{ENDPOINT, Http, MetricsPage, proto_json};
use crate::http1::slots::{Phase, Slot};
use crate::later::{self, NoAnswer};
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::{Request, StatusCode};
use std::sync::Arc;
use tidegate_authority::{Undecided, clock, wait};
use tidegate_core::Verdict;
use tidegate_wire::{WireError, request_from_wire, response_to_wire};

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
    #[error("no decision: the counters do not answer")]
    Unanswered,
}

impl From<NoAnswer> for Refusal {
    fn from(NoAnswer: NoAnswer) -> Refusal {
        Refusal::Unanswered
    }
}

impl Refusal {
    fn status(&self) -> StatusCode {
        match self {
            Refusal::Malformed(_) | Refusal::Invalid(_) => StatusCode::BAD_REQUEST,
            Refusal::Undecided(_) | Refusal::Overloaded | Refusal::Unanswered => {
                StatusCode::SERVICE_UNAVAILABLE
            }
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
    let body = match body::read(request, slot).await {
        Ok(body) => body,
        Err(ReadError::Refused(page)) => {
            http.shared.observer.refused();
            return page;
        }
        Err(ReadError::Overloaded) => return refuse(http, &Refusal::Overloaded),
    };
    slot.set_phase(Phase::Deciding);
    match decide_in_time(http, slot, body).await {
        Ok((status, text)) => Page::new(status, JSON, text),
        Err(refused) => refuse(http, &refused),
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

/// Decides, unless the process is overloaded. Large bodies, which clients rarely need, do not delay others:
/// they are read and answered on another thread, one at a time.
async fn decide_in_time<M: MetricsPage>(
    http: &Arc<Http<M>>,
    slot: &Arc<Slot>,
    body: Bytes,
) -> Result<(StatusCode, String), Refusal> {
    if http.shared.overload.is_late() {
        return Err(Refusal::Overloaded);
    }
    let (answers, decided) = (http.shared.authority.answers(), http.clone());
    if body.len() <= SMALL_BYTES_MAX {
        let decision = async move { decide(&decided, &body).await };
        return later::complete(answers, &http.shared.overload, slot.clone(), decision).await?;
    }
    let permit = http.large_bodies.clone().try_acquire_owned().map_err(|_| Refusal::Overloaded)?;
    let decision = tokio::task::spawn_blocking(move || {
        let answer = wait(decide(&decided, &body));
        drop(permit);
        answer
    });
    // It fails only at the end of the program.
    let decision = async { decision.await.unwrap_or(Err(Refusal::Overloaded)) };
    later::complete(answers, &http.shared.overload, slot.clone(), decision).await?
}

async fn decide<M>(http: &Http<M>, body: &[u8]) -> Result<(StatusCode, String), Refusal> {
    let request = request_from_wire(proto_json::read(body)?)?;
    let answer = http.shared.authority.decide(&request, clock::now()).await?;
    let mut response = response_to_wire(&answer);
    response.response_headers_to_add = http.shared.replies.headers(&request, &answer);
    let status = match answer.verdict {
        Verdict::Allow => StatusCode::OK,
        Verdict::Deny => StatusCode::TOO_MANY_REQUESTS,
    };
    Ok((status, proto_json::write(response)))
}
