//! The engine without connections, for the simulator: time, network and server are the caller's.
//!
//! Everything else is as in a sidecar: updates, groups, known states, the clock. `server` is a slow and obvious twin of
//! `redis/script.lua`. Refuses to wait: an update goes on when the caller lands its command.

mod server;

pub use server::{Answer, Server};

use crate::engine::{Cause, Flight, FlightId, Landing};
use crate::image;
use crate::remote;
use crate::shared::{Door, Shared};
use server::Outcome;
use std::time::Duration;
use tidegate_authority::{Answers, Counters, Update, Updating};
use tidegate_core::Timestamp;
use tidegate_store::{Class, Hashed};

/// The engine of one process.
#[derive(Debug)]
pub struct Engine {
    shared: Shared,
    door: Door,
    seed: u64,
    timeout: Duration,
    /// The name in reservations.
    client: u64,
}

/// A command on its way to the server.
#[derive(Debug, Clone)]
pub struct Command {
    flight: Flight,
    client: u64,
    reserved_ms: u64,
}

/// What to do after an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    Landed,
    /// The server was asked too early: send the command again after so many nanoseconds.
    Again(u64),
}

impl Engine {
    /// An engine without a connection.
    pub fn new(seed: u64, client: u64, timeout: Duration) -> Engine {
        let shared = Shared::simulated(remote::rules(timeout, JITTER));
        Engine { door: shared.only_lane(), shared, seed, timeout, client }
    }

    /// The local monotonic time, in nanoseconds.
    pub fn set_local(&self, nanos: u64) {
        self.shared.set_local(nanos);
    }

    pub fn local(&self) -> u64 {
        self.shared.local()
    }

    /// The server has said its time, in microseconds, outside of an answer to a command.
    pub fn observe(&self, micros: u64) {
        self.shared.clock.observe(self.door.lane, micros, self.shared.local());
    }

    /// A time that the server has reached.
    pub fn now(&self) -> Option<Timestamp> {
        self.shared.now()
    }

    pub fn connect(&self) {
        self.shared.connection_is_up(&self.door);
    }

    /// The connection is gone. Commands under way are to be failed by the caller.
    pub fn disconnect(&self, cause: &str) {
        self.shared.connection_is_down(&self.door, Cause::new(cause));
    }

    /// The commands that are ready. They must land in the end, or else be failed.
    pub fn depart(&self) -> Vec<Command> {
        let reserved_ms = (u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX) / 2).max(1);
        let command = |flight| Command { flight, client: self.client, reserved_ms };
        self.shared.depart(&self.door, usize::MAX).into_iter().map(command).collect()
    }

    /// The answer to a command has arrived.
    pub fn answered(&self, command: &Command, answer: Answer) -> Next {
        let Answer { micros, outcome } = answer;
        self.shared.clock.observe(self.door.lane, micros, self.shared.local());
        let landing = match outcome {
            Outcome::Done => Landing::Done,
            Outcome::Lost(images) => Landing::Lost(images),
            Outcome::Late => Landing::Failed(Cause::new("decided too long ago for the server")),
            Outcome::Early => {
                self.shared.clock.set_back(self.door.lane, micros, self.shared.local());
                let ahead = (command.flight.latest.as_nanos() / 1_000).saturating_sub(micros);
                if u128::from(ahead) < self.timeout.as_micros() / 2 {
                    return Next::Again((ahead + 1) * 1_000);
                }
                Landing::Failed(Cause::new("the server's clock is behind"))
            }
        };
        self.shared.land([(command.id(), landing)]);
        Next::Landed
    }

    /// Nobody knows what became of a command.
    pub fn failed(&self, command: &Command, cause: &str) {
        self.shared.land([(command.id(), Landing::Failed(Cause::new(cause)))]);
    }

    /// A deliberate fault: takes a command for done.
    pub fn mistake_for_done(&self, command: &Command) {
        self.shared.land([(command.id(), Landing::Done)]);
    }
}

/// Keys are kept no longer than they must be.
const JITTER: Duration = Duration::ZERO;

impl Command {
    fn id(&self) -> FlightId {
        self.flight.id
    }

    /// The keys that it changes or compares.
    pub fn keys(&self) -> impl Iterator<Item = &Hashed> {
        self.flight.changes.iter().map(|change| &change.key)
    }

    /// The same for the same command of one engine.
    pub fn number(&self) -> u64 {
        self.flight.id.0
    }
}

impl Counters for Engine {
    fn seed(&self) -> u64 {
        self.seed
    }

    fn state_words(&self) -> usize {
        image::words(Class::Wide)
    }

    fn capacity(&self) -> u64 {
        u64::MAX
    }

    fn answers(&self) -> Answers {
        Answers::Later
    }

    fn update<'u>(
        &'u self,
        keys: &'u [Hashed],
        now: Timestamp,
        update: &'u mut Update<'u>,
    ) -> Updating<'u> {
        remote::update_of(&self.shared, keys, now, update)
    }
}

#[cfg(test)]
mod tests;
