//! Calls whose answer the owner hands in later ([`super::Outcome::Later`]).
//!
//! A pending call keeps its stream, and at most 2 KiB of memory for its headers. A client that resets a
//! pending call frees the stream, but not the owner's work: the call counts as a stream until its answer is
//! handed in. So an owner has at most `Limits::streams_max` pending calls per connection. It must hand in an
//! answer for each, or end it by [`Connection::end_pending`]; calls of a closed connection need neither.

use std::time::Duration;

use crate::Status;

use super::shared::Shared;
use super::stream::Stream;
use super::{Connection, Phase};

/// Names a call within its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId {
    pub(super) stream: u32,
    /// The number of its message among all messages of the connection.
    pub(super) message: usize,
}

impl Connection {
    /// Hands in the answer of a pending call: a message, or the status that ends the call. Returns false and
    /// drops the answer if the call is no longer pending.
    pub fn answer(&mut self, call: CallId, answer: Result<&[u8], Status>) -> bool {
        if matches!(self.phase, Phase::Broken(_)) {
            return false;
        }
        let stream = self.streams.get(call.stream).filter(|stream| stream.is_pending(call));
        let Some(stream) = stream else {
            if self.shared.forget(call) {
                self.link.refill_budget();
            }
            return false;
        };
        let fate = stream.answer(answer, self.shared.now, &mut self.link);
        self.settle(call.stream, fate);
        true
    }

    /// The number of pending calls, including those that the client has reset.
    #[must_use]
    pub fn pending(&self) -> usize {
        let streams = self.streams.iter().filter(|(_, stream)| stream.pending_since().is_some());
        streams.count() + self.shared.abandoned.len()
    }

    /// When the oldest pending call was asked, by the time of [`Connection::set_time`].
    #[must_use]
    pub fn pending_since(&self) -> Option<Duration> {
        let streams = self.streams.iter().filter_map(|(_, stream)| stream.pending_since());
        streams.chain(self.shared.abandoned.iter().map(|(_, since)| *since)).min()
    }

    /// Ends pending calls that were asked before `then`, with this status. Their answers are dropped later. Returns
    /// the number of calls that get the status.
    pub fn end_pending(&mut self, then: Duration, status: &Status) -> usize {
        self.shared.abandoned.retain(|(_, since)| *since >= then);
        let is_late = |stream: &Stream| stream.pending_since().is_some_and(|since| since < then);
        let mut ended = 0;
        self.for_each(is_late, |stream, now, link| {
            ended += 1;
            stream.answer(Err(status.clone()), now, link)
        });
        ended
    }

    /// Streams that count against the limit.
    #[inline]
    pub(super) fn taken_streams(&self) -> usize {
        self.streams.len() + self.shared.abandoned.len()
    }
}

impl Shared {
    /// Keeps a pending call whose stream has closed.
    #[cold]
    pub(super) fn abandon(&mut self, call: CallId, since: Duration) {
        let at = self.abandoned.partition_point(|(other, _)| *other < call);
        self.abandoned.insert(at, (call, since));
    }

    /// Removes an abandoned call. False if there is none.
    fn forget(&mut self, call: CallId) -> bool {
        let found = self.abandoned.binary_search_by_key(&call, |(other, _)| *other);
        found.map(|at| self.abandoned.remove(at)).is_ok()
    }
}
