//! The task that writes batches, and thins the database when it has nothing to write.
//!
//! To add a batch takes a lock in memory, and waits for nothing else. While the database is away or slow, batches are kept in a
//! bounded backlog, and written when it is back. An outage is one line of the log, and its end another one.

mod outage;

use crate::backlog::Backlog;
use crate::batch::{Batch, Point};
use crate::database::{Database, DatabaseError, PartId, Settings, Thinned, Thinner, random};
use crate::series::Counts;
use outage::Outage;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidegate_sql::{SqlError, shown};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

/// Of what waits for the database.
pub const BACKLOG_BYTES_MAX: usize = 128 * 1024 * 1024;
/// A part is written, or a step of thinning done, within this time, or tried again.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between the end of a pass of thinning and the next one. Most of the work comes once a day.
const THIN_EVERY: Duration = Duration::from_secs(3_600);

/// Writes in the background until it is finished or dropped.
#[derive(Debug)]
pub struct Writer {
    shared: Arc<Shared>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    backlog: Mutex<Backlog>,
    added: Notify,
    database: watch::Sender<Option<Arc<Database>>>,
    counts: Mutex<WriterCounts>,
    is_closing: watch::Sender<bool>,
}

/// What a writer has done since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriterCounts {
    /// Whether the last thing that was tried succeeded.
    pub is_up: bool,
    pub parts_written: u64,
    /// Tries that failed.
    pub failed: u64,
    /// Rows that were rolled up or deleted.
    pub thinned: u64,
    /// What was dropped, since there was no room, or since the database refuses it.
    pub dropped: Counts,
    /// Memory of what waits.
    pub backlog_bytes: usize,
}

impl Writer {
    /// Starts it on the current runtime. The database need not be there.
    ///
    /// # Errors
    /// If the settings are wrong, so that it could never write.
    pub fn start(settings: Settings, backlog_bytes_max: usize) -> Result<Writer, DatabaseError> {
        Writer::start_with(settings, backlog_bytes_max, || {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
        })
    }

    fn start_with(
        settings: Settings,
        backlog_bytes_max: usize,
        now: impl Fn() -> i64 + Send + Sync + 'static,
    ) -> Result<Writer, DatabaseError> {
        settings.check()?;
        let writer = random();
        let shared = Arc::new(Shared {
            backlog: Mutex::new(Backlog::new(writer, backlog_bytes_max)),
            added: Notify::new(),
            database: watch::Sender::new(None),
            counts: Mutex::default(),
            is_closing: watch::Sender::new(false),
        });
        let writing = Writing {
            shared: shared.clone(),
            shown: shown(&settings.url),
            settings,
            thinner: Thinner::new(writer),
            // A service that starts again and again shall not thin each time.
            thin_at: Instant::now() + THIN_EVERY / 30,
            outage: Outage::default(),
            now: Box::new(now),
        };
        let task = tokio::spawn(writing.run());
        Ok(Writer { shared, task })
    }

    /// Takes a batch to write. Never waits for the database.
    pub fn add(&self, batch: Batch) {
        if !batch.is_empty() {
            locked(&self.shared.backlog).add(batch);
            self.shared.added.notify_one();
        }
    }

    /// The database for questions, as it comes and goes; none while it is away.
    #[must_use]
    pub fn database(&self) -> watch::Receiver<Option<Arc<Database>>> {
        self.shared.database.subscribe()
    }

    #[must_use]
    pub fn counts(&self) -> WriterCounts {
        let counts = *locked(&self.shared.counts);
        let backlog = locked(&self.shared.backlog);
        WriterCounts { dropped: backlog.dropped(), backlog_bytes: backlog.bytes(), ..counts }
    }

