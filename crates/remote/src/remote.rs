//! The engine as updates see it: connected once, in the background ever after.

use crate::engine::{MemberId, Rules, unreachable_by};
use crate::image::{self, Retention};
use crate::redis::Driver;
use crate::settings::Settings;
use crate::shared::{Counts, Health, Shared, add};
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::task::{Context, Poll};
use std::time::Duration;
use tidegate_authority::{Answers, Counters, Undecided, Update, Updating};
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
/// How late an update may reach the server after its time was read. An update takes far less.
const SLACK_SECS: u64 = 10;

/// Counters in a server. Dropping it closes the connections.
pub struct Remote {
    shared: Arc<Shared>,
    seed: u64,
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

/// Connects to the servers of `settings`, in the background. Waits until the seed of the keys is known.
pub fn connect(settings: Settings) -> Result<Remote, ConnectError> {
    let (patience, connections) = (settings.patience, settings.connections);
    let retention = Retention { slack_secs: SLACK_SECS, jitter_secs: settings.jitter.as_secs() };
    let rules = Rules {
        patience: u64::try_from(
            (settings.timeout.saturating_mul(TRIES).min(PATIENCE_MAX)).as_nanos(),
        )
        .unwrap_or(u64::MAX),
        retention,
        keys_max: BATCH_KEYS_MAX,
    };
    let shared = Arc::new(Shared::new(rules));
    let driver =
        Driver::new(settings, retention, shared.clone()).map_err(ConnectError::Settings)?;
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("tidegate-remote")
        .enable_all()
        .build()?;
    let (send, receive) = mpsc::channel();
    for _ in 0..connections.get() {
        runtime.spawn(driver.clone().run(send.clone()));
    }
    let remote = |seed| Remote { shared: shared.clone(), seed, runtime: Some(runtime) };
    match receive.recv_timeout(patience) {
        Ok(seed) => Ok(remote(seed)),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            drop(remote(0));
            let Health::Down { cause } = shared.health() else { return Err(no_seed(patience)) };
            Err(ConnectError::NoSeed { waited: patience, cause })
        }
    }
}

fn no_seed(waited: Duration) -> ConnectError {
    ConnectError::NoSeed { waited, cause: "the connection was made too late".to_owned() }
}

impl Remote {
    /// A time that the server has reached. Always known once [`connect`] has returned.
    pub fn now(&self) -> Option<Timestamp> {
        self.shared.now()
    }

    pub fn health(&self) -> Health {
        self.shared.health()
    }

    pub fn counts(&self) -> Counts {
        self.shared.counts()
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
        self.seed
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

    fn update<'u>(
        &'u self,
        keys: &'u [Hashed],
        now: Timestamp,
        update: &'u mut Update<'u>,
    ) -> Updating<'u> {
        let id = match self.shared.begin(keys) {
            Ok(id) => id,
            Err(undecided) => return Updating::Done(Err(undecided)),
        };
        let shared = &*self.shared;
        Updating::Later(Box::pin(Member { shared, id: Some(id), keys, now, update }))
    }
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
    /// None when it is over.
    id: Option<MemberId>,
    keys: &'u [Hashed],
    now: Timestamp,
    update: &'u mut Update<'u>,
}

impl Future for Member<'_> {
    type Output = Result<(), Undecided>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let Some(id) = this.id else {
            return Poll::Ready(Err(unreachable_by("the update was polled after its end")));
        };
        let polled = this.shared.poll(id, this.keys, this.now, this.update, context.waker());
        if let Poll::Ready(result) = &polled {
            this.id = None;
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
