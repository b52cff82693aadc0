//! One Envoy worker: handles Envoy's events.
//!
//! Owns all state of a worker. Sees Envoy only as a [`Host`], so that the same code runs in Envoy,
//! in native tests and in the simulator. A locally decided request costs one reading of the clock,
//! and no other host calls than those that read the request.

mod additions;
pub mod call_error;
mod call_results;
mod calling;
mod circuit_breaker;
#[cfg(feature = "cel")]
mod conditions;
mod debit_calls;
mod debits;
mod failures;
mod late_requests;
mod local_decisions;
mod maintenance;
mod met_limits;
mod pending_calls;
mod replies;
mod reports;
mod resuming;
pub mod root_contexts;
mod settling;
mod streams;
mod struct_json;
mod tick_clock;
mod token_returns;

use crate::config::{Config, HeaderStyle, RequestType, Selection};
use crate::host::stats::{Counter, Stats};
use crate::host::{CallId, Header, Host, RequestFacts, StreamId};
use crate::leases::descriptor_state::{DescriptorState, LocalDecision};
use crate::leases::limit_info::FurtherLimits;
use crate::leases::local_table::{LocalTable, ReturnableTokens};
use crate::leases::process::ProcessIdentity;
use crate::leases::shared_table::{SharedTable, Write};
use crate::request::descriptors::{Descriptors, LeaseKey};
use crate::request::extract;
use crate::worker::circuit_breaker::CircuitBreaker;
use crate::worker::debits::Debits;
use crate::worker::pending_calls::{PendingCalls, Requester, Waiter};
use crate::worker::streams::{LeaseKeys, StreamState, Streams};
use crate::worker::tick_clock::TickClock;
use call_error::{CallError, Undecided};
use local_decisions::Attempt;
use replies::Denial;
use resuming::ResumeQueue;
pub use resuming::Unfinished;
use std::collections::VecDeque;
use std::time::Duration;
use tidegate_core::{Nanos, Timestamp};
use token_returns::TokenReturn;

/// The period of maintenance.
pub const TICK: Duration = Duration::from_millis(100);

/// What Envoy does next with the current request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadersStatus {
    /// It continues the filter chain.
    Continue,
    /// It holds the request, which is resumed later or has been answered.
    Pause,
}

#[derive(Debug)]
enum Outcome {
    /// It passes, with state for its response.
    Allow(Option<StreamState>),
    /// It gets a local reply.
    Deny(Denial),
}

/// What became of a request in its own callback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decided {
    /// It passes.
    Allow,
    /// It has its local reply.
    Deny,
    /// It waits.
    Later,
}

/// A worker.
#[derive(Debug)]
pub struct Worker<H> {
    host: H,
    config: Config,
    stats: Stats,
    process: ProcessIdentity,
    shared: SharedTable,
    local: LocalTable,
    calls: PendingCalls,
    streams: Streams,
    /// The memory of what streams owe.
    owing_bytes: usize,
    debits: Debits,
    /// The number of this worker's sequence of debits, once it has sent one.
    debit_sequence: Option<u64>,
    breaker: CircuitBreaker,
    tick_clock: TickClock,
    resume_queue: ResumeQueue,
    failure_log: failures::FailureLog,
    /// The time of the last log line about a condition.
    #[cfg(feature = "cel")]
    condition_logged_at: Option<Timestamp>,
    /// Tokens to return to the sidecar.
    to_return: Vec<ReturnableTokens>,
    /// Leases that a lost response may have granted.
    recalls: VecDeque<ReturnableTokens>,
    /// Returns without a response.
    unanswered: VecDeque<TokenReturn>,
    call_next: u64,
    /// Where the next tick continues.
    visited: usize,
    /// The indexes of the current request in `local_table`.
    indexes: Vec<usize>,
    /// The buffers of the current request, which has them while it is decided.
    extracted: Option<Box<Extracted>>,
}

/// The descriptors of a request.
#[derive(Debug, Default)]
struct Extracted {
    enforced: Descriptors,
    shadowed: Descriptors,
}

impl<H: Host> Worker<H> {
    /// Starts a worker. Runs once per worker, and once more at start in a virtual machine that
    /// never gets a request.
    pub fn new(host: H, config: Config) -> Self {
        let mut stats = Stats::default();
        stats.define(&host, &config.reports.stat_prefix);
        let process = ProcessIdentity::join(&host, &config);
        Worker {
            process,
            shared: SharedTable { slots: config.lease_slots },
            local: LocalTable::default(),
            calls: PendingCalls::default(),
            streams: Streams::default(),
            owing_bytes: 0,
            debits: Debits::default(),
            debit_sequence: None,
            breaker: CircuitBreaker::new(),
            tick_clock: TickClock::new(config.timeout, TICK),
            resume_queue: ResumeQueue::default(),
            failure_log: failures::FailureLog::default(),
            #[cfg(feature = "cel")]
            condition_logged_at: None,
            to_return: Vec::new(),
            recalls: VecDeque::new(),
            unanswered: VecDeque::new(),
            call_next: host.random(),
            visited: 0,
            indexes: Vec::new(),
            extracted: None,
            host,
            config,
            stats,
        }
    }

