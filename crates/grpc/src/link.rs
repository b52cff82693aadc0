//! What both sides of a connection do alike: settings, pings, windows, header blocks, patience.
//!
//! Patience bounds work that leads nowhere, whatever it is: frames that carry nothing, pings, streams that
//! are reset, answers that are many times as large as what asks for them. Calls give it back, and time does,
//! so nobody who makes calls runs out of it, nor a quiet connection that is pinged for years.

use std::time::Duration;

use crate::broken::{Broken, ErrorCode};
use crate::frame::{self, Head, Settings};
use crate::hpack::{Decoder, TABLE_SIZE_INITIAL};
use crate::outgoing::{Outgoing, WINDOW_INITIAL};

/// Useless frames that are borne in a row. A client of a thousand calls at once that gives all of
/// them up sends a thousand resets.
const BUDGET_MAX: u32 = 8192;
/// Given back for a message that was answered: a call may be followed by its reset, two window
/// updates, an empty DATA frame and more.
const BUDGET_PER_CALL: u32 = 8;
/// Given back for each second: pings and changes of windows that come by themselves are a few a second.
const BUDGET_PER_SECOND: u64 = 64;

/// Answers may be so many times as large as their messages (a frame's head and a call's headers are
/// counted as the first bytes of a message).
const ANSWER_RATIO: usize = 16;
const CALL_OVERHEAD_BYTES: usize = 64;
/// Bytes of an answer beyond that for which patience is lost, rather than given back.
const ANSWER_BYTES_PER_UNIT: usize = 256;

/// What this side lets the peer send on a connection before it hears more. It is consumed at once,
/// what is kept of it is bounded elsewhere.
pub(crate) const CONNECTION_WINDOW: u32 = 1 << 24;

/// What may wait to be written when the peer wants a ping or settings acknowledged: far beyond what
/// makes a connection congested, for owners that read in spite of it.
const UNREAD_BYTES_MAX: usize = 8 << 20;

/// What is left for a side to do about a frame that concerns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// DATA or HEADERS or CONTINUATION: all is left to do.
    Stream,
    /// Nothing.
    Done,
    /// The windows of all streams change by so much.
    Windows(i64),
    /// The peer opens the window of a stream, or of the connection (0).
    Window { stream: u32, increment: u32 },
    /// The peer gives a stream up.
    Reset { stream: u32, code: u32 },
    /// The peer answers a ping.
    Pong([u8; 8]),
    /// The peer begins no further streams, or processes none after this one.
    Leaving { last_stream: u32 },
}

/// Whether the peer's first settings have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Preface {
    Awaited,
    Seen,
}

/// The state of a connection apart from its streams.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) outgoing: Outgoing,
    pub(crate) decoder: Decoder,
    pub(crate) window: ReceiveWindow,
    pub(crate) blocks: Blocks,
    /// What a new stream may send.
    pub(crate) initial_window: i64,
    pub(crate) concurrent_streams_max: u32,
    pub(crate) header_table_size: usize,
    /// Frames so far.
    pub(crate) frames: u64,
    preface: Preface,
    budget: u32,
    is_overdrawn: bool,
    /// Until when time has given patience back.
    refilled: Duration,
}

impl Link {
    /// A connection that takes header blocks of so many bytes, encoded, and begins no more streams at
    /// once than this until the peer's settings have come.
    pub(crate) fn new(block_bytes_max: usize, concurrent_streams_max: u32) -> Link {
        Link {
            outgoing: Outgoing::new(),
            decoder: Decoder::new(TABLE_SIZE_INITIAL),
            window: ReceiveWindow::new(CONNECTION_WINDOW),
            blocks: Blocks::new(block_bytes_max),
            initial_window: WINDOW_INITIAL,
            concurrent_streams_max,
            header_table_size: TABLE_SIZE_INITIAL,
            frames: 0,
            preface: Preface::Awaited,
            budget: BUDGET_MAX,
            is_overdrawn: false,
            refilled: Duration::ZERO,
        }
    }

    /// Whether the peer's first settings have come.
    pub(crate) fn has_preface(&self) -> bool {
        self.preface == Preface::Seen
    }

    /// The memory that it has.
    #[inline]
    pub(crate) fn capacity_bytes(&self) -> usize {
        self.outgoing.capacity_bytes()
            + self.decoder.capacity_bytes()
            + self.blocks.bytes.capacity()
    }

    /// Gives all memory back that holds nothing.
    pub(crate) fn shrink(&mut self) {
        self.outgoing.shrink();
        self.decoder.shrink(0);
    }

    /// It is so late now.
    #[inline]
    pub(crate) fn set_time(&mut self, now: Duration) {
        let seconds = now.saturating_sub(self.refilled).as_secs();
        if seconds > 0 {
            self.refilled = now;
            let given = seconds.saturating_mul(BUDGET_PER_SECOND).min(BUDGET_MAX.into());
            self.budget = self.budget.saturating_add(given as u32).min(BUDGET_MAX);
        }
    }

