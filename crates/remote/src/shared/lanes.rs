//! The servers that flights go to: the state of their connections, and the flights that one has sent to another.

use super::{Cause, Door, Flight, Landing, Lane, Lanes, NOWHERE, Ready, Shared, add};
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

/// One server.
#[derive(Debug)]
pub(super) struct LaneState {
    up: usize,
    /// Whether its first connection is being made, so that flights may wait for it.
    is_opening: bool,
    last_cause: Cause,
    /// Why keys may disappear from it.
    warning: Option<String>,
    /// Flights that another server has sent here.
    sent_on: VecDeque<Flight>,
    ready: Arc<Ready>,
}

impl LaneState {
    pub(super) fn down(cause: Cause) -> LaneState {
        LaneState {
            up: 0,
            is_opening: false,
            last_cause: cause,
            warning: None,
            sent_on: VecDeque::new(),
            ready: Arc::default(),
        }
    }

    pub(super) fn failure(&self) -> Option<Cause> {
        (self.up == 0 && !self.is_opening).then(|| self.last_cause.clone())
    }

    pub(super) fn take(&mut self) -> Option<Flight> {
        self.sent_on.pop_front()
    }

    fn ready(&self) -> Arc<Ready> {
        self.ready.clone()
    }

    /// Wakes a connection of it.
    pub(super) fn waker(&self) -> Waker {
        self.ready().into()
    }
}

impl Door {
    /// Waits until a batch is ready. There may be none left when it is asked for.
    pub(crate) async fn ready(&self) {
        self.ready.0.notified().await;
    }
}

impl Shared {
    /// The lane of the only server.
    pub(crate) fn only_lane(&self) -> Door {
        Door { lane: 0, ready: self.state().lanes[0].ready() }
    }

    /// A lane for a further node of a cluster. Flights wait in it for the first connection.
    pub(crate) fn open_lane(&self) -> Door {
        let mut state = self.state();
        let opening = LaneState {
            is_opening: true,
            ..LaneState::down(Cause::new("no connection has been made yet"))
        };
        let ready = opening.ready();
        // Nobody has the door of a lane that was closed.
        let is_free = |lane: &LaneState| Arc::strong_count(&lane.ready) == 1;
        let mut lanes = state.lanes.iter().enumerate().skip(NOWHERE + 1);
        let free = lanes.find(|(_, lane)| is_free(lane)).map(|(index, _)| index);
        let lane = free.unwrap_or(state.lanes.len());
        match free {
            Some(lane) => state.lanes[lane] = opening,
            None => state.lanes.push(opening),
        }
        self.clock.forget(lane);
        Door { lane, ready }
    }

    /// A node has left the cluster.
    pub(crate) fn close_lane(&self, door: &Door) {
        let cause = Cause::new("the node has left the cluster");
        let mut state = self.state();
        let Some(lane) = state.lane(door) else { return };
        (lane.up, lane.is_opening, lane.last_cause) = (0, false, cause.clone());
        lane.warning = None;
        self.clock.forget(door.lane);
        self.fail_all(&mut state, door.lane, &cause);
        self.release(state);
    }

    /// Changes which lane has which slots.
    pub(crate) fn set_lanes(&self, change: impl FnOnce(&mut [Lane])) {
        let mut state = self.state();
        let mut used = Vec::new();
        state.engine.set_lanes(|lanes| {
            if let Lanes::Slots(lanes) = lanes {
                change(lanes);
                used = lanes.to_vec();
                used.sort_unstable();
                used.dedup();
            }
        });
        state.used = used;
        self.release(state);
    }

    /// The lane of a slot.
    pub(crate) fn lane_of(&self, slot: usize) -> Lane {
        self.state().engine.lane_of(slot)
    }

    /// Flights to send, of about `keys_max` keys together.
    pub(crate) fn depart(&self, door: &Door, keys_max: usize) -> Vec<Flight> {
        let (mut flights, mut keys) = (Vec::new(), 0);
        let mut state = self.state();
        while keys < keys_max {
            let Some(flight) = state.take(door.lane) else { break };
            keys += flight.changes.len();
            flights.push(flight);
        }
        if keys >= keys_max {
            // Perhaps there are more, for this connection or another one.
            door.ready.0.notify_one();
        }
        self.release(state);
        flights
    }

    /// Sends a flight to another server than the one that refused it.
    pub(crate) fn send_on(&self, lane: Lane, flight: Flight) {
        let mut state = self.state();
        let failure = state.failure(lane);
        match (failure, state.lanes.get_mut(lane)) {
            (None, Some(to)) => {
                to.sent_on.push_back(flight);
                to.ready.0.notify_one();
            }
            (failure, _) => {
                let cause = failure.unwrap_or_else(|| Cause::new("no such server"));
                state.engine.land(flight.id, Landing::Failed(cause));
                add(&self.tally.failed, 1);
            }
        }
        self.release(state);
    }

    pub(crate) fn connection_is_up(&self, door: &Door) {
        let mut state = self.state();
        let Some(lane) = state.lane(door) else { return };
        lane.up += 1;
        lane.is_opening = false;
        door.ready.0.notify_one();
    }

    pub(crate) fn connection_is_down(&self, door: &Door, cause: Cause) {
        let mut state = self.state();
        let Some(lane) = state.lane(door) else { return };
        lane.up = lane.up.saturating_sub(1);
        lane.last_cause = cause;
        self.check_lane(state, door.lane);
    }

    /// A connection could not be made, or not yet.
    pub(crate) fn connection_failed(&self, door: &Door, cause: Cause) {
        let mut state = self.state();
        let Some(lane) = state.lane(door) else { return };
        lane.is_opening = false;
        lane.last_cause = cause;
        self.check_lane(state, door.lane);
    }

    /// Says why slots that no node serves are not served.
    pub(crate) fn nowhere(&self, cause: Cause) {
        self.state().lanes[NOWHERE].last_cause = cause;
    }

    /// Why no update may be made anywhere, if so.
    pub(crate) fn refuse(&self, cause: Option<Cause>) {
        let mut state = self.state();
        state.refusal = cause;
        if let Some(cause) = state.refusal.clone() {
            for lane in 0..state.lanes.len() {
                self.fail_all(&mut state, lane, &cause);
            }
        }
        self.release(state);
    }

    /// What is wrong with the cluster as a whole, if anything is.
    pub(crate) fn set_trouble(&self, trouble: Option<Cause>) {
        self.state().trouble = trouble;
    }

    /// Why keys may disappear from a server. Returns whether that is new.
    pub(crate) fn warn(&self, door: &Door, warning: Option<String>) -> bool {
        let mut state = self.state();
        let Some(lane) = state.lane(door) else { return false };
        let is_new = warning.is_some() && lane.warning != warning;
        lane.warning = warning;
        is_new
    }

    /// Why counters may disappear, if they may.
    pub(crate) fn warning(&self) -> Option<String> {
        self.state().lanes.iter().find_map(|lane| lane.warning.clone())
    }

    /// Fails what waits for a server without connections.
    fn check_lane(&self, mut state: std::sync::MutexGuard<'_, super::State>, lane: Lane) {
        if let Some(cause) = state.lanes.get(lane).and_then(LaneState::failure) {
            self.clock.leave_out(lane);
            self.fail_all(&mut state, lane, &cause);
        }
        self.release(state);
    }
}

impl super::State {
    /// The lane of a door, unless it is another server's by now.
    fn lane(&mut self, door: &Door) -> Option<&mut LaneState> {
        self.lanes.get_mut(door.lane).filter(|lane| Arc::ptr_eq(&lane.ready, &door.ready))
    }
}
