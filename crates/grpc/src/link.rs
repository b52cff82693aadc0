//! The part of a connection that client and server share: settings, pings, windows, header blocks, and the
//! budget for useless work.
//!
//! Useless are empty frames, pings, resets, and answers far larger than their messages. Answered calls refill
//! the budget, and so does time. So a client that makes calls never exhausts it, nor does an idle connection
//! that is pinged for years.

use std::borrow::Cow;
use std::time::Duration;

use crate::broken::{Broken, ErrorCode};
use crate::frame::{self, Head, Settings};
use crate::hpack::{Decoder, TABLE_SIZE_INITIAL};
use crate::outgoing::{Outgoing, WINDOW_INITIAL};

/// Useless frames that are accepted in a row. A client that cancels a thousand concurrent calls sends a
/// thousand resets.
pub(crate) const BUDGET_MAX: u32 = 8192;
/// Refilled per answered message: a call may be followed by its reset, two window updates, an empty DATA
/// frame and more.
const BUDGET_PER_CALL: u32 = 8;
/// Refilled per second: a normal client sends a few pings and window changes a second by itself.
const BUDGET_PER_SECOND: u64 = 64;

/// An answer may be this many times as large as its message. The head of a frame and the headers of a call
/// count as part of the message.
const ANSWER_RATIO: usize = 16;
const CALL_OVERHEAD_BYTES: usize = 64;
/// Bytes of a larger answer per unit of budget.
const ANSWER_BYTES_PER_UNIT: usize = 256;

/// The receive window of a connection. Input is consumed at once; buffers are bounded elsewhere.
pub(crate) const CONNECTION_WINDOW: u32 = 1 << 24;

/// Unwritten output at which pings and settings are no longer acknowledged. Far above a congested connection,
/// for owners that read nevertheless.
const UNREAD_BYTES_MAX: usize = 8 << 20;

/// The work that a frame leaves to client or server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// DATA, HEADERS or CONTINUATION: all work.
    Stream,
    /// No work.
    Done,
    /// The send windows of all streams change by this.
    Windows(i64),
    /// The peer opens the window of a stream, or of the connection (0).
    Window { stream: u32, increment: u32 },
    /// The peer resets a stream.
    Reset { stream: u32, code: u32 },
    /// The peer answers a ping.
    Pong([u8; 8]),
    /// The peer begins no more streams, or processes none after this one (GOAWAY).
    Leaving { last_stream: u32 },
}

/// The frame that began a header block, and the block.
pub(crate) type Block<'a> = (Head, Cow<'a, [u8]>);

/// The other side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    Client,
    Server,
}

/// The state of a connection apart from its streams.
#[derive(Debug)]
pub(crate) struct Link {
    peer: Peer,
    pub(crate) outgoing: Outgoing,
    pub(crate) decoder: Decoder,
    pub(crate) window: ReceiveWindow,
    pub(crate) blocks: Blocks,
    /// The send window of a new stream.
    pub(crate) initial_window: i64,
    pub(crate) concurrent_streams_max: u32,
    pub(crate) header_table_size: usize,
    /// Frames received.
    pub(crate) frames: u64,
    /// Whether the peer's first SETTINGS have arrived.
    pub(crate) has_preface: bool,
    budget: u32,
    is_overdrawn: bool,
    /// The time up to which the budget was refilled.
    refilled: Duration,
}

impl Link {
    /// A connection with this limit for encoded header blocks, and for its own streams until the peer's
    /// settings arrive.
    pub(crate) fn new(peer: Peer, block_bytes_max: usize, concurrent_streams_max: u32) -> Link {
        Link {
            peer,
            outgoing: Outgoing::new(),
            decoder: Decoder::new(TABLE_SIZE_INITIAL),
            window: ReceiveWindow::new(CONNECTION_WINDOW),
            blocks: Blocks::new(block_bytes_max),
            initial_window: WINDOW_INITIAL,
            concurrent_streams_max,
            header_table_size: TABLE_SIZE_INITIAL,
            frames: 0,
            has_preface: false,
            budget: BUDGET_MAX,
            is_overdrawn: false,
            refilled: Duration::ZERO,
        }
    }

