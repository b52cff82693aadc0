//! Answers HTTP requests: checks the head, reads the body within bounds, and decides the items one by one or
//! together.

use super::ENDPOINT;
use super::answer::{self, Answer};
use super::request::{self, Command, Grouping, Item};
use crate::http1::slots::{Phase, Slot};
use crate::http1::{self, BodyError};
use crate::later::{self, LaterBudget, Unfinished, no_answer};
use crate::shared::Shared;
use http_body_util::Full;
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, StatusCode};
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_authority::clock;
use tidegate_authority::{Answers, Change, JointError, JointUse, NodeError, NodeWindows, Use};
use tidegate_core::{Descriptor, Entry, Hits, Request, Timestamp};
use tidegate_xml::{self as xml, ErrorKind, XmlError};

/// The largest body: 256 items of a kilobyte.
const BODY_BYTES_MAX: usize = 256 * 1024;
/// The memory for all bodies that are not small while they arrive and all answers that are not small until
/// they are sent: 128 of the largest bodies.
pub(super) const BODIES_BYTES_MAX: usize = 128 * BODY_BYTES_MAX;
/// How much is read of a body that is refused for its length.
const DISCARDED_BYTES_MAX: usize = 4 * BODY_BYTES_MAX;
const COMMAND_HEADER: HeaderName = HeaderName::from_static("x-frs-command");
const XML: HeaderValue = HeaderValue::from_static("application/xml");
/// How long the items of a body may begin: half of the time for the answer is left for the last of them. So a client
/// learns which items were counted, unless a single one takes too long.
const ITEMS_TIME_MAX: Duration = Duration::from_secs(later::ANSWER_MAX.as_secs() / 2);
/// The domain whose limits apply to the FRS.
const DOMAIN: &str = "frs";

/// The error code for a body with too small chunks. The rest of it is not read.
const TOO_MANY_CHUNKS: &str = "broken-body";
/// The error code for a request that may be retried soon.
const OVERLOADED: &str = "overloaded";

pub(super) type Response = hyper::Response<Full<Bytes>>;

/// The service; clones share everything.
#[derive(Clone)]
pub(super) struct Service {
    pub(super) shared: Shared,
    pub(super) later: LaterBudget,
}

/// A request that is refused as a whole.
struct Refusal {
    status: StatusCode,
    code: &'static str,
    position: Option<(u64, u64)>,
    message: String,
}

impl Refusal {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Refusal {
        Refusal { status, code, position: None, message: message.into() }
    }

    fn overloaded(message: &str) -> Refusal {
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, OVERLOADED, message)
    }

    fn of(mistake: XmlError, text: &str) -> Refusal {
        let code = match mistake.kind {
            ErrorKind::Malformed => "malformed-xml",
            ErrorKind::Forbidden => "forbidden-xml",
            ErrorKind::Unexpected => "invalid-request",
            ErrorKind::TooMuch => "too-much",
        };
        let position = Some(xml::position(text, mistake.at));
        Refusal { position, ..Refusal::new(StatusCode::BAD_REQUEST, code, mistake.message) }
    }

    fn response(&self) -> Response {
        let body = answer::error(self.code, self.position, &self.message);
        let mut response = respond(self.status, body);
        let headers = response.headers_mut();
        if self.code == TOO_MANY_CHUNKS {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        match self.status {
            StatusCode::METHOD_NOT_ALLOWED => {
                headers.insert(header::ALLOW, HeaderValue::from_static("POST"));
            }
            StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            // The rest of the body is not read.
            StatusCode::PAYLOAD_TOO_LARGE => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response
    }
}

fn respond(status: StatusCode, body: impl Into<Bytes>) -> Response {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, XML);
    response
}

/// The answer for a client without a slot.
pub(super) fn overloaded(message: &str) -> Response {
    Refusal::overloaded(message).response()
}

impl Service {
    /// Answers one request.
    pub(super) async fn answer(
        &self,
        request: hyper::Request<Incoming>,
        slot: Arc<Slot>,
    ) -> Response {
        let answered = match self.receive(request, &slot).await {
            Ok((command, body)) => {
                slot.set_phase(Phase::Deciding);
                let start = Instant::now();
                let answered = self.execute_in_time(command, body).await;
                self.shared.observer.answered_within(ENDPOINT, 1, start.elapsed());
                answered
            }
            Err(refusal) => Err(refusal),
        };
        answered.unwrap_or_else(|refusal| self.refuse(&refusal))
    }

