//! One call: cuts its messages, asks the service, and sends or queues the answers.

use std::borrow::Cow;
use std::time::Duration;

use crate::broken::ErrorCode;
use crate::frame::{self, Head};
use crate::link::{Link, ReceiveWindow};
use crate::message::{self, Cut, PREFIX_BYTES};
use crate::outgoing::{Body, release};
use crate::streams::Capacity;
use crate::{Code, Status};

use super::reply::{self, Advice, Ending};
use super::request::{Encoding, Request};
use super::shared::Shared;
use super::{Call, CallId, Outcome, Service};

/// Unsent bytes of a peer that does not read or opens no window. Beyond them, messages are refused before the
/// service is asked. Four times the output of a congested connection.
const UNSENT_BYTES_MAX: usize = 1 << 20;

/// The most memory of its headers that a call keeps after its first message. Most calls end soon, and pass
/// their memory to the next call.
const KEPT_METADATA_BYTES: usize = 1024;

/// What happens to a stream next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Open,
    /// Both sides have ended it.
    Done,
    /// The response is complete, the request is not, and the rest of it is useless.
    DoneEarly,
    Failed(ErrorCode),
}

/// The client's side of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sending {
    Open,
    Ended,
}

/// The state of the response.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Response {
    /// Nothing was sent.
    Awaited,
    /// Nothing was sent, and the owner hands in the answer later.
    Pending(Pending),
    /// The headers were sent.
    Begun,
    /// Ends once the body is sent, with this status or with OK.
    Ending(Option<Status>),
}

/// A message that is answered later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pending {
    id: CallId,
    message_bytes: usize,
}

/// Whether the call stays open after the client has ended its side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Caller,
    /// Stays open, with notifications.
    Watcher,
    /// Stays open.
    Kept,
}

/// The messages that the call may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Messages {
    Many,
    /// None: the only message of its method has arrived.
    Enough,
}

/// A call.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) request: Request,
    pub(super) body: Body,
    id: u32,
    /// The part of a message that has arrived.
    begun: Vec<u8>,
    data_bytes: u64,
    window: ReceiveWindow,
    client: Sending,
    response: Response,
    role: Role,
    messages: Messages,
    /// When the partial or awaited message began, and when the answer began that lacks window. Meaningless
    /// without such a message or answer.
    message_since: Duration,
    answer_since: Duration,
    /// Memory of this stream that `Shared::buffered_bytes` includes.
    counted: usize,
    counted_headers: usize,
}

impl Capacity for Stream {
    #[inline]
    fn capacity_bytes(&self) -> usize {
        self.request.capacity_bytes() + self.begun.capacity() + self.body.capacity_bytes()
    }
}

impl Stream {
    pub(super) fn new() -> Stream {
        Stream {
            request: Request::default(),
            body: Body::new(),
            id: 0,
            begun: Vec::new(),
            data_bytes: 0,
            window: ReceiveWindow::new(0),
            client: Sending::Open,
            response: Response::Awaited,
            role: Role::Caller,
            messages: Messages::Many,
            message_since: Duration::ZERO,
            answer_since: Duration::ZERO,
            counted: 0,
            counted_headers: 0,
        }
    }

    /// Begins a call with the request that was decoded.
    #[inline]
    pub(super) fn begin(&mut self, id: u32, send_window: i64, shared: &mut Shared) {
        self.count(shared);
        self.id = id;
        self.body.renew(send_window);
        self.data_bytes = 0;
        self.window = ReceiveWindow::new(shared.stream_window);
        self.client = Sending::Open;
        self.response = Response::Awaited;
        self.role = Role::Caller;
        self.messages = Messages::Many;
        self.message_since = shared.now;
    }

    /// Updates the totals of memory.
    #[inline]
    fn count(&mut self, shared: &mut Shared) {
        let headers = self.request.capacity_bytes();
        let bytes = headers + self.begun.capacity();
        shared.buffered_bytes = shared.buffered_bytes - self.counted + bytes;
        shared.headers_bytes = shared.headers_bytes - self.counted_headers + headers;
        (self.counted, self.counted_headers) = (bytes, headers);
    }

    #[cfg(test)]
    pub(super) fn capacity_of_what_arrived(&self) -> usize {
        self.request.capacity_bytes() + self.begun.capacity()
    }

    /// When the unfinished message or the unsent answer began, whichever is older.
    pub(super) fn unfinished_since(&self) -> Option<Duration> {
        let message = self.is_message_unfinished().then_some(self.message_since);
        let answer = (!self.body.is_empty()).then_some(self.answer_since);
        message.into_iter().chain(answer).min()
    }

