//! Attempts to connect: how long one may take, the pauses between them, and the log of those that fail.

use crate::engine::Cause;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tidegate_authority::OncePerSecond;

/// How long making a connection may take. A server that stood still for so long answers the attempt under way.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(2);

const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Pauses that grow, until they begin anew.
#[derive(Debug)]
pub(crate) struct Pauses {
    next: Duration,
}

impl Pauses {
    pub(crate) fn new() -> Pauses {
        Pauses { next: PAUSE_MIN }
    }

    /// An attempt was good.
    pub(crate) fn begin_anew(&mut self) {
        self.next = PAUSE_MIN;
    }

    pub(crate) async fn pause(&mut self) {
        tokio::time::sleep(jittered(self.next)).await;
        self.next = (self.next * 2).min(PAUSE_MAX);
    }
}

/// Between half of `pause` and all of it.
fn jittered(pause: Duration) -> Duration {
    let half = pause / 2;
    half + half.mul_f64((random() % 1_000) as f64 / 1_000.0)
}

/// Logs why there is no connection, at most once a second.
pub(crate) fn log(rate: &Mutex<OncePerSecond>, cause: &Cause) {
    if rate.lock().unwrap_or_else(PoisonError::into_inner).is_due() {
        tracing::warn!(cause = cause.as_str(), "no connection to the shared counters");
    }
}

/// A random number that is not a secret.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(0)
}