    /// Opens the connection's window from the protocol's first size to this side's.
    pub(crate) fn announce_window(&mut self) {
        let increment = CONNECTION_WINDOW - WINDOW_INITIAL as u32;
        frame::write_word(frame::WINDOW_UPDATE, 0, increment, self.outgoing.output.buffer());
    }

    /// Does with a frame what does not depend on the side.
    pub(crate) fn take(&mut self, head: Head, payload: &[u8]) -> Result<Event, Broken> {
        self.frames += 1;
        self.blocks.check(head)?;
        if self.preface == Preface::Awaited && head.kind != frame::SETTINGS {
            return Err(protocol("the first frame is not SETTINGS"));
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
                        return Err(protocol("the connection's window is opened by 0"));
                    }
                    self.outgoing.open(increment)?;
                }
                Ok(Event::Window { stream: head.stream, increment })
            }
            frame::PRIORITY if head.stream != 0 => {
                self.spend_budget()?;
                if payload.len() != 5 {
                    return Err(Broken::new(
                        ErrorCode::FrameSize,
                        "a PRIORITY frame has not 5 bytes",
                    ));
                }
                Ok(Event::Done)
            }
            frame::SETTINGS if head.stream == 0 => self.settings(head, payload),
            frame::PING if head.stream == 0 => self.ping(head, payload),
            frame::GOAWAY if head.stream == 0 => {
                self.spend_budget()?;
                let last_stream = payload.first_chunk().filter(|_| payload.len() >= 8);
                let last_stream = last_stream
                    .ok_or(Broken::new(ErrorCode::FrameSize, "a GOAWAY frame is too short"))?;
                let last_stream = u32::from_be_bytes(*last_stream) & frame::STREAM_ID_MAX;
                Ok(Event::Leaving { last_stream })
            }
            frame::PUSH_PROMISE => Err(protocol("a push is promised, which nobody may")),
            ..=frame::CONTINUATION => Err(protocol("a frame is on stream 0 or should be")),
            _ => self.spend_budget().map(|()| Event::Done),
        }
    }

    fn settings(&mut self, head: Head, payload: &[u8]) -> Result<Event, Broken> {
        self.spend_budget()?;
        if head.has(frame::ACK) {
            if !payload.is_empty() {
                let reason = "an acknowledgement of settings is not empty";
                return Err(Broken::new(ErrorCode::FrameSize, reason));
            }
            if self.preface == Preface::Awaited {
                return Err(protocol("the first SETTINGS frame is an acknowledgement"));
            }
            return Ok(Event::Done);
        }
        let settings = Settings::parse(payload)?;
        self.check_unread()?;
        if self.preface == Preface::Awaited {
            // What the first settings do not limit has no limit.
            self.concurrent_streams_max = u32::MAX;
            self.preface = Preface::Seen;
        }
        self.outgoing.output.buffer().extend_from_slice(&frame::head(
            0,
            frame::SETTINGS,
            frame::ACK,
            0,
        ));
        if let Some(size) = settings.frame_size_max {
            // This side has no use for frames beyond the default.
            self.outgoing.frame_bytes_max = frame::PAYLOAD_BYTES_MAX.min(size as usize);
        }
        if let Some(streams) = settings.concurrent_streams_max {
            self.concurrent_streams_max = streams;
        }
        if let Some(size) = settings.header_table_size {
            // The smallest that was ever asked for: a table that was shrunk is not used again.
            self.header_table_size = self.header_table_size.min(size as usize);
        }
        let Some(window) = settings.initial_window_size else { return Ok(Event::Done) };
        let change = i64::from(window) - self.initial_window;
        self.initial_window = i64::from(window);
        Ok(Event::Windows(change))
    }

    fn ping(&mut self, head: Head, payload: &[u8]) -> Result<Event, Broken> {
        let payload: [u8; 8] = payload
            .try_into()
            .map_err(|_| Broken::new(ErrorCode::FrameSize, "a PING frame has not 8 bytes"))?;
        if head.has(frame::ACK) {
            self.spend_budget()?;
            return Ok(Event::Pong(payload));
        }
        self.spend_budget()?;
        self.check_unread()?;
        frame::write_ping(frame::ACK, payload, self.outgoing.output.buffer());
        Ok(Event::Done)
    }

    /// A peer that asks for replies and reads none is cut off.
    fn check_unread(&self) -> Result<(), Broken> {
        if self.outgoing.output.len() > UNREAD_BYTES_MAX {
            let reason = "the peer asks for replies and does not read them";
            return Err(Broken::new(ErrorCode::EnhanceYourCalm, reason));
        }
        Ok(())
    }

    /// Counts a DATA frame, and opens the window again when half of it is used.
    #[inline]
    pub(crate) fn receive(&mut self, bytes: usize) -> Result<(), Broken> {
        if !self.window.take(bytes) {
            return Err(Broken::new(ErrorCode::FlowControl, "the connection's window was overrun"));
        }
        if let Some(increment) = self.window.replenish() {
            let buffer = self.outgoing.output.buffer();
            frame::write_word(frame::WINDOW_UPDATE, 0, increment, buffer);
        }
        Ok(())
    }

    /// Something was of no use.
    #[inline]
    pub(crate) fn spend_budget(&mut self) -> Result<(), Broken> {
        self.spend_budget_for(1)
    }

    /// Something was of no use, and made as much work as so many frames.
    pub(crate) fn spend_budget_for(&mut self, frames: usize) -> Result<(), Broken> {
        let frames = u32::try_from(frames).unwrap_or(u32::MAX);
        self.budget = self
            .budget
            .checked_sub(frames)
            .ok_or(Broken::new(ErrorCode::EnhanceYourCalm, "too many frames that lead nowhere"))?;
        Ok(())
    }

    /// A call came to its end.
    #[inline]
    pub(crate) fn refill_budget(&mut self) {
        self.budget = (self.budget + BUDGET_PER_CALL).min(BUDGET_MAX);
    }

    /// A message of so many bytes was answered by so many.
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

    /// Whether answers were more than there was patience for.
    #[inline]
    pub(crate) fn check_answers(&self) -> Result<(), Broken> {
        if self.is_overdrawn {
            let reason = "the client asks for much larger answers than it sends messages";
            return Err(Broken::new(ErrorCode::EnhanceYourCalm, reason));
        }
        Ok(())
    }

    /// Bytes of a body could be sent after a wait, in so many frames; each took one window update or
    /// two.
    pub(crate) fn refill_budget_for_frames(&mut self, frames: u32) {
        self.budget = self.budget.saturating_add(frames.saturating_mul(2)).min(BUDGET_MAX);
    }

    /// Ends a stream by an error.
    pub(crate) fn reset(&mut self, stream: u32, code: ErrorCode) {
        let buffer = self.outgoing.output.buffer();
        frame::write_word(frame::RST_STREAM, stream, code as u32, buffer);
    }

    /// Says why the connection ends.
    pub(crate) fn send_goaway(&mut self, broken: Broken, last_stream: u32) {
        let buffer = self.outgoing.output.buffer();
        frame::write_goaway(last_stream, broken.code, broken.reason, buffer);
    }
}

