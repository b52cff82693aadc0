//! Limits from files, reloaded on SIGHUP, when the system reports a change, and when a check every few seconds
//! finds one.
//!
//! Compares fingerprints of the files, never their times, so any kind of change is found: written in place,
//! renamed over, or a link moved to another directory. New rules replace the old ones as a whole; while the files
//! have a mistake, the old ones stay in force. Reading and compiling never delays a decision.

mod copy;
mod fingerprint;
mod watcher;

use crate::Feed;
use anyhow::{anyhow, bail};
use fingerprint::{Fingerprint, Unstable};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidegate_authority::{Authority, Observer};
use tidegate_limits::Rules;
use tidegate_limits::describe::grouped;
use tidegate_limits::diff::{self, Snapshot};
use tidegate_limits::{self as rules, Defaults, Diagnostic, LoadErrors, Loaded, Pipes, Source};
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior};
use watcher::Watcher;

/// Files are read after this long without an event: editors and `kubectl` change them in several steps.
const QUIET: Duration = Duration::from_millis(100);
/// They are read at the latest after this long, as events in their directory may never stop.
const QUIET_WAIT_MAX: Duration = Duration::from_secs(1);
/// Between checks without an event. Reading and hashing a megabyte takes well below a millisecond.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// A longer reading is logged. A usual one takes a thousandth of this, so the file system must have a problem.
const READ_MAX: Duration = Duration::from_secs(10);
/// Mistakes logged for one reload, and warnings: a screenful each. More would hide the rest of the log.
const LOGGED_MAX: usize = 20;

/// When the files are read again, in addition to requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watch {
    /// When the system reports a change, and every two seconds.
    On,
    /// Every two seconds.
    Poll,
    Off,
}

#[derive(Debug, Clone)]
pub struct Settings {
    /// A limits file, or a directory of them.
    pub path: PathBuf,
    /// For settings that a file leaves out.
    pub defaults: Defaults,
    pub watch: Watch,
    /// Whether to keep a copy of the limits in force, for worker processes.
    pub keeps_copy: bool,
}

/// The reason for a check of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trigger {
    /// A request of an operator: reload in any case.
    Request,
    /// A possible change: reload if the fingerprint differs.
    Change,
}

/// Keeps the limits of an authority as they are in the files.
pub struct FileFeed {
    settings: Settings,
    observer: Arc<dyn Observer>,
    state: Mutex<State>,
    requested: Notify,
}

struct State {
    /// Of the files that the rules in force were read from.
    in_force: Fingerprint,
    /// Of the files that were read last, in force or not.
    last_read: Fingerprint,
    rules: Snapshot,
    /// Of the files that the rules in force were read from, if there are worker processes.
    copy: Option<Arc<File>>,
}

impl FileFeed {
    /// Reads the files for the first time. Mistakes go to standard error.
    pub fn open(
        settings: &Settings,
        observer: Arc<dyn Observer>,
    ) -> anyhow::Result<(FileFeed, Rules)> {
        let path = &settings.path;
        let at = path.display();
        let Ok((fingerprint, source)) = read(path, Fingerprint::of(path)) else {
            bail!("nothing is served until {at} stops changing; it changed each time it was read");
        };
        if let Some(cause) = source.unreadable() {
            bail!("nothing is served without limits: {at}: {cause}");
        }
        FileFeed::with(settings, observer, fingerprint, &source)
    }

    /// Starts with the limits that another process has in force. [`Feed::run`] reads the files.
    pub fn from_copy(
        settings: &Settings,
        observer: Arc<dyn Observer>,
        file: &File,
    ) -> anyhow::Result<(FileFeed, Rules)> {
        let source = copy::read(file, &settings.path)?;
        FileFeed::with(settings, observer, Fingerprint::of_source(&source), &source)
    }

    fn with(
        settings: &Settings,
        observer: Arc<dyn Observer>,
        fingerprint: Fingerprint,
        source: &Source,
    ) -> anyhow::Result<(FileFeed, Rules)> {
        let at = settings.path.display();
        let Loaded { rules, warnings, .. } = rules::load_source(source, settings.defaults.clone())
            .map_err(|errors| {
                // One a line, as `tidegate check` prints them.
                eprintln!("{errors}");
                anyhow!("nothing is served until {at} has no mistake")
            })?;
        warn(&settings.path, &warnings);
        let copy = if settings.keeps_copy { copy::write(source)? } else { None };
        let (rules_now, copy) = (Snapshot::of(&rules), copy.map(Arc::new));
        let state = State { in_force: fingerprint, last_read: fingerprint, rules: rules_now, copy };
        observer.limits_loaded();
        let (state, requested) = (Mutex::new(state), Notify::new());
        Ok((FileFeed { settings: settings.clone(), observer, state, requested }, rules))
    }

