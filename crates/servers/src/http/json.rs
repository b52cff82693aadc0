//! `POST /json`: one request in proto-JSON, decided as a gRPC call of it would be, for clients without
//! gRPC. Knows no leases: who holds tokens speaks gRPC.

use super::body::{self, Page, Unread};
use super::{DOOR, Http, MetricsPage, proto_json};
use crate::slots::{Phase, Slot};
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::{Request, StatusCode};
use tidegate_authority::clock;
use tidegate_core::Verdict;
use tidegate_store::UpdateError;
use tidegate_wire::{WireError, request_from_wire, response_to_wire};

const JSON: &str = "application/json";
/// Bodies up to here take tens of microseconds. An ask of 128 descriptors of ten values has some 10 KiB.
const SMALL_BYTES_MAX: usize = 16 * 1024;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("the body is no RateLimitRequest in proto-JSON: {0}")]
    Malformed(#[from] proto_json::Malformed),
    #[error(transparent)]
    Invalid(#[from] WireError),
    #[error("no decision: {0}")]
    Undecided(#[from] UpdateError),
    #[error("more is asked than can be answered in time; try again")]
    Overloaded,
}

impl Refused {
    fn status(&self) -> StatusCode {
        match self {
            Refused::Malformed(_) | Refused::Invalid(_) => StatusCode::BAD_REQUEST,
            Refused::Undecided(_) | Refused::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

pub(super) async fn answer<M: MetricsPage>(
    http: &Http<M>,
    request: Request<Incoming>,
    slot: &Slot,
) -> Page {
    if http.overload.is_late() {
        body::discard(request).await;
        return refuse(http, &Refused::Overloaded);
    }
    let body = match body::read(request, slot).await {
        Ok(body) => body,
        Err(Unread::Refused(page)) => {
            http.observer.refused();
            return page;
        }
        Err(Unread::Overloaded) => return refuse(http, &Refused::Overloaded),
    };
    slot.enter(Phase::Deciding);
    match decide_in_time(http, body).await {
        Ok((status, text)) => Page::new(status, JSON, text),
        Err(refused) => refuse(http, &refused),
    }
}

fn refuse<M>(http: &Http<M>, refused: &Refused) -> Page {
    tracing::debug!(error = %refused, "refused a request");
    let page = Page::text(refused.status(), format!("{refused}\n"));
    if let Refused::Overloaded = refused {
        http.observer.shed(DOOR);
        return page.with(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    http.observer.refused();
    if let Refused::Undecided(error) = refused {
        http.observer.undecided(error);
    }
    page
}

/// Decides, unless there is too much to do already. Large bodies, of which nobody needs many, do not hold
/// up the others: they are decided beside them, one at a time.
async fn decide_in_time<M: MetricsPage>(
    http: &Http<M>,
    body: Bytes,
) -> Result<(StatusCode, String), Refused> {
    if http.overload.is_late() {
        return Err(Refused::Overloaded);
    }
    if body.len() <= SMALL_BYTES_MAX {
        return decide(http, &body);
    }
    let slot = http.large.clone().try_acquire_owned().map_err(|_| Refused::Overloaded)?;
    let http = http.clone();
    let decided = tokio::task::spawn_blocking(move || {
        let decided = decide(&http, &body);
        drop(slot);
        decided
    });
    // Only the end of the program keeps it from being done.
    decided.await.unwrap_or(Err(Refused::Overloaded))
}

fn decide<M>(http: &Http<M>, body: &[u8]) -> Result<(StatusCode, String), Refused> {
    let request = request_from_wire(proto_json::read(body)?)?;
    let answer = http.authority.decide(&request, clock::now())?;
    let mut response = response_to_wire(&answer);
    response.response_headers_to_add = http.replies.headers(&request, &answer);
    let status = match answer.verdict {
        Verdict::Allow => StatusCode::OK,
        Verdict::Deny => StatusCode::TOO_MANY_REQUESTS,
    };
    Ok((status, proto_json::write(response)))
}
