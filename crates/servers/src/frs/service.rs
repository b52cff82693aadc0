//! From an HTTP request to its answer: what is refused by its head, the body within bounds, the items
//! one after the other, or as one.

use super::DOOR;
use super::answer::{self, Answer};
use super::request::{self, Command, Decided, Item};
use crate::http1::{self, BodyError};
use crate::overload::Overload;
use crate::slots::{Phase, Slot};
use http_body_util::Full;
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, StatusCode};
use smallvec::SmallVec;
use std::sync::Arc;
use tidegate_authority::clock;
use tidegate_authority::{Authority, Observer};
use tidegate_authority::{Change, JointError, JointUse, NodeError, NodeWindows, Use};
use tidegate_core::{Descriptor, Entry, Hits, Request, Timestamp};
use tidegate_store::UpdateError;
use tidegate_xml::{self as xml, ErrorKind, XmlError};

/// The largest body: 256 items of a kilobyte.
const BODY_BYTES_MAX: usize = 256 * 1024;
/// All larger bodies together while they come in, and all larger answers until they are gone: 128 of the
/// largest bodies.
pub(super) const BODIES_BYTES_MAX: usize = 128 * BODY_BYTES_MAX;
/// What is read of a body that is refused for its length.
const DISCARDED_BYTES_MAX: usize = 4 * BODY_BYTES_MAX;
const COMMAND: HeaderName = HeaderName::from_static("x-frs-command");
const XML: HeaderValue = HeaderValue::from_static("application/xml");
/// The domain whose limits the FRS goes by.
const DOMAIN: &str = "frs";

/// The code of a body whose chunks are too small. The rest of it is not waited for.
const IN_CRUMBS: &str = "broken-body";
/// The code of what may be asked again soon.
const OVERLOADED: &str = "overloaded";

pub(super) type Response = hyper::Response<Full<Bytes>>;

/// What answers; clones share everything.
#[derive(Clone)]
pub(super) struct Service {
    pub(super) authority: Arc<Authority>,
    pub(super) observer: Arc<dyn Observer>,
    pub(super) overload: Arc<Overload>,
}

/// A request that is refused as a whole.
struct Refusal {
    status: StatusCode,
    code: &'static str,
    place: Option<(u64, u64)>,
    message: String,
}

impl Refusal {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Refusal {
        Refusal { status, code, place: None, message: message.into() }
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
        let place = Some(xml::position(text, mistake.at));
        Refusal { place, ..Refusal::new(StatusCode::BAD_REQUEST, code, mistake.message) }
    }

    fn response(&self) -> Response {
        let body = answer::error(self.code, self.place, &self.message);
        let mut response = respond(self.status, body);
        let headers = response.headers_mut();
        if self.code == IN_CRUMBS {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        match self.status {
            StatusCode::METHOD_NOT_ALLOWED => {
                headers.insert(header::ALLOW, HeaderValue::from_static("POST"));
            }
            StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            // The rest of the body is not waited for.
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

/// What a client is told that finds no place.
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
                slot.enter(Phase::Deciding);
                self.execute_in_time(command, &body)
            }
            Err(refusal) => Err(refusal),
        };
        answered.unwrap_or_else(|refusal| {
            match refusal.code {
                OVERLOADED => self.observer.shed(DOOR),
                _ if refusal.status == StatusCode::SERVICE_UNAVAILABLE => self.observer.refused(),
                _ => {}
            }
            refusal.response()
        })
    }

