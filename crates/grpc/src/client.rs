//! The client's side of a connection: concurrent unary calls of one method.
//!
//! Every call sends the same header block. It is put into the server's table once, if the server allows the
//! default table size, and referred to afterwards.

mod fields;
mod response;

use std::time::Duration;

use crate::Broken;
use crate::broken::ErrorCode;
use crate::frame::{self, Head};
use crate::link::{Event, Link, Peer};
use crate::message::{self, PREFIX_BYTES};
use crate::outgoing::Body;
use crate::streams::{Capacity, Streams};

use fields::Fields;
use response::{Progress, Response};

/// How a call ended. Every call ends exactly once, unless the connection fails.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended<'a> {
    /// With OK and this message.
    Answer(&'a [u8]),
    /// With another status. A response that is not valid gRPC counts as INTERNAL or UNKNOWN.
    Refused {
        /// The gRPC status code.
        code: u32,
        /// As sent, percent-encoded; see [`crate::decode_message`].
        message: &'a [u8],
    },
    /// With an HTTP status other than 200.
    Http(u16),
    /// Reset with this HTTP/2 error code, by the server or because its response was malformed.
    Reset(u32),
    /// Not begun by the server (GOAWAY).
    Unprocessed,
}

/// Concurrent calls until the server's settings arrive: every useful server allows one.
const STREAMS_INITIAL: u32 = 1;
/// The limit for a server's header block.
const HEADER_BYTES_MAX: u32 = 64 * 1024;
/// The limit for an answer; the stream's window.
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// The limit for partial answers of all calls.
const BUFFERED_BYTES_MAX: usize = 64 << 20;

/// The limit for unwritten output; beyond it no call is begun.
const UNSENT_BYTES_MAX: usize = 1 << 20;

/// Whether the server accepts calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// None after this stream.
    Leaving,
    Broken(Broken),
}

/// A call under way.
#[derive(Debug)]
struct Stream {
    body: Body,
    response: Response,
}

impl Capacity for Stream {
    fn capacity_bytes(&self) -> usize {
        self.body.capacity_bytes() + self.response.capacity_bytes()
    }
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    link: Link,
    fields: Fields,
    streams: Streams<Stream>,
    phase: Phase,
    partial: Vec<u8>,
    next_stream: u32,
    /// Bytes of partial answers.
    buffered_bytes: usize,
}

impl Connection {
    /// A connection to `authority` for calls of the method `path`, each with this metadata.
    #[must_use]
    pub fn new(authority: &str, path: &str, metadata: &[(&str, &str)]) -> Connection {
        let mut link = Link::new(Peer::Server, HEADER_BYTES_MAX as usize, STREAMS_INITIAL);
        let window = (ANSWER_BYTES_MAX + PREFIX_BYTES) as u32;
        let buffer = link.outgoing.output.buffer();
        buffer.extend_from_slice(frame::PREFACE);
        frame::write_settings(&[(2, 0), (4, window), (6, HEADER_BYTES_MAX)], buffer);
        link.announce_window();
        Connection {
            link,
            fields: Fields::new(authority, path, metadata),
            streams: Streams::new(),
            phase: Phase::Open,
            partial: Vec::new(),
            next_stream: 1,
            buffered_bytes: 0,
        }
    }

    /// Whether another call may be begun now. The server's limit of concurrent calls, its windows, its
    /// GOAWAY, and 1 MiB of unwritten output can prevent it.
    #[must_use]
    pub fn may_call(&self) -> bool {
        self.phase == Phase::Open
            && self.streams.len() < self.link.concurrent_streams_max as usize
            && self.next_stream <= frame::STREAM_ID_MAX
            && self.link.outgoing.has_window()
            && self.link.outgoing.waiting_bytes() == 0
            && self.link.outgoing.output.len() <= UNSENT_BYTES_MAX
    }

