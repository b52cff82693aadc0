//! The service of one connection: flights out, landings in, a probe now and then.
//!
//! A flight that was taken lands in any case: when it is dropped, it has failed.

use super::bounded::Allowance;
use super::dial::Connection;
use super::nodes::Redirection;
use super::open::{Opened, server_error};
use super::script::{Answers, Calls, Outcome, SCRIPT, is_asking};
use super::set::{self, Commands};
use super::{Inner, Node};
use crate::engine::{Cause, Flight, Landing};
use crate::in_time::in_time;
use crate::shared::{Shared, add};
use crate::slots::Lane;
use ::redis::aio::MultiplexedConnection;
use ::redis::{Pipeline, ServerError, Value, cmd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

/// The keys of the flights that are sent together, about.
const PIPELINE_KEYS: usize = 256;
/// So many pipelines may be unanswered. Their answers take up to 5 MiB.
const PIPELINES_MAX: usize = 32;
/// The same where each waits for replicas: the server does nothing else for the connection meanwhile.
const PIPELINES_MAX_WAITING: usize = 2;
/// How often the server is asked for its time and the seed.
const PROBE: Duration = Duration::from_millis(250);
/// How often a flight goes on from one node of a cluster to another.
const HOPS_MAX: u8 = 5;
/// The pause before a node is asked again that has some keys of a slot on its way, but not all.
const TRY_AGAIN: Duration = Duration::from_millis(3);

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

impl Node {
    /// Serves until the connection is of no use. Returns why, and whether the server has answered before.
    pub(super) async fn serve(&self, opened: Opened) -> (Cause, bool) {
        let Opened { connection, script } = opened;
        let Connection { commands, allowance, mut task } = connection;
        let wire = Wire {
            commands,
            allowance,
            script: script.into(),
            shared: self.inner.shared.clone(),
            node: self.clone(),
            timeout: self.inner.timeout,
            closed: Arc::default(),
        };
        let mut flying = JoinSet::new();
        let mut probes = interval(PROBE);
        probes.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut has_answered = false;
        let pipelines_max = match self.inner.calls.replicas {
            0 => PIPELINES_MAX,
            _ => PIPELINES_MAX_WAITING,
        };
        let cause = loop {
            tokio::select! {
                Some(ended) = flying.join_next() => match ended {
                    Ok(Ok(())) => has_answered = true,
                    Ok(Err(cause)) => break cause,
                    Err(error) => break Cause::new(&format!("a task of the connection failed: {error}")),
                },
                () = self.door.ready(), if flying.len() < pipelines_max => {
                    // After the updates of all tasks that are ready, so that these go out together.
                    yield_now().await;
                    let flights = self.inner.shared.depart(&self.door, PIPELINE_KEYS);
                    if !flights.is_empty() {
                        flying.spawn(wire.clone().fly(wire.airborne(flights)));
                    }
                }
                _ = probes.tick() => {
                    flying.spawn(wire.clone().probe());
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
pub(super) struct Wire {
    commands: MultiplexedConnection,
    allowance: Allowance,
    script: Arc<str>,
    pub(super) shared: Arc<Shared>,
    pub(super) node: Node,
    pub(super) timeout: Duration,
    closed: Arc<OnceLock<Cause>>,
}

/// What to do with a flight after an answer.
enum Next {
    Land(Landing),
    Load,
    /// Send it again.
    Again,
    /// Send it again after a pause, or fail it for this cause.
    Wait(Duration, &'static str),
    /// Another server has its keys.
    SendOn {
        lane: Lane,
        is_asking: bool,
    },
}

/// The answers to a pipeline of flights.
struct Sent {
    told: Vec<Told>,
    /// Why changes do not count as made, if so: too few replicas have them.
    unkept: Option<Cause>,
}

/// What the server says of a flight.
enum Told {
    /// At this time, in microseconds.
    Outcome(u64, Outcome),
    Error(ServerError),
    /// The script has to say it.
    Nothing,
    Nonsense(Cause),
}

/// What an answer says of each flight of its call.
fn each(flights: &[Flight], answer: Value) -> Vec<Told> {
    if let Value::ServerError(error) = answer {
        return flights.iter().map(|_| Told::Error(error.clone())).collect();
    }
    match Answers::read(answer, flights.iter().map(|flight| flight.changes.len())) {
        Ok(Answers { micros, outcomes }) => {
            outcomes.into_iter().map(|outcome| Told::Outcome(micros, outcome)).collect()
        }
        Err(cause) => flights.iter().map(|_| Told::Nonsense(cause.clone())).collect(),
    }
}

impl Wire {
    /// They land also if the task that has them is dropped before it runs.
    fn airborne(&self, flights: Vec<Flight>) -> Airborne {
        Airborne { shared: self.shared.clone(), flights, closed: self.closed.clone() }
    }

    /// Sends flights until each has landed. An error says that the connection is of no use.
    async fn fly(mut self, mut airborne: Airborne) -> Result<(), Cause> {
        let deadline = Instant::now() + self.timeout;
        let (mut must_load, mut was_loaded) = (false, false);
        while !airborne.flights.is_empty() {
            airborne.flights.sort_by_key(|flight| !Calls::is_new(flight));
            let answers = self.send(&airborne.flights, must_load, deadline).await;
            let answers = answers.inspect_err(|cause| _ = self.closed.set(cause.clone()))?;
            was_loaded |= must_load;
            must_load = false;
            let (mut landings, mut landed, mut rest) = (Vec::new(), Vec::new(), Vec::new());
            let (mut wait, mut broken) = (Duration::ZERO, None);
            let Sent { told, unkept } = answers;
            for (mut flight, told) in std::mem::take(&mut airborne.flights).into_iter().zip(told) {
                match (self.next(&flight, told, was_loaded, &mut broken), &unkept) {
                    (Next::Land(Landing::Done), Some(cause)) => {
                        landings.push(Landing::Failed(cause.clone()));
                        landed.push(flight);
                        continue;
                    }
                    (Next::Land(landing), _) => {
                        landings.push(landing);
                        landed.push(flight);
                        continue;
                    }
                    (Next::SendOn { lane, is_asking }, _) => {
                        (flight.hops, flight.is_asking) = (flight.hops + 1, is_asking);
                        self.shared.send_on(lane, flight);
                        continue;
                    }
                    (Next::Load, _) => must_load = true,
                    (Next::Again, _) => {}
                    (Next::Wait(pause, cause), _) if Instant::now() + pause > deadline => {
                        landings.push(Landing::Failed(Cause::new(cause)));
                        landed.push(flight);
                        continue;
                    }
                    (Next::Wait(pause, _), _) => wait = wait.max(pause),
                }
                flight.by_script = true;
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
    ) -> Result<Sent, Cause> {
        let inner = self.node.inner.clone();
        let calls = &inner.calls;
        let (new, others) = flights.split_at(flights.partition_point(Calls::is_new));
        let reads = inner.losses.reads(new.len());
        let mut pipeline = Pipeline::with_capacity(new.len() * (1 + usize::from(reads)) + 4);
        if must_load {
            pipeline.add_command(cmd("SCRIPT").arg("LOAD").arg(SCRIPT).clone());
        }
        for Commands { set, get } in new.iter().filter_map(|flight| calls.set(flight, reads)) {
            pipeline.add_command(set);
            get.into_iter().for_each(|get| _ = pipeline.add_command(get));
            add(&self.shared.tally.commands, 1);
        }
        if !new.is_empty() {
            pipeline.add_command(cmd("TIME"));
        }
        for flights in calls.of(others) {
            calls.add(&mut pipeline, &self.script, flights);
            add(&self.shared.tally.commands, 1);
        }
        if calls.replicas > 0 {
            pipeline.add_command(cmd("WAIT").arg(calls.replicas).arg(calls.replicas_ms).clone());
        }
        let bytes = flights.iter().map(Calls::answer_bytes_max).sum();
        let count = pipeline.len();
        let mut answers = self.ask(&pipeline, count, bytes, deadline).await?.into_iter();
        answers.by_ref().take(usize::from(must_load)).for_each(drop);
        let mut told = Vec::with_capacity(flights.len());
        if !new.is_empty() {
            let count = new.len() * (1 + usize::from(reads)) + 1;
            let answers: Vec<Value> = answers.by_ref().take(count).collect();
            told.extend(self.of_new(new, answers, reads));
        }
        for flights in calls.of(others) {
            let answer = answers.nth(usize::from(is_asking(flights))).unwrap_or(Value::Nil);
            told.extend(each(flights, answer));
        }
        let unkept = match calls.replicas {
            0 => None,
            replicas => unkept(answers.next(), replicas),
        };
        Ok(Sent { told, unkept })
    }

    /// What the answers to the commands for new counters and to `TIME` say.
    fn of_new(&self, new: &[Flight], mut answers: Vec<Value>, reads: bool) -> Vec<Told> {
        let Inner { calls, losses, .. } = &*self.node.inner;
        let time = answers.pop().unwrap_or(Value::Nil);
        let each = new.iter().zip(answers.chunks_exact(1 + usize::from(reads)));
        let answers = each.filter_map(|(flight, answers)| {
            let (set, get) = answers.split_first()?;
            Some(calls.answer(flight, (set, get.first()), &time, losses))
        });
        answers
            .map(|answer| match answer {
                set::Answer::Outcome(micros, outcome) => Told::Outcome(micros, outcome),
                set::Answer::AskScript => Told::Nothing,
                set::Answer::Error(error) => Told::Error(error),
                set::Answer::Nonsense(cause) => Told::Nonsense(cause),
            })
            .collect()
    }

    /// The answers to `count` commands, which have up to so many bytes together.
    pub(super) async fn ask(
        &mut self,
        pipeline: &Pipeline,
        count: usize,
        bytes: usize,
        deadline: Instant,
    ) -> Result<Vec<Value>, Cause> {
        self.allowance.ask(bytes);
        let sent = self.commands.send_packed_commands(pipeline, 0, count);
        let answers = in_time(deadline, sent).await;
        self.allowance.answered();
        match answers {
            Some(Ok(answers)) if answers.len() == count => Ok(answers),
            Some(Ok(_)) => {
                Err(Cause::new("the server gives another number of answers than of commands"))
            }
            Some(Err(_)) if self.allowance.is_exceeded() => {
                Err(Cause::new("the server sends more than it was asked for"))
            }
            Some(Err(error)) => Err(Cause::new(&error.to_string())),
            None => {
                let millis = self.timeout.as_millis();
                Err(Cause::new(&format!("the server has not answered within {millis} ms")))
            }
        }
    }

    /// What follows from an answer. `broken` says why the connection is of no use, if it is not.
    fn next(
        &self,
        flight: &Flight,
        told: Told,
        was_loaded: bool,
        broken: &mut Option<Cause>,
    ) -> Next {
        let failed = |cause: Cause| Next::Land(Landing::Failed(cause));
        let local = self.shared.local();
        let (micros, outcome) = match told {
            Told::Outcome(micros, outcome) => (micros, outcome),
            Told::Error(error) => {
                if error.code() == "NOSCRIPT" && !was_loaded {
                    return Next::Load;
                }
                return self.after_error(flight, &error, broken);
            }
            Told::Nothing => return Next::Again,
            Told::Nonsense(cause) => {
                *broken = Some(cause.clone());
                return failed(cause);
            }
        };
        let lane = self.node.door.lane;
        self.shared.clock.observe(lane, micros, local);
        Next::Land(match outcome {
            Outcome::Done => Landing::Done,
            Outcome::Lost(images) => Landing::Lost(images),
            Outcome::Early => {
                // Another server than before, whose clock is behind.
                self.shared.clock.set_back(lane, micros, local);
                let ahead = (flight.latest.as_nanos() / 1_000).saturating_sub(micros);
                if u128::from(ahead) < self.timeout.as_micros() / 2 {
                    let pause = Duration::from_micros(ahead + 1);
                    return Next::Wait(
                        pause,
                        "the server's clock is behind the time of the request",
                    );
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

    /// What follows from an error.
    fn after_error(
        &self,
        flight: &Flight,
        error: &ServerError,
        broken: &mut Option<Cause>,
    ) -> Next {
        let failed = |cause: Cause| Next::Land(Landing::Failed(cause));
        match (&self.node.address, error.code()) {
            (Some(_), "TRYAGAIN") => Next::Wait(TRY_AGAIN, "the slot of the key is on its way"),
            (Some(asked), "MOVED" | "ASK") => match Redirection::read(error, asked) {
                Some(to) if flight.hops < HOPS_MAX => self.send_on(to),
                _ => failed(Cause::new(&format!(
                    "the nodes of the cluster do not agree on a slot: {}",
                    server_error(error)
                ))),
            },
            (Some(_), "CLUSTERDOWN") => {
                self.node.inner.look_again();
                failed(server_error(error))
            }
            (None, "MOVED") => {
                let cause = Cause::new(
                    "the server is a node of a cluster; write redis+cluster:// in --authority",
                );
                *broken = Some(cause.clone());
                failed(cause)
            }
            (_, code) => {
                let cause = server_error(error);
                if is_not_serving(code) {
                    *broken = Some(cause.clone());
                }
                failed(cause)
            }
        }
    }

    /// Where a flight goes that its server has refused.
    fn send_on(&self, to: Redirection) -> Next {
        match to {
            Redirection::Moved(slot, to) => {
                Next::SendOn { lane: self.node.inner.moved(slot, &to), is_asking: false }
            }
            Redirection::Ask(to) => {
                Next::SendOn { lane: self.node.inner.named(&to), is_asking: true }
            }
        }
    }
}

/// Why a change does not count as made, by the answer to `WAIT`.
fn unkept(answer: Option<Value>, replicas: u32) -> Option<Cause> {
    match answer {
        Some(Value::Int(have)) if have >= i64::from(replicas) => None,
        Some(Value::Int(have)) => Some(Cause::new(&format!(
            "{have} replicas have the change in time, and --authority-replicas is {replicas}"
        ))),
        Some(Value::ServerError(error)) => Some(server_error(&error)),
        _ => Some(Cause::new("the server answers WAIT with something else")),
    }
}

/// Whether an error says that the server serves no updates: another one may have taken its place.
fn is_not_serving(code: &str) -> bool {
    matches!(code, "READONLY" | "LOADING" | "MASTERDOWN" | "NOAUTH" | "CLUSTERDOWN")
}