    /// Bytes of memory, by capacity.
    #[inline]
    pub(crate) fn capacity_bytes(&self) -> usize {
        self.outgoing.capacity_bytes()
            + self.decoder.capacity_bytes()
            + self.blocks.bytes.capacity()
    }

    /// Frees unused memory.
    pub(crate) fn shrink(&mut self) {
        self.outgoing.shrink();
        self.decoder.shrink(0);
    }

    /// Sets the time, and refills the budget by it.
    #[inline]
    pub(crate) fn set_time(&mut self, now: Duration) {
        let seconds = now.saturating_sub(self.refilled).as_secs();
        if seconds > 0 {
            self.refilled = now;
            let given = seconds.saturating_mul(BUDGET_PER_SECOND).min(BUDGET_MAX.into());
            self.budget = self.budget.saturating_add(given as u32).min(BUDGET_MAX);
        }
    }

    /// Opens the connection's window from its initial size to this side's.
    pub(crate) fn announce_window(&mut self) {
        let increment = CONNECTION_WINDOW - WINDOW_INITIAL as u32;
        frame::write_word(frame::WINDOW_UPDATE, 0, increment, self.outgoing.output.buffer());
    }

    /// Processes the parts of a frame that are the same for client and server.
    pub(crate) fn take(&mut self, head: Head, payload: &[u8]) -> Result<Event, Broken> {
        self.frames += 1;
        self.blocks.check(head)?;
        if !self.has_preface && head.kind != frame::SETTINGS {
            return Err(Broken::protocol("the first frame is not SETTINGS"));
        }
        match head.kind {
            frame::DATA | frame::HEADERS | frame::CONTINUATION if head.stream != 0 => {
                Ok(Event::Stream)
            }
            frame::RST_STREAM if head.stream != 0 => {
                self.spend_budget()?;
                Ok(Event::Reset { stream: head.stream, code: frame::word(payload)? })
            }
            frame::WINDOW_UPDATE => {
                self.spend_budget()?;
                let increment = frame::word(payload)? & frame::STREAM_ID_MAX;
                if head.stream == 0 {
                    if increment == 0 {
                        return Err(Broken::protocol("the connection's window is opened by 0"));
                    }
                    self.outgoing.open(increment)?;
                }
                Ok(Event::Window { stream: head.stream, increment })
            }
            frame::PRIORITY if head.stream != 0 => {
                self.spend_budget()?;
                if payload.len() != 5 {
                    return Err(Broken::frame_size("a PRIORITY frame must have 5 bytes"));
                }
                Ok(Event::Done)
            }
            frame::SETTINGS if head.stream == 0 => self.settings(head, payload),
            frame::PING if head.stream == 0 => self.ping(head, payload),
            frame::GOAWAY if head.stream == 0 => {
                self.spend_budget()?;
                let last_stream = payload.first_chunk().filter(|_| payload.len() >= 8);
                let last_stream =
                    last_stream.ok_or(Broken::frame_size("a GOAWAY frame is too short"))?;
                let last_stream = u32::from_be_bytes(*last_stream) & frame::STREAM_ID_MAX;
                Ok(Event::Leaving { last_stream })
            }
            frame::PUSH_PROMISE => Err(Broken::protocol("PUSH_PROMISE is not allowed")),
            ..=frame::CONTINUATION => Err(Broken::protocol("a frame is on stream 0 or should be")),
            _ => self.spend_budget().map(|()| Event::Done),
        }
    }

