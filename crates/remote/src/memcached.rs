//! The driver for one memcached.
//!
//! All keys of a place are one value, which is compared and set by its version (`cas`). So an update of one place is as
//! exact as a script. Connections, pauses and deadlines are as those of Redis. Refuses servers that keep no versions
//! (`-C`), and servers with another seed than this process has hashed its keys with.

mod fly;
mod open;
mod protocol;
mod versions;
mod wire;

use crate::engine::Cause;
use crate::image::Retention;
use crate::retry::{self, HANDSHAKE, Pauses};
use crate::settings::{Address, Settings};
use crate::shared::{Door, Shared, add};
use crate::stream::Streams;
use open::Seen;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidegate_authority::OncePerSecond;
use versions::Versions;

/// The driver.
#[derive(Clone)]
pub(crate) struct Driver(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    door: Door,
    address: Address,
    streams: Streams,
    prefix: String,
    retention: Retention,
    timeout: Duration,
    /// The first of the servers makes the seed, so that all processes agree.
    is_first: bool,
    versions: Mutex<Versions>,
    seen: Mutex<Seen>,
    log_rate: Mutex<OncePerSecond>,
}

impl Driver {
    pub(crate) fn new(
        settings: &Settings,
        address: Address,
        retention: Retention,
        shared: Arc<Shared>,
        is_first: bool,
    ) -> Result<Driver, String> {
        Ok(Driver(Arc::new(Inner {
            door: shared.only_lane(),
            shared,
            address,
            streams: Streams::new(settings)?,
            prefix: settings.prefix.clone(),
            retention,
            timeout: settings.timeout,
            is_first,
            versions: Mutex::default(),
            seen: Mutex::default(),
            log_rate: Mutex::default(),
        })))
    }

    /// Keeps one connection, for ever. Tells when it is up, and so the seed is known.
    pub(crate) async fn run(self, up: Sender<()>) {
        let inner = &self.0;
        let (mut up, mut pauses, mut was_up) = (Some(up), Pauses::new(), false);
        loop {
            let opened = tokio::time::timeout(HANDSHAKE, inner.open()).await;
            let opened = opened.unwrap_or_else(|_| {
                Err(Cause::new(&format!(
                    "{}: no answer within {} s to a new connection",
                    inner.address,
                    HANDSHAKE.as_secs()
                )))
            });
            let cause = match opened {
                Ok(opened) => {
                    add(&inner.shared.tally.reconnects, u64::from(was_up));
                    was_up = true;
                    inner.shared.connection_is_up(&inner.door);
                    if let Some(up) = up.take() {
                        // Nobody waits for it any more if another connection was faster.
                        let _ = up.send(());
                    }
                    let (cause, has_answered) = inner.serve(opened).await;
                    if has_answered {
                        pauses.begin_anew();
                    }
                    inner.shared.connection_is_down(&inner.door, cause.clone());
                    cause
                }
                Err(cause) => {
                    inner.shared.connection_failed(&inner.door, cause.clone());
                    cause
                }
            };
            retry::log(&inner.log_rate, &cause);
            pauses.pause().await;
        }
    }
}

impl Inner {
    fn versions(&self) -> MutexGuard<'_, Versions> {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is wrong, with the name of the server.
    fn cause(&self, what: &str) -> Cause {
        Cause::new(&format!("{}: {what}", self.address))
    }
}
