//! The thread that exports: sends the queue every second, or once a batch is complete.
//!
//! A batch that the collector does not take for now is tried again, with growing waits, while others gather behind it in
//! the queue. A collector that stays away costs its spans and a line in the log each minute.

use crate::connect::Connector;
use crate::otlp::{Delivery, Sent};
use crate::queue::Queue;
use crate::random;
use crate::settings::Settings;
use anyhow::Context;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How long a span waits for others.
const GATHER_MAX: Duration = Duration::from_secs(1);
/// The waits after attempts that failed: 1, 2, 4, 8 and 16 s, with some chance. Then a batch is dropped.
const RETRY_MIN: Duration = Duration::from_secs(1);
const ATTEMPTS_MAX: u32 = 6;
const LOGGED_EACH: Duration = Duration::from_secs(60);

/// The export, which can be ended.
#[derive(Debug)]
pub(crate) struct Exporting {
    /// Resolved once the thread has ended. Taken by the first who waits for it.
    ended: Mutex<Option<oneshot::Receiver<()>>>,
}

/// Starts the thread. Certificates are read before.
pub(crate) fn start(settings: &Settings, queue: Arc<Queue>) -> anyhow::Result<Exporting> {
    let connector = Connector::new(settings).context("the export of traces")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let delivery = {
        let _entered = runtime.enter();
        Delivery::new(settings, connector)?
    };
    let exporter = Exporter { queue, delivery, timeout: settings.timeout, logged: None };
    let (sender, ended) = oneshot::channel();
    let work = move || {
        runtime.block_on(exporter.run());
        // A lookup of a name cannot be stopped, and nobody waits for it.
        runtime.shutdown_background();
        let _ = sender.send(());
    };
    std::thread::Builder::new().name("traces".to_owned()).spawn(work)?;
    Ok(Exporting { ended: Mutex::new(Some(ended)) })
}

impl Exporting {
    /// Ends the export, after what is in the queue or this time.
    pub(crate) async fn finish(&self, queue: &Queue, time_max: Duration) {
        queue.close();
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(ended) = ended else { return };
        if tokio::time::timeout(time_max, ended).await.is_err() {
            tracing::warn!("the last spans could not be sent in {time_max:?} and are lost");
        }
    }
}

struct Exporter {
    queue: Arc<Queue>,
    delivery: Delivery,
    /// For one attempt.
    timeout: Duration,
    /// When a failure was logged last.
    logged: Option<Instant>,
}

impl Exporter {
    /// Exports until the queue is closed and empty.
    async fn run(mut self) {
        loop {
            let _ = tokio::time::timeout(GATHER_MAX, self.queue.due.notified()).await;
            // Before the queue is empty: nothing follows what is in it then.
            let is_last = self.queue.is_closed();
            loop {
                let batch = self.queue.take();
                if batch.is_empty() {
                    break;
                }
                self.send(batch).await;
            }
            if is_last {
                return;
            }
        }
    }

    /// Sends a batch, or drops it.
    async fn send(&mut self, batch: Vec<crate::span::Finished>) {
        let count = batch.len() as u64;
        let message = self.delivery.message(batch);
        let mut wait = RETRY_MIN;
        for attempt in 1..=ATTEMPTS_MAX {
            let sending = self.delivery.send(&message);
            let sent = tokio::time::timeout(self.timeout, sending).await;
            let timeout = self.timeout;
            let sent = sent.unwrap_or_else(|_| Sent::NotNow {
                cause: format!("no answer within {timeout:?}"),
                after: None,
            });
            let cause = match sent {
                Sent::Taken { rejected, why } => {
                    let rejected = rejected.min(count);
                    self.queue.count_exported(count - rejected);
                    if rejected > 0 {
                        self.drop(rejected, &format!("the collector rejects them: {why}"));
                    }
                    return;
                }
                Sent::Refused { cause } => cause,
                Sent::NotNow { cause, after } => {
                    if attempt < ATTEMPTS_MAX && !self.queue.is_closed() {
                        self.log(&cause);
                        // Half of it to all of it, so that processes do not come back together.
                        let chance = (random::span_id() % 1000) as f64 / 2000.0;
                        let pause = after.unwrap_or_else(|| wait.mul_f64(1.0 - chance));
                        self.pause(pause).await;
                        wait *= 2;
                        continue;
                    }
                    cause
                }
            };
            self.drop(count, &cause);
            return;
        }
    }

    /// Waits this long, or until no more spans come.
    async fn pause(&self, time: Duration) {
        let closed = async {
            while !self.queue.is_closed() {
                self.queue.due.notified().await;
            }
        };
        let _ = tokio::time::timeout(time, closed).await;
    }

    fn drop(&mut self, spans: u64, cause: &str) {
        self.queue.count_dropped(spans);
        self.log(cause);
    }

    fn log(&mut self, cause: &str) {
        let now = Instant::now();
        if self.logged.is_none_or(|logged| now - logged >= LOGGED_EACH) {
            self.logged = Some(now);
            let dropped = self.queue.counts().dropped;
            tracing::warn!(cause, dropped, "spans are not exported");
        }
    }
}