    /// Keeps the limits of `authority` as they are in the files, until it is aborted.
    async fn follow(self: Arc<Self>, authority: Arc<Authority>) {
        let changed = Arc::new(Notify::new());
        let new_watcher = || match self.settings.watch {
            Watch::On => Watcher::new(changed.clone()),
            Watch::Poll | Watch::Off => Watcher::none(),
        };
        let mut watcher = new_watcher();
        let mut ticks = tokio::time::interval(POLL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let trigger = tokio::select! {
                () = self.requested.notified() => Trigger::Request,
                () = changed.notified() => {
                    until_quiet(&changed).await;
                    Trigger::Change
                }
                _ = ticks.tick(), if self.settings.watch != Watch::Off => Trigger::Change,
            };
            let (reload, authority) = (self.clone(), authority.clone());
            let checked = tokio::task::spawn_blocking(move || {
                // Before reading, so that no change is missed. Each time, as another directory may have taken
                // the name.
                watcher.watch(&reload.settings.path);
                reload.check(&authority, trigger);
                watcher
            });
            watcher = self.with_deadline(READ_MAX, checked).await.unwrap_or_else(|_| {
                self.failed();
                tracing::error!("reading the limits failed; the old ones stay in force");
                new_watcher()
            });
        }
    }

    /// Waits for a check, and logs when it takes longer than `deadline`, as on a file system that does not
    /// answer. A blocked thread cannot be cancelled, so it waits on.
    async fn with_deadline<T>(&self, deadline: Duration, checked: impl Future<Output = T>) -> T {
        let start = Instant::now();
        let mut checked = std::pin::pin!(checked);
        if let Ok(done) = tokio::time::timeout(deadline, &mut checked).await {
            return done;
        }
        self.observer.limits_current(false);
        let path = self.settings.path.display();
        tracing::error!(%path, "reading the limits takes more than {deadline:?}; the old ones stay in force");
        let done = checked.await;
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.observer.limits_current(state.is_current());
        tracing::info!(%path, took = ?start.elapsed(), "reading the limits has finished");
        done
    }

    fn failed(&self) {
        self.observer.limits_current(false);
        self.observer.limits_failed();
    }

    /// Reloads the limits if the files changed, or on request. Blocks.
    fn check(&self, authority: &Authority, trigger: Trigger) {
        let fingerprint = Fingerprint::of(&self.settings.path);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if trigger == Trigger::Change && fingerprint == state.last_read {
            self.observer.limits_current(state.is_current());
            return;
        }
        let Ok((fingerprint, source)) = read(&self.settings.path, fingerprint) else {
            // `last_read` stays, so that the next check reads them again.
            self.failed();
            let path = self.settings.path.display();
            tracing::error!(%path, "the limits changed each time they were read; the old ones stay in force");
            return;
        };
        // Set before compiling, so that each version is tried once, whatever the result.
        let is_reverted = fingerprint == state.in_force && state.last_read != fingerprint;
        state.last_read = fingerprint;
        if trigger == Trigger::Change && is_reverted {
            self.observer.limits_current(true);
            tracing::info!("the limits on disk are those in force again");
            return;
        }
        match self.replace(authority, &source, &mut state) {
            Ok(()) => {
                state.in_force = fingerprint;
                self.observer.limits_loaded();
            }
            Err(errors) => {
                self.observer.limits_current(state.is_current());
                self.observer.limits_failed();
                for error in errors.iter().take(LOGGED_MAX) {
                    tracing::error!(error, "limits not reloaded; the old ones stay in force");
                }
                if let Some(more) = more(errors.len(), &self.settings.path) {
                    tracing::error!("{more}");
                }
            }
        }
    }

    fn replace(
        &self,
        authority: &Authority,
        source: &Source,
        state: &mut State,
    ) -> Result<(), Vec<String>> {
        let messages =
            |LoadErrors(errors)| errors.iter().map(Diagnostic::to_string).collect::<Vec<_>>();
        let Loaded { rules, warnings, .. } =
            rules::load_source(source, self.settings.defaults.clone()).map_err(messages)?;
        let snapshot = Snapshot::of(&rules);
        let limits = snapshot.limits();
        authority.replace_limits(rules).map_err(|error| vec![error.to_string()])?;
        warn(&self.settings.path, &warnings);
        let changes = diff::compare(&state.rules, &snapshot);
        state.rules = snapshot;
        if state.copy.is_some() {
            match copy::write(source) {
                Ok(copy) => state.copy = copy.map(Arc::new),
                // A new worker reads the new ones a moment later.
                Err(error) => tracing::warn!(%error, "new workers start with the old limits"),
            }
        }
        tracing::info!(limits, %changes, "limits reloaded");
        Ok(())
    }
}

