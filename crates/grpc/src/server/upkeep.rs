//! Upkeep by the owner of a connection: sets the time, ends messages and answers that make no progress, and
//! frees the memory of an idle connection.

use std::time::Duration;

use crate::Status;
use crate::broken::Broken;

use super::headers::Recent;
use super::stream::Stream;
use super::{Connection, Phase, Service};

/// A read of fewer bytes that completes no frame costs more than it is worth. Networks split frames at more
/// than a thousand bytes.
const TRICKLE_BYTES: usize = 64;

impl Connection {
    /// Sets the time, counted from any fixed moment. Timestamps are taken from it, and the budget recovers
    /// with it.
    #[inline]
    pub fn set_time(&mut self, now: Duration) {
        self.shared.now = now;
        self.link.set_time(now);
    }

    /// As [`Connection::set_time`] and [`Connection::receive`], for the bytes of one read. Tiny reads cost
    /// budget.
    ///
    /// # Errors
    /// As [`Connection::receive`].
    pub fn receive_at(
        &mut self,
        now: Duration,
        input: &[u8],
        service: &mut impl Service,
    ) -> Result<usize, Broken> {
        self.set_time(now);
        let frames_before = self.link.frames;
        let asked = self.receive(input, service)?;
        if input.len() < TRICKLE_BYTES
            && self.link.frames == frames_before
            && let Err(broken) = self.link.spend_budget()
        {
            self.fail(broken);
            return Err(broken);
        }
        Ok(asked)
    }

    /// The start of the oldest unfinished item: a frame, a header block, a message, or an answer that lacks
    /// window. By the time of [`Connection::set_time`].
    #[must_use]
    pub fn unfinished_since(&self) -> Option<Duration> {
        let partial = (!self.partial.is_empty()).then_some(self.partial_since);
        let streams = self.streams.iter().filter_map(|(_, stream)| stream.unfinished_since());
        streams.chain(partial).chain(self.link.blocks.begun_since()).min()
    }

    /// Ends calls with a message or an answer that began before `then` and is unfinished, with this status.
    pub fn end_unfinished_calls(&mut self, then: Duration, status: &Status) {
        let is_late = |stream: &Stream| stream.unfinished_since().is_some_and(|since| since < then);
        self.for_each(is_late, |stream, _, link| stream.give_up(status.clone(), link));
    }

    /// As [`Connection::end_unfinished_calls`]. Ends the connection instead if an unfinished frame or header
    /// block began before `then`.
    ///
    /// # Errors
    /// As [`Connection::receive`].
    pub fn end_unfinished(&mut self, then: Duration, status: &Status) -> Result<(), Broken> {
        if let Phase::Broken(broken) = self.phase {
            return Err(broken);
        }
        let is_partial = !self.partial.is_empty() && self.partial_since < then;
        if is_partial || self.link.blocks.begun_since().is_some_and(|since| since < then) {
            let reason = "a frame or header block has been unfinished for too long";
            let broken = Broken::excess(reason);
            self.fail(broken);
            return Err(broken);
        }
        self.end_unfinished_calls(then, status);
        Ok(())
    }

    /// Frees memory that an idle connection does not need. The next input allocates it again.
    pub fn trim(&mut self) {
        self.link.shrink();
        self.shared.shrink();
        self.recent = Recent::default();
        self.partial.shrink_to_fit();
        self.streams.shrink();
        for (_, stream) in self.streams.iter_mut() {
            stream.shrink(&mut self.shared);
        }
    }

    /// Memory of this connection by capacity, beyond the struct itself: partial calls, unsent output, and
    /// buffers kept for reuse.
    #[must_use]
    pub fn capacity_bytes(&self) -> usize {
        self.shared.buffered_bytes
            + self.shared.capacity_bytes()
            + self.link.capacity_bytes()
            + self.streams.capacity_bytes()
            + self.recent.capacity_bytes()
            + self.partial.capacity()
    }
}