    fn is_message_unfinished(&self) -> bool {
        self.client == Sending::Open
            && match (&self.response, self.role) {
                // The client has nothing to continue.
                (Response::Pending(_) | Response::Ending(_), _) => false,
                (Response::Awaited, Role::Caller) => true,
                // After its only answer, the client only has to end the call.
                (Response::Begun, Role::Caller) => {
                    self.messages == Messages::Enough || !self.begun.is_empty()
                }
                (_, Role::Watcher | Role::Kept) => !self.begun.is_empty(),
            }
    }

    /// Frees unused memory.
    pub(super) fn shrink(&mut self, shared: &mut Shared) {
        if self.response != Response::Awaited {
            self.request.drop_metadata(0);
        }
        self.count(shared);
    }

    /// Ends a call that takes too long, or whose memory is needed.
    pub(super) fn give_up(&mut self, status: Status, link: &mut Link) -> Fate {
        if !self.body.is_empty() {
            return Fate::Failed(ErrorCode::EnhanceYourCalm);
        }
        let is_answered = self.messages == Messages::Enough;
        self.end((!is_answered).then_some(status), link)
    }

    /// Resets the stream for its next use.
    #[inline]
    pub(super) fn clear(&mut self, link: &mut Link, shared: &mut Shared) {
        shared.buffered_bytes -= self.counted;
        shared.headers_bytes -= self.counted_headers;
        (self.counted, self.counted_headers) = (0, 0);
        if self.role != Role::Caller {
            shared.staying -= 1;
        }
        self.body.clear(self.id, &mut link.outgoing);
        release(&mut self.begun);
        if let Response::Pending(pending) = self.response {
            shared.abandon(pending.id, self.message_since);
        }
        self.response = Response::Awaited;
    }

    /// When the message of a pending call was asked.
    pub(super) fn pending_since(&self) -> Option<Duration> {
        matches!(self.response, Response::Pending(_)).then_some(self.message_since)
    }

    pub(super) fn is_pending(&self, id: CallId) -> bool {
        matches!(self.response, Response::Pending(pending) if pending.id == id)
    }

    /// Sends the answer of a pending call.
    pub(super) fn answer(
        &mut self,
        answer: Result<&[u8], Status>,
        now: Duration,
        link: &mut Link,
    ) -> Fate {
        let Response::Pending(pending) = self.response else { return Fate::Open };
        self.response = Response::Awaited;
        link.answered(pending.message_bytes, answer.as_ref().map_or(0, |message| message.len()));
        let message = match answer {
            Err(status) => return self.end(Some(status), link),
            Ok(_) if link.outgoing.unsent_bytes() > UNSENT_BYTES_MAX => {
                return self.refuse_unread(link);
            }
            Ok(message) => message,
        };
        self.message_since = now;
        self.send(message, now, link);
        match self.client {
            Sending::Open => Fate::Open,
            Sending::Ended => self.request_ended(link),
        }
    }

    pub(super) fn is_watching(&self) -> bool {
        self.role == Role::Watcher && !self.is_ending()
    }

    pub(super) fn is_staying(&self) -> bool {
        self.role != Role::Caller && !self.is_ending()
    }

    fn is_ending(&self) -> bool {
        matches!(self.response, Response::Ending(_))
    }

    /// Takes the payload of a DATA frame. `data` is the payload without padding.
    pub(super) fn take_data(
        &mut self,
        head: Head,
        data: &[u8],
        link: &mut Link,
        shared: &mut Shared,
        service: &mut impl Service,
    ) -> Fate {
        if self.client == Sending::Ended {
            return Fate::Failed(ErrorCode::StreamClosed);
        }
        if !self.window.take(head.length) {
            return Fate::Failed(ErrorCode::FlowControl);
        }
        self.data_bytes = self.data_bytes.saturating_add(data.len() as u64);
        if head.has(frame::END_STREAM) {
            self.client = Sending::Ended;
        }
        if let Some(length) = self.request.content_length {
            let is_wrong = match self.client {
                Sending::Open => self.data_bytes > length,
                Sending::Ended => self.data_bytes != length,
            };
            if is_wrong {
                return Fate::Failed(ErrorCode::Protocol);
            }
        }
        if !self.is_ending() {
            let fate = self.messages(data, link, shared, service);
            if fate != Fate::Open {
                return fate;
            }
        }
        if self.client == Sending::Ended {
            return self.request_ended(link);
        }
        if self.response != Response::Awaited {
            // The call may stay open for long, and later messages do not need the metadata.
            self.request.drop_metadata(KEPT_METADATA_BYTES);
            self.count(shared);
        }
        if !self.is_ending()
            && let Some(increment) = self.window.replenish()
        {
            let buffer = link.outgoing.output.buffer();
            frame::write_word(frame::WINDOW_UPDATE, self.id, increment, buffer);
        }
        Fate::Open
    }

