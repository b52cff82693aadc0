//! The server's side of a connection.
//!
//! A call whose headers and message arrive together is answered from the input itself: nothing of
//! it is kept. What does not arrive together waits in its stream, what may not be sent yet too;
//! both are bounded over all streams. Beyond the bounds calls are refused before the service is
//! asked, with RESOURCE_EXHAUSTED, or with REFUSED_STREAM when not even that is worth it. An owner that
//! says what time it is can end what has begun and does not become whole, and have the memory of a
//! connection that rests.

mod headers;
mod pending;
mod reply;
mod request;
mod shared;
mod stream;
mod upkeep;

use std::time::Duration;

use crate::broken::ErrorCode;
use crate::frame::{self, Head};
use crate::link::{Event, Link};
use crate::streams::Streams;
use crate::{Code, Status};

pub use crate::Broken;
pub use crate::metadata::Metadata;

pub use pending::CallId;

use headers::Recent;
use shared::Shared;
use stream::{Fate, Stream};

/// What a connection takes of its peer.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Calls under way at once (SETTINGS_MAX_CONCURRENT_STREAMS).
    pub streams_max: u32,
    /// Bytes of one message.
    pub message_bytes_max: usize,
    /// Bytes of the headers of one call, decoded, as SETTINGS_MAX_HEADER_LIST_SIZE counts them.
    pub header_bytes_max: usize,
    /// Memory of messages that have begun to arrive and of the headers of calls that are open, of
    /// all calls together.
    pub buffered_bytes_max: usize,
}

/// A header block that is so many times as large as the headers of a call may be is still read, so that
/// only its call is refused. Beyond it the connection ends: twice what metadata of 64 KiB takes in Base64.
const BLOCK_RATIO: usize = 10;

/// A message of a call.
#[derive(Debug)]
pub struct Call<'a> {
    /// `/package.Service/Method`
    pub path: &'a [u8],
    /// The call's metadata. Messages after the first have none.
    pub metadata: &'a Metadata,
    /// The message, without gRPC's prefix.
    pub message: &'a [u8],
    /// Names the call for [`Connection::answer`].
    pub id: CallId,
}

/// What becomes of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It was answered by the bytes that were appended. The call ends OK when the client has sent
    /// all.
    Answered,
    /// As `Answered`, and the method takes no other message: if one comes, the call ends with an error.
    Unary,
    /// As `Unary`; the call stays open for [`Connection::notify_watchers`] though the client has
    /// sent all.
    Watched,
    /// As `Watched`, but [`Connection::notify_watchers`] has nothing to say on this call: it only stays
    /// open.
    Kept,
    /// As `Unary`, but the owner hands in the answer later, by [`Connection::answer`]. Appended bytes are
    /// ignored.
    Later,
    /// The call ends with this status.
    Refused(Status),
}

/// Answers messages.
pub trait Service {
    /// Answers one message of a call; the answer is appended to `answer`, which is empty.
    fn answer(&mut self, call: &Call<'_>, answer: &mut Vec<u8>) -> Outcome;
}

/// When so much waits to be written, nothing more should be read.
const CONGESTED_BYTES: usize = 256 * 1024;

/// A stream's window is no smaller than the protocol's first, so that a client never has to shrink
/// what it assumed.
const STREAM_WINDOW_MIN: usize = 65_535;

/// A change of all windows makes as much work as one useless frame for so many streams.
const STREAMS_PER_UNIT: usize = 4;

/// What a ping carries that asks how far the client has read, when the connection is shut down.
const DRAIN_PING: [u8; 8] = *b"draining";

/// How far the shutting down is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// The client was asked to begin no calls; those that it began before it heard are taken.
    Asked,
    /// The client has heard; calls after this stream are not taken.
    Closed(u32),
    Broken(Broken),
}