    fn refuse(&self, refusal: &Refusal) -> Response {
        match refusal.code {
            OVERLOADED => self.shared.observer.shed(ENDPOINT),
            _ if refusal.status == StatusCode::SERVICE_UNAVAILABLE => {
                self.shared.observer.refused();
            }
            _ => {}
        }
        refusal.response()
    }

    /// Reads the command and the body of a request, if it is valid for this endpoint.
    async fn receive(
        &self,
        request: hyper::Request<Incoming>,
        slot: &Slot,
    ) -> Result<(Command, Bytes), Refusal> {
        if request.uri().path() != "/frs" {
            let message = "no such path; the service is at POST /frs";
            return Err(Refusal::new(StatusCode::NOT_FOUND, "no-such-path", message));
        }
        if request.method() != Method::POST {
            let message = format!("{} is not for /frs; use POST", request.method());
            return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method", message));
        }
        let command = command_of(request.headers())?;
        check_encoding(request.headers())?;
        if let Err(refusal) = check_length(request.headers(), request.body()) {
            http1::discard(request.into_body(), DISCARDED_BYTES_MAX).await;
            return Err(refusal);
        }
        let body = http1::body(request.into_body(), slot, BODY_BYTES_MAX).await;
        let body = body.map_err(|error| match error {
            BodyError::TooLarge => too_large(),
            BodyError::NoRoom => Refusal::overloaded("too many requests are arriving; try again"),
            BodyError::TooManyChunks => {
                let message = "the body arrives in too many small chunks";
                Refusal::new(StatusCode::BAD_REQUEST, TOO_MANY_CHUNKS, message)
            }
            BodyError::Broken(error) => {
                let message = format!("the body did not arrive: {error}");
                Refusal::new(StatusCode::BAD_REQUEST, "broken-body", message)
            }
        })?;
        Ok((command, body))
    }

    /// Executes a body, unless the process is overloaded.
    async fn execute_in_time(&self, command: Command, body: Bytes) -> Result<Response, Refusal> {
        if self.shared.overload.is_late() {
            return Err(Refusal::overloaded("overloaded; try again"));
        }
        let (service, bytes) = (self.clone(), body.len());
        let execution = async move {
            let executed = service.execute(command, &body).await;
            executed.unwrap_or_else(|refusal| service.refuse(&refusal))
        };
        match later::complete(&self.shared, &self.later, bytes, execution).await {
            Ok(response) => Ok(response),
            Err(Unfinished::Overloaded) => {
                Err(Refusal::overloaded("too many requests wait for the counters; try again"))
            }
            Err(Unfinished::NoAnswer) => {
                // The operation reports its outcome when it has one.
                let mut response = no_decision("the counters do not answer").response();
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(header::CONNECTION, close);
                Ok(response)
            }
        }
    }

    /// Executes a body. All items have the same time.
    async fn execute(&self, command: Command, body: &[u8]) -> Result<Response, Refusal> {
        let text = xml::text(body)
            .map_err(|mistake| Refusal::of(mistake, &String::from_utf8_lossy(body)))?;
        let body = request::read(command, text).map_err(|mistake| Refusal::of(mistake, text))?;
        match body.grouping {
            Grouping::Each => {
                let until = match self.shared.authority.answers() {
                    Answers::AtOnce => None,
                    Answers::MostlyAtOnce | Answers::Later => Some(Instant::now() + ITEMS_TIME_MAX),
                };
                self.execute_each(command, &body.items, until).await
            }
            Grouping::AllOrNone => self.execute_together(command, &body.items).await,
        }
    }

