//! `/v1/statistics` and `/v1/statistics/{name}`, in JSON.

use super::access::Peer;
use super::body::Page;
use super::console::checked;
use super::{Http, MetricsPage};
use crate::http1::slots::{Phase, Slot};
use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use std::fmt;
use std::pin::Pin;

pub(super) const PATH: &str = "/v1/statistics";
pub(super) const JSON: &str = "application/json";

/// What answers questions about statistics.
pub trait StatisticsPage: fmt::Debug + Send + Sync {
    /// The status and the JSON for a question about a statistic, or for the list of all if the name is empty. The name and
    /// the query are as in the URL.
    fn answer<'a>(
        &'a self,
        name: &'a str,
        query: &'a str,
    ) -> Pin<Box<dyn Future<Output = (u16, String)> + Send + 'a>>;
}

/// The name of a statistic in a path; empty for the list of all. None if it is another path.
pub(super) fn name_in(path: &str) -> Option<&str> {
    let rest = path.strip_prefix(PATH)?;
    match rest.strip_prefix('/') {
        Some(name) if !name.is_empty() && !name.contains('/') => Some(name),
        None if rest.is_empty() => Some(""),
        _ => None,
    }
}

pub(super) async fn answer<M: MetricsPage>(
    http: &Http<M>,
    peer: Peer,
    request: &Request<Incoming>,
    slot: &Slot,
) -> Page {
    let Some(name) = name_in(request.uri().path()) else {
        return Page::text(StatusCode::NOT_FOUND, "");
    };
    if let Err(refused) = checked(http, peer, request) {
        return refused;
    }
    let Some(statistics) = &http.statistics else {
        let text = "no statistics are kept; start with --statistics or with a data directory\n";
        return Page::text(StatusCode::NOT_FOUND, text);
    };
    // Few at once, so that questions take a part of the connections of the database and of this process.
    let _permit = http.questions.acquire().await;
    slot.set_phase(Phase::Deciding);
    let (status, body) = statistics.answer(name, request.uri().query().unwrap_or("")).await;
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    http.reserved(Page::new(status, JSON, body), slot).guarded()
}

#[cfg(test)]
mod tests {
    use super::name_in;

    #[test]
    fn a_path_has_one_name() {
        for (path, expected) in [
            ("/v1/statistics", Some("")),
            ("/v1/statistics/calls", Some("calls")),
            ("/v1/statistics/", None),
            ("/v1/statistics/a/b", None),
            ("/v1/statisticsx", None),
            ("/v1", None),
        ] {
            assert_eq!(name_in(path), expected, "{path}");
        }
    }
}