/// One connection, from its first byte to its last.
#[derive(Debug)]
pub struct Connection {
    link: Link,
    shared: Shared,
    streams: Streams<Stream>,
    recent: Recent,
    phase: Phase,
    /// Bytes of the client's preface that have arrived.
    preface_bytes: usize,
    /// What has arrived of a frame, and when it began to.
    partial: Vec<u8>,
    partial_since: Duration,
    last_stream: u32,
    /// Up to this stream, some may have been closed before the client ended them.
    closed_early_max: u32,
}

impl Connection {
    /// A connection whose peer has yet to say something. The first output is there at once.
    #[must_use]
    pub fn new(limits: Limits) -> Connection {
        let block_bytes_max = limits.header_bytes_max.saturating_mul(BLOCK_RATIO);
        let block_bytes_max = block_bytes_max.max(frame::PAYLOAD_BYTES_MAX);
        let mut link = Link::new(block_bytes_max, u32::MAX);
        let window = limits.message_bytes_max.saturating_add(crate::message::PREFIX_BYTES);
        let window = window.clamp(STREAM_WINDOW_MIN, frame::STREAM_ID_MAX as usize);
        let window = u32::try_from(window).unwrap_or(frame::STREAM_ID_MAX);
        let settings = [
            (3, limits.streams_max),
            (4, window),
            (6, u32::try_from(limits.header_bytes_max).unwrap_or(u32::MAX)),
        ];
        let buffer = link.outgoing.output.buffer();
        frame::write_settings(&settings, buffer);
        link.announce_window();
        Connection {
            link,
            shared: Shared::new(limits, window),
            streams: Streams::new(),
            recent: Recent::new(),
            phase: Phase::Open,
            preface_bytes: 0,
            partial: Vec::new(),
            partial_since: Duration::ZERO,
            last_stream: 0,
            closed_early_max: 0,
        }
    }

    /// Takes all bytes that have arrived, in any pieces; whole messages are answered at once.
    /// Returns how many messages the service was asked about.
    ///
    /// # Errors
    /// When the connection is at its end; every later call returns the same.
    pub fn receive(&mut self, input: &[u8], service: &mut impl Service) -> Result<usize, Broken> {
        if let Phase::Broken(broken) = self.phase {
            return Err(broken);
        }
        let (asked_before, frames_before) = (self.shared.asked, self.link.frames);
        let mut partial = std::mem::take(&mut self.partial);
        let was_partial = !partial.is_empty();
        let result = self.take(input, &mut partial, service);
        if !was_partial || self.link.frames != frames_before {
            self.partial_since = self.shared.now;
        }
        self.partial = partial;
        if let Err(broken) = result {
            self.fail(broken);
            return Err(broken);
        }
        Ok(self.shared.asked.wrapping_sub(asked_before))
    }

    /// Whether the client has said what it speaks, and its settings.
    #[must_use]
    pub fn has_preface(&self) -> bool {
        self.link.has_preface()
    }

    /// What waits to be written.
    #[must_use]
    pub fn output(&self) -> &[u8] {
        self.link.outgoing.output.waiting()
    }

    /// So many bytes of the output were written.
    pub fn written(&mut self, bytes: usize) {
        self.link.outgoing.output.written(bytes);
    }

    /// Whether so much waits to be written that nothing more should be read for now. Ask before
    /// each read: the output grows with what is read.
    #[must_use]
    pub fn is_congested(&self) -> bool {
        self.link.outgoing.output.len() > CONGESTED_BYTES
    }

    /// Says that no further calls are taken (GOAWAY); those under way go on. Calls that the client
    /// began before it heard are taken too: it is asked by a ping whether it has.
    pub fn shut_down(&mut self) {
        if self.phase == Phase::Open {
            self.phase = Phase::Asked;
            let buffer = self.link.outgoing.output.buffer();
            frame::write_goaway(frame::STREAM_ID_MAX, ErrorCode::NoError as u32, "", buffer);
            frame::write_ping(0, DRAIN_PING, buffer);
        }
    }