    /// Begins a call, and returns the number by which [`Connection::receive`] will name it. None if no call
    /// may be begun now; until the server's settings arrive, only one may.
    pub fn call(&mut self, message: &[u8]) -> Option<u32> {
        if !self.may_call() {
            return None;
        }
        let id = self.next_stream;
        self.next_stream += 2;
        let outgoing = &mut self.link.outgoing;
        self.fields.write(id, self.link.header_table_size, outgoing.output.buffer());
        let new = || Stream { body: Body::new(), response: Response::default() };
        let mut stream = self.streams.spare(new);
        stream.body.renew(self.link.initial_window);
        let prefix = message::prefix(message.len());
        let size = PREFIX_BYTES + message.len();
        if stream.body.claim(size, outgoing) {
            let buffer = outgoing.output.buffer();
            buffer.extend_from_slice(&frame::head(size, frame::DATA, frame::END_STREAM, id));
            buffer.extend_from_slice(&prefix);
            buffer.extend_from_slice(message);
        } else {
            stream.body.wait(&prefix, outgoing);
            stream.body.wait(message, outgoing);
            stream.body.pump(id, frame::END_STREAM, outgoing);
        }
        self.streams.insert(id, stream);
        Some(id)
    }

    /// Takes what has arrived, and passes on how each call ended.
    ///
    /// # Errors
    /// When the server violated the protocol. Calls under way never end then.
    pub fn receive(
        &mut self,
        input: &[u8],
        ended: &mut impl FnMut(u32, Ended<'_>),
    ) -> Result<(), Broken> {
        if let Phase::Broken(broken) = self.phase {
            return Err(broken);
        }
        let mut partial = std::mem::take(&mut self.partial);
        let frame = |head, payload: &[u8]| self.frame(head, payload, ended);
        let result = frame::cut_all(input, &mut partial, frame);
        self.partial = partial;
        if let Err(broken) = result {
            self.link.send_goaway(broken, 0);
            self.phase = Phase::Broken(broken);
        }
        result
    }

    /// Bytes to write to the server.
    #[must_use]
    pub fn output(&self) -> &[u8] {
        self.link.outgoing.output.waiting()
    }

    /// Removes this many bytes from the output after they were written.
    pub fn written(&mut self, bytes: usize) {
        self.link.outgoing.output.written(bytes);
    }

    /// Calls under way.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.streams.len()
    }

