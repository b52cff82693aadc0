//! One worker of Envoy: what happens when Envoy calls, apart from how it calls.
//!
//! Owns all state of a worker. Knows Envoy only as a [`Host`], so the same code runs in Envoy, in
//! native tests and in the simulator. A request that is decided by what the worker holds costs one
//! reading of the clock and no other host call but those that read the request.

pub mod call_error;
mod call_results;
mod calling;
mod circuit_breaker;
mod failures;
mod local_decisions;
mod maintenance;
mod pending_calls;
mod replies;
mod resuming;
pub mod root_contexts;
mod streams;
mod tick_clock;
mod token_returns;

use crate::config::{Config, HeaderStyle};
use crate::host::Reply;
use crate::host::RequestFacts;
use crate::host::stats::{Counter, Stats};
use crate::host::{CallId, Host, StreamId};
use crate::leases::descriptor_state::LocalDecision;
use crate::leases::local_table::{LocalTable, ReturnableTokens};
use crate::leases::process::ProcessIdentity;
use crate::leases::shared_table::SharedTable;
use crate::request::descriptors::RequestDescriptors;
use crate::request::extract;
use crate::worker::circuit_breaker::CircuitBreaker;
use crate::worker::pending_calls::{PendingCalls, Requester, Waiter};
use crate::worker::streams::{LeaseKeys, StreamState, Streams};
use crate::worker::tick_clock::TickClock;
use call_error::{CallError, Undecided};
use local_decisions::Attempt;
use replies::LimitStatus;
use resuming::ResumeQueue;
pub use resuming::UndeliveredOutcomes;
use std::collections::VecDeque;
use std::time::Duration;
use tidegate_core::{Nanos, Timestamp, Verdict};
use token_returns::Return;

/// How often a worker looks after its leases.
pub const TICK: Duration = Duration::from_millis(100);

/// What Envoy is to do with the request at hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterHeadersStatus {
    /// Go on.
    Continue,
    /// Hold it: it will be resumed, or was answered.
    Pause,
}

/// What becomes of a request.
#[derive(Debug)]
enum Outcome {
    /// It passes, and this is kept for its response.
    Allow(Option<StreamState>),
    /// It is answered here.
    Deny(Reply),
}

/// A worker.
#[derive(Debug)]
pub struct Worker<H> {
    host: H,
    config: Config,
    stats: Stats,
    process: ProcessIdentity,
    shared_table: SharedTable,
    local_table: LocalTable,
    calls: PendingCalls,
    streams: Streams,
    breaker: CircuitBreaker,
    tick_clock: TickClock,
    resume_queue: ResumeQueue,
    failure_log: failures::FailureLog,
    /// Tokens that are to go back to the sidecar.
    to_return: Vec<ReturnableTokens>,
    /// Leases that a lost answer may have granted.
    recalls: VecDeque<ReturnableTokens>,
    /// Returns that were not answered.
    unanswered: VecDeque<Return>,
    /// The number of the next call.
    call_next: u64,
    /// Where the next tick goes on.
    visited: usize,
    /// The places in `locals` of the request at hand.
    indexes: Vec<usize>,
    /// The buffers of the request at hand.
    enforced: RequestDescriptors,
    shadowed: RequestDescriptors,
}

impl<H: Host> Worker<H> {
    /// A worker that serves by `config`. Called once in each worker, and once more at start in a
    /// machine that never gets a request.
    pub fn new(host: H, config: Config) -> Self {
        let mut stats = Stats::default();
        stats.define(&host);
        let process = ProcessIdentity::join(&host, &config);
        Worker {
            process,
            shared_table: SharedTable::new(config.leases.slots),
            local_table: LocalTable::new(),
            calls: PendingCalls::default(),
            streams: Streams::default(),
            breaker: CircuitBreaker::new(),
            tick_clock: TickClock::new(config.timeout, TICK),
            resume_queue: ResumeQueue::default(),
            failure_log: failures::FailureLog::default(),
            to_return: Vec::new(),
            recalls: VecDeque::new(),
            unanswered: VecDeque::new(),
            call_next: host.random(),
            visited: 0,
            indexes: Vec::new(),
            enforced: RequestDescriptors::default(),
            shadowed: RequestDescriptors::default(),
            host,
            config,
            stats,
        }
    }