impl State {
    fn is_current(&self) -> bool {
        self.last_read == self.in_force
    }
}

/// Reads one consistent version of the limits at `path`; `before` is their fingerprint a moment ago. Rules are
/// compiled from these bytes.
fn read(path: &Path, before: Fingerprint) -> Result<(Fingerprint, Source), Unstable> {
    fingerprint::read_stable(before, || Source::read(path, Pipes::Refuse))
}

/// Waits until no event has come for [`QUIET`].
async fn until_quiet(changed: &Notify) {
    let end = Instant::now() + QUIET_WAIT_MAX;
    while Instant::now() < end {
        tokio::select! {
            () = changed.notified() => {}
            () = tokio::time::sleep(QUIET) => return,
        }
    }
}

fn warn(path: &Path, warnings: &[Diagnostic]) {
    for warning in warnings.iter().take(LOGGED_MAX) {
        tracing::warn!(%warning, "in the limits");
    }
    if let Some(more) = more(warnings.len(), path) {
        tracing::warn!("{more}");
    }
}

/// A line for the messages that are not logged, if there are any.
fn more(count: usize, path: &Path) -> Option<String> {
    let more = count.checked_sub(LOGGED_MAX).filter(|&more| more > 0)?;
    Some(format!("and {} more; run `tidegate check {}`", grouped(more as u64), path.display()))
}

impl Feed for FileFeed {
    fn reload(&self) {
        self.requested.notify_one();
    }

    fn copy(&self) -> Option<Arc<File>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).copy.clone()
    }

    fn run(self: Arc<Self>, authority: Arc<Authority>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(self.follow(authority))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tidegate_authority::LimitObserver;
    use tokio::sync::oneshot;

    /// Whether the limits in force are those on disk.
    #[derive(Debug, Default)]
    struct Current(AtomicBool);

    impl Observer for Current {
        fn limits_replaced(&self, _rules: &Rules) -> Box<dyn LimitObserver> {
            Box::new(())
        }

        fn limits_current(&self, is_current: bool) {
            self.0.store(is_current, Ordering::Relaxed);
        }
    }

    /// A file system that did not answer held up all reloads, and `config_current` went on saying
    /// that the limits in force were those on disk.
    #[tokio::test]
    async fn a_read_without_end_is_reported() {
        let path = PathBuf::from("/nowhere");
        let fingerprint = Fingerprint::of(&path);
        let rules = Snapshot::of(&Rules::default());
        let settings =
            Settings { path, defaults: Defaults::default(), watch: Watch::Off, keeps_copy: false };
        let observer = Arc::new(Current::default());
        let feed = FileFeed {
            settings,
            observer: observer.clone(),
            state: Mutex::new(State {
                in_force: fingerprint,
                last_read: fingerprint,
                rules,
                copy: None,
            }),
            requested: Notify::new(),
        };
        let current = || observer.0.load(Ordering::Relaxed);
        feed.observer.limits_current(true);
        assert!(feed.with_deadline(READ_MAX, async { current() }).await);
        let (end, ended) = oneshot::channel();
        // The deadline has passed at once.
        let checked = feed.with_deadline(Duration::ZERO, ended);
        let watched = async {
            while current() {
                tokio::task::yield_now().await;
            }
            end.send("the end").unwrap();
        };
        let bounded = tokio::time::timeout(Duration::from_secs(60), async {
            tokio::join!(checked, watched).0
        });
        assert_eq!(bounded.await.unwrap(), Ok("the end"));
        assert!(current(), "the files read last are in force");
    }

    #[test]
    fn what_is_not_logged_is_counted() {
        let path = Path::new("/limits");
        for (count, expected) in [
            (0, None),
            (LOGGED_MAX, None),
            (LOGGED_MAX + 1, Some("and 1 more; run `tidegate check /limits`")),
            (5_020, Some("and 5,000 more; run `tidegate check /limits`")),
        ] {
            assert_eq!(more(count, path).as_deref(), expected);
        }
    }
}