    /// Whether the server accepts no more calls (GOAWAY), or the connection has failed.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.phase != Phase::Open
    }

    fn frame(
        &mut self,
        head: Head,
        payload: &[u8],
        ended: &mut impl FnMut(u32, Ended<'_>),
    ) -> Result<(), Broken> {
        match self.link.take(head, payload)? {
            Event::Done | Event::Pong(_) => Ok(()),
            Event::Stream => {
                if head.stream.is_multiple_of(2) || head.stream >= self.next_stream {
                    return Err(Broken::protocol("a frame for a stream that was never begun"));
                }
                if head.kind == frame::DATA {
                    return self.data(head, payload, ended);
                }
                match self.link.take_block(head, payload, Duration::ZERO)? {
                    Some((begun, block)) => self.block(begun, &block, ended),
                    None => Ok(()),
                }
            }
            Event::Window { stream: 0, .. } => {
                while let Some(id) = self.link.outgoing.next() {
                    if let Some(stream) = self.streams.get(id) {
                        stream.body.leave_queue();
                        self.send_waiting(id);
                    }
                }
                Ok(())
            }
            Event::Window { stream, increment } => {
                self.window_update(stream, increment, ended);
                Ok(())
            }
            Event::Windows(change) => self.change_windows(change),
            Event::Reset { stream, code } => {
                self.end(stream, Cause::Reset(code), ended);
                Ok(())
            }
            Event::Leaving { last_stream } => {
                self.leave(last_stream, ended);
                Ok(())
            }
        }
    }

    fn data(
        &mut self,
        head: Head,
        payload: &[u8],
        ended: &mut impl FnMut(u32, Ended<'_>),
    ) -> Result<(), Broken> {
        self.link.receive(payload.len())?;
        let data = frame::unpad(head, payload)?;
        if data.is_empty() && !head.has(frame::END_STREAM) {
            self.link.spend_budget()?;
        }
        // Frames that crossed the end of the call are useless.
        let Some(stream) = self.streams.get(head.stream) else {
            return self.link.spend_budget();
        };
        let before = stream.response.buffered_bytes();
        let progress = stream.response.data(head, data, ANSWER_BYTES_MAX);
        self.buffered_bytes += stream.response.buffered_bytes() - before;
        if self.buffered_bytes > BUFFERED_BYTES_MAX {
            return Err(Broken::excess("too many partial answers"));
        }
        self.settle(head.stream, progress, ended);
        Ok(())
    }

    /// A whole header block. `head` is the frame that began it.
    fn block(
        &mut self,
        head: Head,
        block: &[u8],
        ended: &mut impl FnMut(u32, Ended<'_>),
    ) -> Result<(), Broken> {
        let undecodable = Broken::new(ErrorCode::Compression, "a header block cannot be decoded");
        let decoder = &mut self.link.decoder;
        let Some(stream) = self.streams.get(head.stream) else {
            decoder.decode(block, 0, |_| {}).map_err(|_| undecodable)?;
            return self.link.spend_budget();
        };
        let progress = stream
            .response
            .block(head, block, decoder, HEADER_BYTES_MAX as usize)
            .map_err(|_| undecodable)?;
        if progress == Progress::Informed {
            self.link.spend_budget()?;
        }
        self.settle(head.stream, progress, ended);
        Ok(())
    }

    fn settle(&mut self, id: u32, progress: Progress, ended: &mut impl FnMut(u32, Ended<'_>)) {
        match progress {
            Progress::Going | Progress::Informed => {}
            Progress::Ended => self.end(id, Cause::Response, ended),
            Progress::Malformed => self.fail(id, ErrorCode::Protocol, ended),
        }
    }

    /// Ends a call that violated the protocol.
    fn fail(&mut self, id: u32, code: ErrorCode, ended: &mut impl FnMut(u32, Ended<'_>)) {
        self.link.reset(id, code);
        self.end(id, Cause::Reset(code as u32), ended);
    }

    fn window_update(&mut self, id: u32, increment: u32, ended: &mut impl FnMut(u32, Ended<'_>)) {
        let Some(stream) = self.streams.get(id) else { return };
        match stream.body.open(increment) {
            Ok(()) => self.send_waiting(id),
            Err(code) => self.fail(id, code, ended),
        }
    }

    fn change_windows(&mut self, change: i64) -> Result<(), Broken> {
        for (_, stream) in self.streams.iter_mut() {
            stream.body.change_initial_window(change)?;
        }
        let waiting = self.streams.iter().filter(|(_, stream)| !stream.body.is_empty());
        let waiting: Vec<u32> = waiting.map(|(id, _)| id).collect();
        for id in waiting {
            self.send_waiting(id);
        }
        Ok(())
    }

    fn send_waiting(&mut self, id: u32) {
        if let Some(stream) = self.streams.get(id) {
            let frames = stream.body.pump(id, frame::END_STREAM, &mut self.link.outgoing);
            self.link.refill_budget_for_frames(frames);
        }
    }

    /// The server processes no call after this one.
    fn leave(&mut self, last_stream: u32, ended: &mut impl FnMut(u32, Ended<'_>)) {
        self.phase = Phase::Leaving;
        let after = self.streams.iter_mut().map(|(id, _)| id).filter(|id| *id > last_stream);
        let after: Vec<u32> = after.collect();
        for id in after {
            self.end(id, Cause::Unprocessed, ended);
        }
    }

    /// Ends a call. Nothing else does.
    fn end(&mut self, id: u32, cause: Cause, ended: &mut impl FnMut(u32, Ended<'_>)) {
        let Some(mut stream) = self.streams.remove(id) else { return };
        self.link.refill_budget();
        match cause {
            Cause::Response => {
                ended(id, stream.response.ended());
                if !stream.body.is_empty() {
                    // The server has answered before the end of the request.
                    self.link.reset(id, ErrorCode::Cancel);
                }
            }
            Cause::Reset(code) => ended(id, stream.response.reset(code)),
            Cause::Unprocessed => ended(id, Ended::Unprocessed),
        }
        self.buffered_bytes -= stream.response.buffered_bytes();
        stream.body.clear(id, &mut self.link.outgoing);
        stream.response.renew();
        self.streams.keep(stream);
    }
}

/// Why a call ends.
#[derive(Debug, Clone, Copy)]
enum Cause {
    Response,
    Reset(u32),
    Unprocessed,
}

#[cfg(test)]
mod tests;