fn protocol(reason: &'static str) -> Broken {
    Broken::new(ErrorCode::Protocol, reason)
}

/// A window that this side gives.
#[derive(Debug)]
pub(crate) struct ReceiveWindow {
    size: u32,
    used: u32,
}

impl ReceiveWindow {
    pub(crate) fn new(size: u32) -> ReceiveWindow {
        ReceiveWindow { size, used: 0 }
    }

    /// False when it is overrun.
    #[inline]
    pub(crate) fn take(&mut self, bytes: usize) -> bool {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.used = self.used.saturating_add(bytes);
        self.used <= self.size
    }

    /// By how much to open it now, if it is worth a frame.
    #[inline]
    pub(crate) fn replenish(&mut self) -> Option<u32> {
        (self.used > self.size / 2).then(|| std::mem::take(&mut self.used))
    }
}

/// The header block that has begun and goes on in CONTINUATION frames.
#[derive(Debug)]
pub(crate) struct Blocks {
    begun: Option<Head>,
    /// When it has begun.
    since: Duration,
    bytes: Vec<u8>,
    bytes_max: usize,
}

impl Blocks {
    fn new(bytes_max: usize) -> Blocks {
        Blocks { begun: None, since: Duration::ZERO, bytes: Vec::new(), bytes_max }
    }

    /// When the block has begun that is not whole.
    pub(crate) fn begun_since(&self) -> Option<Duration> {
        self.begun.map(|_| self.since)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Nothing may come between the frames of a block.
    #[inline]
    fn check(&self, head: Head) -> Result<(), Broken> {
        match self.begun {
            None if head.kind == frame::CONTINUATION => {
                Err(protocol("a CONTINUATION frame continues nothing"))
            }
            Some(begun) if head.kind != frame::CONTINUATION || head.stream != begun.stream => {
                Err(protocol("a header block is interrupted"))
            }
            _ => Ok(()),
        }
    }

    /// Takes a part of a block; returns the frame that began it, and all of it, when it is whole.
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
            let reason = "a header block is larger than allowed";
            return Err(Broken::new(ErrorCode::EnhanceYourCalm, reason));
        }
        self.bytes.extend_from_slice(part);
        if !head.has(frame::END_HEADERS) {
            return Ok(None);
        }
        self.begun = None;
        Ok(Some((begun, std::mem::take(&mut self.bytes))))
    }
}
