//! The console at `/`, and what it asks: `/v1/overview`, `/v1/rules`, `/v1/key`, `/v1/limits`; and changes of counters,
//! `/v1/key/erase` and `/v1/key/set`.
//!
//! Its files hold no data, so anybody may have them. A change is a `POST` of JSON with the token in a header. Browsers send neither by
//! themselves, and there are no cookies, so a page of another origin has nothing to ride on.

use super::access::{Peer, refused};
use super::body::{self, Page, ReadError};
use super::statistics::JSON;
use super::{Http, MetricsPage};
use crate::http1::slots::{Phase, Slot};
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

pub(super) const FILES: &str = "/console/";
/// More than any question has.
const PARAMETERS_MAX: usize = 64;
/// Changes at the same time.
pub(super) const CHANGES_MAX: usize = 1;
/// How long a client waits for counters that machines share.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// Nothing but its own files and questions; no frame, no form, no base of other addresses.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A question of the console.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    Overview,
    Rules,
    Key,
    Limits,
}

/// A change of counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Erase,
    Set,
}

/// A file of the console.
#[derive(Debug, Clone, Copy)]
pub struct File {
    pub content_type: &'static str,
    pub etag: &'static str,
    pub plain: &'static [u8],
    pub gzip: &'static [u8],
}

type Answer<'a> = Pin<Box<dyn Future<Output = (u16, String)> + Send + 'a>>;

/// What has the files and the answers.
pub trait ConsolePage: fmt::Debug + Send + Sync {
    /// The file at a path.
    fn file(&self, path: &str) -> Option<File>;

    /// The status and the JSON for a question with these parameters.
    fn answer<'a>(&'a self, question: Question, parameters: &'a [(String, String)]) -> Answer<'a>;

    /// Makes a change, by the body of its request. It is completed although the future is dropped.
    fn change<'a>(&'a self, change: Change, body: &'a [u8]) -> Answer<'a>;
}

impl Question {
    pub(super) fn at(path: &str) -> Option<Question> {
        match path {
            "/v1/overview" => Some(Question::Overview),
            "/v1/rules" => Some(Question::Rules),
            "/v1/key" => Some(Question::Key),
            "/v1/limits" => Some(Question::Limits),
            _ => None,
        }
    }
}

impl Change {
    pub(super) fn at(path: &str) -> Option<Change> {
        match path {
            "/v1/key/erase" => Some(Change::Erase),
            "/v1/key/set" => Some(Change::Set),
            _ => None,
        }
    }
}

/// Whether a browser asks, which wants a page; others get a list of what there is.
pub(super) fn wants_page(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    accept.is_some_and(|accept| accept.contains("text/html"))
}

/// The file at a path; none if there is no such file, or no console.
pub(super) fn file<M>(http: &Http<M>, path: &str, headers: &HeaderMap) -> Option<Page> {
    let file = http.console.as_ref()?.file(path)?;
    let of =
        |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("");
    let named = |(name, value): (&'static str, &'static str)| {
        (HeaderName::from_static(name), HeaderValue::from_static(value))
    };
    let is_known = of(header::IF_NONE_MATCH).split(',').any(|tag| tag.trim() == file.etag);
    let page = if is_known {
        Page::new(StatusCode::NOT_MODIFIED, file.content_type, Bytes::new())
    } else if !file.gzip.is_empty() && takes_gzip(of(header::ACCEPT_ENCODING)) {
        Page::new(StatusCode::OK, file.content_type, Bytes::from_static(file.gzip))
            .with_header(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"))
    } else {
        Page::new(StatusCode::OK, file.content_type, Bytes::from_static(file.plain))
    };
    let page = page
        .with_header(header::ETAG, HeaderValue::from_static(file.etag))
        .with_header(header::VARY, HeaderValue::from_static("accept, accept-encoding"))
        // Asked for each time, by its tag: a new version of the sidecar has new files.
        .with_header(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    let headers = [
        ("content-security-policy", POLICY),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-embedder-policy", "require-corp"),
        ("cross-origin-resource-policy", "same-origin"),
        ("permissions-policy", "camera=(), geolocation=(), microphone=()"),
    ];
    Some(
        headers
            .into_iter()
            .map(named)
            .fold(page, |page, (name, value)| page.with_header(name, value)),
    )
}

/// Whether a client accepts gzip.
fn takes_gzip(accepted: &str) -> bool {
    accepted.split(',').any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        let is_refused = weight.trim().strip_prefix("q=").is_some_and(|q| q.parse() == Ok(0.0));
        name.trim().eq_ignore_ascii_case("gzip") && !is_refused
    })
}