    /// The headers of a request have arrived.
    pub fn on_request(&mut self, stream: StreamId, facts: &impl RequestFacts) -> HeadersStatus {
        let is_special = self.config.is_special;
        if is_special && !self.selects(facts) {
            return HeadersStatus::Continue;
        }
        let mut extracted = self.extracted.take().unwrap_or_default();
        let Extracted { enforced, shadowed } = &mut *extracted;
        extract(&self.config, facts, self.process.seed, enforced, shadowed);
        #[cfg(feature = "cel")]
        if let Some((failures, first)) = enforced.take_failures() {
            self.note_condition(failures, &first);
        }
        let status = if is_special && !self.config.late_charges.is_empty() {
            self.decide_late_request(stream, facts, enforced, shadowed)
        } else {
            self.decide_request(stream, enforced, shadowed)
        };
        self.extracted = Some(extracted);
        status
    }

    /// Whether the filter looks at a request.
    #[cold]
    fn selects(&self, facts: &impl RequestFacts) -> bool {
        let Some(Selection { request_type, enabled }) = self.config.selection else { return true };
        let is_internal =
            || facts.header("x-envoy-internal", |value| value == b"true").unwrap_or(false);
        let is_of_type = match request_type {
            RequestType::Both => true,
            RequestType::Internal => is_internal(),
            RequestType::External => !is_internal(),
        };
        is_of_type && enabled.includes(|| self.host.random())
    }

    /// Whether a denial is carried out; counts it otherwise. `deliver_counted` counts those of
    /// descriptors in shadow.
    fn enforces_denial(&mut self, requester: Requester) -> bool {
        let enforces = matches!(requester, Requester::Shadow(_))
            || self.config.filter_enforced.includes(|| self.host.random());
        if !enforces {
            self.stats.count(Counter::ShadowDenied);
        }
        enforces
    }

    fn decide_request(
        &mut self,
        stream: StreamId,
        enforced: &Descriptors,
        shadowed: &Descriptors,
    ) -> HeadersStatus {
        if enforced.is_empty() && shadowed.is_empty() {
            return HeadersStatus::Continue;
        }
        let now = self.host.now();
        let decided = self.enforce(stream, enforced, now);
        // A request that is denied does not count in shadow. One that waits may still pass.
        if !shadowed.is_empty() && decided != Decided::Deny {
            self.shadow(stream, shadowed, now);
        }
        match decided {
            Decided::Allow => HeadersStatus::Continue,
            Decided::Deny | Decided::Later => HeadersStatus::Pause,
        }
    }

    /// Decides the enforced descriptors, and carries that out.
    fn enforce(&mut self, stream: StreamId, descriptors: &Descriptors, now: Timestamp) -> Decided {
        if descriptors.is_empty() {
            return Decided::Allow;
        }
        match self.decide(descriptors, Attempt::First, now) {
            LocalDecision::Deny if self.enforces_denial(Requester::Stream(stream)) => {
                self.stats.count(Counter::DeniedLocal);
                let requester = Requester::Stream(stream);
                self.denial(requester, descriptors, now).send(&self.host, stream);
                Decided::Deny
            }
            LocalDecision::Allow => {
                self.stats.count(Counter::AllowedLocal);
                let kept = self.allowed_state(descriptors);
                self.keep(stream, kept);
                Decided::Allow
            }
            LocalDecision::Deny => {
                self.stats.count(Counter::AllowedLocal);
                let kept = self.shadowed_state(descriptors, now);
                self.keep(stream, kept);
                Decided::Allow
            }
            LocalDecision::Ask => {
                self.stats.count(Counter::LeaseMisses);
                self.streams.insert(stream, StreamState::Paused);
                let requester = Requester::Stream(stream);
                let Err(why) = self.call_or_wait(requester, descriptors, now) else {
                    return Decided::Later;
                };
                self.streams.remove(&stream);
                match self.undecided(why) {
                    Outcome::Allow(_) => Decided::Allow,
                    Outcome::Deny(mut denial) => {
                        denial.send(&self.host, stream);
                        Decided::Deny
                    }
                }
            }
        }
    }

    /// Counts the effect that the descriptors in shadow would have. The limits that would deny now
    /// are noted; those of an answer that is still to come are only counted.
    #[inline(never)]
    fn shadow(&mut self, stream: StreamId, descriptors: &Descriptors, now: Timestamp) {
        match self.decide_unless_refunding(descriptors, Attempt::First, now) {
            LocalDecision::Allow => self.note_taken(Requester::Shadow(stream), None, now),
            LocalDecision::Deny => {
                self.stats.count(Counter::ShadowDenied);
                let names = self.denying(descriptors, now);
                self.note_shadow(stream, &names);
            }
            LocalDecision::Ask => {
                // Without a decision nothing is counted.
                if self.call_or_wait(Requester::Shadow(stream), descriptors, now).is_ok() {
                    self.await_shadow(stream);
                }
            }
        }
    }

