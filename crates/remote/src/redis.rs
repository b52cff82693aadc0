//! The driver for Redis and Valkey.
//!
//! Owns the connections: each takes flights as they become ready, so that the load spreads and no order is needed; a
//! flight compares what it sets. A connection is closed when an answer is late, makes no sense, or says that this
//! server does not serve; then it is made again, after a pause that grows. Refuses servers that are no primary, and
//! servers with another seed than this process has hashed its keys with.

mod any_name;
mod bounded;
mod dial;
mod fly;
mod open;
mod script;

use crate::engine::Cause;
use crate::image::Retention;
use crate::settings::Settings;
use crate::shared::{Shared, add};
use dial::Dialer;
use script::Calls;
use std::hash::{BuildHasher, RandomState};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidegate_authority::OncePerSecond;

/// The pauses between attempts to connect grow from the first to the second.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(5));
/// How long making a connection may take. A server that stood still for so long answers the attempt under way.
const HANDSHAKE: Duration = Duration::from_secs(2);

/// The driver.
#[derive(Clone)]
pub(crate) struct Driver(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    dialer: Dialer,
    calls: Calls,
    timeout: Duration,
    log_rate: Mutex<OncePerSecond>,
}

impl Driver {
    pub(crate) fn new(
        settings: Settings,
        retention: Retention,
        shared: Arc<Shared>,
    ) -> Result<Driver, String> {
        let dialer = Dialer::new(&settings)?;
        let reserved_ms = u64::try_from(settings.timeout.as_millis() / 2).unwrap_or(u64::MAX);
        let calls = Calls {
            prefix: settings.prefix,
            retention,
            client: random().to_be_bytes(),
            // The script believes no reservation that is longer than ten seconds.
            reserved_ms: reserved_ms.clamp(1, 5_000),
        };
        let (timeout, log_rate) = (settings.timeout, Mutex::default());
        Ok(Driver(Arc::new(Inner { shared, dialer, calls, timeout, log_rate })))
    }

    /// Keeps one connection, for ever. Sends the seed when it is known.
    pub(crate) async fn run(self, seed: Sender<u64>) {
        let inner = &self.0;
        let (mut seed, mut pause, mut was_up) = (Some(seed), PAUSES.0, false);
        loop {
            let opened = tokio::time::timeout(HANDSHAKE, inner.open()).await;
            let opened = opened.unwrap_or_else(|_| {
                Err(Cause::new(&format!(
                    "no answer within {} s to a new connection",
                    HANDSHAKE.as_secs()
                )))
            });
            let cause = match opened {
                Ok(opened) => {
                    add(&inner.shared.tally.reconnects, u64::from(was_up));
                    was_up = true;
                    inner.shared.connection_is_up();
                    if let (Some(seed), Some(known)) = (seed.take(), inner.shared.seed.get()) {
                        // Nobody waits for it any more if another connection was faster.
                        let _ = seed.send(*known);
                    }
                    let (cause, has_answered) = inner.serve(opened).await;
                    if has_answered {
                        pause = PAUSES.0;
                    }
                    inner.shared.connection_is_down(cause.clone());
                    cause
                }
                Err(cause) => {
                    inner.shared.connection_failed(cause.clone());
                    cause
                }
            };
            inner.log(&cause);
            tokio::time::sleep(jittered(pause)).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }
}

impl Inner {
    fn log(&self, cause: &Cause) {
        if self.log_rate.lock().unwrap_or_else(PoisonError::into_inner).is_due() {
            tracing::warn!(cause = cause.as_str(), "no connection to the shared counters");
        }
    }
}

/// Between half of `pause` and all of it.
fn jittered(pause: Duration) -> Duration {
    let half = pause / 2;
    half + half.mul_f64((random() % 1_000) as f64 / 1_000.0)
}

/// A random number that is not a secret.
fn random() -> u64 {
    RandomState::new().hash_one(0)
}
