//! One call: its messages are cut out, the service is asked, its answers are sent or wait.

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

/// Bytes that are held for a peer that does not read, or opens no window. Beyond them messages are
/// refused before the service is asked: four times what makes a connection congested.
const UNSENT_BYTES_MAX: usize = 1 << 20;

/// A call that goes on after its first message keeps no more memory of its headers. Most calls end soon,
/// and leave it to the next.
const KEPT_METADATA_BYTES: usize = 1024;

/// What becomes of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Open,
    /// Both sides have ended it.
    Done,
    /// The response is whole, the request is not: no more of it is wanted.
    DoneEarly,
    Failed(ErrorCode),
}

/// How far the client's side of a stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sending {
    Open,
    Ended,
}

/// How far the response is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Response {
    /// Nothing was sent.
    Awaited,
    /// Nothing was sent: the owner hands in the answer later.
    Pending(Pending),
    /// The headers were sent.
    Begun,
    /// It ends when the body is sent: with this status, or well.
    Ending(Option<Status>),
}

/// A message that is answered later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pending {
    id: CallId,
    message_bytes: usize,
}

/// Whether the call ends when the client has sent all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Caller,
    /// It stays open, to be told.
    Watcher,
    /// It stays open.
    Kept,
}

/// Whether the call may have more messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Messages {
    Many,
    /// It had the only one that its method takes.
    Enough,
}

/// A call.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) request: Request,
    pub(super) body: Body,
    id: u32,
    /// What has arrived of a message.
    begun: Vec<u8>,
    data_bytes: u64,
    window: ReceiveWindow,
    client: Sending,
    response: Response,
    role: Role,
    messages: Messages,
    /// When the message began that is not whole, or that is awaited, and when the answer began that the
    /// client gives no window for. Of no meaning while there is none.
    message_since: Duration,
    answer_since: Duration,
    /// What of its memory is counted in `Shared::buffered_bytes`.
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
            request: Request::new(),
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

    /// Begins a call whose request was read.
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

    /// Counts the memory of what has arrived.
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

    /// Since when something of the call has begun and is not whole: its message, or its answer.
    pub(super) fn unfinished_since(&self) -> Option<Duration> {
        let message = self.is_message_unfinished().then_some(self.message_since);
        let answer = (!self.body.is_empty()).then_some(self.answer_since);
        message.into_iter().chain(answer).min()
    }

    fn is_message_unfinished(&self) -> bool {
        self.client == Sending::Open
            && match (&self.response, self.role) {
                // Not for the client to continue.
                (Response::Pending(_) | Response::Ending(_), _) => false,
                (Response::Awaited, Role::Caller) => true,
                // After its only answer a call has only to end.
                (Response::Begun, Role::Caller) => {
                    self.messages == Messages::Enough || !self.begun.is_empty()
                }
                (_, Role::Watcher | Role::Kept) => !self.begun.is_empty(),
            }
    }

    /// Gives memory back that holds nothing, or nothing that matters any more.
    pub(super) fn shrink(&mut self, shared: &mut Shared) {
        if self.response != Response::Awaited {
            self.request.drop_metadata(0);
        }
        self.count(shared);
    }

    /// Ends a call that takes too long, or has to make room.
    pub(super) fn give_up(&mut self, status: Status, link: &mut Link) -> Fate {
        if !self.body.is_empty() {
            return Fate::Failed(ErrorCode::EnhanceYourCalm);
        }
        let is_answered = self.messages == Messages::Enough;
        self.end((!is_answered).then_some(status), link)
    }

    /// Ends a call, whatever it waits for.
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
        if let Response::Pending(pending) = std::mem::replace(&mut self.response, Response::Awaited)
        {
            shared.abandon(pending.id, self.message_since);
        }
    }

    /// When the call was asked whose answer is handed in later.
    pub(super) fn pending_since(&self) -> Option<Duration> {
        matches!(self.response, Response::Pending(_)).then_some(self.message_since)
    }

    pub(super) fn is_pending(&self, id: CallId) -> bool {
        matches!(self.response, Response::Pending(pending) if pending.id == id)
    }

    /// Sends the answer that was handed in later.
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

    /// Takes the payload of a DATA frame, of which `data` is what is not padding.
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
            // It stays open, and may do so for long: what only its first message needed goes.
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

    /// Takes the end of the request, by trailers.
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

    /// Sends a message to a client that watches. One that does not read is given up.
    pub(super) fn notify(&mut self, message: &[u8], now: Duration, link: &mut Link) -> Fate {
        if link.outgoing.unsent_bytes() > UNSENT_BYTES_MAX {
            return Fate::Failed(ErrorCode::EnhanceYourCalm);
        }
        self.send(message, now, link);
        Fate::Open
    }

    /// Ends the response, with this status or well, when all before it is sent.
    #[inline]
    pub(super) fn end(&mut self, status: Option<Status>, link: &mut Link) -> Fate {
        self.end_with(status, Advice::None, link)
    }

    /// Sends what the windows allow, and the end after it.
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
            return self.end(Some(Status::new(Code::Internal, "a message is cut off")), link);
        }
        match (&self.response, self.role) {
            (Response::Awaited, _) => {
                self.end(Some(Status::new(Code::Internal, "the call has no message")), link)
            }
            (Response::Pending(_), _) | (_, Role::Watcher | Role::Kept) => Fate::Open,
            (_, Role::Caller) => self.end(None, link),
        }
    }

    /// Answers each message that is whole, and keeps the beginning of one that is not.
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
                let status = Status::new(Code::Unimplemented, "the method takes one message");
                return self.end(Some(status), link);
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
                // Taken out of the stream for as long as it is looked at.
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
        let reason = "too many messages of this connection have begun and not ended";
        self.end(Some(Status::new(Code::ResourceExhausted, reason)), link)
    }

    fn refuse_large(&mut self, bytes_max: usize, link: &mut Link) -> Fate {
        let message = format!("a message is larger than {bytes_max} bytes");
        self.end(Some(Status::new(Code::ResourceExhausted, message)), link)
    }

    /// Has a message answered.
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

    /// Leaves the answer to the owner, and keeps of the call what that needs.
    fn put_off(&mut self, pending: Pending, shared: &mut Shared) {
        self.messages = Messages::Enough;
        self.response = Response::Pending(pending);
        self.request.drop_metadata(KEPT_METADATA_BYTES);
        self.count(shared);
        release(&mut shared.answer);
    }

    fn refuse_unread(&mut self, link: &mut Link) -> Fate {
        let reason = "the client does not read its answers";
        self.end(Some(Status::new(Code::ResourceExhausted, reason)), link)
    }

    /// The call is not over when the client has sent all.
    fn stay(&mut self, role: Role, shared: &mut Shared) {
        if self.role == Role::Caller {
            shared.staying += 1;
        }
        self.role = role;
        self.messages = Messages::Enough;
    }

    /// A message that is compressed, or whose flag means nothing.
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