    /// Writes what waits, for so long at most, and ends. What is not written then is lost.
    pub async fn finish(mut self, within: Duration) -> WriterCounts {
        self.shared.is_closing.send_replace(true);
        // If it is not done in time, it ends with this handle.
        let _ = timeout(within, &mut self.task).await;
        self.counts()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state of the task.
struct Writing {
    shared: Arc<Shared>,
    settings: Settings,
    /// The database in the log.
    shown: String,
    thinner: Thinner,
    thin_at: Instant,
    outage: Outage,
    now: Box<dyn Fn() -> i64 + Send + Sync>,
}

impl Writing {
    async fn run(mut self) {
        let mut closing = self.shared.is_closing.subscribe();
        loop {
            let is_closing = *closing.borrow();
            let is_empty = locked(&self.shared.backlog).is_empty();
            if is_empty && is_closing {
                break;
            }
            if is_empty && self.is_connected() && Instant::now() < self.thin_at {
                tokio::select! {
                    () = self.shared.added.notified() => {}
                    () = tokio::time::sleep_until(self.thin_at) => {}
                    _ = closing.changed() => {}
                }
                continue;
            }
            match timeout(PATIENCE, self.work()).await {
                Ok(Ok(())) => self.succeeded(),
                Ok(Err(error)) => self.failed(&error).await,
                Err(_) => self.failed(&SqlError::Slow(PATIENCE).into()).await,
            }
        }
        if let Some(database) = self.database() {
            database.close().await;
        }
    }

    fn database(&self) -> Option<Arc<Database>> {
        self.shared.database.borrow().clone()
    }

    fn is_connected(&self) -> bool {
        self.shared.database.borrow().is_some()
    }

    /// One thing: a connection, a part, or a step of thinning.
    async fn work(&mut self) -> Result<(), DatabaseError> {
        let Some(database) = self.database() else {
            let database = Database::open(self.settings.clone()).await?;
            self.shared.database.send_replace(Some(Arc::new(database)));
            return Ok(());
        };
        let part = locked(&self.shared.backlog).next();
        if let Some((id, points)) = part {
            return self.write(&database, id, &points).await;
        }
        match self.thinner.step(&database, (self.now)()).await? {
            Thinned::Some(rows) => locked(&self.shared.counts).thinned += rows as u64,
            Thinned::All | Thinned::Elsewhere => self.thin_at = Instant::now() + THIN_EVERY,
        }
        Ok(())
    }

    async fn write(
        &self,
        database: &Database,
        id: PartId,
        points: &[Point],
    ) -> Result<(), DatabaseError> {
        match database.write(id, points, (self.now)()).await {
            Ok(_) => {
                locked(&self.shared.backlog).written();
                locked(&self.shared.counts).parts_written += 1;
                Ok(())
            }
            // Sent again, it would keep all others from being written.
            Err(error) if error.is_refusal() => {
                tracing::error!(database = self.shown, %error, "statistics were refused and are lost");
                locked(&self.shared.backlog).refused();
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn succeeded(&mut self) {
        locked(&self.shared.counts).is_up = true;
        if let Some(seconds) = self.outage.succeeded(Instant::now()) {
            let dropped = locked(&self.shared.backlog).dropped().requests();
            let database = &self.shown;
            tracing::info!(database, seconds, dropped, "statistics are written again");
        }
    }

    fn count_failure(&self) {
        let mut counts = locked(&self.shared.counts);
        counts.is_up = false;
        counts.failed += 1;
    }

    async fn failed(&mut self, error: &DatabaseError) {
        self.count_failure();
        // Whatever is wrong with its connections, new ones do not have it. The part keeps its number.
        self.shared.database.send_replace(None);
        let (wait, is_logged) = self.outage.failed(Instant::now());
        if is_logged {
            let database = &self.shown;
            tracing::warn!(database, %error, "statistics cannot be written; they are kept until they can");
        }
        // A last try before the end need not wait.
        let mut closing = self.shared.is_closing.subscribe();
        let _ = timeout(wait, closing.changed()).await;
    }
}

#[cfg(test)]
mod tests;
