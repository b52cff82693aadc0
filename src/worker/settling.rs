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
//! from within another one (a request, a response, the failure of a call) has what is left of the
//! allowance. Invariant: a turn settles requests and sends queued asks at most [`TURN_MAX`] times.

use super::{Ruling, Worker};
use crate::asks::Who;
use crate::asks::streams::Stream;
use crate::host::{Host, StreamId};
use std::collections::VecDeque;
use tidegate_core::Timestamp;

/// Each is about one level of nesting, two where another plugin of the same machine follows in the filter
/// chain. Envoy has stack for some 300 levels of a short chain.
const TURN_MAX: usize = 16;

/// Room that is kept for the next burst.
const KEPT_MAX: usize = 64;

/// Requests that are decided, in the order of their decisions.
#[derive(Debug, Default)]
pub(super) struct Settling {
    due: VecDeque<(StreamId, Ruling)>,
    /// How much more this turn may do.
    left: usize,
    /// Whether a wake is on its way.
    woken: bool,
}

/// Requests of a worker that is over, decided and not told.
#[derive(Debug)]
pub struct Decided(VecDeque<(StreamId, Ruling)>);

impl Settling {
    /// Takes out what is decided and not told.
    pub(super) fn take(&mut self) -> Decided {
        Decided(std::mem::take(&mut self.due))
    }

    /// How many requests are decided and not told.
    pub(super) fn due(&self) -> usize {
        self.due.len()
    }
}

impl<H: Host> Worker<H> {
    /// Envoy's event loop calls, with nothing of this worker below on the stack.
    pub(super) fn begin_turn(&mut self) {
        self.settling.left = TURN_MAX;
    }

    /// Whether the turn's allowance is used up. Then the rest is for the next turn, which comes by itself.
    pub(super) fn turn_is_over(&mut self) -> bool {
        let over = self.settling.left == 0;
        if over && !self.settling.woken {
            // Where that fails, the next tick goes on.
            self.settling.woken = self.host.wake();
        }
        over
    }

    /// Takes one from the turn's allowance, if it is not used up.
    pub(super) fn take_of_turn(&mut self) -> bool {
        let over = self.turn_is_over();
        self.settling.left = self.settling.left.saturating_sub(1);
        !over
    }

    /// Takes over requests from the worker before this one.
    pub fn adopt(&mut self, decided: Decided) {
        for (stream, ruling) in decided.0 {
            self.streams.insert(stream, Stream::Paused);
            self.settle(Who::Stream(stream), ruling);
        }
    }

    /// Envoy's event loop has come round.
    pub fn on_wake(&mut self) {
        self.begin_turn();
        let now = self.host.now();
        self.go_on(now);
    }

    /// Goes on where the last turn ended.
    pub(super) fn go_on(&mut self, now: Timestamp) {
        self.settling.woken = false;
        while !self.settling.due.is_empty() {
            if !self.take_of_turn() {
                return;
            }
            if let Some((stream, ruling)) = self.settling.due.pop_front() {
                self.carry_out(stream, ruling);
            }
        }
        if self.settling.due.capacity() > KEPT_MAX {
            self.settling.due.shrink_to(KEPT_MAX);
        }
        self.ask_queued(now);
    }

    /// Tells a request that waited what was decided of it, in this turn or in one soon after.
    pub(super) fn settle(&mut self, who: Who, ruling: Ruling) {
        let Who::Stream(stream) = who else {
            return;
        };
        if self.settling.due.is_empty() && self.take_of_turn() {
            self.carry_out(stream, ruling);
        } else {
            self.settling.due.push_back((stream, ruling));
        }
    }

    fn carry_out(&mut self, stream: StreamId, ruling: Ruling) {
        // It may have gone since.
        if !matches!(self.streams.get(&stream), Some(Stream::Paused)) {
            return;
        }
        self.streams.remove(&stream);
        match ruling {
            Ruling::Allow(kept) => {
                self.keep(stream, kept);
                self.host.resume(stream);
            }
            Ruling::Deny(reply) => self.host.reply(stream, &reply),
        }
    }

    /// Has those ask who were too many, as far as there is room now, and ends the wait of those whose
    /// time is over.
    pub(super) fn ask_queued(&mut self, now: Timestamp) {
        while !self.breaker.is_closed() || self.asks.may_unqueue(self.patience.now()) {
            // The decision or the ask takes its share of the turn.
            if self.asks.is_queue_empty() || self.turn_is_over() {
                return;
            }
            if let Some(waiter) = self.asks.unqueue() {
                self.decide_again(vec![waiter], now);
            }
        }
    }
}
