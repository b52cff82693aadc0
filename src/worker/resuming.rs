//! Resumes and answers the requests that waited: a bounded number per turn of Envoy's event loop.
//!
//! Envoy queues resumes, local replies and the ends of calls that fail at once until the callback
//! returns, and then carries them out nested: each local reply enters `proxy_on_response_headers`,
//! and the end of that callback carries out the next. Some 300 of them overflow the stack and end
//! the virtual machine.
//!
//! Owns the requests that are decided but still paused, and the allowance of a turn. A turn begins
//! where the event loop itself calls: with a response, a tick, or a wake. A callback that Envoy may
//! nest in another one has the rest of the allowance; the failure of a call has none. Invariant: a
//! turn finishes at most [`TURN_MAX`] requests, and sends at most as many calls for requests that
//! waited.

use super::{Outcome, Worker};
use crate::host::stats::Counter;
use crate::host::{Host, StreamId};
use crate::worker::debits::{Group, Lost};
use crate::worker::pending_calls::Requester;
use crate::worker::reports::with_earlier_notes;
use crate::worker::streams::StreamState;
use crate::worker::tallies::LeftTallies;
use std::collections::VecDeque;
use tidegate_core::Timestamp;

/// Each is about one level of nesting, two if another plugin of the same virtual machine follows in
/// the filter chain. Envoy has stack for some 300 levels of a short chain.
const TURN_MAX: usize = 16;

const KEPT_MAX: usize = 64;

/// Decided requests that are still paused, in order of decision.
#[derive(Debug, Default)]
pub(super) struct ResumeQueue {
    due: VecDeque<(StreamId, Outcome)>,
    /// The requests that this turn may still finish.
    left: usize,
    /// The calls for waiting requests that this turn may still send.
    submits_left: usize,
    woken: bool,
}

/// What an ended worker leaves to another one: decided requests that are still paused, costs of
/// streams that were not counted, and decisions that were not reported.
#[derive(Debug)]
pub struct Unfinished {
    decided: VecDeque<(StreamId, Outcome)>,
    costs: Vec<Group>,
    tallies: LeftTallies,
}

impl ResumeQueue {
    /// Takes out the requests that are still paused.
    pub(super) fn take(&mut self, costs: Vec<Group>, tallies: LeftTallies) -> Unfinished {
        Unfinished { decided: std::mem::take(&mut self.due), costs, tallies }
    }

    /// The number of decided requests that are still paused.
    pub(super) fn due(&self) -> usize {
        self.due.len()
    }
}

impl<H: Host> Worker<H> {
    /// Starts a turn: the event loop has called, with no callback of this worker on the stack.
    pub(super) fn begin_turn(&mut self) {
        (self.resume_queue.left, self.resume_queue.submits_left) = (TURN_MAX, TURN_MAX);
    }

    /// Ends the turn: a call has failed. Envoy may report that inside another callback, even that
    /// of the request that called and is not paused yet, so nothing is finished before the next
    /// turn.
    pub(super) fn end_turn(&mut self) {
        self.resume_queue.left = 0;
    }

    /// Whether this turn may finish one more request. If not, another turn is requested.
    fn may_resume(&mut self) -> bool {
        take_one(&mut self.resume_queue.left) || self.wake()
    }

    /// Whether this turn may send one more call for a request that waited. If not, another turn is
    /// requested.
    pub(super) fn may_submit(&mut self) -> bool {
        take_one(&mut self.resume_queue.submits_left) || self.wake()
    }

    /// Requests another turn. Always false: this turn does no more.
    pub(super) fn wake(&mut self) -> bool {
        if !self.resume_queue.woken {
            // If that fails, the next tick continues.
            self.resume_queue.woken = self.host.wake();
        }
        false
    }

    /// Takes over what an ended worker leaves.
    pub fn adopt(&mut self, unfinished: Unfinished) {
        for (stream, outcome) in unfinished.decided {
            self.streams.insert(stream, StreamState::Paused);
            self.deliver(Requester::Stream(stream), outcome);
        }
        let now = self.host.now();
        for group in unfinished.costs {
            self.queue_debit(group, now);
        }
        self.adopt_tallies(unfinished.tallies);
    }

    /// No worker takes over what this one leaves.
    pub fn abandon(&mut self, unfinished: Unfinished) {
        let now = self.host.now();
        for group in &unfinished.costs {
            self.note_lost(Lost { hits: group.hits() }, now);
        }
        self.stats.add(Counter::ReportsLost, unfinished.tallies.hits());
        self.stats.flush(&self.host);
    }

    /// Whether another worker counts at the same sidecar.
    pub fn counts_like(&self, other: &Worker<H>) -> bool {
        (&self.config.cluster, &self.config.domain) == (&other.config.cluster, &other.config.domain)
    }

    /// Envoy's event loop has reached the wake.
    pub fn on_wake(&mut self) {
        self.begin_turn();
        let now = self.host.now();
        self.drain_queues(now);
    }

    /// Continues where the last turn ended.
    pub(super) fn drain_queues(&mut self, now: Timestamp) {
        self.resume_queue.woken = false;
        if !self.debits.is_empty() {
            self.send_debits(now);
        }
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

    /// Finishes a request that waited, in this turn or in one soon after.
    pub(super) fn deliver(&mut self, requester: Requester, outcome: Outcome) {
        let stream = match requester {
            Requester::Stream(stream) => stream,
            Requester::Shadow(stream) => return self.settle_shadow(stream),
        };
        if self.resume_queue.due.is_empty() && self.may_resume() {
            self.apply(stream, outcome);
        } else {
            self.resume_queue.due.push_back((stream, outcome));
        }
    }

    fn apply(&mut self, stream: StreamId, outcome: Outcome) {
        // It may be gone by now.
        let owes = match self.streams.get(&stream) {
            Some(state) if state.is_paused() => matches!(state, StreamState::Owing(_)),
            _ => return,
        };
        match outcome {
            Outcome::Allow(kept) => {
                if owes {
                    self.settle_pause(stream, kept);
                } else {
                    let waited = self.streams.remove(&stream);
                    self.keep(stream, with_earlier_notes(waited, kept));
                }
                self.host.resume(stream);
            }
            Outcome::Deny(mut denial) => {
                if owes {
                    self.deny_owing(stream);
                } else {
                    self.streams.remove(&stream);
                }
                denial.send(&self.host, stream);
            }
        }
    }

    /// Lets queued requests call as far as there is room, and ends the wait of those past their
    /// deadline.
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

/// Decrements `left`; false if it is 0.
fn take_one(left: &mut usize) -> bool {
    let fewer = left.checked_sub(1);
    *left = fewer.unwrap_or(0);
    fewer.is_some()
}