    /// Executes the items one by one; all of them if `until` is none. Otherwise the first, and further ones until
    /// then.
    async fn execute_each(
        &self,
        command: Command,
        items: &[Item<'_>],
        until: Option<Instant>,
    ) -> Result<Response, Refusal> {
        let now = clock::now();
        let mut answer = Answer::new(command, items.len(), now);
        let mut core_request = Request {
            domain: DOMAIN.to_owned(),
            descriptors: vec![node("", "")],
            hits: Hits::PEEK,
        };
        let mut undecided = None;
        let mut decided = 0;
        for (index, item) in items.iter().enumerate() {
            answer.item(&item.business, &item.key);
            set_item(&mut core_request, item);
            let executed = match until {
                Some(until) if index > 0 && Instant::now() >= until => {
                    Err(NodeError::Undecided(no_answer()))
                }
                _ => self.execute_one(command, item, &mut core_request, now, &mut answer).await,
            };
            match executed {
                Ok(()) => decided += 1,
                Err(error) => {
                    answer.failed(&error);
                    match error {
                        NodeError::Undecided(cause) => {
                            self.shared.observer.undecided(&cause);
                            undecided = Some(cause);
                        }
                        _ => decided += 1,
                    }
                }
            }
        }
        match undecided {
            // The caller must learn about the part that was decided.
            Some(cause) if decided == 0 => Err(no_decision(cause.to_string())),
            _ => Ok(respond(StatusCode::OK, answer.finish())),
        }
    }

    /// Counts all items if all have room; otherwise none.
    async fn execute_together(
        &self,
        command: Command,
        items: &[Item<'_>],
    ) -> Result<Response, Refusal> {
        let now = clock::now();
        let mut answer = Answer::new(command, items.len(), now);
        let how = if command == Command::Query { JointUse::Look } else { JointUse::Acquire };
        let descriptor = |item: &Item<'_>| Descriptor {
            hits: Some(item.hits),
            ..node(&item.business, &item.key)
        };
        let core_request = Request {
            domain: DOMAIN.to_owned(),
            descriptors: items.iter().map(descriptor).collect(),
            hits: Hits::ONE,
        };
        let used = self.shared.authority.use_nodes(&core_request, how, now, |verdict, of_each| {
            for (item, windows) in items.iter().zip(of_each) {
                answer.item(&item.business, &item.key);
                answer.decided(verdict, windows);
            }
        });
        match used.await {
            Ok(()) => {}
            Err(JointError::Unknown(unknown)) => {
                for (index, item) in items.iter().enumerate() {
                    answer.item(&item.business, &item.key);
                    match unknown.contains(&index) {
                        true => answer.failed(&NodeError::UnknownBusiness),
                        false => answer.withheld(),
                    }
                }
            }
            Err(JointError::Undecided(cause)) if cause.is_too_large() => {
                let message = format!("the items are too many to be decided together: {cause}");
                return Err(Refusal::new(StatusCode::BAD_REQUEST, "too-much", message));
            }
            Err(JointError::Undecided(cause)) => {
                self.shared.observer.undecided(&cause);
                return Err(no_decision(cause.to_string()));
            }
        }
        Ok(respond(StatusCode::OK, answer.finish()))
    }

    async fn execute_one(
        &self,
        command: Command,
        item: &Item<'_>,
        core_request: &mut Request,
        now: Timestamp,
        answer: &mut Answer,
    ) -> Result<(), NodeError> {
        let authority = &self.shared.authority;
        let done = match command {
            Command::Query | Command::Update | Command::Acquire => {
                let how = match command {
                    Command::Query => Use::Look,
                    Command::Update => Use::Record,
                    _ => Use::Acquire,
                };
                core_request.hits = item.hits;
                let decided = |verdict, windows: &NodeWindows<'_>| answer.decided(verdict, windows);
                return authority.use_node(core_request, how, now, decided).await;
            }
            Command::Find => "found",
            Command::Create => "created",
            Command::UpdateNode => "updated",
            Command::Erase => "erased",
            Command::Reset => "reset",
        };
        let mut then = |windows: &NodeWindows<'_>| answer.done(done, windows);
        match command {
            Command::Create => authority.create_node(core_request, &changes(item), now, then).await,
            Command::UpdateNode => {
                authority.change_node(core_request, &changes(item), now, then).await
            }
            Command::Erase | Command::Reset => {
                let existed = authority.erase_node(core_request, now).await?;
                if command == Command::Erase && !existed {
                    return Err(NodeError::NotFound);
                }
                then(&NodeWindows::new());
                Ok(())
            }
            _ => authority.find_node(core_request, now, then).await,
        }
    }
}

fn no_decision(cause: impl Into<String>) -> Refusal {
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "undecided", cause)
}

fn node(business: &str, key: &str) -> Descriptor {
    Descriptor::new(vec![Entry::new("business", business), Entry::new("key", key)])
}

fn set_item(core_request: &mut Request, item: &Item<'_>) {
    let entries =
        core_request.descriptors.iter_mut().flat_map(|descriptor| &mut descriptor.entries);
    for (entry, value) in entries.zip([&item.business, &item.key]) {
        entry.value.clear();
        entry.value.push_str(value);
    }
}

