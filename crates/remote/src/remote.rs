//! The engine as updates see it: connected once, in the background ever after.

use crate::clock::Reached;
use crate::engine::{MemberId, Rules, unreachable_by};
use crate::image::{self, Retention};
use crate::layout::Layout;
use crate::memcached;
use crate::redis::Driver;
use crate::settings::{Address, Servers, Settings};
use crate::shared::{Counts, Health, Shared, add};
use crate::spread::Spread;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tidegate_authority::{Answers, Counters, Reach, Undecided, Update, Updating};
use tidegate_core::Timestamp;
use tidegate_store::{Class, Hashed};
use tokio::runtime::{Builder, Runtime};

/// The narrow states that a server is expected to have room for: 1 GiB of them takes about this many.
const CAPACITY: u64 = 8 * 1024 * 1024;
/// An update that other sidecars keep from being committed is given up after so many times [`Settings::timeout`].
const TRIES: u32 = 10;
/// And after this at the latest, as its time would be too long ago.
const PATIENCE_MAX: Duration = Duration::from_secs(SLACK_SECS / 2);
/// The keys of one batch. The server does nothing else for less than half a millisecond while it commits so many.
const BATCH_KEYS_MAX: usize = 128;
/// How long to wait for the other servers at the start, when one has told the seed.
const OTHERS: Duration = Duration::from_secs(1);
/// How late an update may reach the server after its time was read. An update takes far less.
pub(crate) const SLACK_SECS: u64 = 10;

/// How long [`start`] waits for the servers: a process that starts beside them is served by them from its first request.
const START_WAIT: Duration = Duration::from_secs(2);

/// Counters in a server. Dropping it closes the connections.
pub struct Remote {
    servers: Spread,
    seed: Arc<OnceLock<u64>>,
    reach: Reach,
    /// None only while it is dropped.
    runtime: Option<Runtime>,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    #[error("{0}")]
    Settings(String),
    #[error(
        "the shared counters did not answer within {} s: {cause}; sidecars read the seed of their keys there when \
         they start", waited.as_secs()
    )]
    NoSeed { waited: Duration, cause: String },
    #[error("cannot start a thread for the shared counters: {0}")]
    Thread(#[from] io::Error),
}

/// What another process knew of the servers.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    pub seed: u64,
    /// A time that the servers have reached.
    pub now: Option<Timestamp>,
}

/// Connects to the servers of `settings`, in the background. Waits until the seed of the keys is known.
pub fn connect(settings: Settings) -> Result<Remote, ConnectError> {
    connected(settings, None)
}

/// The same for servers whose seed must be this one, which they get if they have none.
pub(crate) fn connect_knowing(settings: Settings, seed: u64) -> Result<Remote, ConnectError> {
    connected(settings, Some(seed))
}

fn connected(settings: Settings, seed: Option<u64>) -> Result<Remote, ConnectError> {
    let patience = settings.patience;
    let (remote, up) = dial(settings, seed)?;
    if remote.hears(&up, patience) {
        return Ok(remote);
    }
    let cause = match remote.health() {
        Health::Down { cause } => cause,
        Health::Up => "the connection was made too late".to_owned(),
    };
    Err(ConnectError::NoSeed { waited: patience, cause })
}

/// Connects in the background, and goes on after a moment also if no server answers: with what was `known` before, or
/// else without a seed. Without a seed no time is known either, so nothing is decided over the counters. A server that
/// answers now decides which seed counts.
pub fn start(settings: Settings, known: Option<Known>) -> Result<Remote, ConnectError> {
    Starting::new(settings, known)?.settled()
}

/// Connections that are being made by [`start`].
pub(crate) struct Starting {
    remote: Remote,
    up: Receiver<()>,
    known: Option<Known>,
    wait: Duration,
    began: Instant,
}

impl Starting {
    pub(crate) fn new(settings: Settings, known: Option<Known>) -> Result<Starting, ConnectError> {
        let wait = settings.patience.min(START_WAIT);
        let (remote, up) = dial(settings, None)?;
        Ok(Starting { remote, up, known, wait, began: Instant::now() })
    }

