//! Cold counters, as a process has them: the engine over the store, and the moves of idle counters.

use anyhow::Context;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_cold::Cold;
use tidegate_servers::ColdHealth;
use tidegate_stats::ColdCounts;
use tidegate_store::Cluster;
use tidegate_tiers::{Levels, Moves, MovesSettings, Rows, Tiered};
use tidegate_warm::Warm;
use tokio::sync::watch;

/// The database in a data directory.
pub const COLD_FILE: &str = "cold.sqlite";
/// The databases of a data directory, for commands and later processes: a URL a line, without what is secret.
const NAMES_FILE: &str = "cold-databases";
/// How often it is looked whether the databases answer.
const LOOK_EVERY: std::time::Duration = std::time::Duration::from_millis(250);

/// Where idle counters go, and when.
#[derive(Debug, Clone)]
pub struct ColdSettings {
    pub levels: ColdLevels,
    pub tiers: tidegate_tiers::Settings,
    pub moves: MovesSettings,
}

/// Where idle counters are: in a warm server, in databases below it, or in one of the two alone.
#[derive(Debug, Clone, Default)]
pub struct ColdLevels {
    pub warm: Option<tidegate_warm::Settings>,
    pub cold: Option<tidegate_cold::Settings>,
}

impl ColdLevels {
    /// The rows of a cluster; none if there is no level. Connects to nothing yet.
    pub fn open(&self, cluster: u128) -> anyhow::Result<Option<Arc<dyn Rows>>> {
        let warm = self.warm.as_ref().map(|warm| Warm::open(warm, cluster)).transpose()?;
        let cold = self.cold.as_ref().map(|cold| Cold::open(cold, cluster)).transpose()?;
        Ok(match (warm, cold) {
            (None, None) => None,
            (Some(warm), None) => Some(Arc::new(warm)),
            (None, Some(cold)) => Some(Arc::new(cold)),
            (Some(warm), Some(cold)) => Some(Arc::new(Levels::new(Arc::new(warm), Arc::new(cold)))),
        })
    }
}

/// The engine of this process.
#[derive(Debug, Clone)]
pub(crate) struct ColdCounters {
    tiered: Arc<Tiered>,
    moves: MovesSettings,
    dir: PathBuf,
    moving: Arc<Mutex<Option<Moves>>>,
}

/// The databases that the sidecar of a data directory moves idle counters to: URLs without what is secret.
#[must_use]
pub fn cold_databases(dir: &Path) -> Vec<String> {
    let names = std::fs::read_to_string(dir.join(NAMES_FILE)).unwrap_or_default();
    names.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// Says that counters are left in databases which this process does not know. It knows those with these names.
pub(crate) fn warn_of_left(dir: &Path, known: &[String]) {
    let mut left = cold_databases(dir);
    left.retain(|name| !known.contains(name));
    if !left.is_empty() {
        tracing::warn!(
            databases = left.join(" "),
            "an earlier process has moved idle counters to databases that --cold and --warm do not name; they count as \
             new here, so that their limits admit more"
        );
    }
}

impl ColdCounters {
    /// Over the store of the data directory `dir`. Goes on without the databases.
    pub(crate) fn open(
        settings: &ColdSettings,
        store: &Arc<Cluster>,
        dir: &Path,
    ) -> anyhow::Result<ColdCounters> {
        let rows = settings.levels.open(store.id())?.context("no database of cold counters")?;
        let names = rows.shards();
        warn_of_left(dir, &names);
        let path = dir.join(NAMES_FILE);
        let text = names.join("\n") + "\n";
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
        let tiered = Tiered::new(store.clone(), rows, settings.tiers)?;
        let (tiered, moves, dir) = (Arc::new(tiered), settings.moves, dir.to_owned());
        Ok(ColdCounters { tiered, moves, dir, moving: Arc::default() })
    }

    pub(crate) fn counters(&self) -> Arc<Tiered> {
        self.tiered.clone()
    }

    /// Moves idle counters from now on, as soon as no other process of the data directory does.
    pub(crate) fn start_moves(&self) -> anyhow::Result<()> {
        let moves = self.tiered.start_moves(&self.dir, self.moves)?;
        *self.moving.lock().unwrap_or_else(PoisonError::into_inner) = Some(moves);
        Ok(())
    }

    /// Waits for the move under way, and begins no other one.
    pub(crate) fn stop_moves(&self) {
        let moves = self.moving.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(moves);
    }

    pub(crate) fn counts(&self) -> ColdCounts {
        let counts = self.tiered.counts();
        ColdCounts {
            is_up: self.tiered.trouble().is_none(),
            moved: counts.moved,
            moved_on: counts.moved_on,
            fetched: counts.fetched,
            fetched_in_vain: counts.fetched_in_vain,
            spared: counts.spared,
            failed: counts.failed,
            without_state: counts.without_state,
            removed: counts.removed,
            kept: counts.kept,
        }
    }

    /// Watches whether the databases answer. Must be called in a runtime.
    pub(crate) fn watch(&self) -> ColdHealth {
        let sender = watch::Sender::new(self.tiered.trouble());
        let warnings = watch::Sender::new(self.tiered.warning());
        let health = ColdHealth { cause: sender.subscribe(), warning: warnings.subscribe() };
        let tiered = self.tiered.clone();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = tokio::time::sleep(LOOK_EVERY) => {}
                    () = sender.closed() => return,
                }
                let set = |sender: &watch::Sender<Option<String>>, now: Option<String>| {
                    sender.send_if_modified(|last| {
                        let is_new = *last != now;
                        *last = now;
                        is_new
                    });
                };
                set(&sender, tiered.trouble());
                set(&warnings, tiered.warning());
            }
        });
        health
    }
}
