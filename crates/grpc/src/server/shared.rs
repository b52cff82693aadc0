//! What the calls of a connection share: its limits, and what is counted over all of them.

use std::time::Duration;

use super::{CallId, Limits};

/// What all calls of a connection share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) limits: Limits,
    /// The memory of headers and of messages that have begun to arrive, over all streams.
    pub(super) buffered_bytes: usize,
    /// Of them that of headers.
    pub(super) headers_bytes: usize,
    /// What time it is.
    pub(super) now: Duration,
    /// Messages that the service was asked about.
    pub(super) asked: usize,
    /// Calls that stay open for ever.
    pub(super) staying: usize,
    pub(super) stream_window: u32,
    pub(super) answer: Vec<u8>,
    /// Calls that ended before the owner handed in their answer, by stream, and when they were asked.
    pub(super) abandoned: Vec<(CallId, Duration)>,
}

impl Shared {
    pub(super) fn new(limits: Limits, stream_window: u32) -> Shared {
        Shared {
            limits,
            buffered_bytes: 0,
            headers_bytes: 0,
            now: Duration::ZERO,
            asked: 0,
            staying: 0,
            stream_window,
            answer: Vec::new(),
            abandoned: Vec::new(),
        }
    }

    /// Whether another call may have headers of so much memory. A few bytes may stand for all that a table
    /// holds, so calls without a message yet have a bound of their own: that of sixteen of the largest.
    #[inline]
    pub(super) fn has_room_for_headers(&self, bytes: usize) -> bool {
        let most = self.limits.header_bytes_max.saturating_mul(16);
        self.buffered_bytes.saturating_add(bytes) <= self.limits.buffered_bytes_max
            && self.headers_bytes.saturating_add(bytes) <= most
    }

    /// The memory that is of no call.
    #[inline]
    pub(super) fn capacity_bytes(&self) -> usize {
        self.answer.capacity() + self.abandoned.capacity() * size_of::<(CallId, Duration)>()
    }

    /// Gives all memory back that holds nothing.
    pub(super) fn shrink(&mut self) {
        self.answer = Vec::new();
        self.abandoned.shrink_to_fit();
    }
}
