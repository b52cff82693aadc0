//! The service of one connection: flights out, landings in, a probe now and then.
//!
//! The value of a flight is read first unless its version is known. Then it is set if it still has that version.
//! Otherwise it is read, and the flight has lost. A flight that was taken lands in any case: when it is dropped, it has
//! failed.

use super::Inner;
use super::open::Opened;
use super::protocol::{self, Answer, Store};
use super::wire::{Expected, Wire};
use crate::engine::{Cause, Change, Flight, Landing};
use crate::image::Image;
use crate::in_time::in_time;
use crate::layout::{Layout, place};
use crate::retry::random;
use crate::shared::add;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tidegate_core::{Nanos, Timestamp};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// The flights that are sent together.
const PIPELINE: usize = 32;
/// So many pipelines may be unanswered.
const PIPELINES_MAX: usize = 32;
/// How often the server is asked for its time and the seed: after half of this to three halves.
const PROBE: Duration = Duration::from_millis(250);

/// A flight that this connection has taken.
struct Leg {
    flight: Flight,
    /// Whether its value has to be read, as it has another version than was known.
    must_read: bool,
}

/// Flights under way. What is left when this is dropped has failed.
struct Airborne {
    inner: Arc<Inner>,
    legs: Vec<Leg>,
    /// Why the connection was closed.
    closed: Arc<OnceLock<Cause>>,
}

impl Drop for Airborne {
    fn drop(&mut self) {
        if self.legs.is_empty() {
            return;
        }
        let cause = self.closed.get().cloned();
        let cause = cause.unwrap_or_else(|| self.inner.cause("the connection was closed"));
        let failed = |leg: Leg| (leg.flight.id, Landing::Failed(cause.clone()));
        self.inner.shared.land(self.legs.drain(..).map(failed));
    }
}

impl Inner {
    /// Serves until the connection is of no use. Returns why, and whether the server has answered before.
    pub(super) async fn serve(self: &Arc<Inner>, opened: Opened) -> (Cause, bool) {
        let Opened { wire, mut driving, server } = opened;
        let closed = Arc::<OnceLock<Cause>>::default();
        let mut flying = JoinSet::new();
        let (mut has_answered, mut probe) = (false, Box::pin(sleep(PROBE)));
        let cause = loop {
            tokio::select! {
                Some(ended) = flying.join_next() => match ended {
                    Ok(Ok(())) => has_answered = true,
                    Ok(Err(cause)) => break cause,
                    Err(error) => break self.cause(&format!("a task of the connection failed: {error}")),
                },
                () = self.door.ready(), if flying.len() < PIPELINES_MAX => {
                    let flights = self.shared.depart(&self.door, PIPELINE);
                    if !flights.is_empty() {
                        let connection = Connection {
                            inner: self.clone(), wire: wire.clone(), server, closed: closed.clone(),
                        };
                        let airborne = connection.airborne(flights);
                        flying.spawn(connection.fly(airborne));
                    }
                }
                () = &mut probe => {
                    // At other times of a second than before, so that its ticks are seen sooner or later.
                    probe.as_mut().reset(Instant::now() + PROBE / 2 + PROBE.mul_f64((random() % 1_000) as f64 / 1e3));
                    let (inner, wire) = (self.clone(), wire.clone());
                    flying.spawn(async move { inner.probe(wire).await });
                }
                ended = &mut driving.0 => break match ended {
                    Ok(cause) => self.cause(cause.as_str()),
                    Err(error) => self.cause(&error.to_string()),
                },
            }
        };
        // For the flights that are dropped now.
        let _ = closed.set(cause.clone());
        (cause, has_answered)
    }
}

/// A connection, for one pipeline.
struct Connection {
    inner: Arc<Inner>,
    wire: Wire,
    server: u64,
    closed: Arc<OnceLock<Cause>>,
}

/// What follows from an answer.
enum Next {
    Land(Landing),
    Again,
    /// The connection is of no use.
    Broken(Cause),
}

impl Connection {
    /// They land also if the task that has them is dropped before it runs.
    fn airborne(&self, flights: Vec<Flight>) -> Airborne {
        let leg = |flight| Leg { flight, must_read: false };
        let (inner, closed) = (self.inner.clone(), self.closed.clone());
        Airborne { inner, legs: flights.into_iter().map(leg).collect(), closed }
    }

