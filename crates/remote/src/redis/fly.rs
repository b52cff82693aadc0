//! The service of one connection: flights out, landings in, a probe now and then.
//!
//! A flight that was taken lands in any case: when it is dropped, it has failed.

use super::Inner;
use super::bounded::Allowance;
use super::dial::Connection;
use super::open::{NO_TIME, Opened, micros, server_error};
use super::script::{Answer, Calls, Outcome, SCRIPT};
use crate::engine::{Cause, Flight, Landing};
use crate::shared::{Shared, add};
use ::redis::aio::MultiplexedConnection;
use ::redis::{Pipeline, Value, cmd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout_at};

/// The keys of the flights that are sent together, about.
const PIPELINE_KEYS: usize = 256;
/// So many pipelines may be unanswered. Their answers take up to 5 MiB.
const PIPELINES_MAX: usize = 32;
/// How often the server is asked for its time and the seed.
const PROBE: Duration = Duration::from_millis(250);
const PROBE_BYTES: usize = 2_048;

/// Flights that this connection has taken.
struct Airborne {
    shared: Arc<Shared>,
    flights: Vec<Flight>,
    /// Why the connection was closed.
    closed: Arc<OnceLock<Cause>>,
}

impl Airborne {
    fn land(&mut self, landings: Vec<Landing>, rest: Vec<Flight>) {
        let flights = std::mem::replace(&mut self.flights, rest);
        let ids = flights.iter().map(|flight| flight.id);
        self.shared.land(ids.zip(landings));
    }
}

impl Drop for Airborne {
    fn drop(&mut self) {
        if self.flights.is_empty() {
            return;
        }
        let cause = self.closed.get().cloned();
        let cause = cause.unwrap_or_else(|| Cause::new("the connection to the server was closed"));
        let failed = |flight: &Flight| (flight.id, Landing::Failed(cause.clone()));
        self.shared.land(self.flights.iter().map(failed));
    }
}

impl Inner {
    /// Serves until the connection is of no use. Returns why, and whether the server has answered before.
    pub(super) async fn serve(self: &Arc<Inner>, opened: Opened) -> (Cause, bool) {
        let Opened { connection, script } = opened;
        let Connection { commands, allowance, mut task } = connection;
        let wire = Wire {
            commands,
            allowance,
            script: script.into(),
            shared: self.shared.clone(),
            calls: self.calls.clone().into(),
            timeout: self.timeout,
            closed: Arc::default(),
        };
        let mut flying = JoinSet::new();
        let mut probes = interval(PROBE);
        probes.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut has_answered = false;
        let cause = loop {
            tokio::select! {
                Some(ended) = flying.join_next() => match ended {
                    Ok(Ok(())) => has_answered = true,
                    Ok(Err(cause)) => break cause,
                    Err(error) => break Cause::new(&format!("a task of the connection failed: {error}")),
                },
                () = self.shared.ready(), if flying.len() < PIPELINES_MAX => {
                    let flights = self.shared.depart(PIPELINE_KEYS);
                    if !flights.is_empty() {
                        flying.spawn(wire.clone().fly(flights));
                    }
                }
                _ = probes.tick() => {
                    flying.spawn(wire.clone().probe(self.clone()));
                }
                _ = &mut task.0 => break ended(&mut flying).await,
            }
        };
        // For the flights that are dropped now.
        let _ = wire.closed.set(cause.clone());
        (cause, has_answered)
    }
}

/// The cause of a connection's end, from one of its flights. They fail soon, since nothing answers them any more.
async fn ended(flying: &mut JoinSet<Result<(), Cause>>) -> Cause {
    while let Some(ended) = flying.join_next().await {
        if let Ok(Err(cause)) = ended {
            return cause;
        }
    }
    Cause::new("the server has closed the connection")
}

/// A connection, for one pipeline.
#[derive(Clone)]
struct Wire {
    commands: MultiplexedConnection,
    allowance: Allowance,
    script: Arc<str>,
    shared: Arc<Shared>,
    calls: Arc<Calls>,
    timeout: Duration,
    closed: Arc<OnceLock<Cause>>,
}

/// What to do with a flight after an answer.
enum Next {
    Land(Landing),
    Load,
    /// Send it again after a pause.
    Wait(Duration),
}

impl Wire {
    /// Sends flights until each has landed. An error says that the connection is of no use.
    async fn fly(mut self, flights: Vec<Flight>) -> Result<(), Cause> {
        let deadline = Instant::now() + self.timeout;
        let (shared, closed) = (self.shared.clone(), self.closed.clone());
        let mut airborne = Airborne { shared, flights, closed };
        let (mut must_load, mut was_loaded) = (false, false);
        while !airborne.flights.is_empty() {
            let answers = self.send(&airborne.flights, must_load, deadline).await;
            let answers = answers.inspect_err(|cause| _ = self.closed.set(cause.clone()))?;
            was_loaded |= must_load;
            must_load = false;
            let (mut landings, mut landed, mut rest) = (Vec::new(), Vec::new(), Vec::new());
            let (mut wait, mut broken) = (Duration::ZERO, None);
            for (flight, answer) in std::mem::take(&mut airborne.flights).into_iter().zip(answers) {
                match self.next(&flight, answer, was_loaded, &mut broken) {
                    Next::Land(landing) => {
                        landings.push(landing);
                        landed.push(flight);
                        continue;
                    }
                    Next::Load => must_load = true,
                    Next::Wait(pause) => wait = wait.max(pause),
                }
                rest.push(flight);
            }
            airborne.flights = landed;
            airborne.land(landings, rest);
            if let Some(cause) = broken {
                let _ = self.closed.set(Cause::clone(&cause));
                return Err(cause);
            }
            if !airborne.flights.is_empty() && !wait.is_zero() {
                sleep(wait).await;
            }
        }
        Ok(())
    }