    /// Takes trailers, which end the request.
    pub(super) fn take_end(&mut self, link: &mut Link) -> Fate {
        if self.client == Sending::Ended {
            return Fate::Failed(ErrorCode::StreamClosed);
        }
        self.client = Sending::Ended;
        if self.request.content_length.is_some_and(|length| length != self.data_bytes) {
            return Fate::Failed(ErrorCode::Protocol);
        }
        self.request_ended(link)
    }

    /// Sends a notification. Fails if the client does not read.
    pub(super) fn notify(&mut self, message: &[u8], now: Duration, link: &mut Link) -> Fate {
        if link.outgoing.unsent_bytes() > UNSENT_BYTES_MAX {
            return Fate::Failed(ErrorCode::EnhanceYourCalm);
        }
        self.send(message, now, link);
        Fate::Open
    }

    /// Ends the response with this status, or with OK, after all unsent bytes.
    #[inline]
    pub(super) fn end(&mut self, status: Option<Status>, link: &mut Link) -> Fate {
        self.end_with(status, Advice::None, link)
    }

    pub(super) fn refuse(
        &mut self,
        code: Code,
        message: impl Into<Cow<'static, str>>,
        link: &mut Link,
    ) -> Fate {
        self.end(Some(Status::new(code, message)), link)
    }

    /// Sends what the windows allow, then a waiting end.
    pub(super) fn send_waiting(&mut self, link: &mut Link) -> Fate {
        let frames = self.body.pump(self.id, 0, &mut link.outgoing);
        link.refill_budget_for_frames(frames);
        if !self.body.is_empty() || !self.is_ending() {
            return Fate::Open;
        }
        let response = std::mem::replace(&mut self.response, Response::Begun);
        let status = if let Response::Ending(status) = response { status } else { None };
        self.end(status, link)
    }

    fn request_ended(&mut self, link: &mut Link) -> Fate {
        if self.is_ending() {
            return Fate::Open;
        }
        if !self.begun.is_empty() {
            return self.refuse(Code::Internal, "a message is cut off", link);
        }
        match self.response {
            Response::Awaited => self.refuse(Code::Internal, "the call has no message", link),
            Response::Pending(_) => Fate::Open,
            _ if self.role != Role::Caller => Fate::Open,
            _ => self.end(None, link),
        }
    }

    /// Answers each whole message, and keeps the beginning of a partial one.
    fn messages(
        &mut self,
        mut data: &[u8],
        link: &mut Link,
        shared: &mut Shared,
        service: &mut impl Service,
    ) -> Fate {
        let bytes_max = shared.limits.message_bytes_max;
        loop {
            if self.messages == Messages::Enough && !data.is_empty() {
                return self.refuse(Code::Unimplemented, "the method takes one message", link);
            }
            let fate = if self.begun.is_empty() {
                match message::cut(data, bytes_max) {
                    Cut::Whole { flag, message, rest } => {
                        data = rest;
                        self.ask(flag, message, link, shared, service)
                    }
                    Cut::Part if data.is_empty() => return Fate::Open,
                    Cut::Part => {
                        if self.response != Response::Awaited {
                            self.message_since = shared.now;
                        }
                        message::fill(&mut self.begun, &mut data, bytes_max);
                        self.count(shared);
                        return self.check_buffered(link, shared);
                    }
                    Cut::TooLarge => return self.refuse_large(bytes_max, link),
                }
            } else {
                message::fill(&mut self.begun, &mut data, bytes_max);
                self.count(shared);
                // Moved out of the stream while the service reads it.
                let mut begun = std::mem::take(&mut self.begun);
                let fate = match message::cut(&begun, bytes_max) {
                    Cut::Whole { flag, message, .. } => {
                        let fate = self.ask(flag, message, link, shared, service);
                        release(&mut begun);
                        fate
                    }
                    Cut::Part => self.check_buffered(link, shared),
                    Cut::TooLarge => self.refuse_large(bytes_max, link),
                };
                self.begun = begun;
                self.count(shared);
                if !self.begun.is_empty() {
                    return fate;
                }
                fate
            };
            if fate != Fate::Open || self.is_ending() {
                return fate;
            }
        }
    }

    fn check_buffered(&mut self, link: &mut Link, shared: &Shared) -> Fate {
        if shared.buffered_bytes <= shared.limits.buffered_bytes_max {
            return Fate::Open;
        }
        let reason = "too many partial messages on this connection";
        self.refuse(Code::ResourceExhausted, reason, link)
    }