    /// Whether it was shut down, the client has heard it, no call is under way, and all is written.
    /// A client that never answers is for the owner to time out.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self.phase, Phase::Closed(_) | Phase::Broken(_))
            && (self.streams.len() == 0 || matches!(self.phase, Phase::Broken(_)))
            && self.output().is_empty()
    }

    /// Calls under way, apart from those that stay open for ever.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.streams.len() - self.shared.staying
    }

    /// Sends this message on every call that watches.
    pub fn notify_watchers(&mut self, message: &[u8]) {
        if self.shared.staying == 0 || matches!(self.phase, Phase::Broken(_)) {
            return;
        }
        let watchers = self.streams.iter_mut().filter(|(_, stream)| stream.is_watching());
        let watchers: Vec<u32> = watchers.map(|(id, _)| id).collect();
        for id in watchers {
            let Some(stream) = self.streams.get(id) else { continue };
            let fate = stream.notify(message, self.shared.now, &mut self.link);
            self.settle(id, fate);
        }
    }

    fn take(
        &mut self,
        input: &[u8],
        partial: &mut Vec<u8>,
        service: &mut impl Service,
    ) -> Result<(), Broken> {
        let input = self.take_preface(input)?;
        frame::cut_all(input, partial, |head, payload| self.frame(head, payload, service))
    }

    fn take_preface<'a>(&mut self, input: &'a [u8]) -> Result<&'a [u8], Broken> {
        let wanted = frame::PREFACE.get(self.preface_bytes..).unwrap_or_default();
        if wanted.is_empty() {
            return Ok(input);
        }
        let (arrived, rest) = input.split_at(wanted.len().min(input.len()));
        if !wanted.starts_with(arrived) {
            return Err(Broken::new(ErrorCode::Protocol, "the client does not speak HTTP/2"));
        }
        self.preface_bytes += arrived.len();
        Ok(rest)
    }

    fn frame(
        &mut self,
        head: Head,
        payload: &[u8],
        service: &mut impl Service,
    ) -> Result<(), Broken> {
        match self.link.take(head, payload)? {
            Event::Done => Ok(()),
            Event::Stream if head.kind == frame::DATA => self.data(head, payload, service),
            Event::Stream => self.headers(head, payload),
            Event::Window { stream: 0, .. } => {
                self.send_waiting();
                Ok(())
            }
            Event::Window { stream, increment } => self.window_update(stream, increment),
            Event::Windows(change) => self.change_windows(change),
            Event::Reset { stream, .. } => {
                if self.is_idle(stream) {
                    let reason = "a stream is reset that was never begun";
                    return Err(Broken::new(ErrorCode::Protocol, reason));
                }
                self.close(stream);
                Ok(())
            }
            Event::Pong(payload) => {
                if self.phase == Phase::Asked && payload == DRAIN_PING {
                    self.close_down();
                }
                Ok(())
            }
            // The client begins no calls from now on; it may still await answers.
            Event::Leaving { .. } => Ok(()),
        }
    }

    fn data(
        &mut self,
        head: Head,
        payload: &[u8],
        service: &mut impl Service,
    ) -> Result<(), Broken> {
        self.link.receive(payload.len())?;
        let data = frame::unpad(head, payload)?;
        if data.is_empty() && !head.has(frame::END_STREAM) {
            self.link.spend_budget()?;
        }
        let Some(stream) = self.streams.get(head.stream) else {
            return self.frame_on_closed(head.stream);
        };
        let asked_before = self.shared.asked;
        let fate = stream.take_data(head, data, &mut self.link, &mut self.shared, service);
        if fate != Fate::Open {
            if self.shared.asked == asked_before {
                self.link.spend_budget()?;
            }
            self.settle(head.stream, fate);
        }
        self.link.check_answers()
    }

    /// DATA or trailers for a stream that is not open: of no use if it was this side that closed
    /// it, an error otherwise.
    fn frame_on_closed(&mut self, stream: u32) -> Result<(), Broken> {
        if self.is_idle(stream) {
            let reason = "a frame is on a stream that was never begun";
            return Err(Broken::new(ErrorCode::Protocol, reason));
        }
        if stream <= self.closed_early_max {
            return self.link.spend_budget();
        }
        Err(Broken::new(ErrorCode::StreamClosed, "a frame is on a stream that has ended"))
    }

    /// Whether the client never began this stream.
    fn is_idle(&self, stream: u32) -> bool {
        stream.is_multiple_of(2) || stream > self.last_stream.max(self.closed_early_max)
    }

    fn window_update(&mut self, id: u32, increment: u32) -> Result<(), Broken> {
        if self.is_idle(id) {
            let reason = "a stream's window is opened that was never begun";
            return Err(Broken::new(ErrorCode::Protocol, reason));
        }
        let Some(stream) = self.streams.get(id) else { return Ok(()) };
        let fate = if increment == 0 {
            Fate::Failed(ErrorCode::Protocol)
        } else if !stream.body.change_window(i64::from(increment)) {
            Fate::Failed(ErrorCode::FlowControl)
        } else {
            stream.send_waiting(&mut self.link)
        };
        self.settle(id, fate);
        Ok(())
    }

    fn change_windows(&mut self, change: i64) -> Result<(), Broken> {
        if change == 0 {
            return Ok(());
        }
        // Each stream is work, and a client changes its windows once or twice.
        self.link.spend_budget_for(self.streams.len() / STREAMS_PER_UNIT)?;
        let mut waiting = Vec::new();
        for (id, stream) in self.streams.iter_mut() {
            if !stream.body.change_window(change) {
                let reason = "INITIAL_WINDOW_SIZE makes a window larger than 2^31-1";
                return Err(Broken::new(ErrorCode::FlowControl, reason));
            }
            if change > 0 && !stream.body.is_empty() {
                waiting.push(id);
            }
        }
        for id in waiting {
            let Some(stream) = self.streams.get(id) else { continue };
            let fate = stream.send_waiting(&mut self.link);
            self.settle(id, fate);
        }
        Ok(())
    }

    /// Sends what the connection's window allows, stream by stream.
    fn send_waiting(&mut self) {
        while let Some(id) = self.link.outgoing.next() {
            let Some(stream) = self.streams.get(id) else { continue };
            stream.body.take_turn();
            let fate = stream.send_waiting(&mut self.link);
            self.settle(id, fate);
        }
    }

    /// The client knows that it is to begin no calls: those after the last one are not taken, and
    /// those that stay open for ever end.
    fn close_down(&mut self) {
        self.phase = Phase::Closed(self.last_stream);
        let buffer = self.link.outgoing.output.buffer();
        frame::write_goaway(self.last_stream, ErrorCode::NoError as u32, "", buffer);
        let staying = self.streams.iter_mut().filter(|(_, stream)| stream.is_staying());
        let staying: Vec<u32> = staying.map(|(id, _)| id).collect();
        for id in staying {
            let Some(stream) = self.streams.get(id) else { continue };
            let status = Status::new(Code::Unavailable, "the server is shutting down");
            let fate = stream.end(Some(status), &mut self.link);
            self.settle(id, fate);
        }
    }

    /// Does what follows for a stream.
    #[inline]
    fn settle(&mut self, id: u32, fate: Fate) {
        match fate {
            Fate::Open => {}
            Fate::Done => self.close(id),
            Fate::DoneEarly => self.close_early(id, ErrorCode::NoError),
            Fate::Failed(code) => self.close_early(id, code),
        }
    }

    /// Says why the connection is at its end, which it is.
    fn fail(&mut self, broken: Broken) {
        self.link.send_goaway(broken, self.last_stream);
        self.phase = Phase::Broken(broken);
    }

    fn close_early(&mut self, id: u32, code: ErrorCode) {
        self.link.reset(id, code);
        self.closed_early_max = self.closed_early_max.max(id);
        self.close(id);
    }

    /// Forgets a stream.
    #[inline]
    fn close(&mut self, id: u32) {
        if let Some(mut stream) = self.streams.remove(id) {
            stream.clear(&mut self.link, &mut self.shared);
            self.streams.keep(stream);
        }
    }
}

#[cfg(test)]
mod tests;