    /// Sends commands until each flight has landed. An error says that the connection is of no use.
    async fn fly(self, mut airborne: Airborne) -> Result<(), Cause> {
        let deadline = Instant::now() + self.inner.timeout;
        for leg in std::mem::take(&mut airborne.legs) {
            match self.refusal(&leg.flight) {
                None => airborne.legs.push(leg),
                Some(why) => {
                    let failed = Landing::Failed(self.inner.cause(why));
                    self.inner.shared.land([(leg.flight.id, failed)]);
                }
            }
        }
        while !airborne.legs.is_empty() {
            let answers = match in_time(deadline, self.send(&airborne.legs)).await {
                Some(Some(answers)) => answers,
                // The task of the connection says why, and its end comes right after.
                Some(None) => {
                    sleep(self.inner.timeout).await;
                    return Err(self.inner.cause("the connection was closed"));
                }
                None => {
                    let cause = self.inner.late();
                    let _ = self.closed.set(cause.clone());
                    return Err(cause);
                }
            };
            let (mut landed, mut rest, mut broken) = (Vec::new(), Vec::new(), None);
            for (mut leg, answer) in airborne.legs.drain(..).zip(answers) {
                match self.next(&mut leg, answer) {
                    Next::Land(landing) => landed.push((leg.flight.id, landing)),
                    Next::Again => rest.push(leg),
                    Next::Broken(cause) => {
                        landed.push((leg.flight.id, Landing::Failed(cause.clone())));
                        broken = Some(cause);
                    }
                }
            }
            airborne.legs = rest;
            self.inner.shared.land(landed);
            if let Some(cause) = broken {
                let _ = self.closed.set(cause.clone());
                return Err(cause);
            }
        }
        Ok(())
    }

    /// Why a flight is not sent.
    fn refusal(&self, flight: &Flight) -> Option<&'static str> {
        let slack = Nanos::from_secs(self.inner.retention.slack_secs);
        let is_late = |now: Timestamp| now > flight.earliest.saturating_add(slack);
        if flight.changes.len() != 1 {
            return Some("an update has keys of several places");
        }
        // The server would forget values before they end.
        let is_late = self.inner.shared.now().is_some_and(is_late);
        is_late.then_some(
            "the request was decided too long ago for the server, or by the clock of another one",
        )
    }

    /// The answers to one command for each leg; none if the connection is closed.
    async fn send(&self, legs: &[Leg]) -> Option<Vec<Answer>> {
        let (mut bytes, first) = (Vec::new(), random() as u32 / 2);
        let now = self.inner.shared.now().map_or(0, |now| now.as_nanos() / 1_000_000_000);
        for (leg, number) in legs.iter().zip(first..) {
            self.command(leg, now, number, &mut bytes);
        }
        add(&self.inner.shared.tally.commands, legs.len() as u64);
        let expected = Expected::Numbered { first, count: legs.len() };
        self.wire.ask(bytes, expected).await
    }

    fn command(&self, leg: &Leg, now: u64, number: u32, out: &mut Vec<u8>) {
        let Some(change) = leg.change() else { return };
        let Change { key, before, after } = change;
        let name = format!("{}{:012x}", self.inner.prefix, place(key));
        let version = self.inner.versions().get(place(key), before, self.server);
        let store =
            Store { value: after, ends: Layout::Place.ends(after, key, self.inner.retention) };
        match version {
            _ if leg.must_read || before == after => protocol::get(out, &name, number),
            None if before.is_empty() => protocol::add(out, &name, store, now, number),
            None => protocol::get(out, &name, number),
            Some(version) if after.is_empty() => protocol::delete(out, &name, version, number),
            Some(version) => protocol::replace(out, &name, (store, version), now, number),
        }
    }

    fn next(&self, leg: &mut Leg, answer: Answer) -> Next {
        let Some(Change { key, before, after }) = leg.change() else {
            return Next::Land(Landing::Failed(self.inner.cause("an update of several places")));
        };
        let place = place(key);
        let note = |value: &[u8], version| {
            self.inner.versions().note(place, value, version, self.server);
        };
        match answer {
            Answer::Done(version) => {
                if let Some(version) = version.filter(|version| *version > 0) {
                    note(after, version);
                }
                Next::Land(Landing::Done)
            }
            Answer::Value { bytes, version } => {
                note(&bytes, version);
                let is_same = before[..] == bytes[..];
                match (is_same, before == after) {
                    (true, true) => Next::Land(Landing::Done),
                    (true, false) => {
                        leg.must_read = false;
                        Next::Again
                    }
                    (false, _) => Next::Land(Landing::Lost(vec![Image::from_vec(bytes)])),
                }
            }
            Answer::Missing if before.is_empty() && before == after => Next::Land(Landing::Done),
            Answer::Missing if before.is_empty() => {
                leg.must_read = false;
                Next::Again
            }
            Answer::Missing => Next::Land(Landing::Lost(vec![Image::new()])),
            Answer::NotStored | Answer::Changed => {
                leg.must_read = true;
                Next::Again
            }
            Answer::Refused(text) => Next::Land(Landing::Failed(self.inner.cause(&text))),
            Answer::Misunderstood(text) => Next::Broken(self.inner.cause(&text)),
            Answer::Version(_) | Answer::Stat(..) | Answer::End => {
                Next::Broken(self.inner.cause("the server gives an answer to another command"))
            }
        }
    }
}

impl Leg {
    /// Its only change: each update has keys of one place.
    fn change(&self) -> Option<&Change> {
        match &self.flight.changes[..] {
            [change] => Some(change),
            _ => None,
        }
    }
}
