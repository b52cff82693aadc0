//! Limits from files, reloaded on SIGHUP, when the system reports a change, and when a check every few seconds
//! finds one.
//!
//! Compares fingerprints of the files, never their times, so any kind of change is found: written in place,
//! renamed over, or a link moved to another directory. New rules replace the old ones as a whole; while the files
//! have a mistake, the old ones stay in force. Reading and compiling never delays a decision.

mod fingerprint;
mod watcher;

use crate::in_force::{InForce, LOGGED_MAX, Part, more};
use anyhow::bail;
use fingerprint::{Fingerprint, Unstable};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidegate_authority::Authority;
use tidegate_limits::{Diagnostic, LoadErrors, Pipes, Source};
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
pub struct FileSettings {
    /// A limits file, or a directory of them.
    pub path: PathBuf,
    pub watch: Watch,
}

/// The reason for a check of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trigger {
    /// A request of an operator: reload in any case.
    Request,
    /// A possible change: reload if the fingerprint differs.
    Change,
}

/// Limits in files.
pub(crate) struct FilePart {
    settings: FileSettings,
    index: usize,
    state: Mutex<State>,
    requested: Notify,
}

struct State {
    /// Of the files that the rules in force were read from.
    in_force: Fingerprint,
    /// Of the files that were read last, in force or not.
    last_read: Fingerprint,
}

impl FilePart {
    /// Reads the files for the first time.
    pub(crate) fn open(
        settings: &FileSettings,
        index: usize,
    ) -> anyhow::Result<(FilePart, Source)> {
        let path = &settings.path;
        let at = path.display();
        let Ok((fingerprint, source)) = read(path, Fingerprint::of(path)) else {
            bail!("nothing is served until {at} stops changing; it changed each time it was read");
        };
        if let Some(cause) = source.unreadable() {
            bail!("nothing is served without limits: {at}: {cause}");
        }
        Ok((FilePart::with(settings, index, fingerprint), source))
    }

    /// Starts with the limits that another process has in force. [`Part::follow`] reads the files.
    pub(crate) fn from_copy(settings: &FileSettings, index: usize, copy: &Source) -> FilePart {
        FilePart::with(settings, index, Fingerprint::of_source(copy))
    }

    fn with(settings: &FileSettings, index: usize, fingerprint: Fingerprint) -> FilePart {
        let state = State { in_force: fingerprint, last_read: fingerprint };
        let (settings, state) = (settings.clone(), Mutex::new(state));
        FilePart { settings, index, state, requested: Notify::new() }
    }

    /// Keeps the limits of `authority` as they are in the files, until it is aborted.
    async fn follow(self: Arc<Self>, in_force: Arc<InForce>, authority: Arc<Authority>) {
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
            let (reload, in_force, authority) = (self.clone(), in_force.clone(), authority.clone());
            let checking = in_force.clone();
            let checked = tokio::task::spawn_blocking(move || {
                // Before reading, so that no change is missed. Each time, as another directory may have taken
                // the name.
                watcher.watch(&reload.settings.path);
                reload.check(&checking, &authority, trigger);
                watcher
            });
            watcher = self.with_deadline(READ_MAX, &in_force, checked).await.unwrap_or_else(|_| {
                in_force.refused(self.index, "reading the limits failed");
                tracing::error!("reading the limits failed; the old ones stay in force");
                new_watcher()
            });
        }
    }

    /// Waits for a check, and logs when it takes longer than `deadline`, as on a file system that does not
    /// answer. A blocked thread cannot be cancelled, so it waits on.
    async fn with_deadline<T>(
        &self,
        deadline: Duration,
        in_force: &InForce,
        checked: impl Future<Output = T>,
    ) -> T {
        let start = Instant::now();
        let mut checked = std::pin::pin!(checked);
        if let Ok(done) = tokio::time::timeout(deadline, &mut checked).await {
            return done;
        }
        in_force.set_current(self.index, false);
        let path = self.settings.path.display();
        tracing::error!(%path, "reading the limits takes more than {deadline:?}; the old ones stay in force");
        let done = checked.await;
        let is_current = self.state.lock().unwrap_or_else(PoisonError::into_inner).is_current();
        in_force.set_current(self.index, is_current);
        tracing::info!(%path, took = ?start.elapsed(), "reading the limits has finished");
        done
    }

    /// Reloads the limits if the files changed, or on request. Blocks.
    fn check(&self, in_force: &InForce, authority: &Authority, trigger: Trigger) {
        let fingerprint = Fingerprint::of(&self.settings.path);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if trigger == Trigger::Change && fingerprint == state.last_read {
            in_force.set_current(self.index, state.is_current());
            return;
        }
        let Ok((fingerprint, source)) = read(&self.settings.path, fingerprint) else {
            // `last_read` stays, so that the next check reads them again.
            in_force.refused(self.index, "the limits changed each time they were read");
            let path = self.settings.path.display();
            tracing::error!(%path, "the limits changed each time they were read; the old ones stay in force");
            return;
        };
        // Set before compiling, so that each version is tried once, whatever the result.
        let is_reverted = fingerprint == state.in_force && state.last_read != fingerprint;
        state.last_read = fingerprint;
        if trigger == Trigger::Change && is_reverted {
            in_force.set_current(self.index, true);
            tracing::info!("the limits on disk are those in force again");
            return;
        }
        match in_force.replace(self.index, source, authority) {
            Ok(()) => state.in_force = fingerprint,
            Err(LoadErrors(errors)) => {
                for error in errors.iter().take(LOGGED_MAX).map(Diagnostic::to_string) {
                    tracing::error!(error, "limits not reloaded; the old ones stay in force");
                }
                if let Some(more) = more(errors.len(), Some(&self.settings.path)) {
                    tracing::error!("{more}");
                }
            }
        }
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

impl Part for FilePart {
    fn reload(&self) {
        self.requested.notify_one();
    }

    fn is_followed_by_each(&self) -> bool {
        true
    }

    fn follow(
        self: Arc<Self>,
        in_force: Arc<InForce>,
        authority: Arc<Authority>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(FilePart::follow(self, in_force, authority))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tidegate_authority::{LimitObserver, Observer};
    use tidegate_limits::{Defaults, Rules};
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
        let settings = FileSettings { path: PathBuf::from("/nowhere"), watch: Watch::Off };
        let feed = FilePart::with(&settings, 0, Fingerprint::of(&settings.path));
        let observer = Arc::new(Current::default());
        let in_force =
            InForce::new(Defaults::default(), observer.clone(), false, vec![String::new()]);
        let current = || observer.0.load(Ordering::Relaxed);
        in_force.set_current(0, true);
        assert!(feed.with_deadline(READ_MAX, &in_force, async { current() }).await);
        let (end, ended) = oneshot::channel();
        // The deadline has passed at once.
        let checked = feed.with_deadline(Duration::ZERO, &in_force, ended);
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
            assert_eq!(more(count, Some(path)).as_deref(), expected);
        }
    }
}