    /// Calls the sidecar for a new request, or adds it to a pending call.
    fn call_or_wait(
        &mut self,
        requester: Requester,
        descriptors: &Descriptors,
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

    /// The response headers of a request have arrived.
    pub fn on_response(&mut self, stream: StreamId, facts: &impl RequestFacts) {
        if self.streams.is_empty() {
            return;
        }
        let headers = match self.streams.remove(&stream) {
            // Answered by another filter while it was paused; its deletion is still to come.
            Some(paused @ StreamState::Paused) => {
                self.streams.insert(stream, paused);
                return;
            }
            Some(StreamState::Owing(owing)) => {
                match self.on_response_of_owing(stream, owing, facts) {
                    Some(StreamState::Noted(notes)) => {
                        return self.respond_with_notes(stream, *notes);
                    }
                    Some(decided) => self.limit_headers_of(decided),
                    None => return,
                }
            }
            Some(StreamState::Noted(notes)) => return self.respond_with_notes(stream, *notes),
            Some(decided) => self.limit_headers_of(decided),
            None => return,
        };
        if !headers.is_empty() {
            self.host.add_response_headers(&headers);
        }
    }

    /// The headers about limits of a response.
    fn limit_headers_of(&self, decided: StreamState) -> Vec<Header> {
        let (now, limits) = match decided {
            StreamState::DecidedLocally(keys) => self.limits_of(keys.iter().map(|key| (key, None))),
            StreamState::DecidedByEntry(keys) => self.limits_of(keys.into_iter()),
            StreamState::DecidedBySidecar(limits) => (self.host.now(), limits),
            StreamState::Paused | StreamState::Noted(_) | StreamState::Owing(_) => {
                return Vec::new();
            }
        };
        replies::headers(&self.config, &limits, now)
    }

    /// A request is over, for any reason.
    pub fn on_gone(&mut self, stream: StreamId, facts: &impl RequestFacts) {
        // If it is queued, it is skipped when its turn comes.
        if !self.streams.is_empty() {
            self.forget(stream, facts);
        }
    }

    /// Apart, so that the usual end of a request needs no stack for the state of another one.
    #[inline(never)]
    fn forget(&mut self, stream: StreamId, facts: &impl RequestFacts) {
        if let Some(StreamState::Owing(owing)) = self.streams.remove(&stream) {
            self.settle(stream, owing, facts);
        }
    }

    /// A call has ended, with a response or an error.
    pub fn on_answer(&mut self, call: CallId, answer: Result<&[u8], CallError>) {
        match answer {
            Ok(_) => self.begin_turn(),
            Err(_) => self.end_turn(),
        }
        let pending = match (self.calls.take(call), answer) {
            (Some(pending), _) => Some(pending),
            // The cause of a call that failed at once.
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
        if !self.debits.is_empty() {
            self.tick_debits(now);
        }
        self.stats.flush(&self.host);
        // In case a wake was lost.
        self.drain_queues(now);
    }

    /// The plugin ends because its configuration was replaced or Envoy ends. No more responses will
    /// arrive, so waiting requests are decided without one, and other workers may spend this one's
    /// tokens. Returns the requests beyond this turn's allowance, and costs that were not counted.
    pub fn on_end(&mut self) -> Unfinished {
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
        self.resume_queue.take(self.debits.take_all())
    }

    #[inline]
    fn keep(&mut self, stream: StreamId, kept: Option<StreamState>) {
        let Some(kept) = kept else { return };
        // Not moved out of it, which would copy the largest of states.
        if matches!(kept, StreamState::Noted(_)) {
            return self.keep_noted(stream, kept);
        }
        self.streams.insert(stream, kept);
    }

    fn change_slot<R>(
        &mut self,
        key: LeaseKey,
        now: Timestamp,
        mut change: impl FnMut(&mut DescriptorState) -> (R, Write),
    ) -> Option<R> {
        self.change_slot_with_limits(key, now, |slot, _| change(slot))
    }

    fn change_slot_with_limits<R>(
        &mut self,
        key: LeaseKey,
        now: Timestamp,
        change: impl FnMut(&mut DescriptorState, &mut FurtherLimits) -> (R, Write),
    ) -> Option<R> {
        self.shared.change(&self.host, &mut self.stats, key, now, change)
    }

    /// State for the response of a locally allowed request.
    fn allowed_state(&self, descriptors: &Descriptors) -> Option<StreamState> {
        if self.config.headers == HeaderStyle::Off {
            return None;
        }
        let known = |key| self.local.of(key).is_some_and(|record| record.state.limit.is_known());
        descriptors.iter().any(|descriptor| known(descriptor.key)).then(|| {
            match self.config.headers {
                HeaderStyle::ByEntry => StreamState::by_entry(descriptors),
                _ => StreamState::DecidedLocally(LeaseKeys::of(descriptors)),
            }
        })
    }

    fn paused(&self) -> usize {
        self.streams.values().filter(|stream| stream.is_paused()).count()
    }

    fn timeout(&self) -> Nanos {
        Nanos::new(u64::try_from(self.config.timeout.as_nanos()).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests;