    async fn send(
        &mut self,
        flights: &[Flight],
        must_load: bool,
        deadline: Instant,
    ) -> Result<Vec<Value>, Cause> {
        let mut pipeline = Pipeline::with_capacity(flights.len() + 1);
        if must_load {
            pipeline.add_command(cmd("SCRIPT").arg("LOAD").arg(SCRIPT).clone());
        }
        for flight in flights {
            self.calls.add(&mut pipeline, &self.script, flight);
        }
        add(&self.shared.tally.commands, flights.len() as u64);
        let skipped = usize::from(must_load);
        let bytes = flights.iter().map(Calls::answer_bytes_max).sum();
        let mut answers = self.ask(&pipeline, flights.len() + skipped, bytes, deadline).await?;
        Ok(answers.split_off(skipped))
    }

    /// The answers to `count` commands, which have up to so many bytes together.
    async fn ask(
        &mut self,
        pipeline: &Pipeline,
        count: usize,
        bytes: usize,
        deadline: Instant,
    ) -> Result<Vec<Value>, Cause> {
        self.allowance.ask(bytes);
        let sent = self.commands.send_packed_commands(pipeline, 0, count);
        let answers = timeout_at(deadline, sent).await;
        self.allowance.answered();
        match answers {
            Ok(Ok(answers)) if answers.len() == count => Ok(answers),
            Ok(Ok(_)) => {
                Err(Cause::new("the server gives another number of answers than of commands"))
            }
            Ok(Err(_)) if self.allowance.is_exceeded() => {
                Err(Cause::new("the server sends more than it was asked for"))
            }
            Ok(Err(error)) => Err(Cause::new(&error.to_string())),
            Err(_) => {
                let millis = self.timeout.as_millis();
                Err(Cause::new(&format!("the server has not answered within {millis} ms")))
            }
        }
    }

    /// What follows from an answer. `broken` says why the connection is of no use, if it is not.
    fn next(
        &self,
        flight: &Flight,
        answer: Value,
        was_loaded: bool,
        broken: &mut Option<Cause>,
    ) -> Next {
        let failed = |cause: Cause| Next::Land(Landing::Failed(cause));
        if let Value::ServerError(error) = &answer {
            if error.code() == "NOSCRIPT" && !was_loaded {
                return Next::Load;
            }
            let cause = server_error(error);
            if is_not_serving(error.code()) {
                *broken = Some(cause.clone());
            }
            return failed(cause);
        }
        let local = self.shared.local();
        let answer = match Answer::read(answer, flight.changes.len()) {
            Ok(answer) => answer,
            Err(cause) => {
                *broken = Some(cause.clone());
                return failed(cause);
            }
        };
        self.shared.clock.observe(answer.micros, local);
        Next::Land(match answer.outcome {
            Outcome::Done => Landing::Done,
            Outcome::Lost(images) => Landing::Lost(images),
            Outcome::Early => {
                // Another server than before, whose clock is behind.
                self.shared.clock.set_back(answer.micros, local);
                let ahead = (flight.latest.as_nanos() / 1_000).saturating_sub(answer.micros);
                if u128::from(ahead) < self.timeout.as_micros() / 2 {
                    return Next::Wait(Duration::from_micros(ahead + 1));
                }
                let millis = ahead / 1_000;
                return failed(Cause::new(&format!(
                    "the server's clock is {millis} ms behind the time of the request"
                )));
            }
            Outcome::Late => {
                return failed(Cause::new("the request was decided too long ago for the server"));
            }
            Outcome::Damaged(index) => {
                let key = flight.changes.get(index).map_or(0, |change| change.key.hash);
                return failed(Cause::new(&format!(
                    "the server had a value for key {key:032x} that is no counter; it was removed"
                )));
            }
        })
    }

    /// Learns the server's time, and compares its seed with ours. Writes ours if it has none any more.
    async fn probe(mut self, inner: Arc<Inner>) -> Result<(), Cause> {
        let deadline = Instant::now() + self.timeout;
        let (name, time) = (self.calls.seed_name(), cmd("TIME"));
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.add_command(time).add_command(cmd("GET").arg(&name).clone());
        let answers = self.ask(&pipeline, 2, PROBE_BYTES, deadline).await?;
        let local = self.shared.local();
        let (Some(time), Some(seed)) = (answers.first(), answers.get(1)) else { return Ok(()) };
        match (time, micros(time)) {
            (Value::ServerError(error), _) => return Err(server_error(error)),
            (_, None) => return Err(Cause::new(NO_TIME)),
            (_, Some(micros)) => self.shared.clock.observe(micros, local),
        }
        match seed {
            Value::ServerError(error) => Err(server_error(error)),
            Value::Nil => {
                tracing::warn!("the server of the shared counters has lost its data");
                let mut pipeline = Pipeline::with_capacity(2);
                pipeline.add_command(inner.write_seed());
                pipeline.add_command(cmd("GET").arg(&name).clone());
                let answers = self.ask(&pipeline, 2, PROBE_BYTES, deadline).await?;
                match &answers[..] {
                    [Value::ServerError(error), _] => Err(server_error(error)),
                    [_, seed] => inner.compare_seed(seed),
                    _ => Ok(()),
                }
            }
            seed => inner.compare_seed(seed),
        }
    }
}

/// Whether an error says that the server serves no updates: another one may have taken its place.
fn is_not_serving(code: &str) -> bool {
    matches!(code, "READONLY" | "LOADING" | "MASTERDOWN" | "NOAUTH" | "CLUSTERDOWN" | "MOVED")
}
