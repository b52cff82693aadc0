//! Statistics of a process: what it decides is recorded in memory, and goes to a database every 15 seconds.
//!
//! Each process writes by itself, workers and their supervisor too, as several may write to one database. Nothing is
//! opened before the limits in force have a statistic. A process that is killed loses what it has recorded since the
//! last 15 seconds began; no decision waits for any of this.

use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidegate_recent::Recent;
use tidegate_servers::http::StatisticsPage;
use tidegate_statistics::database::{self, Database};
use tidegate_statistics::respond::{self, Response};
use tidegate_statistics::retention::{Calendar, Retention};
use tidegate_statistics::writer::{BACKLOG_BYTES_MAX, Writer, WriterCounts};
use tidegate_statistics::{Recorder, SLOT_SECONDS};
use tidegate_stats::StatisticsCounts;
use tokio::task::JoinHandle;

/// The database in a data directory.
pub const STATISTICS_FILE: &str = "statistics.sqlite";
/// How long a process that ends writes what it has.
const FINISH_MAX: Duration = Duration::from_secs(3);
/// How long a question waits for a database that has just been opened.
const OPEN_MAX: Duration = Duration::from_secs(5);

/// Where statistics are kept.
#[derive(Debug, Clone)]
pub enum StatisticsSettings {
    Off,
    /// In the data directory, if there is one.
    DataDir(Calendar, Retention),
    Database(database::Settings),
}

/// The statistics of this process.
#[derive(Debug)]
pub(crate) struct Statistics {
    recent: Recent,
    recorder: Recorder,
    settings: database::Settings,
    /// None until it is needed.
    writer: Mutex<Option<Writer>>,
}

impl Statistics {
    /// Their database; none if there is no place for them. Fails on settings that can never work.
    pub(crate) fn place(
        settings: &StatisticsSettings,
        data_dir: Option<&Path>,
    ) -> anyhow::Result<Option<database::Settings>> {
        let settings = match (settings, data_dir) {
            (StatisticsSettings::Database(settings), _) => settings.clone(),
            (StatisticsSettings::DataDir(calendar, retention), Some(dir)) => {
                let mut settings = database::Settings::sqlite(&dir.join(STATISTICS_FILE));
                (settings.calendar, settings.retention) = (calendar.clone(), *retention);
                settings
            }
            (StatisticsSettings::Off, _) | (StatisticsSettings::DataDir(..), None) => {
                return Ok(None);
            }
        };
        settings.check()?;
        Ok(Some(settings))
    }

    /// Those of what `recent` passes on to `recorder`.
    pub(crate) fn new(
        settings: database::Settings,
        recorder: Recorder,
        recent: Recent,
    ) -> Arc<Statistics> {
        Arc::new(Statistics { recent, recorder, settings, writer: Mutex::default() })
    }

    /// Passes on what is recorded, until it is aborted. Must be called in a runtime.
    pub(crate) fn run(self: &Arc<Self>) -> JoinHandle<()> {
        let statistics = self.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(SLOT_SECONDS)).await;
                statistics.pass_on();
            }
        })
    }

    fn pass_on(&self) {
        self.recent.pass_on_patient();
        let batch = self.recorder.take(seconds());
        if !batch.is_empty() {
            self.with_writer(|writer| writer.add(batch));
        }
    }

    /// Writes what was recorded last, if the database takes it in time.
    pub(crate) async fn finish(&self, running: JoinHandle<()>) {
        running.abort();
        self.pass_on();
        let writer = self.writer().take();
        if let Some(writer) = writer {
            let left = writer.finish(FINISH_MAX).await;
            if left.backlog_bytes > 0 {
                tracing::warn!(
                    "the last statistics could not be written in {FINISH_MAX:?} and are lost"
                );
            }
        }
    }

    pub(crate) fn counts(&self) -> StatisticsCounts {
        let counts = self.writer().as_ref().map(Writer::counts);
        let WriterCounts { is_up, failed, dropped, backlog_bytes, .. } = match counts {
            Some(counts) => counts,
            // Nothing has failed yet.
            None => WriterCounts { is_up: true, ..WriterCounts::default() },
        };
        StatisticsCounts {
            is_up,
            failed,
            dropped: dropped.hits,
            backlog_bytes: backlog_bytes as u64,
        }
    }

    fn writer(&self) -> MutexGuard<'_, Option<Writer>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts it if that was not done. Must be called in a runtime.
    fn with_writer<T>(&self, work: impl FnOnce(&Writer) -> T) -> Option<T> {
        let mut writer = self.writer();
        if writer.is_none() {
            match Writer::start(self.settings.clone(), BACKLOG_BYTES_MAX) {
                Ok(started) => *writer = Some(started),
                // The settings were checked at the start.
                Err(error) => tracing::error!(%error, "statistics cannot be written"),
            }
        }
        writer.as_ref().map(work)
    }

    async fn database(&self) -> Option<Arc<Database>> {
        let mut database = self.with_writer(Writer::database)?;
        let opened = tokio::time::timeout(OPEN_MAX, database.wait_for(Option::is_some)).await;
        opened.ok()?.ok()?.clone()
    }

    async fn answer(&self, name: &str, query: &str) -> Response {
        let declared = self.recorder.declared();
        if name.is_empty() {
            return respond::list(&declared);
        }
        let database = if declared.is_empty() { None } else { self.database().await };
        let now = i64::try_from(seconds()).unwrap_or(i64::MAX);
        respond::respond(&declared, database.as_deref(), (name, query), now).await
    }
}

impl StatisticsPage for Statistics {
    fn answer<'a>(
        &'a self,
        name: &'a str,
        query: &'a str,
    ) -> Pin<Box<dyn Future<Output = (u16, String)> + Send + 'a>> {
        Box::pin(async move {
            let Response { status, body } = Statistics::answer(self, name, query).await;
            (status, body.to_string())
        })
    }
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
