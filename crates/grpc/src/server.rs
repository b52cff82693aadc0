//! The server's side of a connection.
//!
//! A call whose headers and message arrive together is answered straight from the input; nothing of it is
//! copied. Partial messages wait in their stream, and so do answers that lack window; both are bounded over
//! all streams. Beyond the bounds, calls are refused before the service is asked: with RESOURCE_EXHAUSTED, or
//! with REFUSED_STREAM where even a status costs too much. An owner that sets the time can end messages and
//! answers that make no progress, and release the memory of an idle connection.

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
use crate::link::{Event, Link, Peer};
use crate::streams::Streams;
use crate::{Code, Status};

pub use crate::Broken;
pub use crate::metadata::Metadata;

pub use pending::CallId;

use headers::Recent;
use shared::Shared;
use stream::{Fate, Stream};

/// The limits of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Concurrent calls (SETTINGS_MAX_CONCURRENT_STREAMS).
    pub streams_max: u32,
    /// Bytes of one message.
    pub message_bytes_max: usize,
    /// Bytes of the headers of one call, decoded, in the measure of SETTINGS_MAX_HEADER_LIST_SIZE.
    pub header_bytes_max: usize,
    /// Memory of partial messages and of the headers of open calls, over all calls.
    pub buffered_bytes_max: usize,
}

/// Header blocks up to this multiple of a call's header limit are still decoded, so that only their call is
/// refused. Larger ones end the connection. The factor allows twice what 64 KiB of metadata take in Base64.
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

/// How the service deals with a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The appended bytes are the answer. The call ends with OK once the client has ended its side.
    Answered,
    /// As `Answered`, and the method takes only one message: a second one ends the call with an error.
    Unary,
    /// As `Unary`, but the call stays open for [`Connection::notify_watchers`] after the client has ended its
    /// side.
    Watched,
    /// As `Watched`, without notifications: the call only stays open.
    Kept,
    /// As `Unary`, but the owner hands in the answer later, by [`Connection::answer`]. The appended bytes are
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

/// With more unwritten output, the owner should stop reading.
const CONGESTED_BYTES: usize = 256 * 1024;

/// A stream's window is at least the protocol's initial one, so that clients need not shrink theirs.
const STREAM_WINDOW_MIN: usize = 65_535;

/// A change of all windows costs as much as one useless frame for this many streams.
const STREAMS_PER_UNIT: usize = 4;

/// The payload of the ping by which a shutdown finds out whether the client has read the GOAWAY.
const DRAIN_PING: [u8; 8] = *b"draining";

/// The progress of a shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// The client was asked to begin no calls. Calls that it began before it read that are accepted.
    Asked,
    /// The client has read the GOAWAY. Calls after this stream are ignored.
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
    /// The part of a frame that has arrived, and when it began.
    partial: Vec<u8>,
    partial_since: Duration,
    last_stream: u32,
    /// The highest stream that this side may have closed before the client ended it.
    closed_early_max: u32,
}