    /// The headers of a request have come.
    pub fn on_request(
        &mut self,
        stream: StreamId,
        facts: &impl RequestFacts,
    ) -> FilterHeadersStatus {
        let mut enforced = std::mem::take(&mut self.enforced);
        let mut shadowed = std::mem::take(&mut self.shadowed);
        extract(&self.config, facts, self.process.seed, &mut enforced, &mut shadowed);
        let step = self.take_in(stream, &enforced, &shadowed);
        (self.enforced, self.shadowed) = (enforced, shadowed);
        step
    }

    fn take_in(
        &mut self,
        stream: StreamId,
        enforced: &RequestDescriptors,
        shadowed: &RequestDescriptors,
    ) -> FilterHeadersStatus {
        if enforced.is_empty() && shadowed.is_empty() {
            return FilterHeadersStatus::Continue;
        }
        let now = self.host.now();
        let outcome = self.enforce(stream, enforced, now);
        // What is denied at once counts in no shadow. Of what has to wait nobody knows yet.
        if !matches!(outcome, Some(Outcome::Deny(_))) {
            self.shadow(shadowed, now);
        }
        match outcome {
            Some(Outcome::Allow(kept)) => {
                self.keep(stream, kept);
                FilterHeadersStatus::Continue
            }
            Some(Outcome::Deny(reply)) => {
                self.host.reply(stream, &reply);
                FilterHeadersStatus::Pause
            }
            None => FilterHeadersStatus::Pause,
        }
    }

    /// Decides the descriptors that are enforced; none when the request has to wait.
    fn enforce(
        &mut self,
        stream: StreamId,
        descriptors: &RequestDescriptors,
        now: Timestamp,
    ) -> Option<Outcome> {
        if descriptors.is_empty() {
            return Some(Outcome::Allow(None));
        }
        match self.decide(descriptors, Attempt::First, now) {
            LocalDecision::Allow => {
                self.stats.count(Counter::AllowedLocal);
                Some(Outcome::Allow(self.allowed_state(descriptors)))
            }
            LocalDecision::Deny => {
                self.stats.count(Counter::DeniedLocal);
                Some(Outcome::Deny(self.denial(descriptors, now)))
            }
            LocalDecision::Ask => {
                self.stats.count(Counter::LeaseMisses);
                self.streams.insert(stream, StreamState::Paused);
                let undecided =
                    self.ask_first(Requester::Stream(stream), descriptors, now).err()?;
                self.streams.remove(&stream);
                Some(self.undecided(undecided))
            }
        }
    }

    /// Counts what the descriptors in shadow would have done.
    fn shadow(&mut self, descriptors: &RequestDescriptors, now: Timestamp) {
        if descriptors.is_empty() {
            return;
        }
        match self.decide(descriptors, Attempt::First, now) {
            LocalDecision::Allow => {}
            LocalDecision::Deny => self.stats.count(Counter::ShadowDenied),
            LocalDecision::Ask => {
                // Without a decision it counts in nothing.
                let _ = self.ask_first(Requester::Shadow, descriptors, now);
            }
        }
    }

    /// PendingCalls for a request that has just come, or has it wait for another's answer.
    fn ask_first(
        &mut self,
        requester: Requester,
        descriptors: &RequestDescriptors,
        now: Timestamp,
    ) -> Result<(), Undecided> {
        if !self.breaker.is_closed() {
            if self.breaker.probe(now) {
                self.probe(descriptors, now);
            }
            return Err(Undecided::Failure);
        }
        if !self.calls.has_room(self.resume_queue.due()) {
            self.note_full(now);
            return Err(Undecided::Overload);
        }
        let deadline = self.tick_clock.deadline();
        self.submit(Waiter { requester, descriptors: descriptors.clone(), deadline }, &[], now)
    }

    /// The response headers of a request have come.
    pub fn on_response(&mut self, stream: StreamId) {
        if self.streams.is_empty() {
            return;
        }
        let limits = match self.streams.remove(&stream) {
            Some(StreamState::DecidedLocally(keys)) => self.limits_of(&keys),
            Some(StreamState::DecidedBySidecar(limits)) => (self.host.now(), limits),
            // Answered from elsewhere while it was paused: it is still to be told when it is gone.
            Some(paused @ StreamState::Paused) => {
                self.streams.insert(stream, paused);
                return;
            }
            None => return,
        };
        let (now, limits) = limits;
        let headers = replies::headers(&self.config, &limits, now);
        if !headers.is_empty() {
            self.host.add_response_headers(&headers);
        }
    }

