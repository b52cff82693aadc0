//! What a new connection checks before it serves, and what it asks now and then: the version of the server, its time,
//! the values that it had to evict, and the seed.
//!
//! The server tells its time in whole seconds, as of its last tick. So it has reached that time, and the latest of
//! many answers is at most a little behind the truth. A server whose time is behind what was said before, twice in
//! turn, has been started again with another clock.

use super::Inner;
use super::protocol::{self, Answer, Store};
use super::wire::{Driving, Expected, Wire};
use crate::engine::Cause;
use crate::in_time::in_time;
use crate::retry::random;
use crate::seed::{Seed, WrongSeed};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::PoisonError;
use std::time::Duration;
use tokio::time::Instant;

/// The time of a server lags behind its clock by up to two seconds, as it ticks once a second.
const BEHIND_MICROS: u64 = 3_000_000;
/// How often evictions are logged, at most.
const EVICTIONS_EVERY: Duration = Duration::from_secs(60);

/// A connection that may serve.
pub(super) struct Opened {
    pub(super) wire: Wire,
    pub(super) driving: Driving,
    /// Distinguishes processes of the server.
    pub(super) server: u64,
}

/// What the server has said last.
#[derive(Debug, Default)]
pub(super) struct Seen {
    is_behind: bool,
    /// The process, and the values that it had evicted.
    evictions: Option<(u64, u64)>,
    logged_at: Option<Instant>,
}

/// The statistics that matter.
#[derive(Debug, Default)]
struct Stats {
    time: Option<u64>,
    uptime: u64,
    process: String,
    evictions: u64,
}

impl Inner {
    pub(super) async fn open(&self) -> Result<Opened, Cause> {
        let stream = self.streams.open(&self.address).await;
        let (wire, mut driving) =
            Wire::start(stream.map_err(|error| self.cause(&error.to_string()))?);
        let opening = async {
            let version = self.check_version(&wire).await?;
            let server = self.look(&wire).await?;
            self.check_seed(&wire).await.map_err(|cause| match cause {
                Trouble::Closed(cause) => Trouble::Closed(cause),
                Trouble::Other(cause) => Trouble::Other(format!("{cause} (memcached {version})")),
            })?;
            Ok(server)
        };
        match opening.await {
            Ok(server) => Ok(Opened { wire, driving, server }),
            Err(Trouble::Other(what)) => Err(self.cause(&what)),
            Err(Trouble::Closed(what)) => match (&mut driving.0).await {
                Ok(cause) => Err(self.cause(cause.as_str())),
                Err(_) => Err(self.cause(&what)),
            },
        }
    }

    async fn check_version(&self, wire: &Wire) -> Result<String, Trouble> {
        let mut command = Vec::new();
        protocol::version(&mut command);
        match one(wire, command, Expected::One).await? {
            Answer::Version(version) => Ok(version),
            answer => Err(other(&answer, "version")),
        }
    }

    /// Learns the time of the server, and whether it evicts. Returns a number of its process.
    pub(super) async fn look(&self, wire: &Wire) -> Result<u64, Trouble> {
        let mut command = Vec::new();
        protocol::stats(&mut command);
        let answers = wire.ask(command, Expected::Lines).await.ok_or_else(Trouble::closed)?;
        let local = self.shared.local();
        let mut stats = Stats::default();
        for answer in answers {
            match answer {
                Answer::Stat(name, value) => stats.note(&name, value),
                Answer::End => {}
                answer => return Err(other(&answer, "stats")),
            }
        }
        let Some(time) = stats.time else {
            return Err(Trouble::Other("the server does not tell its time in stats".to_owned()));
        };
        self.note_time(time.saturating_mul(1_000_000), local);
        let started = time.saturating_sub(stats.uptime);
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let server = hasher.hash_one((&stats.process, started));
        self.note_evictions(server, stats.evictions);
        Ok(server)
    }

    fn note_time(&self, micros: u64, local: u64) {
        let clock = &self.shared.clock;
        let said = clock.at(local).map_or(0, |said| said.as_nanos() / 1_000);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let is_behind = micros.saturating_add(BEHIND_MICROS) < said;
        if is_behind && seen.is_behind {
            clock.set_back(self.door.lane, micros, local);
        } else {
            clock.observe(self.door.lane, micros, local);
        }
        seen.is_behind = is_behind && !seen.is_behind;
    }

