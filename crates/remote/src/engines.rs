//! The engine of a process: one set of servers, or a second one for limits per second.
//!
//! The mark in a key says which set has it. Both have the seed of the first, as keys are made before they are sent; the
//! seed in the second only tells whether it has lost its data. The time is one that both have reached, if both answer.

use crate::remote::{ConnectError, Known, Remote, Starting, connect};
use crate::settings::Settings;
use crate::shared::{Counts, Health};
use tidegate_authority::{Answers, Counters, Reach, Undecided, Update, Updating};
use tidegate_core::{KeyHash, Timestamp};
use tidegate_store::Hashed;

/// Counters in one or two sets of servers. Each has its own connections, and its own failures.
#[derive(Debug)]
pub struct Engines {
    main: Remote,
    /// Those of limits per second, if they are apart.
    seconds: Option<Remote>,
}

/// Servers that could not be connected to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    #[error("--authority: {0}")]
    Main(ConnectError),
    #[error("--authority-per-second: {0}")]
    Seconds(ConnectError),
}

impl Engines {
    /// Connects to all servers.
    pub fn connect(main: Settings, seconds: Option<Settings>) -> Result<Engines, EngineError> {
        let main = connect(main).map_err(EngineError::Main)?;
        let seconds = seconds.map(connect).transpose().map_err(EngineError::Seconds)?;
        Ok(Engines { main, seconds })
    }

    /// Connects to all servers, as far as they answer, and goes on with what was `known` of both sets before.
    pub fn start(
        main: Settings,
        seconds: Option<Settings>,
        known: [Option<Known>; 2],
    ) -> Result<Engines, EngineError> {
        let [known, known_of_seconds] = known;
        // Both are waited for at the same time.
        let main = Starting::new(main, known).map_err(EngineError::Main)?;
        let seconds = seconds.map(|seconds| Starting::new(seconds, known_of_seconds));
        let seconds = seconds.transpose().map_err(EngineError::Seconds)?;
        let main = main.settled().map_err(EngineError::Main)?;
        let seconds = seconds.map(Starting::settled).transpose().map_err(EngineError::Seconds)?;
        Ok(Engines { main, seconds })
    }

    /// A time that all servers have reached which answer. None before the seed of the keys is known.
    pub fn now(&self) -> Option<Timestamp> {
        if !self.main.has_seed() {
            return None;
        }
        self.all().filter_map(Remote::reached).min().map(|reached| reached.time)
    }

    /// For [`Engines::start`] of a later process, of both sets.
    pub fn known(&self) -> [Option<Known>; 2] {
        [self.main.known(), self.seconds.as_ref().and_then(Remote::known)]
    }

    /// Whether all answer.
    pub fn health(&self) -> Health {
        match (self.main.health(), self.seconds.as_ref().map(Remote::health)) {
            (Health::Up, None | Some(Health::Up)) => Health::Up,
            (Health::Down { cause }, None | Some(Health::Up)) => Health::Down { cause },
            (Health::Up, Some(Health::Down { cause })) => {
                Health::Down { cause: format!("of limits per second: {cause}") }
            }
            (Health::Down { cause }, Some(Health::Down { cause: second })) => {
                Health::Down { cause: format!("{cause}; of limits per second: {second}") }
            }
        }
    }

    /// Why counters may disappear from a server by themselves, if they may.
    pub fn warning(&self) -> Option<String> {
        self.all().find_map(Remote::warning)
    }

    /// Of both together.
    pub fn counts(&self) -> Counts {
        self.all().map(Remote::counts).fold(Counts::default(), Counts::plus)
    }

    /// Of limits per second, if these are apart.
    pub fn seconds(&self) -> Option<Health> {
        self.seconds.as_ref().map(Remote::health)
    }

    /// Has a thread of the connections run `task`, which must not block it.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.main.spawn(task);
    }

    fn all(&self) -> impl Iterator<Item = &Remote> {
        std::iter::once(&self.main).chain(&self.seconds)
    }

    /// The set that has all `keys`.
    fn of(&self, keys: &[Hashed]) -> Option<&Remote> {
        let Some(seconds) = &self.seconds else { return Some(&self.main) };
        let is_per_second = |key: &Hashed| KeyHash(key.hash).is_per_second();
        match keys.iter().filter(|key| is_per_second(key)).count() {
            0 => Some(&self.main),
            count if count == keys.len() => Some(seconds),
            _ => None,
        }
    }
}

impl Counters for Engines {
    fn seed(&self) -> u64 {
        self.main.seed()
    }

    fn state_words(&self) -> usize {
        self.main.state_words()
    }

    fn capacity(&self) -> u64 {
        self.main.capacity()
    }

    fn answers(&self) -> Answers {
        Answers::Later
    }

    fn reach(&self) -> Reach {
        match (self.main.reach(), self.seconds.as_ref().map(Remote::reach)) {
            (main, None) => main,
            (Reach::All, Some(Reach::All)) => Reach::Kind,
            (_, Some(_)) => Reach::Place,
        }
    }

    fn divides_seconds(&self) -> bool {
        self.seconds.is_some()
    }

    fn update<'u>(
        &'u self,
        keys: &'u [Hashed],
        now: Timestamp,
        update: &'u mut Update<'u>,
    ) -> Updating<'u> {
        match self.of(keys) {
            Some(remote) => remote.update(keys, now, update),
            None => Updating::Done(Err(Undecided::Unreachable {
                cause: "they are in servers of limits per second and in others".to_owned(),
            })),
        }
    }
}
