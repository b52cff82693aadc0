//! The background tasks of an open data directory: snapshots to disk, and checks of the files, of the clock and
//! of processes that stopped while they hold a lock.

use crate::clock::ClockMonitor;
use crate::process_info::{self, ProcessInfo};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tidegate_store::{Cluster, StuckProcess, SyncReport};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Interval, MissedTickBehavior};

/// Between checks of the files and the clock: a few system calls each.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Between checks for stuck lock holders: reads of the writer slots, some microseconds each.
const STUCK_INTERVAL: Duration = Duration::from_millis(250);
/// Only a holder that has been stuck for this long is reported. A busy machine lets a runnable one wait for some
/// milliseconds. With two checks a quarter of a second apart, a stuck holder is known within a second.
const STUCK_MIN: Duration = Duration::from_millis(500);

/// The state of the store. Each field is updated by a task of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreHealth {
    pub files: FileState,
    pub stuck: Vec<StalledProcess>,
    /// Whether the last snapshot could not be written.
    pub is_unsaved: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FileState {
    #[default]
    Intact,
    /// Deleted or replaced: this process goes on counting, but no later process will know the counts.
    Replaced,
    /// Cut short or changed: no update is possible any more.
    Damaged,
}

/// A process that holds locks of counters and does not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StalledProcess {
    pub pid: u64,
    /// None where the process is not visible, as in another container.
    pub info: Option<ProcessInfo>,
    pub since: SystemTime,
}

impl StalledProcess {
    fn of(stuck: &StuckProcess) -> StalledProcess {
        StalledProcess { pid: stuck.pid, info: process_info::read(stuck.pid), since: stuck.since }
    }

    /// One sentence, as of `now`.
    pub fn describe(&self, now: SystemTime) -> String {
        let seconds = now.duration_since(self.since).unwrap_or_default().as_secs();
        let process = process_info::describe(self.pid, self.info.as_ref());
        format!("{process} has held a counter's lock for {seconds} s")
    }
}

/// The processes that have held a lock without progress for longer than a busy machine explains.
pub fn stuck(store: &Cluster) -> Vec<StuckProcess> {
    let now = SystemTime::now();
    let mut stuck = store.stuck();
    stuck.retain(|stuck| now.duration_since(stuck.since).is_ok_and(|time| time >= STUCK_MIN));
    stuck
}

/// Starts to save and monitor the store. Returns the task, which runs until it is aborted, and the latest health.
pub fn maintain(
    store: Arc<Cluster>,
    sync_interval: Option<Duration>,
) -> (JoinHandle<()>, watch::Receiver<StoreHealth>) {
    let (health, receiver) = watch::channel(StoreHealth::default());
    let task = tokio::spawn(async move {
        tokio::select! {
            () = check_files_and_clock(&store, &health) => {}
            () = sync(&store, sync_interval, &health) => {}
            () = check_stuck(&store, &health) => {}
        }
    });
    (task, receiver)
}

fn interval(period: Duration) -> Interval {
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

async fn sync(store: &Arc<Cluster>, period: Option<Duration>, health: &watch::Sender<StoreHealth>) {
    let Some(period) = period else { return std::future::pending().await };
    let mut ticks = interval(period);
    loop {
        ticks.tick().await;
        let store = store.clone();
        let Ok(synced) = tokio::task::spawn_blocking(move || store.sync()).await else {
            continue;
        };
        let is_unsaved = synced.is_err();
        let changed = health.send_if_modified(|health| {
            std::mem::replace(&mut health.is_unsaved, is_unsaved) != is_unsaved
        });
        match synced {
            Ok(Some(SyncReport { locked, .. })) if locked > 0 => {
                tracing::warn!(key_nodes = locked, "locked by a stuck process, and not saved");
            }
            Ok(_) if changed => tracing::info!("snapshots are written again"),
            // Once for each change: a full disk stays full.
            Err(error) if changed => {
                tracing::error!(%error, "cannot write the snapshot; retrying");
            }
            Ok(_) | Err(_) => {}
        }
    }
}

async fn check_files_and_clock(store: &Arc<Cluster>, health: &watch::Sender<StoreHealth>) {
    let mut ticks = interval(CHECK_INTERVAL);
    let mut clock = ClockMonitor::default();
    loop {
        ticks.tick().await;
        clock.check_and_log(store);
        // Even the length of a file may take long on a slow file system.
        let checking = store.clone();
        let checked = tokio::task::spawn_blocking(move || checking.check_files()).await;
        let Ok(checked) = checked else { continue };
        let (state, error) = match checked {
            Ok(()) => (FileState::Intact, String::new()),
            Err(error) if store.is_lost() => (FileState::Damaged, error.to_string()),
            Err(error) => (FileState::Replaced, error.to_string()),
        };
        // Logged once for each change.
        if !health.send_if_modified(|health| std::mem::replace(&mut health.files, state) != state) {
            continue;
        }
        match state {
            FileState::Intact => tracing::info!("the data directory is intact again"),
            FileState::Replaced => tracing::error!(
                error,
                "counters live on in memory alone: put the files back, or restart on the right directory"
            ),
            FileState::Damaged => tracing::error!(error, "no request can be decided"),
        }
    }
}

async fn check_stuck(store: &Arc<Cluster>, health: &watch::Sender<StoreHealth>) {
    let mut ticks = interval(STUCK_INTERVAL);
    let mut before: Vec<StuckProcess> = Vec::new();
    let mut reported: Vec<StalledProcess> = Vec::new();
    loop {
        ticks.tick().await;
        let now = stuck(store);
        // Twice in the same step: after a pause of the whole machine, one check alone is wrong.
        let is_confirmed = |now: &&StuckProcess| {
            before.iter().any(|then| (then.process, then.since) == (now.process, now.since))
        };
        let confirmed: Vec<StalledProcess> =
            now.iter().filter(is_confirmed).map(StalledProcess::of).collect();
        before = now;
        if confirmed == reported {
            continue;
        }
        log_stuck(&reported, &confirmed);
        reported.clone_from(&confirmed);
        health.send_modify(|health| health.stuck = confirmed);
    }
}

/// Logs one line for a process that is stuck, and one when it no longer is.
fn log_stuck(before: &[StalledProcess], now: &[StalledProcess]) {
    let is_in = |holders: &[StalledProcess], pid| holders.iter().any(|holder| holder.pid == pid);
    for holder in now.iter().filter(|holder| !is_in(before, holder.pid)) {
        let pid = holder.pid;
        let (command, state) = match &holder.info {
            Some(info) => (info.command.as_str(), info.state.name()),
            None => ("", "not visible from here"),
        };
        tracing::warn!(
            pid,
            command,
            state,
            "a process holds a counter's lock and does not move; its counters are not decided"
        );
    }
    for holder in before.iter().filter(|holder| !is_in(now, holder.pid)) {
        let pid = holder.pid;
        if process_info::read(pid).is_some() {
            tracing::info!(pid, "the process that held a counter's lock moves again");
        } else {
            tracing::info!(pid, "the process that held a counter's lock has ended");
        }
    }
}
