//! Output, and bodies that wait for the peer's windows (RFC 9113, section 5.2).

use std::collections::VecDeque;

use crate::broken::{Broken, ErrorCode};
use crate::frame;
use crate::output::Output;

pub(crate) const WINDOW_MAX: i64 = (1 << 31) - 1;
pub(crate) const WINDOW_INITIAL: i64 = 65_535;

/// An empty buffer of a stream is freed if it is larger than this.
pub(crate) const KEPT_BYTES_MAX: usize = 2 * 1024;

/// Clears a buffer, and frees it unless it is small.
#[inline]
pub(crate) fn release(buffer: &mut Vec<u8>) {
    buffer.clear();
    if buffer.capacity() > KEPT_BYTES_MAX {
        *buffer = Vec::new();
    }
}

/// The sending side of a connection, shared by its streams.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) output: Output,
    window: i64,
    waiting_bytes: usize,
    /// The memory of the bodies of open streams.
    bodies_capacity: usize,
    /// Streams whose bodies wait for the connection's window, in order.
    queue: VecDeque<u32>,
    has_begun_blocks: bool,
}

impl Outgoing {
    pub(crate) fn new() -> Outgoing {
        Outgoing {
            output: Output::default(),
            window: WINDOW_INITIAL,
            waiting_bytes: 0,
            bodies_capacity: 0,
            queue: VecDeque::new(),
            has_begun_blocks: false,
        }
    }

    /// Whether the next header block is the connection's first.
    #[inline]
    pub(crate) fn begins_blocks(&mut self) -> bool {
        !std::mem::replace(&mut self.has_begun_blocks, true)
    }

    /// Bytes that the peer has not read, or opens no window for.
    #[inline]
    pub(crate) fn unsent_bytes(&self) -> usize {
        self.output.len() + self.waiting_bytes
    }

    /// Bytes of memory, by capacity.
    #[inline]
    pub(crate) fn capacity_bytes(&self) -> usize {
        self.output.capacity_bytes()
            + self.bodies_capacity
            + self.queue.capacity() * size_of::<u32>()
    }

    /// Frees unused memory.
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
            return Err(Broken::flow_control("the connection's window is beyond 2^31-1"));
        }
        Ok(())
    }

    /// The next stream that may use the connection's window.
    pub(crate) fn next(&mut self) -> Option<u32> {
        if self.has_window() { self.queue.pop_front() } else { None }
    }

    fn forget(&mut self, body: &Body, stream: u32) {
        self.waiting_bytes -= body.len();
        if body.is_queued {
            self.queue.retain(|queued| *queued != stream);
        }
    }
}

/// Bytes of a stream that wait for a window.
#[derive(Debug)]
pub(crate) struct Body {
    window: i64,
    bytes: Vec<u8>,
    sent: usize,
    /// Whether it is queued for the connection's window.
    is_queued: bool,
    /// Memory of this body that [`Outgoing`] includes.
    counted: usize,
}

impl Body {
    pub(crate) fn new() -> Body {
        Body { window: 0, bytes: Vec::new(), sent: 0, is_queued: false, counted: 0 }
    }

    /// Bytes of memory, by capacity.
    #[inline]
    pub(crate) fn capacity_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    fn count(&mut self, bytes: usize, outgoing: &mut Outgoing) {
        outgoing.bodies_capacity = outgoing.bodies_capacity - self.counted + bytes;
        self.counted = bytes;
    }

    /// Prepares it for a new stream with this window.
    pub(crate) fn renew(&mut self, window: i64) {
        self.window = window;
        self.is_queued = false;
    }

