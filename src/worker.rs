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
use crate::host::stats::{Count, Stats};
use crate::host::{CallId, Host, StreamId};
use crate::leases::descriptor_state::Choice;
use crate::leases::local_table::{Locals, Loose};
use crate::leases::process::Process;
use crate::leases::shared_table::Table;
use crate::request::descriptors::Drawn;
use crate::request::draw;
use crate::worker::circuit_breaker::Breaker;
use crate::worker::pending_calls::{Asks, Waiter, Who};
use crate::worker::streams::{Keys, Stream, Streams};
use crate::worker::tick_clock::Patience;
use call_error::{AskError, Undecided};
use local_decisions::Seen;
use replies::Shown;
pub use resuming::Decided;
use resuming::Settling;
use std::collections::VecDeque;
use std::time::Duration;
use tidegate_core::{Nanos, Timestamp, Verdict};
use token_returns::Return;

/// How often a worker looks after its leases.
pub const TICK: Duration = Duration::from_millis(100);

/// What Envoy is to do with the request at hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Go on.
    Continue,
    /// Hold it: it will be resumed, or was answered.
    Pause,
}

/// What becomes of a request.
#[derive(Debug)]
enum Ruling {
    /// It passes, and this is kept for its response.
    Allow(Option<Stream>),
    /// It is answered here.
    Deny(Reply),
}

/// A worker.
#[derive(Debug)]
pub struct Worker<H> {
    host: H,
    config: Config,
    stats: Stats,
    process: Process,
    table: Table,
    locals: Locals,
    asks: Asks,
    streams: Streams,
    breaker: Breaker,
    patience: Patience,
    settling: Settling,
    news: failures::News,
    /// Tokens that are to go back to the sidecar.
    loose: Vec<Loose>,
    /// Leases that a lost answer may have granted.
    recalls: VecDeque<Loose>,
    /// Returns that were not answered.
    unanswered: VecDeque<Return>,
    /// The number of the next call.
    call_next: u64,
    /// Where the next tick goes on.
    visited: usize,
    /// The places in `locals` of the request at hand.
    places: Vec<usize>,
    /// The buffers of the request at hand.
    enforced: Drawn,
    shadowed: Drawn,
}

impl<H: Host> Worker<H> {
    /// A worker that serves by `config`. Called once in each worker, and once more at start in a
    /// machine that never gets a request.
    pub fn new(host: H, config: Config) -> Self {
        let mut stats = Stats::default();
        stats.define(&host);
        let process = Process::join(&host, &config);
        Worker {
            process,
            table: Table::new(config.leases.slots),
            locals: Locals::new(),
            asks: Asks::default(),
            streams: Streams::default(),
            breaker: Breaker::new(),
            patience: Patience::new(config.timeout, TICK),
            settling: Settling::default(),
            news: failures::News::default(),
            loose: Vec::new(),
            recalls: VecDeque::new(),
            unanswered: VecDeque::new(),
            call_next: host.random(),
            visited: 0,
            places: Vec::new(),
            enforced: Drawn::default(),
            shadowed: Drawn::default(),
            host,
            config,
            stats,
        }
    }

    /// The headers of a request have come.
    pub fn on_request(&mut self, stream: StreamId, facts: &impl RequestFacts) -> Step {
        let mut enforced = std::mem::take(&mut self.enforced);
        let mut shadowed = std::mem::take(&mut self.shadowed);
        draw(&self.config, facts, self.process.seed, &mut enforced, &mut shadowed);
        let step = self.take_in(stream, &enforced, &shadowed);
        (self.enforced, self.shadowed) = (enforced, shadowed);
        step
    }

    fn take_in(&mut self, stream: StreamId, enforced: &Drawn, shadowed: &Drawn) -> Step {
        if enforced.is_empty() && shadowed.is_empty() {
            return Step::Continue;
        }
        let now = self.host.now();
        let ruling = self.enforce(stream, enforced, now);
        // What is denied at once counts in no shadow. Of what has to wait nobody knows yet.
        if !matches!(ruling, Some(Ruling::Deny(_))) {
            self.shadow(shadowed, now);
        }
        match ruling {
            Some(Ruling::Allow(kept)) => {
                self.keep(stream, kept);
                Step::Continue
            }
            Some(Ruling::Deny(reply)) => {
                self.host.reply(stream, &reply);
                Step::Pause
            }
            None => Step::Pause,
        }
    }

    /// Decides the descriptors that are enforced; none when the request has to wait.
    fn enforce(&mut self, stream: StreamId, drawn: &Drawn, now: Timestamp) -> Option<Ruling> {
        if drawn.is_empty() {
            return Some(Ruling::Allow(None));
        }
        match self.decide(drawn, Seen::First, now) {
            Choice::Allow => {
                self.stats.count(Count::AllowedLocal);
                Some(Ruling::Allow(self.told_of(drawn)))
            }
            Choice::Deny => {
                self.stats.count(Count::DeniedLocal);
                Some(Ruling::Deny(self.denial(drawn, now)))
            }
            Choice::Ask => {
                self.stats.count(Count::LeaseMisses);
                self.streams.insert(stream, Stream::Paused);
                let undecided = self.ask_first(Who::Stream(stream), drawn, now).err()?;
                self.streams.remove(&stream);
                Some(self.undecided(undecided))
            }
        }
    }

