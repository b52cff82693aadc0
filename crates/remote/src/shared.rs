//! What updates and the connections of a driver share: the engine, the clock, the seed, the state of the connections.
//!
//! While no connection is up, an update fails at once, with the cause of the last failure.

use crate::clock::Clock;
use crate::engine::{Ask, Cause, Effects, Engine, Flight, FlightId, Landing, MemberId, Rules};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Poll, Waker};
use std::time::Instant;
use tidegate_authority::{Undecided, Update};
use tidegate_core::Timestamp;
use tidegate_store::Hashed;
use tokio::sync::Notify;

#[derive(Debug)]
pub(crate) struct Shared {
    start: Instant,
    pub(crate) clock: Clock,
    pub(crate) seed: OnceLock<u64>,
    pub(crate) tally: Tally,
    state: Mutex<State>,
    /// A batch is ready.
    ready: Notify,
}

#[derive(Debug)]
struct State {
    engine: Engine,
    connections_up: usize,
    last_cause: Cause,
}

/// What happened since the start.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) committed: AtomicU64,
    pub(crate) commands: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) reconnects: AtomicU64,
}

/// What happened since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Updates that were committed.
    pub committed: u64,
    /// Commands that carried updates.
    pub commands: u64,
    /// Commands that changed nothing, since another sidecar had changed a counter.
    pub lost: u64,
    /// Commands that failed, also those that were not sent because no connection was up.
    pub failed: u64,
    /// Connections that were opened after one was lost.
    pub reconnects: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    Up,
    Down { cause: String },
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Health::Up => f.write_str("the shared counters answer"),
            Health::Down { cause } => write!(f, "the shared counters cannot be reached: {cause}"),
        }
    }
}

impl Shared {
    pub(crate) fn new(rules: Rules) -> Shared {
        let (connections_up, last_cause) = (0, Cause::new("no connection has been made yet"));
        Shared {
            start: Instant::now(),
            clock: Clock::new(),
            seed: OnceLock::new(),
            tally: Tally::default(),
            state: Mutex::new(State { engine: Engine::new(rules), connections_up, last_cause }),
            ready: Notify::new(),
        }
    }

    /// The local time, in nanoseconds of a monotonic clock.
    pub(crate) fn local(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub(crate) fn now(&self) -> Option<Timestamp> {
        self.clock.at(self.local())
    }

    pub(crate) fn begin(&self, keys: &[Hashed]) -> Result<MemberId, Undecided> {
        let at = self.local();
        self.state().engine.begin(keys, at)
    }

    pub(crate) fn poll(
        &self,
        id: MemberId,
        keys: &[Hashed],
        now: Timestamp,
        update: &mut Update<'_>,
        waker: &Waker,
    ) -> Poll<Result<(), Undecided>> {
        let ask = Ask { keys, now, update, waker, at: self.local() };
        let mut state = self.state();
        let polled = state.engine.poll(id, ask);
        self.release(state);
        polled
    }

    pub(crate) fn leave(&self, id: MemberId) {
        let mut state = self.state();
        state.engine.leave(id);
        self.release(state);
    }

    /// Waits until a batch is ready. There may be none left when it is asked for.
    pub(crate) async fn ready(&self) {
        self.ready.notified().await;
    }

    /// Flights to send, of about `keys_max` keys together.
    pub(crate) fn depart(&self, keys_max: usize) -> Vec<Flight> {
        let (mut flights, mut keys) = (Vec::new(), 0);
        let mut state = self.state();
        while keys < keys_max {
            let Some(flight) = state.engine.depart() else { break };
            keys += flight.changes.len();
            flights.push(flight);
        }
        if keys >= keys_max {
            // Perhaps there are more, for this connection or another one.
            self.ready.notify_one();
        }
        self.release(state);
        flights
    }

    pub(crate) fn land(&self, landings: impl IntoIterator<Item = (FlightId, Landing)>) {
        let mut state = self.state();
        for (id, landing) in landings {
            match landing {
                Landing::Done => {}
                Landing::Lost(_) => add(&self.tally.lost, 1),
                Landing::Failed(_) => add(&self.tally.failed, 1),
            }
            state.engine.land(id, landing);
        }
        self.release(state);
    }

    pub(crate) fn connection_is_up(&self) {
        self.state().connections_up += 1;
        self.ready.notify_one();
    }

    pub(crate) fn connection_is_down(&self, cause: Cause) {
        let mut state = self.state();
        state.connections_up -= 1;
        state.last_cause = cause;
        self.release(state);
    }

    /// A connection could not be made.
    pub(crate) fn connection_failed(&self, cause: Cause) {
        self.state().last_cause = cause;
    }

    pub(crate) fn health(&self) -> Health {
        let state = self.state();
        match state.connections_up {
            0 => Health::Down { cause: state.last_cause.to_string() },
            _ => Health::Up,
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            committed: read(&self.tally.committed),
            commands: read(&self.tally.commands),
            lost: read(&self.tally.lost),
            failed: read(&self.tally.failed),
            reconnects: read(&self.tally.reconnects),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // An update that panicked has left the engine as it was.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what the engine has left to do, without its lock.
    fn release(&self, mut state: MutexGuard<'_, State>) {
        if state.connections_up == 0 {
            while let Some(flight) = state.engine.depart() {
                let cause = state.last_cause.clone();
                state.engine.land(flight.id, Landing::Failed(cause));
                add(&self.tally.failed, 1);
            }
        }
        let Effects { is_ready, wakes } = state.engine.effects();
        drop(state);
        if is_ready {
            self.ready.notify_one();
        }
        wakes.into_iter().for_each(Waker::wake);
    }
}

pub(crate) fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}