impl Connection {
    /// A new connection. The server's SETTINGS are in the output at once.
    #[must_use]
    pub fn new(limits: Limits) -> Connection {
        let block_bytes_max = limits.header_bytes_max.saturating_mul(BLOCK_RATIO);
        let block_bytes_max = block_bytes_max.max(frame::PAYLOAD_BYTES_MAX);
        let mut link = Link::new(Peer::Client, block_bytes_max, u32::MAX);
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
            recent: Recent::default(),
            phase: Phase::Open,
            preface_bytes: 0,
            partial: Vec::new(),
            partial_since: Duration::ZERO,
            last_stream: 0,
            closed_early_max: 0,
        }
    }

    /// Takes the bytes that have arrived, cut anywhere, and answers whole messages. Returns the number of
    /// messages that the service was asked about.
    ///
    /// # Errors
    /// When the connection has failed. Every later call returns the same error.
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

    /// Whether the client's preface and first SETTINGS have arrived.
    #[must_use]
    pub fn has_preface(&self) -> bool {
        self.link.has_preface
    }

    /// Bytes to write to the client.
    #[must_use]
    pub fn output(&self) -> &[u8] {
        self.link.outgoing.output.waiting()
    }

    /// Removes this many bytes from the output after they were written.
    pub fn written(&mut self, bytes: usize) {
        self.link.outgoing.output.written(bytes);
    }

    /// Whether so much output is unwritten that reading should pause. Ask before each read: every read may
    /// add output.
    #[must_use]
    pub fn is_congested(&self) -> bool {
        self.link.outgoing.output.len() > CONGESTED_BYTES
    }

    /// Begins a shutdown (GOAWAY). Calls under way go on, and so do calls that the client begins before it
    /// has read the GOAWAY. A ping finds out when it has.
    pub fn shut_down(&mut self) {
        if self.phase == Phase::Open {
            self.phase = Phase::Asked;
            let buffer = self.link.outgoing.output.buffer();
            frame::write_goaway(frame::STREAM_ID_MAX, ErrorCode::NoError as u32, "", buffer);
            frame::write_ping(0, DRAIN_PING, buffer);
        }
    }

    /// Whether the shutdown is complete: the client has read the GOAWAY, no call is under way, and the output
    /// is written. The owner needs a timeout for clients that do not answer the ping.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self.phase, Phase::Closed(_) | Phase::Broken(_))
            && (self.streams.len() == 0 || matches!(self.phase, Phase::Broken(_)))
            && self.output().is_empty()
    }

    /// Calls under way, without those that stay open.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.streams.len() - self.shared.staying
    }

    /// Sends this message on every watched call.
    pub fn notify_watchers(&mut self, message: &[u8]) {
        if self.shared.staying == 0 || matches!(self.phase, Phase::Broken(_)) {
            return;
        }
        self.for_each(Stream::is_watching, |stream, now, link| stream.notify(message, now, link));
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
            return Err(Broken::protocol("the client does not speak HTTP/2"));
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
                    return Err(Broken::protocol("a reset of a stream that was never begun"));
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
            // The client begins no more calls, but may still await answers.
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

    /// DATA or trailers for a stream that is not open: useless if this side closed it, an error otherwise.
    fn frame_on_closed(&mut self, stream: u32) -> Result<(), Broken> {
        if self.is_idle(stream) {
            return Err(Broken::protocol("a frame for a stream that was never begun"));
        }
        if stream <= self.closed_early_max {
            return self.link.spend_budget();
        }
        Err(Broken::new(ErrorCode::StreamClosed, "a frame for a stream that has ended"))
    }

    /// Whether the client never began this stream.
    fn is_idle(&self, stream: u32) -> bool {
        stream.is_multiple_of(2) || stream > self.last_stream.max(self.closed_early_max)
    }

    fn window_update(&mut self, id: u32, increment: u32) -> Result<(), Broken> {
        if self.is_idle(id) {
            return Err(Broken::protocol("a window update for a stream that was never begun"));
        }
        let Some(stream) = self.streams.get(id) else { return Ok(()) };
        let fate = match stream.body.open(increment) {
            Ok(()) => stream.send_waiting(&mut self.link),
            Err(code) => Fate::Failed(code),
        };
        self.settle(id, fate);
        Ok(())
    }

    fn change_windows(&mut self, change: i64) -> Result<(), Broken> {
        if change == 0 {
            return Ok(());
        }
        // Each stream is work, and a normal client changes its windows once or twice.
        self.link.spend_budget_for(self.streams.len() / STREAMS_PER_UNIT)?;
        for (_, stream) in self.streams.iter_mut() {
            stream.body.change_initial_window(change)?;
        }
        if change > 0 {
            let is_waiting = |stream: &Stream| !stream.body.is_empty();
            self.for_each(is_waiting, |stream, _, link| stream.send_waiting(link));
        }
        Ok(())
    }

    /// Sends what the connection's window allows, one stream after the other.
    fn send_waiting(&mut self) {
        while let Some(id) = self.link.outgoing.next() {
            let Some(stream) = self.streams.get(id) else { continue };
            stream.body.leave_queue();
            let fate = stream.send_waiting(&mut self.link);
            self.settle(id, fate);
        }
    }

    /// The client has read the GOAWAY: ignores streams after the last one, and ends calls that stay open.
    fn close_down(&mut self) {
        self.phase = Phase::Closed(self.last_stream);
        let buffer = self.link.outgoing.output.buffer();
        frame::write_goaway(self.last_stream, ErrorCode::NoError as u32, "", buffer);
        self.for_each(Stream::is_staying, |stream, _, link| {
            stream.refuse(Code::Unavailable, "the server is shutting down", link)
        });
    }

    /// Does `act` to each stream that meets `condition`, and settles its fate.
    fn for_each(
        &mut self,
        condition: impl Fn(&Stream) -> bool,
        mut act: impl FnMut(&mut Stream, Duration, &mut Link) -> Fate,
    ) {
        let streams = self.streams.iter().filter(|(_, stream)| condition(stream));
        let ids: Vec<u32> = streams.map(|(id, _)| id).collect();
        for id in ids {
            let Some(stream) = self.streams.get(id) else { continue };
            let fate = act(stream, self.shared.now, &mut self.link);
            self.settle(id, fate);
        }
    }

    /// Closes a stream if that is its fate.
    #[inline]
    fn settle(&mut self, id: u32, fate: Fate) {
        match fate {
            Fate::Open => {}
            Fate::Done => self.close(id),
            Fate::DoneEarly => self.close_early(id, ErrorCode::NoError),
            Fate::Failed(code) => self.close_early(id, code),
        }
    }

    /// Ends the connection with this error.
    fn fail(&mut self, broken: Broken) {
        self.link.send_goaway(broken, self.last_stream);
        self.phase = Phase::Broken(broken);
    }

    fn close_early(&mut self, id: u32, code: ErrorCode) {
        self.link.reset(id, code);
        self.closed_early_max = self.closed_early_max.max(id);
        self.close(id);
    }

    /// Removes a stream.
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
