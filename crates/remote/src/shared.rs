//! What updates and the connections of a driver share: the engine, the clock, the seed, the state of the connections.
//!
//! While no connection to the server of a key is up, an update of it fails at once, with the cause of the last failure.
//! `lanes` has the servers.

mod lanes;

use crate::clock::{Clock, Reached};
use crate::engine::{Ask, Cause, Effects, Engine, Flight, FlightId, Landing, MemberId, Rules};
use crate::slots::{Lane, Lanes, NOWHERE};
use lanes::LaneState;
use smallvec::SmallVec;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Poll, Wake, Waker};
use std::time::Instant;
use tidegate_authority::{Undecided, Update, wakes};
use tidegate_core::Timestamp;
use tidegate_store::Hashed;
use tokio::sync::Notify;

#[derive(Debug)]
pub(crate) struct Shared {
    local: Local,
    pub(crate) clock: Clock,
    /// One for all servers of an installation.
    pub(crate) seed: Arc<OnceLock<u64>>,
    pub(crate) tally: Tally,
    state: Mutex<State>,
}

/// Where the local time comes from.
#[derive(Debug)]
enum Local {
    Since(Instant),
    /// In nanoseconds, as the simulator says.
    Simulated(AtomicU64),
}

#[derive(Debug)]
struct State {
    engine: Engine,
    lanes: Vec<LaneState>,
    /// The lanes that have keys.
    used: Vec<Lane>,
    /// Why no update may be made anywhere.
    refusal: Option<Cause>,
    /// What is wrong with a cluster as a whole.
    trouble: Option<Cause>,
}

/// The end of a lane at which its connections take flights.
#[derive(Debug, Clone)]
pub(crate) struct Door {
    pub(crate) lane: Lane,
    ready: Arc<Ready>,
}

/// Says that batches are ready.
#[derive(Debug, Default)]
struct Ready(Notify);

impl Wake for Ready {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
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

impl Counts {
    #[must_use]
    pub fn plus(self, other: Counts) -> Counts {
        Counts {
            committed: self.committed + other.committed,
            commands: self.commands + other.commands,
            lost: self.lost + other.lost,
            failed: self.failed + other.failed,
            reconnects: self.reconnects + other.reconnects,
        }
    }
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
    /// Of one server, whose lane is number 0.
    pub(crate) fn of_one(rules: Rules) -> Shared {
        Shared::new(rules, Lanes::One, Local::Since(Instant::now()))
    }

    /// Of a cluster whose nodes are not known yet.
    pub(crate) fn of_cluster(rules: Rules) -> Shared {
        Shared::new(rules, Lanes::nowhere(), Local::Since(Instant::now()))
    }

    /// Of one server, with the time that is set.
    pub(crate) fn simulated(rules: Rules) -> Shared {
        Shared::new(rules, Lanes::One, Local::Simulated(AtomicU64::new(0)))
    }

    /// With the seed that it has in common with other servers.
    pub(crate) fn with_seed(self, seed: &Arc<OnceLock<u64>>) -> Shared {
        Shared { seed: seed.clone(), ..self }
    }

    fn new(rules: Rules, lanes: Lanes, local: Local) -> Shared {
        let cause = match lanes {
            Lanes::One => "no connection has been made yet",
            Lanes::Slots(_) => "no node of the cluster has answered yet",
        };
        let state = State {
            engine: Engine::new(rules, lanes),
            lanes: vec![LaneState::down(Cause::new(cause))],
            used: vec![0],
            refusal: None,
            trouble: None,
        };
        Shared {
            local,
            clock: Clock::new(),
            seed: Arc::default(),
            tally: Tally::default(),
            state: Mutex::new(state),
        }
    }

    /// The local time, in nanoseconds of a monotonic clock.
    pub(crate) fn local(&self) -> u64 {
        match &self.local {
            Local::Since(start) => u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX),
            // Relaxed: the simulator has one thread.
            Local::Simulated(nanos) => nanos.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn set_local(&self, nanos: u64) {
        if let Local::Simulated(local) = &self.local {
            local.store(nanos, Ordering::Relaxed);
        }
    }

    pub(crate) fn now(&self) -> Option<Timestamp> {
        self.clock.at(self.local())
    }

    pub(crate) fn reached(&self) -> Option<Reached> {
        self.clock.reached(self.local())
    }

    /// The servers had reached this time before any has answered here.
    pub(crate) fn remember(&self, now: Timestamp) {
        self.clock.remember(now.as_nanos() / 1_000, self.local());
    }

    /// Polls an update. The first time it begins, and gets its number.
    pub(crate) fn poll(
        &self,
        id: &mut Option<MemberId>,
        keys: &[Hashed],
        now: Timestamp,
        update: &mut Update<'_>,
        waker: &Waker,
    ) -> Poll<Result<(), Undecided>> {
        let ask = Ask { keys, now, update, waker, at: self.local() };
        let mut state = self.state();
        let number = match *id {
            Some(number) => number,
            None => *id.insert(state.engine.begin(keys, ask.at)?),
        };
        let polled = state.engine.poll(number, ask);
        self.release(state);
        polled
    }

    pub(crate) fn leave(&self, id: MemberId) {
        let mut state = self.state();
        state.engine.leave(id);
        self.release(state);
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

    pub(crate) fn health(&self) -> Health {
        let state = self.state();
        let down = state.used.iter().find_map(|lane| state.failure(*lane));
        match state.refusal.clone().or(down).or_else(|| state.trouble.clone()) {
            Some(cause) => Health::Down { cause: cause.to_string() },
            None => Health::Up,
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
        let mut all = Vec::new();
        let mut doors: SmallVec<[_; 2]> = SmallVec::new();
        loop {
            let Effects { ready, wakes } = state.engine.effects();
            all.extend(wakes);
            if ready.is_empty() {
                break;
            }
            for lane in ready {
                match state.failure(lane) {
                    Some(cause) => self.fail_all(&mut state, lane, &cause),
                    None => doors.extend(state.lanes.get(lane).map(LaneState::waker)),
                }
            }
        }
        drop(state);
        doors.iter().for_each(wakes::wake);
        all.into_iter().for_each(Waker::wake);
    }

    /// Fails the flights that wait in a lane.
    fn fail_all(&self, state: &mut State, lane: Lane, cause: &Cause) {
        while let Some(flight) = state.take(lane) {
            state.engine.land(flight.id, Landing::Failed(cause.clone()));
            add(&self.tally.failed, 1);
        }
    }
}

impl State {
    /// Why flights in a lane must not wait, if so.
    fn failure(&self, lane: Lane) -> Option<Cause> {
        if let Some(cause) = &self.refusal {
            return Some(cause.clone());
        }
        match self.lanes.get(lane) {
            Some(lane) => lane.failure(),
            None => Some(Cause::new("no such server")),
        }
    }

    /// The next flight of a lane.
    fn take(&mut self, lane: Lane) -> Option<Flight> {
        let sent_on = self.lanes.get_mut(lane).and_then(LaneState::take);
        sent_on.or_else(|| self.engine.depart(lane))
    }
}

pub(crate) fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}
