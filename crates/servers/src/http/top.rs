//! `/v1/top`, in JSON: who is limited now. `/v1/decisions`, as server-sent events: single decisions.
//!
//! An answer has the events that there are, and ends. A client asks again after a moment, as browsers do by themselves;
//! so no connection is held.

use super::access::Peer;
use super::body::Page;
use super::console::checked;
use super::statistics::JSON;
use super::{Http, MetricsPage};
use crate::http1::slots::{Phase, Slot};
use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use std::fmt;
use std::pin::Pin;

pub(super) const PATH: &str = "/v1/top";
pub(super) const DECISIONS: &str = "/v1/decisions";
const EVENTS: &str = "text/event-stream";
/// The number of the last event that a client got.
const LAST: &str = "last-event-id";

/// What knows the heaviest descriptors.
pub trait TopPage: fmt::Debug + Send + Sync {
    /// The status and the JSON for the query of a URL.
    fn answer<'a>(
        &'a self,
        query: &'a str,
    ) -> Pin<Box<dyn Future<Output = (u16, String)> + Send + 'a>>;

    /// The events for the query of a URL, after the one with the number `last`; or 400 and JSON.
    fn decisions<'a>(
        &'a self,
        query: &'a str,
        last: Option<u64>,
    ) -> Pin<Box<dyn Future<Output = (u16, String)> + Send + 'a>>;
}

pub(super) async fn answer<M: MetricsPage>(
    http: &Http<M>,
    peer: Peer,
    request: &Request<Incoming>,
    slot: &Slot,
) -> Page {
    // Its values come from clients, as those of statistics do.
    if let Err(refused) = checked(http, peer, request) {
        return refused;
    }
    let Some(top) = &http.top else {
        return Page::text(StatusCode::NOT_FOUND, "nothing is known; the sidecar has --top off\n");
    };
    let _permit = http.top_questions.acquire().await;
    slot.set_phase(Phase::Deciding);
    let query = request.uri().query().unwrap_or("");
    let (status, body) = if request.uri().path() == DECISIONS {
        let last = request.headers().get(LAST).and_then(|last| last.to_str().ok()?.parse().ok());
        top.decisions(query, last).await
    } else {
        top.answer(query).await
    };
    let is_events = request.uri().path() == DECISIONS && status == 200;
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let page = Page::new(status, if is_events { EVENTS } else { JSON }, body);
    http.reserved(page, slot).guarded()
}