    /// Drops the waiting bytes.
    pub(crate) fn clear(&mut self, stream: u32, outgoing: &mut Outgoing) {
        if !self.is_empty() || self.is_queued {
            outgoing.forget(self, stream);
        }
        self.is_queued = false;
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

    /// Opens the window by a window update. Fails with the error of the stream.
    pub(crate) fn open(&mut self, increment: u32) -> Result<(), ErrorCode> {
        if increment == 0 {
            return Err(ErrorCode::Protocol);
        }
        self.window += i64::from(increment);
        if self.window > WINDOW_MAX { Err(ErrorCode::FlowControl) } else { Ok(()) }
    }

    /// Changes the window by a new INITIAL_WINDOW_SIZE.
    pub(crate) fn change_initial_window(&mut self, change: i64) -> Result<(), Broken> {
        self.window += change;
        if self.window > WINDOW_MAX {
            let reason = "INITIAL_WINDOW_SIZE makes a window larger than 2^31-1";
            return Err(Broken::flow_control(reason));
        }
        Ok(())
    }

    /// Claims this many bytes of both windows if they may be sent now in one DATA frame.
    #[inline]
    pub(crate) fn claim(&mut self, bytes: usize, outgoing: &mut Outgoing) -> bool {
        let Ok(size) = i64::try_from(bytes) else { return false };
        let fits = self.is_empty()
            && size <= self.window
            && size <= outgoing.window
            && bytes <= frame::PAYLOAD_BYTES_MAX;
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

    /// Its stream was taken from the queue.
    pub(crate) fn leave_queue(&mut self) {
        self.is_queued = false;
    }

    /// Sends what the windows allow, the last frame with `last_flags`. Returns the number of frames.
    pub(crate) fn pump(&mut self, stream: u32, last_flags: u8, outgoing: &mut Outgoing) -> u32 {
        let mut frames = 0;
        while !self.is_empty() {
            let window = usize::try_from(self.window.min(outgoing.window)).unwrap_or(0);
            let size = self.len().min(window).min(frame::PAYLOAD_BYTES_MAX);
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
        } else if self.window > 0 && !self.is_queued {
            self.is_queued = true;
            outgoing.queue.push_back(stream);
        }
        frames
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cleared_buffer_is_kept_up_to_2_kib() {
        for (bytes, kept) in [(1, 1), (2048, 2048), (2049, 0)] {
            let mut buffer = Vec::with_capacity(bytes);
            buffer.push(7);
            release(&mut buffer);
            assert_eq!((buffer.len(), buffer.capacity()), (0, kept));
        }
    }

    #[test]
    fn windows_are_opened_to_their_bound_and_no_further() {
        for (increment, is_allowed) in [(10, true), (11, false)] {
            let mut body = Body::new();
            body.renew(WINDOW_MAX - 10);
            assert_eq!(body.open(increment).is_ok(), is_allowed);
            body.renew(WINDOW_MAX - 10);
            assert_eq!(body.change_initial_window(increment.into()).is_ok(), is_allowed);
            let mut outgoing = Outgoing::new();
            outgoing.window = WINDOW_MAX - 10;
            assert_eq!(outgoing.open(increment).is_ok(), is_allowed);
        }
    }

    #[test]
    fn output_bodies_and_the_queue_count_as_memory() {
        let mut outgoing = Outgoing::new();
        outgoing.window = 50;
        let mut bodies = [1, 3, 5].map(|_| Body::new());
        for (stream, body) in (1..).step_by(2).zip(&mut bodies) {
            body.renew(100);
            body.wait(&[0; 1000], &mut outgoing);
            body.wait(&[0; 3000], &mut outgoing);
            body.pump(stream, 0, &mut outgoing);
        }
        let counted = |outgoing: &Outgoing, bodies: &[Body]| {
            let bodies: usize = bodies.iter().map(Body::capacity_bytes).sum();
            let queue = outgoing.queue.capacity() * size_of::<u32>();
            assert!(queue > 0 && outgoing.output.capacity_bytes() > 50);
            assert_eq!(
                outgoing.capacity_bytes(),
                outgoing.output.capacity_bytes() + bodies + queue
            );
            bodies
        };
        assert!(counted(&outgoing, &bodies) >= 3 * 4000);
        // All of the first is sent, and the second is dropped.
        (outgoing.window, bodies[0].window) = (1 << 20, 1 << 20);
        bodies[0].pump(1, 0, &mut outgoing);
        bodies[1].clear(3, &mut outgoing);
        assert!((4000..12_000).contains(&counted(&outgoing, &bodies)));
        assert_eq!((outgoing.waiting_bytes(), outgoing.queue.len()), (4000, 2));
        bodies[2].clear(5, &mut outgoing);
        assert_eq!((counted(&outgoing, &bodies), outgoing.waiting_bytes()), (0, 0));
    }
}
