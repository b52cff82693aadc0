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
mod requests;
mod responses;
mod resuming;
pub mod root_contexts;
mod settling;
mod statuses;
mod streams;
mod struct_json;
mod tallies;
mod tallying;
mod tick_clock;
mod token_returns;

use crate::config::Config;
use crate::host::stats::Stats;
use crate::host::{CallId, Host, RequestFacts, StreamId};
use crate::leases::descriptor_state::DescriptorState;
use crate::leases::limit_info::FurtherLimits;
use crate::leases::local_table::{LocalTable, ReturnableTokens};
use crate::leases::process::ProcessIdentity;
use crate::leases::shared_table::{SharedTable, Write};
use crate::request::descriptors::LeaseKey;
use crate::worker::circuit_breaker::CircuitBreaker;
use crate::worker::debits::Debits;
use crate::worker::pending_calls::PendingCalls;
use crate::worker::streams::{StreamState, Streams};
use crate::worker::tallies::Tallies;
use crate::worker::tick_clock::TickClock;
use call_error::{CallError, Undecided};
use replies::Denial;
use requests::Extracted;
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
    tallies: Tallies,
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
            tallies: Tallies::default(),
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
        self.tick_reports(now);
        self.stats.flush(&self.host);
        // In case a wake was lost.
        self.drain_queues(now);
    }

    /// The plugin ends because its configuration was replaced or Envoy ends. No more responses will
    /// arrive, so waiting requests are decided without one, and other workers may spend this one's
    /// tokens. Returns the requests beyond this turn's allowance, and costs that were not counted.
    pub fn on_end(&mut self) -> Unfinished {
        let now = self.host.now();
        while let Some(mut pending) = self.calls.take_any() {
            if let Some(report) = pending.report.take() {
                self.tallies.failed(*report);
            }
            let waiters = pending.waiters.into_iter().map(|waiter| waiter.requester);
            for requester in pending.requester.into_iter().chain(waiters) {
                self.fail(requester, Undecided::Failure);
            }
        }
        while let Some(waiter) = self.calls.unqueue() {
            self.fail(waiter.requester, Undecided::Failure);
        }
        let tallies = self.take_tallies();
        self.return_all_to_slots(now);
        self.stats.end(&self.host);
        self.resume_queue.take(self.debits.take_all(), tallies)
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

    fn paused(&self) -> usize {
        self.streams.values().filter(|stream| stream.is_paused()).count()
    }

    fn timeout(&self) -> Nanos {
        Nanos::new(u64::try_from(self.config.timeout.as_nanos()).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests;