    fn refuse_large(&mut self, bytes_max: usize, link: &mut Link) -> Fate {
        let message = format!("a message is larger than {bytes_max} bytes");
        self.refuse(Code::ResourceExhausted, message, link)
    }

    /// Asks the service about a message.
    fn ask(
        &mut self,
        flag: u8,
        message: &[u8],
        link: &mut Link,
        shared: &mut Shared,
        service: &mut impl Service,
    ) -> Fate {
        if flag != 0 {
            return self.refuse_flag(flag, link);
        }
        if link.outgoing.unsent_bytes() > UNSENT_BYTES_MAX {
            return self.refuse_unread(link);
        }
        shared.asked = shared.asked.wrapping_add(1);
        shared.answer.clear();
        let Request { path, metadata, .. } = &self.request;
        let id = CallId { stream: self.id, message: shared.asked };
        let outcome = service.answer(&Call { path, metadata, message, id }, &mut shared.answer);
        self.message_since = shared.now;
        match outcome {
            Outcome::Answered => {}
            Outcome::Unary => self.messages = Messages::Enough,
            Outcome::Watched => self.stay(Role::Watcher, shared),
            Outcome::Kept => self.stay(Role::Kept, shared),
            Outcome::Later => {
                self.put_off(Pending { id, message_bytes: message.len() }, shared);
                return Fate::Open;
            }
            Outcome::Refused(status) => {
                link.answered(message.len(), shared.answer.len());
                return self.end(Some(status), link);
            }
        }
        link.answered(message.len(), shared.answer.len());
        self.send(&shared.answer, shared.now, link);
        release(&mut shared.answer);
        Fate::Open
    }

    /// Makes the call pending, and frees what it no longer needs.
    fn put_off(&mut self, pending: Pending, shared: &mut Shared) {
        self.messages = Messages::Enough;
        self.response = Response::Pending(pending);
        self.request.path.clear();
        self.request.drop_metadata(KEPT_METADATA_BYTES);
        self.count(shared);
        release(&mut shared.answer);
    }

    fn refuse_unread(&mut self, link: &mut Link) -> Fate {
        self.refuse(Code::ResourceExhausted, "the client does not read its answers", link)
    }

    /// Keeps the call open after the client has ended its side.
    fn stay(&mut self, role: Role, shared: &mut Shared) {
        if self.role == Role::Caller {
            shared.staying += 1;
        }
        self.role = role;
        self.messages = Messages::Enough;
    }

    /// Refuses a message that is compressed, or whose flag is invalid.
    fn refuse_flag(&mut self, flag: u8, link: &mut Link) -> Fate {
        let (code, reason) = match (flag, self.request.encoding) {
            (1, Encoding::Other) => (Code::Unimplemented, "messages may not be compressed"),
            (1, Encoding::Identity) => {
                (Code::Internal, "a message is compressed, but no grpc-encoding says how")
            }
            _ => (Code::Internal, "a message's flag is neither 0 nor 1"),
        };
        let advice = if code == Code::Unimplemented { Advice::Encodings } else { Advice::None };
        self.end_with(Some(Status::new(code, reason)), advice, link)
    }

    #[inline]
    fn send(&mut self, message: &[u8], now: Duration, link: &mut Link) {
        let outgoing = &mut link.outgoing;
        if self.response == Response::Awaited {
            reply::headers(self.id, outgoing);
            self.response = Response::Begun;
        }
        let prefix = message::prefix(message.len());
        if self.body.claim(PREFIX_BYTES + message.len(), outgoing) {
            reply::message(self.id, &prefix, message, outgoing);
        } else {
            if self.body.is_empty() {
                self.answer_since = now;
            }
            self.body.wait(&prefix, outgoing);
            self.body.wait(message, outgoing);
            self.body.pump(self.id, 0, outgoing);
        }
    }

    #[inline]
    fn end_with(&mut self, status: Option<Status>, advice: Advice, link: &mut Link) -> Fate {
        if !self.body.is_empty() {
            self.response = Response::Ending(status);
            return Fate::Open;
        }
        let ending = match self.response {
            Response::Awaited | Response::Pending(_) => Ending::TrailersOnly,
            _ => Ending::Trailers,
        };
        match status {
            None => reply::trailers_ok(self.id, &mut link.outgoing),
            Some(status) => {
                reply::status(self.id, &status, ending, advice, &mut link.outgoing);
            }
        }
        match self.client {
            Sending::Open => Fate::DoneEarly,
            Sending::Ended => Fate::Done,
        }
    }
}
