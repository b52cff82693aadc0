//! State that all calls of a connection share: limits and totals.

use std::time::Duration;

use super::{CallId, Limits};

/// State that all calls of a connection share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) limits: Limits,
    /// Memory of headers and partial messages, over all streams.
    pub(super) buffered_bytes: usize,
    /// The part of `buffered_bytes` that headers take.
    pub(super) headers_bytes: usize,
    /// The time of [`super::Connection::set_time`].
    pub(super) now: Duration,
    /// Messages that the service was asked about.
    pub(super) asked: usize,
    /// Calls that stay open (`Watched`, `Kept`).
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

    /// Whether another call may have headers of this size in memory. A few bytes on the wire may refer to a
    /// whole table, so headers have a limit of their own: sixteen times the largest.
    #[inline]
    pub(super) fn has_room_for_headers(&self, bytes: usize) -> bool {
        let most = self.limits.header_bytes_max.saturating_mul(16);
        self.buffered_bytes.saturating_add(bytes) <= self.limits.buffered_bytes_max
            && self.headers_bytes.saturating_add(bytes) <= most
    }

    /// Memory that belongs to no call, by capacity.
    #[inline]
    pub(super) fn capacity_bytes(&self) -> usize {
        self.answer.capacity() + self.abandoned.capacity() * size_of::<(CallId, Duration)>()
    }

    /// Frees unused memory.
    pub(super) fn shrink(&mut self) {
        self.answer = Vec::new();
        self.abandoned.shrink_to_fit();
    }
}