    /// The command and the body of a request, if it is one for this door.
    async fn receive(
        &self,
        request: hyper::Request<Incoming>,
        slot: &Slot,
    ) -> Result<(Command, Bytes), Refusal> {
        if request.uri().path() != "/frs" {
            let message = "nothing is here; the service is at POST /frs";
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
            BodyError::NoRoom => Refusal::overloaded("too many requests are coming in; try again"),
            BodyError::InCrumbs => {
                let message = "the body comes in too many small chunks";
                Refusal::new(StatusCode::BAD_REQUEST, IN_CRUMBS, message)
            }
            BodyError::Broken(error) => {
                let message = format!("the body did not arrive: {error}");
                Refusal::new(StatusCode::BAD_REQUEST, "broken-body", message)
            }
        })?;
        Ok((command, body))
    }

    /// Does what a body says, unless there is too much to do already.
    fn execute_in_time(&self, command: Command, body: &[u8]) -> Result<Response, Refusal> {
        if self.overload.is_late() {
            return Err(Refusal::overloaded(
                "more is asked than can be answered in time; try again",
            ));
        }
        self.execute(command, body)
    }

    /// Does what a body says, by one reading of the clock.
    fn execute(&self, command: Command, body: &[u8]) -> Result<Response, Refusal> {
        let text = xml::text(body)
            .map_err(|mistake| Refusal::of(mistake, &String::from_utf8_lossy(body)))?;
        let body = request::read(command, text).map_err(|mistake| Refusal::of(mistake, text))?;
        match body.decided {
            Decided::Each => self.execute_each(command, &body.items),
            Decided::AllOrNone => self.execute_as_one(command, &body.items),
        }
    }

    fn execute_each(&self, command: Command, items: &[Item<'_>]) -> Result<Response, Refusal> {
        let now = clock::now();
        let mut answer = Answer::new(command, items.len(), now);
        let mut asked = Request {
            domain: DOMAIN.to_owned(),
            descriptors: vec![node("", "")],
            hits: Hits::PEEK,
        };
        let mut undecided = None;
        let mut decided = 0;
        for item in items {
            answer.item(&item.business, &item.key);
            fill(&mut asked, item);
            match self.execute_one(command, item, &mut asked, now, &mut answer) {
                Ok(()) => decided += 1,
                Err(error) => {
                    answer.failed(&error);
                    match error {
                        NodeError::Undecided(cause) => {
                            self.observer.undecided(&cause);
                            undecided = Some(cause);
                        }
                        _ => decided += 1,
                    }
                }
            }
        }
        match undecided {
            // Of a part that was decided the caller must hear.
            Some(cause) if decided == 0 => {
                let (status, code) = (StatusCode::SERVICE_UNAVAILABLE, "undecided");
                Err(Refusal::new(status, code, cause.to_string()))
            }
            _ => Ok(respond(StatusCode::OK, answer.finish())),
        }
    }

    /// All items have room and count, or none does.
    fn execute_as_one(&self, command: Command, items: &[Item<'_>]) -> Result<Response, Refusal> {
        let now = clock::now();
        let mut answer = Answer::new(command, items.len(), now);
        let how = if command == Command::Query { JointUse::Look } else { JointUse::Acquire };
        let descriptor = |item: &Item<'_>| Descriptor {
            hits: Some(item.hits),
            ..node(&item.business, &item.key)
        };
        let asked = Request {
            domain: DOMAIN.to_owned(),
            descriptors: items.iter().map(descriptor).collect(),
            hits: Hits::ONE,
        };
        let used = self.authority.use_nodes(&asked, how, now, |verdict, of_each| {
            for (item, windows) in items.iter().zip(of_each) {
                answer.item(&item.business, &item.key);
                answer.decided(verdict, windows);
            }
        });
        match used {
            Ok(()) => {}
            Err(JointError::Unknown(slots)) => {
                for (place, item) in items.iter().enumerate() {
                    answer.item(&item.business, &item.key);
                    match slots.contains(&place) {
                        true => answer.failed(&NodeError::UnknownBusiness),
                        false => answer.withheld(),
                    }
                }
            }
            Err(JointError::Undecided(cause @ UpdateError::TooLarge { .. })) => {
                let message = format!("the items are too many to be decided as one: {cause}");
                return Err(Refusal::new(StatusCode::BAD_REQUEST, "too-much", message));
            }
            Err(JointError::Undecided(cause)) => {
                let (status, code) = (StatusCode::SERVICE_UNAVAILABLE, "undecided");
                return Err(Refusal::new(status, code, cause.to_string()));
            }
        }
        Ok(respond(StatusCode::OK, answer.finish()))
    }

    fn execute_one(
        &self,
        command: Command,
        item: &Item<'_>,
        asked: &mut Request,
        now: Timestamp,
        answer: &mut Answer,
    ) -> Result<(), NodeError> {
        let authority = &self.authority;
        let mut using = |how, hits, answer: &mut Answer| {
            asked.hits = hits;
            authority.use_node(asked, how, now, |verdict, windows| answer.decided(verdict, windows))
        };
        match command {
            Command::Query => using(Use::Look, Hits::PEEK, answer),
            Command::Update => using(Use::Record, item.hits, answer),
            Command::Acquire => using(Use::Acquire, item.hits, answer),
            Command::Find => {
                authority.find_node(asked, now, |windows| answer.done("found", windows))
            }
            Command::Create => authority.create_node(asked, &changes(item), now, |windows| {
                answer.done("created", windows);
            }),
            Command::UpdateNode => authority.change_node(asked, &changes(item), now, |windows| {
                answer.done("updated", windows);
            }),
            Command::Erase => match authority.erase_node(asked, now)? {
                true => {
                    answer.done("erased", &NodeWindows::new());
                    Ok(())
                }
                false => Err(NodeError::NotFound),
            },
            Command::Reset => {
                authority.erase_node(asked, now)?;
                answer.done("reset", &NodeWindows::new());
                Ok(())
            }
        }
    }
}

fn node(business: &str, key: &str) -> Descriptor {
    Descriptor::new(vec![Entry::new("business", business), Entry::new("key", key)])
}

fn fill(asked: &mut Request, item: &Item<'_>) {
    let entries = asked.descriptors.iter_mut().flat_map(|descriptor| &mut descriptor.entries);
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
    let mut values = headers.get_all(COMMAND).iter();
    match (values.next(), values.next()) {
        (None, _) => refuse("no-command", "the header X-FRS-Command is missing".to_owned()),
        (Some(_), Some(_)) => {
            refuse("no-command", "the header X-FRS-Command comes more than once".to_owned())
        }
        (Some(value), None) => match Command::of(value.as_bytes()) {
            Some(command) => Ok(command),
            None => {
                let value = xml::quoted(&String::from_utf8_lossy(value.as_bytes()));
                refuse("unknown-command", format!("X-FRS-Command {value} is not known"))
            }
        },
    }
}

/// Bodies are plain UTF-8; of a type nothing more is asked, since many clients send a wrong one.
fn check_encoding(headers: &HeaderMap) -> Result<(), Refusal> {
    let refuse = |message| {
        Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-encoding", message))
    };
    if headers.get(header::CONTENT_ENCODING).is_some_and(|value| value != "identity") {
        return refuse("a body with a Content-Encoding is not understood; send it plain");
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

/// Whether a body may have this length, as far as it is said.
fn check_length(headers: &HeaderMap, body: &Incoming) -> Result<(), Refusal> {
    match body.size_hint().exact() {
        Some(length) if length > BODY_BYTES_MAX as u64 => Err(too_large()),
        Some(0) if !headers.contains_key(header::CONTENT_LENGTH) => {
            let message = "a body with its Content-Length is expected";
            Err(Refusal::new(StatusCode::LENGTH_REQUIRED, "length-required", message))
        }
        _ => Ok(()),
    }
}

fn too_large() -> Refusal {
    let message = format!("a body has at most {BODY_BYTES_MAX} bytes; send more bodies");
    Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", message)
}
