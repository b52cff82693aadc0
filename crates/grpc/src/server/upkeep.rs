//! What an owner does for a connection beside moving its bytes: it says what time it is, ends what has begun
//! and does not become whole, counts the memory that is held, and takes back what a quiet connection has.

use std::time::Duration;

use crate::Status;
use crate::broken::{Broken, ErrorCode};

use super::headers::Recent;
use super::stream::Stream;
use super::{Connection, Phase, Service};

/// Fewer bytes that come by themselves and complete no frame are of little use for what it costs to read
/// them. Networks cut frames at more than a thousand bytes.
const TRICKLE_BYTES: usize = 64;

impl Connection {
    /// It is so late now, since any moment that stays the same: what begins from here on begins then. Time
    /// gives patience back.
    #[inline]
    pub fn set_time(&mut self, now: Duration) {
        self.shared.now = now;
        self.link.set_time(now);
    }

    /// As [`Connection::set_time`] and [`Connection::receive`], of what one read of a socket brought. Reads
    /// that bring next to nothing cost patience.
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

    /// When the oldest began of what has begun and is not whole: a frame, a block of headers, a message, an
    /// answer that the client gives no window for. By the time that [`Connection::set_time`] had then.
    #[must_use]
    pub fn unfinished_since(&self) -> Option<Duration> {
        let partial = (!self.partial.is_empty()).then_some(self.partial_since);
        let streams = self.streams.iter().filter_map(|(_, stream)| stream.unfinished_since());
        streams.chain(partial).chain(self.link.blocks.begun_since()).min()
    }

    /// Ends calls whose message or answer began before `then` and is not whole, with this status.
    pub fn end_unfinished_calls(&mut self, then: Duration, status: &Status) {
        let is_late = |stream: &Stream| stream.unfinished_since().is_some_and(|since| since < then);
        let late = self.streams.iter().filter(|(_, stream)| is_late(stream));
        let late: Vec<u32> = late.map(|(id, _)| id).collect();
        for id in late {
            let Some(stream) = self.streams.get(id) else { continue };
            let fate = stream.give_up(status.clone(), &mut self.link);
            self.settle(id, fate);
        }
    }

    /// As [`Connection::end_unfinished_calls`]; when it is a frame or a block of headers that began before
    /// `then`, the connection ends.
    ///
    /// # Errors
    /// As [`Connection::receive`].
    pub fn end_unfinished(&mut self, then: Duration, status: &Status) -> Result<(), Broken> {
        if let Phase::Broken(broken) = self.phase {
            return Err(broken);
        }
        let is_partial = !self.partial.is_empty() && self.partial_since < then;
        if is_partial || self.link.blocks.begun_since().is_some_and(|since| since < then) {
            let reason = "a frame or a block of headers has begun and does not end";
            let broken = Broken::new(ErrorCode::EnhanceYourCalm, reason);
            self.fail(broken);
            return Err(broken);
        }
        self.end_unfinished_calls(then, status);
        Ok(())
    }

    /// Gives memory back that a connection has no use for while nothing comes. It takes some again when
    /// something does.
    pub fn trim(&mut self) {
        self.link.shrink();
        self.shared.shrink();
        self.recent = Recent::new();
        self.partial.shrink_to_fit();
        self.streams.shrink();
        for (_, stream) in self.streams.iter_mut() {
            stream.shrink(&mut self.shared);
        }
    }

    /// The memory that this connection holds, beside itself: for calls that have begun to arrive, for what
    /// its peer has not taken yet, and what is ready for more. By capacity.
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
