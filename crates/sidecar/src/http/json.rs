//! `POST /json`: one request in proto-JSON, decided as a gRPC call of it would be, for clients without
//! gRPC. Knows no leases: who holds tokens speaks gRPC.

use super::body::{self, Page};
use super::{Http, proto_json};
use crate::clock;
use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use tidegate_core::Verdict;
use tidegate_store::UpdateError;
use tidegate_wire::{WireError, request_from_wire, response_to_wire};

const JSON: &str = "application/json";

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("the body is no RateLimitRequest in proto-JSON: {0}")]
    Malformed(#[from] proto_json::Malformed),
    #[error(transparent)]
    Invalid(#[from] WireError),
    #[error("no decision: {0}")]
    Undecided(#[from] UpdateError),
}

impl Refused {
    fn status(&self) -> StatusCode {
        match self {
            Refused::Malformed(_) | Refused::Invalid(_) => StatusCode::BAD_REQUEST,
            Refused::Undecided(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

pub(super) async fn answer<M>(http: &Http<M>, request: Request<Incoming>) -> Page {
    let body = match body::read(request).await {
        Ok(body) => body,
        Err(page) => {
            http.metrics.refused();
            return page;
        }
    };
    match decide(http, &body) {
        Ok((status, text)) => Page::new(status, JSON, text),
        Err(refused) => {
            http.metrics.refused();
            tracing::debug!(error = %refused, "refused a request");
            Page::text(refused.status(), format!("{refused}\n"))
        }
    }
}

fn decide<M>(http: &Http<M>, body: &[u8]) -> Result<(StatusCode, String), Refused> {
    let request = request_from_wire(proto_json::read(body)?)?;
    let answer = http.engine.decide(&request, clock::now())?;
    let mut response = response_to_wire(&answer);
    response.response_headers_to_add = http.replies.headers(&request, &answer);
    let status = match answer.verdict {
        Verdict::Allow => StatusCode::OK,
        Verdict::Deny => StatusCode::TOO_MANY_REQUESTS,
    };
    Ok((status, proto_json::write(response)))
}