    /// A request is over, whatever became of it.
    pub fn on_gone(&mut self, stream: StreamId) {
        // Among the requests that wait it is passed over when its turn comes.
        if !self.streams.is_empty() {
            self.streams.remove(&stream);
        }
    }

    /// A call has ended: with an answer's bytes, or not.
    pub fn on_answer(&mut self, call: CallId, answer: Result<&[u8], CallError>) {
        match answer {
            Ok(_) => self.begin_turn(),
            Err(_) => self.end_turn(),
        }
        let pending = match (self.calls.take(call), answer) {
            (Some(pending), _) => Some(pending),
            // Why a call failed that was never begun.
            (None, Err(_)) => self.calls.take_unsent(),
            (None, Ok(_)) => None,
        };
        if let Some(pending) = pending {
            let now = self.host.now();
            self.finish_call(pending, answer, now);
        }
    }

    /// [`TICK`] has passed.
    pub fn on_tick(&mut self) {
        self.begin_turn();
        let now = self.host.now();
        self.expire_calls(now);
        self.maintain_leases(now);
        self.stats.flush(&self.host);
        // In case a wake was lost.
        self.drain_queues(now);
    }

    /// The plugin is over: its configuration was changed, or Envoy ends. No answer will come any more, so
    /// requests that wait are decided without; other workers may spend what this one holds. Gives the
    /// requests that were too many for this turn.
    pub fn on_end(&mut self) -> UndeliveredOutcomes {
        let now = self.host.now();
        while let Some(pending) = self.calls.take_any() {
            let waiters = pending.waiters.into_iter().map(|waiter| waiter.requester);
            for requester in pending.requester.into_iter().chain(waiters) {
                self.fail(requester, Undecided::Failure);
            }
        }
        while let Some(waiter) = self.calls.unqueue() {
            self.fail(waiter.requester, Undecided::Failure);
        }
        self.return_all_to_slots(now);
        self.stats.end(&self.host);
        self.resume_queue.take()
    }

    fn keep(&mut self, stream: StreamId, kept: Option<StreamState>) {
        if let Some(kept) = kept {
            self.streams.insert(stream, kept);
        }
    }

    /// What is kept of a request that passed by what the worker knows.
    fn allowed_state(&self, descriptors: &RequestDescriptors) -> Option<StreamState> {
        if self.config.headers == HeaderStyle::Off {
            return None;
        }
        let known =
            |key| self.local_table.of(key).is_some_and(|local| local.state.limit.is_known());
        descriptors
            .iter()
            .any(|descriptor| known(descriptor.key))
            .then(|| StreamState::DecidedLocally(LeaseKeys::of(descriptors)))
    }

    fn limits_of(&self, keys: &LeaseKeys) -> (Timestamp, Vec<LimitStatus>) {
        let now = self.host.now();
        let limits = keys.iter().filter_map(|key| {
            let entry = &self.local_table.of(key)?.state;
            let at_hand = entry.pool.left(now);
            Some(LimitStatus { limit: entry.limit, at_hand, verdict: Verdict::Allow })
        });
        (now, limits.collect())
    }

    /// The reply to a request that is denied by what the worker knows.
    fn denial(&self, descriptors: &RequestDescriptors, now: Timestamp) -> Reply {
        let limits = descriptors.iter().filter_map(|descriptor| {
            let entry = &self.local_table.of(descriptor.key)?.state;
            let verdict = match entry.is_denied(
                crate::worker::pending_calls::needed_there(descriptors, &descriptor),
                now,
            ) {
                true => Verdict::Deny,
                false => Verdict::Allow,
            };
            Some(LimitStatus { limit: entry.limit, at_hand: entry.pool.left(now), verdict })
        });
        replies::denial(&self.config, &limits.collect::<Vec<_>>(), now)
    }

    /// How many requests are paused.
    fn paused(&self) -> usize {
        self.streams.values().filter(|stream| matches!(stream, StreamState::Paused)).count()
    }

    fn timeout(&self) -> Nanos {
        Nanos::new(u64::try_from(self.config.timeout.as_nanos()).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests;
