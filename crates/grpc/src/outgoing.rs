//! What is sent: the output, and bodies that wait for the peer's windows (RFC 9113, section 5.2).

use std::collections::VecDeque;

use crate::broken::{Broken, ErrorCode};
use crate::frame;
use crate::output::Output;

pub(crate) const WINDOW_MAX: i64 = (1 << 31) - 1;
pub(crate) const WINDOW_INITIAL: i64 = 65_535;

/// A buffer of one stream that is empty and larger than this gives its memory back.
pub(crate) const KEPT_BYTES_MAX: usize = 2 * 1024;

/// Gives the memory of a buffer back that holds nothing any more, unless it is small.
#[inline]
pub(crate) fn release(buffer: &mut Vec<u8>) {
    buffer.clear();
    if buffer.capacity() > KEPT_BYTES_MAX {
        *buffer = Vec::new();
    }
}

/// What all streams of a connection share when they send.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) output: Output,
    pub(crate) frame_bytes_max: usize,
    window: i64,
    waiting_bytes: usize,
    /// The memory of the bodies of open streams.
    bodies_capacity: usize,
    /// Streams whose bodies wait for the connection's window, in the order of their turns.
    queue: VecDeque<u32>,
    has_begun_blocks: bool,
}

impl Outgoing {
    pub(crate) fn new() -> Outgoing {
        Outgoing {
            output: Output::default(),
            frame_bytes_max: frame::PAYLOAD_BYTES_MAX,
            window: WINDOW_INITIAL,
            waiting_bytes: 0,
            bodies_capacity: 0,
            queue: VecDeque::new(),
            has_begun_blocks: false,
        }
    }

    /// Whether the header block that is written now is the connection's first.
    #[inline]
    pub(crate) fn begins_blocks(&mut self) -> bool {
        !std::mem::replace(&mut self.has_begun_blocks, true)
    }

    /// Bytes held for the peer: what it has not read, and what it gives no window for.
    #[inline]
    pub(crate) fn unsent_bytes(&self) -> usize {
        self.output.len() + self.waiting_bytes
    }

    /// The memory that holds it, and that is ready for more.
    #[inline]
    pub(crate) fn capacity_bytes(&self) -> usize {
        self.output.capacity_bytes()
            + self.bodies_capacity
            + self.queue.capacity() * size_of::<u32>()
    }

    /// Gives all memory back that holds nothing.
    pub(crate) fn shrink(&mut self) {
        self.output.shrink();
        self.queue.shrink_to_fit();
    }

    pub(crate) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    pub(crate) fn has_window(&self) -> bool {
        self.window > 0
    }

    /// The peer opens the connection's window.
    pub(crate) fn open(&mut self, increment: u32) -> Result<(), Broken> {
        self.window += i64::from(increment);
        if self.window > WINDOW_MAX {
            return Err(Broken::new(
                ErrorCode::FlowControl,
                "the connection's window is beyond 2^31-1",
            ));
        }
        Ok(())
    }

    /// The stream whose turn it is to use the connection's window.
    pub(crate) fn next(&mut self) -> Option<u32> {
        if self.has_window() { self.queue.pop_front() } else { None }
    }

    fn forget(&mut self, body: &Body, stream: u32) {
        self.waiting_bytes -= body.len();
        if body.turn == Turn::Queued {
            self.queue.retain(|queued| *queued != stream);
        }
    }
}

/// Whether a body waits for its turn at the connection's window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    None,
    Queued,
}

/// What a stream has to send and may not yet.
#[derive(Debug)]
pub(crate) struct Body {
    window: i64,
    bytes: Vec<u8>,
    sent: usize,
    turn: Turn,
    /// What of its memory is counted in [`Outgoing`].
    counted: usize,
}

impl Body {
    pub(crate) fn new() -> Body {
        Body { window: 0, bytes: Vec::new(), sent: 0, turn: Turn::None, counted: 0 }
    }

    /// The memory that it has.
    #[inline]
    pub(crate) fn capacity_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    fn count(&mut self, bytes: usize, outgoing: &mut Outgoing) {
        outgoing.bodies_capacity = outgoing.bodies_capacity - self.counted + bytes;
        self.counted = bytes;
    }

    /// Makes it as new, for a stream with this window.
    pub(crate) fn renew(&mut self, window: i64) {
        self.window = window;
        self.turn = Turn::None;
    }

    /// Drops what waits.
    pub(crate) fn clear(&mut self, stream: u32, outgoing: &mut Outgoing) {
        if !self.is_empty() || self.turn == Turn::Queued {
            outgoing.forget(self, stream);
        }
        self.turn = Turn::None;
        if self.bytes.capacity() > 0 {
            release(&mut self.bytes);
            self.sent = 0;
            self.count(0, outgoing);
        }
    }

    fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.sent == self.bytes.len()
    }

    /// The peer opens the window, or shuts it by a change of its settings. False when it is then
    /// larger than allowed.
    #[must_use]
    pub(crate) fn change_window(&mut self, change: i64) -> bool {
        self.window += change;
        self.window <= WINDOW_MAX
    }

    /// Takes so many bytes of the windows if a DATA frame of them may be sent now.
    #[inline]
    pub(crate) fn claim(&mut self, bytes: usize, outgoing: &mut Outgoing) -> bool {
        let Ok(size) = i64::try_from(bytes) else { return false };
        let fits = self.is_empty()
            && size <= self.window
            && size <= outgoing.window
            && bytes <= outgoing.frame_bytes_max;
        if fits {
            self.window -= size;
            outgoing.window -= size;
        }
        fits
    }

    /// Appends what could not be sent.
    pub(crate) fn wait(&mut self, bytes: &[u8], outgoing: &mut Outgoing) {
        self.bytes.extend_from_slice(bytes);
        outgoing.waiting_bytes += bytes.len();
        self.count(self.bytes.capacity(), outgoing);
    }

    /// It is no longer in the queue.
    pub(crate) fn take_turn(&mut self) {
        self.turn = Turn::None;
    }

    /// Sends what the windows allow; the last frame has `last_flags`. Says how many frames.
    pub(crate) fn pump(&mut self, stream: u32, last_flags: u8, outgoing: &mut Outgoing) -> u32 {
        let mut frames = 0;
        while !self.is_empty() {
            let window = usize::try_from(self.window.min(outgoing.window)).unwrap_or(0);
            let size = self.len().min(window).min(outgoing.frame_bytes_max);
            let chunk = self.bytes.get(self.sent..self.sent + size).unwrap_or_default();
            if chunk.is_empty() {
                break;
            }
            let flags = if size == self.len() { last_flags } else { 0 };
            let buffer = outgoing.output.buffer();
            buffer.extend_from_slice(&frame::head(size, frame::DATA, flags, stream));
            buffer.extend_from_slice(chunk);
            self.sent += size;
            self.window -= size as i64;
            outgoing.window -= size as i64;
            outgoing.waiting_bytes -= size;
            frames += 1;
        }
        if self.is_empty() {
            release(&mut self.bytes);
            self.sent = 0;
            self.count(self.bytes.capacity(), outgoing);
        } else if self.window > 0 && self.turn == Turn::None {
            self.turn = Turn::Queued;
            outgoing.queue.push_back(stream);
        }
        frames
    }
}