    /// Says that counts are lost, as only more memory helps.
    fn note_evictions(&self, server: u64, evictions: u64) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match seen.evictions {
            Some((of, before)) if of == server => before,
            _ => evictions,
        };
        let is_due = seen.logged_at.is_none_or(|at| at.elapsed() >= EVICTIONS_EVERY);
        if evictions > before && !is_due {
            return;
        }
        seen.evictions = Some((server, evictions));
        if evictions > before {
            seen.logged_at = Some(Instant::now());
            tracing::warn!(
                server = %self.address,
                evicted = evictions - before,
                "memcached has no room and evicts values, perhaps counters, which start anew; give it more memory (-m)"
            );
        }
    }

    /// Reads the seed, or writes the one that this process has.
    pub(super) async fn check_seed(&self, wire: &Wire) -> Result<(), Trouble> {
        if let Some(found) = self.read_seed(wire).await? {
            return self.compare_seed(&found);
        }
        let own = match (self.shared.seed.get(), self.is_first) {
            (Some(seed), _) => Seed(*seed),
            (None, true) => Seed(random()),
            (None, false) => {
                let what = "has no seed yet; the first of the servers makes it and has to answer";
                return Err(Trouble::Other(what.to_owned()));
            }
        };
        let (mut command, text) = (Vec::new(), own.to_string());
        let store = Store { value: text.as_bytes(), ends: None };
        protocol::add(&mut command, &self.seed_name(), store, 0, 0);
        match one(wire, command, Expected::Numbered { first: 0, count: 1 }).await? {
            Answer::Done(_) | Answer::NotStored => {}
            answer => return Err(other(&answer, "ms")),
        }
        match self.read_seed(wire).await? {
            Some(found) => self.compare_seed(&found),
            None => {
                Err(Trouble::Other("it does not keep the seed of the counters' keys".to_owned()))
            }
        }
    }

    async fn read_seed(&self, wire: &Wire) -> Result<Option<Vec<u8>>, Trouble> {
        let mut command = Vec::new();
        protocol::get(&mut command, &self.seed_name(), 0);
        match one(wire, command, Expected::Numbered { first: 0, count: 1 }).await? {
            Answer::Missing => Ok(None),
            Answer::Value { version: 0, .. } => {
                let what = "it keeps no versions of values (cas); start it without -C";
                Err(Trouble::Other(what.to_owned()))
            }
            Answer::Value { bytes, .. } => Ok(Some(bytes)),
            answer => Err(other(&answer, "mg")),
        }
    }

    fn seed_name(&self) -> String {
        Seed::name(&self.prefix)
    }

    fn compare_seed(&self, found: &[u8]) -> Result<(), Trouble> {
        self.shared.compare_seed(&self.prefix, found).map_err(|wrong| {
            Trouble::Other(match wrong {
                WrongSeed::Unreadable { .. } => wrong.to_string(),
                WrongSeed::Other { .. } => {
                    format!("{wrong}, or delete the key if another server has that of the sidecar")
                }
            })
        })
    }

    /// Looks at the server within its time to answer. Writes the seed if the server has none any more.
    pub(super) async fn probe(&self, wire: Wire) -> Result<(), Cause> {
        let deadline = Instant::now() + self.timeout;
        let looking = async {
            self.look(&wire).await?;
            self.check_seed(&wire).await
        };
        match in_time(deadline, looking).await {
            Some(Ok(())) => Ok(()),
            Some(Err(Trouble::Other(what) | Trouble::Closed(what))) => Err(self.cause(&what)),
            None => Err(self.late()),
        }
    }

    pub(super) fn late(&self) -> Cause {
        let millis = self.timeout.as_millis();
        self.cause(&format!("the server has not answered within {millis} ms"))
    }
}

impl Stats {
    fn note(&mut self, name: &str, value: String) {
        match name {
            "time" => self.time = value.parse().ok(),
            "uptime" => self.uptime = value.parse().unwrap_or(0),
            "evictions" => self.evictions = value.parse().unwrap_or(0),
            "pid" => self.process = value,
            _ => {}
        }
    }
}

/// Why a check has failed.
pub(super) enum Trouble {
    /// The connection is closed; its task knows why.
    Closed(String),
    Other(String),
}

impl Trouble {
    fn closed() -> Trouble {
        Trouble::Closed("the connection to the server was closed".to_owned())
    }
}

/// The answer to one command.
async fn one(wire: &Wire, command: Vec<u8>, expected: Expected) -> Result<Answer, Trouble> {
    let answers = wire.ask(command, expected).await;
    answers.and_then(|mut answers| answers.pop()).ok_or_else(Trouble::closed)
}

/// For an answer that is none to this command.
fn other(answer: &Answer, command: &str) -> Trouble {
    Trouble::Other(match answer {
        Answer::Refused(text) => text.clone(),
        Answer::Misunderstood(text) => {
            format!("{text}, as the answer to {command}; memcached 1.6.12 or newer is needed")
        }
        _ => format!("the server answers {command} with something else"),
    })
}