    /// Counts what the descriptors in shadow would have done.
    fn shadow(&mut self, drawn: &Drawn, now: Timestamp) {
        if drawn.is_empty() {
            return;
        }
        match self.decide(drawn, Seen::First, now) {
            Choice::Allow => {}
            Choice::Deny => self.stats.count(Count::ShadowDenied),
            Choice::Ask => {
                // Without a decision it counts in nothing.
                let _ = self.ask_first(Who::Shadow, drawn, now);
            }
        }
    }

    /// Asks for a request that has just come, or has it wait for another's answer.
    fn ask_first(&mut self, who: Who, drawn: &Drawn, now: Timestamp) -> Result<(), Undecided> {
        if !self.breaker.is_closed() {
            if self.breaker.probe(now) {
                self.probe(drawn, now);
            }
            return Err(Undecided::Failure);
        }
        if !self.asks.has_room(self.settling.due()) {
            self.note_full(now);
            return Err(Undecided::Overload);
        }
        let deadline = self.patience.deadline();
        self.pose(Waiter { who, drawn: drawn.clone(), deadline }, &[], now)
    }

    /// The response headers of a request have come.
    pub fn on_response(&mut self, stream: StreamId) {
        if self.streams.is_empty() {
            return;
        }
        let shown = match self.streams.remove(&stream) {
            Some(Stream::Passed(keys)) => self.shown_of(&keys),
            Some(Stream::Told(shown)) => (self.host.now(), shown),
            // Answered from elsewhere while it was paused: it is still to be told when it is gone.
            Some(paused @ Stream::Paused) => {
                self.streams.insert(stream, paused);
                return;
            }
            None => return,
        };
        let (now, shown) = shown;
        let headers = replies::headers(&self.config, &shown, now);
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
    pub fn on_answer(&mut self, call: CallId, answer: Result<&[u8], AskError>) {
        match answer {
            Ok(_) => self.begin_turn(),
            Err(_) => self.end_turn(),
        }
        let ask = match (self.asks.take(call), answer) {
            (Some(ask), _) => Some(ask),
            // Why a call failed that was never begun.
            (None, Err(_)) => self.asks.take_unsent(),
            (None, Ok(_)) => None,
        };
        if let Some(ask) = ask {
            let now = self.host.now();
            self.end(ask, answer, now);
        }
    }

    /// [`TICK`] has passed.
    pub fn on_tick(&mut self) {
        self.begin_turn();
        let now = self.host.now();
        self.look_after_calls(now);
        self.look_after_leases(now);
        self.stats.flush(&self.host);
        // In case a wake was lost.
        self.go_on(now);
    }

    /// The plugin is over: its configuration was changed, or Envoy ends. No answer will come any more, so
    /// requests that wait are decided without; other workers may spend what this one holds. Gives the
    /// requests that were too many for this turn.
    pub fn on_end(&mut self) -> Decided {
        let now = self.host.now();
        while let Some(ask) = self.asks.take_any() {
            let waiters = ask.waiters.into_iter().map(|waiter| waiter.who);
            for who in ask.asker.into_iter().chain(waiters) {
                self.fail(who, Undecided::Failure);
            }
        }
        while let Some(waiter) = self.asks.unqueue() {
            self.fail(waiter.who, Undecided::Failure);
        }
        self.put_all_back(now);
        self.stats.end(&self.host);
        self.settling.take()
    }

    fn keep(&mut self, stream: StreamId, kept: Option<Stream>) {
        if let Some(kept) = kept {
            self.streams.insert(stream, kept);
        }
    }

    /// What is kept of a request that passed by what the worker knows.
    fn told_of(&self, drawn: &Drawn) -> Option<Stream> {
        if self.config.headers == HeaderStyle::Off {
            return None;
        }
        let known = |key| self.locals.of(key).is_some_and(|local| local.entry.told.is_known());
        drawn.iter().any(|drawing| known(drawing.key)).then(|| Stream::Passed(Keys::of(drawn)))
    }

    fn shown_of(&self, keys: &Keys) -> (Timestamp, Vec<Shown>) {
        let now = self.host.now();
        let shown = keys.iter().filter_map(|key| {
            let entry = &self.locals.of(key)?.entry;
            let at_hand = entry.purse.left(now);
            Some(Shown { told: entry.told, at_hand, verdict: Verdict::Allow })
        });
        (now, shown.collect())
    }

    /// The reply to a request that is denied by what the worker knows.
    fn denial(&self, drawn: &Drawn, now: Timestamp) -> Reply {
        let shown = drawn.iter().filter_map(|drawing| {
            let entry = &self.locals.of(drawing.key)?.entry;
            let verdict = match entry
                .is_denied(crate::worker::pending_calls::needed_there(drawn, &drawing), now)
            {
                true => Verdict::Deny,
                false => Verdict::Allow,
            };
            Some(Shown { told: entry.told, at_hand: entry.purse.left(now), verdict })
        });
        replies::denial(&self.config, &shown.collect::<Vec<_>>(), now)
    }

    /// How many requests are paused.
    fn paused(&self) -> usize {
        self.streams.values().filter(|stream| matches!(stream, Stream::Paused)).count()
    }

    fn timeout(&self) -> Nanos {
        Nanos::new(u64::try_from(self.config.timeout.as_nanos()).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests;