    /// Takes a HEADERS or CONTINUATION frame. Returns the header block that it completes, and the frame that
    /// began the block.
    #[inline]
    pub(crate) fn take_block<'a>(
        &mut self,
        head: Head,
        payload: &'a [u8],
        now: Duration,
    ) -> Result<Option<Block<'a>>, Broken> {
        let part = match head.kind {
            frame::HEADERS => frame::header_block(head, payload)?,
            _ => payload,
        };
        if head.kind == frame::HEADERS && head.has(frame::END_HEADERS) {
            return Ok(Some((head, Cow::Borrowed(part))));
        }
        if head.kind == frame::CONTINUATION && part.is_empty() {
            self.spend_budget()?;
        }
        let whole = self.blocks.take(head, part, now)?;
        Ok(whole.map(|(begun, block)| (begun, Cow::Owned(block))))
    }

    fn settings(&mut self, head: Head, payload: &[u8]) -> Result<Event, Broken> {
        self.spend_budget()?;
        if head.has(frame::ACK) {
            if !payload.is_empty() {
                return Err(Broken::frame_size("an acknowledgement of settings is not empty"));
            }
            if !self.has_preface {
                return Err(Broken::protocol("the first SETTINGS frame is an acknowledgement"));
            }
            return Ok(Event::Done);
        }
        let settings = Settings::parse(payload)?;
        if settings.enables_push && self.peer == Peer::Server {
            // Only a client may (RFC 9113, section 6.5.2).
            return Err(Broken::protocol("a server enables push"));
        }
        self.check_unread()?;
        if !self.has_preface {
            // Limits that are absent from the first SETTINGS are infinite.
            self.concurrent_streams_max = u32::MAX;
            self.has_preface = true;
        }
        self.outgoing.output.buffer().extend_from_slice(&frame::head(
            0,
            frame::SETTINGS,
            frame::ACK,
            0,
        ));
        if let Some(streams) = settings.concurrent_streams_max {
            self.concurrent_streams_max = streams;
        }
        if let Some(size) = settings.header_table_size {
            // The smallest size ever requested: a table that was shrunk is not used again.
            self.header_table_size = self.header_table_size.min(size as usize);
        }
        let Some(window) = settings.initial_window_size else { return Ok(Event::Done) };
        let change = i64::from(window) - self.initial_window;
        self.initial_window = i64::from(window);
        Ok(Event::Windows(change))
    }

    fn ping(&mut self, head: Head, payload: &[u8]) -> Result<Event, Broken> {
        let payload: [u8; 8] =
            payload.try_into().map_err(|_| Broken::frame_size("a PING frame must have 8 bytes"))?;
        if head.has(frame::ACK) {
            self.spend_budget()?;
            return Ok(Event::Pong(payload));
        }
        self.spend_budget()?;
        self.check_unread()?;
        frame::write_ping(frame::ACK, payload, self.outgoing.output.buffer());
        Ok(Event::Done)
    }

    /// Fails for a peer that requests replies without reading them.
    fn check_unread(&self) -> Result<(), Broken> {
        if self.outgoing.output.len() > UNREAD_BYTES_MAX {
            return Err(Broken::excess("the peer requests replies and does not read them"));
        }
        Ok(())
    }

    /// Counts the bytes of a DATA frame, and reopens the window when half of it is used.
    #[inline]
    pub(crate) fn receive(&mut self, bytes: usize) -> Result<(), Broken> {
        if !self.window.take(bytes) {
            return Err(Broken::flow_control("the connection's window was exceeded"));
        }
        if let Some(increment) = self.window.replenish() {
            let buffer = self.outgoing.output.buffer();
            frame::write_word(frame::WINDOW_UPDATE, 0, increment, buffer);
        }
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn budget(&self) -> u32 {
        self.budget
    }

    /// Charges one useless frame.
    #[inline]
    pub(crate) fn spend_budget(&mut self) -> Result<(), Broken> {
        self.spend_budget_for(1)
    }

    /// Charges work that equals this many useless frames.
    pub(crate) fn spend_budget_for(&mut self, frames: usize) -> Result<(), Broken> {
        let frames = u32::try_from(frames).unwrap_or(u32::MAX);
        self.budget =
            self.budget.checked_sub(frames).ok_or(Broken::excess("too many useless frames"))?;
        Ok(())
    }

    /// Refills the budget for an answered call.
    #[inline]
    pub(crate) fn refill_budget(&mut self) {
        self.budget = (self.budget + BUDGET_PER_CALL).min(BUDGET_MAX);
    }

    /// Refills the budget for an answer, or charges an answer that is far larger than its message.
    #[inline]
    pub(crate) fn answered(&mut self, message_bytes: usize, answer_bytes: usize) {
        let usual = (message_bytes + CALL_OVERHEAD_BYTES).saturating_mul(ANSWER_RATIO);
        if answer_bytes <= usual {
            self.refill_budget();
        } else {
            let beyond = (answer_bytes - usual) / ANSWER_BYTES_PER_UNIT;
            let beyond = u32::try_from(beyond).unwrap_or(u32::MAX);
            self.is_overdrawn |= beyond > self.budget;
            self.budget = self.budget.saturating_sub(beyond);
        }
    }

    /// Fails if answers have exceeded the budget.
    #[inline]
    pub(crate) fn check_answers(&self) -> Result<(), Broken> {
        if self.is_overdrawn {
            return Err(Broken::excess("the answers are far larger than the client's messages"));
        }
        Ok(())
    }

    /// Refills the budget for frames of a queued body: each took one or two window updates.
    pub(crate) fn refill_budget_for_frames(&mut self, frames: u32) {
        self.budget = self.budget.saturating_add(frames.saturating_mul(2)).min(BUDGET_MAX);
    }

    /// Resets a stream with this error.
    pub(crate) fn reset(&mut self, stream: u32, code: ErrorCode) {
        let buffer = self.outgoing.output.buffer();
        frame::write_word(frame::RST_STREAM, stream, code as u32, buffer);
    }

    /// Sends the GOAWAY of a failed connection.
    pub(crate) fn send_goaway(&mut self, broken: Broken, last_stream: u32) {
        let buffer = self.outgoing.output.buffer();
        frame::write_goaway(last_stream, broken.code, broken.reason, buffer);
    }
}

