//! Carrying out what was decided of requests that waited: so many at a time, and the rest as soon as
//! Envoy's event loop comes round.
//!
//! Envoy keeps resumes, local replies and the ends of calls that fail at once until the callback returns,
//! and then carries them out one inside the other: each local reply enters `proxy_on_response_headers`,
//! and the end of that callback carries out the next. Some 300 of them overflow the stack and end the
//! virtual machine.
//!
//! Owns the requests that are decided and not told yet, and the allowance of a turn. A turn begins where
//! Envoy's event loop itself calls: with an answer, a tick, or a wake. A callback that Envoy may enter
//! from within another one has what is left of the allowance; the failure of a call has none. Invariant: a turn
//! settles at most [`TURN_MAX`] requests, and sends at most as many asks of requests that waited.

use super::{Outcome, Worker};
use crate::host::{Host, StreamId};
use crate::worker::pending_calls::Requester;
use crate::worker::streams::StreamState;
use std::collections::VecDeque;
use tidegate_core::Timestamp;

/// Each is about one level of nesting, two where another plugin of the same machine follows in the filter
/// chain. Envoy has stack for some 300 levels of a short chain.
const TURN_MAX: usize = 16;

/// Room that is kept for the next burst.
const KEPT_MAX: usize = 64;

/// Requests that are decided, in the order of their decisions.
#[derive(Debug, Default)]
pub(super) struct ResumeQueue {
    due: VecDeque<(StreamId, Outcome)>,
    /// How many requests this turn may still settle.
    left: usize,
    /// How many asks of requests that waited it may still send.
    submits_left: usize,
    /// Whether a wake is on its way.
    woken: bool,
}

/// Requests of a worker that is over, decided and not told.
#[derive(Debug)]
pub struct UndeliveredOutcomes(VecDeque<(StreamId, Outcome)>);

impl ResumeQueue {
    /// Takes out what is decided and not told.
    pub(super) fn take(&mut self) -> UndeliveredOutcomes {
        UndeliveredOutcomes(std::mem::take(&mut self.due))
    }

    /// How many requests are decided and not told.
    pub(super) fn due(&self) -> usize {
        self.due.len()
    }
}

impl<H: Host> Worker<H> {
    /// Envoy's event loop calls, with nothing of this worker below on the stack.
    pub(super) fn begin_turn(&mut self) {
        (self.resume_queue.left, self.resume_queue.submits_left) = (TURN_MAX, TURN_MAX);
    }

    /// A call has failed. Envoy may say so inside of another callback, even that of the request which asked and is
    /// not paused yet, so nothing is settled before the next turn.
    pub(super) fn end_turn(&mut self) {
        self.resume_queue.left = 0;
    }

    /// Whether this turn may settle one more request. If not, the next turn goes on, which comes by itself.
    fn may_resume(&mut self) -> bool {
        take_one(&mut self.resume_queue.left) || self.wake()
    }

    /// Whether this turn may send one more ask of a request that waited. If not, the next turn goes on.
    pub(super) fn may_submit(&mut self) -> bool {
        take_one(&mut self.resume_queue.submits_left) || self.wake()
    }

    /// Leaves the rest to the next turn. Always false: this turn does no more.
    fn wake(&mut self) -> bool {
        if !self.resume_queue.woken {
            // Where that fails, the next tick goes on.
            self.resume_queue.woken = self.host.wake();
        }
        false
    }

    /// Takes over requests from the worker before this one.
    pub fn adopt(&mut self, decided: UndeliveredOutcomes) {
        for (stream, outcome) in decided.0 {
            self.streams.insert(stream, StreamState::Paused);
            self.deliver(Requester::Stream(stream), outcome);
        }
    }

    /// Envoy's event loop has come round.
    pub fn on_wake(&mut self) {
        self.begin_turn();
        let now = self.host.now();
        self.drain_queues(now);
    }

    /// Goes on where the last turn ended.
    pub(super) fn drain_queues(&mut self, now: Timestamp) {
        self.resume_queue.woken = false;
        while !self.resume_queue.due.is_empty() {
            if !self.may_resume() {
                return;
            }
            if let Some((stream, outcome)) = self.resume_queue.due.pop_front() {
                self.apply(stream, outcome);
            }
        }
        if self.resume_queue.due.capacity() > KEPT_MAX {
            self.resume_queue.due.shrink_to(KEPT_MAX);
        }
        self.submit_queued(now);
    }

    /// Tells a request that waited what was decided of it, in this turn or in one soon after.
    pub(super) fn deliver(&mut self, requester: Requester, outcome: Outcome) {
        let Requester::Stream(stream) = requester else {
            return;
        };
        if self.resume_queue.due.is_empty() && self.may_resume() {
            self.apply(stream, outcome);
        } else {
            self.resume_queue.due.push_back((stream, outcome));
        }
    }

    fn apply(&mut self, stream: StreamId, outcome: Outcome) {
        // It may have gone since.
        if !matches!(self.streams.get(&stream), Some(StreamState::Paused)) {
            return;
        }
        self.streams.remove(&stream);
        match outcome {
            Outcome::Allow(kept) => {
                self.keep(stream, kept);
                self.host.resume(stream);
            }
            Outcome::Deny(reply) => self.host.reply(stream, &reply),
        }
    }

    /// Has those ask who were too many, as far as there is room now, and ends the wait of those whose
    /// time is over.
    pub(super) fn submit_queued(&mut self, now: Timestamp) {
        while !self.breaker.is_closed() || self.calls.may_unqueue(self.tick_clock.now()) {
            if self.calls.is_queue_empty() {
                return;
            }
            if self.resume_queue.left == 0 || self.resume_queue.submits_left == 0 {
                self.wake();
                return;
            }
            if let Some(waiter) = self.calls.unqueue() {
                self.decide_again(vec![waiter], now);
            }
        }
    }
}

/// Takes one of what is left; false when there is none.
fn take_one(left: &mut usize) -> bool {
    let fewer = left.checked_sub(1);
    *left = fewer.unwrap_or(0);
    fewer.is_some()
}