pub(super) async fn answer<M: MetricsPage>(
    http: &Http<M>,
    (question, peer): (Question, Peer),
    request: &Request<Incoming>,
    slot: &Slot,
) -> Page {
    if let Err(refused) = checked(http, peer, request) {
        return refused;
    }
    let Some(console) = &http.console else { return off() };
    let parameters = match parameters(request.uri().query().unwrap_or("")) {
        Ok(parameters) => parameters,
        Err(message) => return error(StatusCode::BAD_REQUEST, &message),
    };
    let questions = match question {
        Question::Key => &http.key_questions,
        Question::Overview | Question::Rules | Question::Limits => &http.console_questions,
    };
    let _permit = questions.acquire().await;
    slot.set_phase(Phase::Deciding);
    let answer = console.answer(question, &parameters);
    match tokio::time::timeout(ANSWER_MAX, answer).await {
        Ok(answer) => http.reserved(json(answer), slot).guarded(),
        Err(_) => error(StatusCode::SERVICE_UNAVAILABLE, "no answer in time"),
    }
}

pub(super) async fn change<M: MetricsPage>(
    http: &Http<M>,
    change: Change,
    request: Request<Incoming>,
    slot: &Arc<Slot>,
) -> Page {
    if request.method() != Method::POST {
        return super::not_allowed("POST");
    }
    if let Err(no_access) = http.access.may_change(request.headers()) {
        // Who may change nothing sends nothing that is read.
        return refused(no_access)
            .with_header(header::CONNECTION, HeaderValue::from_static("close"));
    }
    let Some(console) = &http.console else { return off() };
    let kind = request.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    if !kind.is_some_and(|kind| kind.to_ascii_lowercase().starts_with(b"application/json")) {
        return error(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the body must be application/json");
    }
    let body = match body::read(request, slot).await {
        Ok(body) => body,
        Err(ReadError::Refused(page)) => return page,
        Err(ReadError::Overloaded) => {
            return error(StatusCode::SERVICE_UNAVAILABLE, "overloaded; try again");
        }
    };
    let Ok(_permit) = http.changes.try_acquire() else {
        return error(StatusCode::SERVICE_UNAVAILABLE, "another change is under way; try again");
    };
    slot.set_phase(Phase::Deciding);
    match tokio::time::timeout(ANSWER_MAX, console.change(change, &body)).await {
        Ok(answer) => json(answer).guarded(),
        Err(_) => error(
            StatusCode::SERVICE_UNAVAILABLE,
            "no answer in time; the change may still be made",
        ),
    }
}

fn json((status, body): (u16, String)) -> Page {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    Page::new(status, JSON, body)
}

fn error(status: StatusCode, message: &str) -> Page {
    Page::new(status, JSON, serde_json::json!({ "error": message }).to_string()).guarded()
}

fn off() -> Page {
    Page::text(StatusCode::NOT_FOUND, "the sidecar has --console off\n")
}

/// The parameters of a query, decoded as forms write them.
fn parameters(query: &str) -> Result<Vec<(String, String)>, String> {
    let pairs = form_urlencoded::parse(query.as_bytes()).into_owned();
    let pairs: Vec<_> = pairs.take(PARAMETERS_MAX + 1).collect();
    if pairs.len() > PARAMETERS_MAX {
        return Err(format!("more than {PARAMETERS_MAX} parameters"));
    }
    Ok(pairs)
}

/// What a reader gets who may not read; for pages that others answer.
pub(super) fn checked<M>(
    http: &Http<M>,
    peer: Peer,
    request: &Request<Incoming>,
) -> Result<(), Page> {
    let access = http.access.may_read(peer, request.uri(), request.headers());
    access.map_err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressed_files_go_to_those_who_take_them() {
        for (accepted, expected) in [
            ("gzip, deflate, br", true),
            ("br;q=1.0, GZIP;q=0.5", true),
            ("gzip;q=0", false),
            ("gzip;q=0.0", false),
            ("x-gzip", false),
            ("", false),
        ] {
            assert_eq!(takes_gzip(accepted), expected, "{accepted}");
        }
    }

    #[test]
    fn parameters_are_decoded_and_bounded() {
        let found = parameters("domain=a+b&entry=k%3D%00%E2%80%AE&&x").unwrap();
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let expected = [pair("domain", "a b"), pair("entry", "k=\0\u{202e}"), pair("x", "")];
        assert_eq!(found, expected);
        assert_eq!(parameters(&"a&".repeat(65)), Err("more than 64 parameters".to_owned()));
    }
}