/// A receive window.
#[derive(Debug)]
pub(crate) struct ReceiveWindow {
    size: u32,
    used: u32,
}

impl ReceiveWindow {
    pub(crate) fn new(size: u32) -> ReceiveWindow {
        ReceiveWindow { size, used: 0 }
    }

    /// False if the peer exceeded it.
    #[inline]
    pub(crate) fn take(&mut self, bytes: usize) -> bool {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.used = self.used.saturating_add(bytes);
        self.used <= self.size
    }

    /// The increment of a window update, if it is worth a frame.
    #[inline]
    pub(crate) fn replenish(&mut self) -> Option<u32> {
        (self.used > self.size / 2).then(|| std::mem::take(&mut self.used))
    }
}

/// A partial header block that continues in CONTINUATION frames.
#[derive(Debug)]
pub(crate) struct Blocks {
    begun: Option<Head>,
    /// When it began.
    since: Duration,
    bytes: Vec<u8>,
    bytes_max: usize,
}

impl Blocks {
    fn new(bytes_max: usize) -> Blocks {
        Blocks { begun: None, since: Duration::ZERO, bytes: Vec::new(), bytes_max }
    }

    /// When the partial block began.
    pub(crate) fn begun_since(&self) -> Option<Duration> {
        self.begun.map(|_| self.since)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Only CONTINUATION frames may follow a partial block.
    #[inline]
    fn check(&self, head: Head) -> Result<(), Broken> {
        match self.begun {
            None if head.kind == frame::CONTINUATION => {
                Err(Broken::protocol("a CONTINUATION frame continues nothing"))
            }
            Some(begun) if head.kind != frame::CONTINUATION || head.stream != begun.stream => {
                Err(Broken::protocol("a header block is interrupted"))
            }
            _ => Ok(()),
        }
    }

    /// Takes a part of a block. Returns the frame that began the block and all its bytes, once it is
    /// complete.
    pub(crate) fn take(
        &mut self,
        head: Head,
        part: &[u8],
        now: Duration,
    ) -> Result<Option<(Head, Vec<u8>)>, Broken> {
        if self.begun.is_none() {
            self.since = now;
        }
        let begun = *self.begun.get_or_insert(head);
        if self.bytes.len() + part.len() > self.bytes_max {
            return Err(Broken::excess("a header block is larger than allowed"));
        }
        self.bytes.extend_from_slice(part);
        if !head.has(frame::END_HEADERS) {
            return Ok(None);
        }
        self.begun = None;
        Ok(Some((begun, std::mem::take(&mut self.bytes))))
    }
}

#[cfg(test)]
mod tests;