    pub(crate) fn settled(self) -> Result<Remote, ConnectError> {
        let Starting { remote, up, known, wait, began } = self;
        if remote.hears(&up, wait.saturating_sub(began.elapsed())) {
            return Ok(remote);
        }
        let Some(known) = known else {
            return match remote.health() {
                Health::Down { cause } if is_refusal(&cause) => {
                    Err(ConnectError::NoSeed { waited: wait, cause })
                }
                _ => Ok(remote),
            };
        };
        // The seed last: nothing is decided before it is known.
        if let Some(now) = known.now {
            remote.servers.remember(now);
        }
        remote.seed.get_or_init(|| known.seed);
        Ok(remote)
    }
}

/// Whether a server refuses the credentials: a mistake in the settings, which no time repairs.
fn is_refusal(cause: &str) -> bool {
    ["NOAUTH", "WRONGPASS", "NOPERM", "authentication failed"].iter().any(|of| cause.contains(of))
}

/// The keys of one update.
fn reach(servers: &Servers) -> Reach {
    match servers {
        Servers::Single(_) | Servers::Sentinel { .. } => Reach::All,
        Servers::Cluster { .. } | Servers::Memcached(_) => Reach::Place,
    }
}

/// What the engine has to respect where commands have this timeout.
pub(crate) fn rules(timeout: Duration, jitter: Duration) -> Rules {
    let patience = timeout.saturating_mul(TRIES).min(PATIENCE_MAX);
    Rules {
        patience: u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX),
        retention: Retention { slack_secs: SLACK_SECS, jitter_secs: jitter.as_secs() },
        layout: Layout::Each,
        keys_max: BATCH_KEYS_MAX,
    }
}

/// Starts the connections to all servers. The receiver hears of those that are up.
fn dial(settings: Settings, seed: Option<u64>) -> Result<(Remote, Receiver<()>), ConnectError> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("tidegate-remote")
        .enable_all()
        .build()?;
    let reach = reach(&settings.servers);
    let common = Arc::new(OnceLock::new());
    if let Some(seed) = seed {
        common.get_or_init(|| seed);
    }
    let (send, receive) = mpsc::channel();
    let servers = match &settings.servers {
        Servers::Memcached(addresses) => {
            let addresses = addresses.clone();
            dial_memcached(&settings, addresses, &common, (&runtime, &send))?
        }
        _ => dial_redis(settings, &common, (&runtime, send))?,
    };
    Ok((Remote { servers, seed: common, reach, runtime: Some(runtime) }, receive))
}

fn dial_redis(
    settings: Settings,
    seed: &Arc<OnceLock<u64>>,
    (runtime, up): (&Runtime, Sender<()>),
) -> Result<Spread, ConnectError> {
    let rules = rules(settings.timeout, settings.jitter);
    let shared = match settings.servers {
        Servers::Cluster { .. } => Shared::of_cluster(rules),
        _ => Shared::of_one(rules),
    };
    let shared = Arc::new(shared.with_seed(seed));
    let driver = Driver::new(settings, rules.retention, shared.clone(), up);
    driver.map_err(ConnectError::Settings)?.start(runtime);
    Ok(Spread::one(shared))
}

fn dial_memcached(
    settings: &Settings,
    mut addresses: Vec<Address>,
    seed: &Arc<OnceLock<u64>>,
    (runtime, up): (&Runtime, &Sender<()>),
) -> Result<Spread, ConnectError> {
    if addresses.is_empty() {
        return Err(ConnectError::Settings("no address of a memcached is given".to_owned()));
    }
    // A place is one value, which one flight changes at a time.
    let rules =
        Rules { layout: Layout::Place, keys_max: 1, ..rules(settings.timeout, settings.jitter) };
    addresses.sort_by_key(Address::to_string);
    addresses.dedup();
    let mut servers = Vec::new();
    for (index, address) in addresses.into_iter().enumerate() {
        let shared = Arc::new(Shared::of_one(rules).with_seed(seed));
        servers.push((address.to_string(), shared.clone()));
        let is_first = index == 0;
        let driver = memcached::Driver::new(settings, address, rules.retention, shared, is_first);
        let driver = driver.map_err(ConnectError::Settings)?;
        for _ in 0..settings.connections.get() {
            runtime.spawn(driver.clone().run(up.clone()));
        }
    }
    Ok(Spread::of(servers))
}