fn changes<'a>(item: &'a Item<'_>) -> SmallVec<[Change<'a>; 2]> {
    let change = |window: &'a request::WindowChange<'_>| Change {
        name: &window.name,
        count: window.count,
        start: window.start,
        last: window.end,
    };
    item.windows.iter().map(change).collect()
}

fn command_of(headers: &HeaderMap) -> Result<Command, Refusal> {
    let refuse = |code, what: String| {
        let names = Command::ALL.map(Command::name).join(", ");
        Err(Refusal::new(StatusCode::BAD_REQUEST, code, format!("{what}; expected one of {names}")))
    };
    let mut values = headers.get_all(COMMAND_HEADER).iter();
    match (values.next(), values.next()) {
        (None, _) => refuse("no-command", "the header X-FRS-Command is missing".to_owned()),
        (Some(_), Some(_)) => {
            refuse("no-command", "the header X-FRS-Command appears more than once".to_owned())
        }
        (Some(value), None) => match Command::from_name(value.as_bytes()) {
            Some(command) => Ok(command),
            None => {
                let value = xml::quoted(&String::from_utf8_lossy(value.as_bytes()));
                refuse("unknown-command", format!("X-FRS-Command {value} is not known"))
            }
        },
    }
}

/// Bodies must be plain UTF-8. Any content type is accepted, since many clients send a wrong one.
fn check_encoding(headers: &HeaderMap) -> Result<(), Refusal> {
    let refuse = |message| {
        Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-encoding", message))
    };
    if headers.get(header::CONTENT_ENCODING).is_some_and(|value| value != "identity") {
        return refuse("a body with a Content-Encoding is not supported; send it plain");
    }
    let kind = headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let kind = kind.to_ascii_lowercase();
    let parameter = b"charset=";
    let charset = kind.windows(parameter.len()).position(|window| window == parameter);
    let charset = charset.map(|at| kind[at + parameter.len()..].trim_ascii());
    let is_plain = |charset: &[u8]| {
        let charset = charset.strip_prefix(b"\"").unwrap_or(charset);
        charset.starts_with(b"utf-8") || charset.starts_with(b"us-ascii")
    };
    if charset.is_none_or(is_plain) { Ok(()) } else { refuse("the body must be in UTF-8") }
}

/// Checks the announced length of a body.
fn check_length(headers: &HeaderMap, body: &Incoming) -> Result<(), Refusal> {
    match body.size_hint().exact() {
        Some(length) if length > BODY_BYTES_MAX as u64 => Err(too_large()),
        Some(0) if !headers.contains_key(header::CONTENT_LENGTH) => {
            let message = "a body with a Content-Length is expected";
            Err(Refusal::new(StatusCode::LENGTH_REQUIRED, "length-required", message))
        }
        _ => Ok(()),
    }
}

fn too_large() -> Refusal {
    let message = format!("a body has at most {BODY_BYTES_MAX} bytes; send more bodies");
    Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{Recorder, shared};
    use http_body_util::BodyExt;
    use tidegate_authority::testing::LaterCounters;
    use tokio::sync::watch;

    /// Symptom: a body of many items got 503 after 20 s, although some of them were counted.
    #[tokio::test]
    async fn items_that_would_begin_too_late_are_not_counted() {
        let recorder = Recorder::default();
        let (_stop, stopped) = watch::channel(false);
        let shared = shared(Arc::new(LaterCounters::default()), recorder.clone(), stopped);
        let service = Service { shared, later: LaterBudget::for_slots(1) };
        let text = "<frs><item business='b' key='1'/><item business='b' key='2'/></frs>";
        let body = request::read(Command::Acquire, text).unwrap();
        let execute = async |until| {
            let executed = service.execute_each(Command::Acquire, &body.items, until).await;
            let response = executed.map_err(|refusal| refusal.message).unwrap();
            let bytes = response.into_body().collect().await.unwrap().to_bytes();
            let text = String::from_utf8(bytes.to_vec()).unwrap();
            let count = |part| text.matches(part).count();
            (count("verdict=\"allow\""), count("verdict=\"deny\""), count("undecided"))
        };
        assert_eq!(execute(Some(Instant::now())).await, (1, 0, 1));
        assert_eq!(recorder.counts().undecided, 1);
        // The second item has room still.
        assert_eq!(execute(None).await, (1, 1, 0));
    }
}