impl Remote {
    /// Waits until a connection is up, and then a moment for the other servers: requests for those would be decided
    /// without them. Whether any is up.
    fn hears(&self, up: &Receiver<()>, wait: Duration) -> bool {
        if up.recv_timeout(wait).is_err() {
            return false;
        }
        let start = Instant::now();
        while self.health() != Health::Up
            && let Some(left) = OTHERS.checked_sub(start.elapsed())
            && up.recv_timeout(left).is_ok()
        {}
        true
    }

    /// A time that the servers have reached. Always known once [`connect`] has returned; never before the seed.
    pub fn now(&self) -> Option<Timestamp> {
        self.reached().map(|reached| reached.time)
    }

    pub(crate) fn has_seed(&self) -> bool {
        self.seed.get().is_some()
    }

    pub(crate) fn reached(&self) -> Option<Reached> {
        if self.has_seed() { self.servers.reached() } else { None }
    }

    /// For [`start`] of a later process. None before the first answer of a server.
    pub fn known(&self) -> Option<Known> {
        self.seed.get().map(|seed| Known { seed: *seed, now: self.now() })
    }

    pub fn health(&self) -> Health {
        self.servers.health()
    }

    /// Why counters may disappear from a server by themselves, if they may.
    pub fn warning(&self) -> Option<String> {
        self.servers.warning()
    }

    pub fn counts(&self) -> Counts {
        self.servers.counts()
    }

    /// Has the thread of the connections run `task`, which must not block it.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.runtime {
            runtime.spawn(task);
        }
    }
}

impl Counters for Remote {
    fn seed(&self) -> u64 {
        // Without one there is no connection and no time, so no update arrives that was hashed with this number.
        self.seed.get().copied().unwrap_or_default()
    }

    fn state_words(&self) -> usize {
        image::words(Class::Wide)
    }

    fn capacity(&self) -> u64 {
        CAPACITY
    }

    fn answers(&self) -> Answers {
        Answers::Later
    }

    fn reach(&self) -> Reach {
        self.reach
    }

    fn update<'u>(
        &'u self,
        keys: &'u [Hashed],
        now: Timestamp,
        update: &'u mut Update<'u>,
    ) -> Updating<'u> {
        let Some(shared) = self.servers.of_keys(keys) else {
            return Updating::Done(Err(unreachable_by("they are in several servers")));
        };
        update_of(shared, keys, now, update)
    }
}

/// An update that begins when it is polled.
pub(crate) fn update_of<'u>(
    shared: &'u Shared,
    keys: &'u [Hashed],
    now: Timestamp,
    update: &'u mut Update<'u>,
) -> Updating<'u> {
    Updating::Later(Box::pin(Member { shared, id: None, is_over: false, keys, now, update }))
}

impl Drop for Remote {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("health", &self.health()).finish_non_exhaustive()
    }
}

/// An update under way.
struct Member<'u> {
    shared: &'u Shared,
    /// None before it has begun, and when it is over.
    id: Option<MemberId>,
    is_over: bool,
    keys: &'u [Hashed],
    now: Timestamp,
    update: &'u mut Update<'u>,
}

impl Future for Member<'_> {
    type Output = Result<(), Undecided>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if this.is_over {
            return Poll::Ready(Err(unreachable_by("the update was polled after its end")));
        }
        let (id, waker) = (&mut this.id, context.waker());
        let polled = this.shared.poll(id, this.keys, this.now, this.update, waker);
        if let Poll::Ready(result) = &polled {
            (this.id, this.is_over) = (None, true);
            if result.is_ok() {
                add(&this.shared.tally.committed, 1);
            }
        }
        polled
    }
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.shared.leave(id);
        }
    }
}
