//! Reading the limits again while serving: on SIGHUP, when the system tells of a change, and by
//! looking every few seconds whether there was one that it did not tell of.
//!
//! Goes by the contents of the files, never by their times, so it does not matter how a change came
//! about: written in place, renamed over, or a link moved under a whole directory. New rules are put in
//! force as a whole; as long as what is on disk has a mistake, the old ones stay. Reading and
//! compiling never holds up a decision.

mod contents;
mod handout;
mod watcher;

use crate::Feed;
use anyhow::{anyhow, bail};
use contents::{Contents, Restless};
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

/// How long files must be left alone before they are read: editors and `kubectl` change them in
/// several steps.
const SETTLE: Duration = Duration::from_millis(100);
/// How long they are waited for at most, as something in their directory may never rest.
const SETTLE_MAX: Duration = Duration::from_secs(1);
/// How often they are looked at without an event. Reading and hashing a megabyte takes well below
/// a millisecond.
const POLL: Duration = Duration::from_secs(2);
/// How long a look may take before it is told: a thousand times what one takes, so that something is
/// wrong with the file system.
const LOOK_MAX: Duration = Duration::from_secs(10);
/// How many mistakes of one reload are logged, and how many warnings: a screenful. More would only
/// push what else is in the log out of sight.
const TOLD_MAX: usize = 20;

/// When the files are read again, besides on request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watch {
    /// When the system reports a change, and every two seconds.
    On,
    /// Every two seconds.
    Poll,
    Off,
}

/// Which files, and how they are read.
#[derive(Debug, Clone)]
pub struct Settings {
    /// A limits file, or a directory of them.
    pub path: PathBuf,
    /// What holds for files that do not say otherwise.
    pub defaults: Defaults,
    pub watch: Watch,
    /// Whether a copy of the limits in force is kept for worker processes.
    pub keeps_handout: bool,
}

/// Why the files are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// An operator asked: read them in any case.
    Asked,
    /// They may have changed.
    Watched,
}

/// The limits on disk, and what became of them.
pub struct FileFeed {
    settings: Settings,
    observer: Arc<dyn Observer>,
    state: Mutex<State>,
    asked: Notify,
}

struct State {
    /// What the rules in force were read from.
    in_force: Contents,
    /// What was looked at last, in force or not.
    seen: Contents,
    rules: Snapshot,
    /// What the rules in force were read from, if there are worker processes.
    handout: Option<Arc<File>>,
}

impl FileFeed {
    /// Reads the limits for the first time. Mistakes go to standard error.
    pub fn first(
        settings: &Settings,
        observer: Arc<dyn Observer>,
    ) -> anyhow::Result<(FileFeed, Rules)> {
        let path = &settings.path;
        let at = path.display();
        let Ok((contents, source)) = read(path, Contents::of(path)) else {
            bail!("nothing is served until {at} is left alone; it changed each time it was read");
        };
        if let Some(cause) = source.unreadable() {
            bail!("nothing is served without limits: {at}: {cause}");
        }
        FileFeed::on(settings, observer, contents, &source)
    }

    /// Takes the limits that another process has in force. Whatever is on disk by now is read once this
    /// runs.
    pub fn handed(
        settings: &Settings,
        observer: Arc<dyn Observer>,
        file: &File,
    ) -> anyhow::Result<(FileFeed, Rules)> {
        let source = handout::read(file, &settings.path)?;
        FileFeed::on(settings, observer, Contents::of_source(&source), &source)
    }

    fn on(
        settings: &Settings,
        observer: Arc<dyn Observer>,
        contents: Contents,
        source: &Source,
    ) -> anyhow::Result<(FileFeed, Rules)> {
        let at = settings.path.display();
        let Loaded { rules, warnings, .. } = rules::load_source(source, settings.defaults.clone())
            .map_err(|errors| {
                // On lines of their own, as `tidegate check` has them, for people and editors.
                eprintln!("{errors}");
                anyhow!("nothing is served until {at} has no mistake")
            })?;
        warn(&settings.path, &warnings);
        let handout = if settings.keeps_handout { handout::write(source)? } else { None };
        let (rules_now, handout) = (Snapshot::of(&rules), handout.map(Arc::new));
        let state = State { in_force: contents, seen: contents, rules: rules_now, handout };
        observer.limits_loaded();
        let (state, asked) = (Mutex::new(state), Notify::new());
        Ok((FileFeed { settings: settings.clone(), observer, state, asked }, rules))
    }

    /// Keeps the limits of `authority` as the files are, until it is aborted.
    async fn follow(self: Arc<Self>, authority: Arc<Authority>) {
        let changed = Arc::new(Notify::new());
        let new_watcher = || match self.settings.watch {
            Watch::On => Watcher::new(changed.clone()),
            Watch::Poll | Watch::Off => Watcher::none(),
        };
        let mut watcher = new_watcher();
        let mut ticks = tokio::time::interval(POLL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let look = tokio::select! {
                () = self.asked.notified() => Look::Asked,
                () = changed.notified() => {
                    settle(&changed).await;
                    Look::Watched
                }
                _ = ticks.tick(), if self.settings.watch != Watch::Off => Look::Watched,
            };
            let (reload, authority) = (self.clone(), authority.clone());
            let looked = tokio::task::spawn_blocking(move || {
                // First, so that no change is between them. And each time, as a directory may have
                // been replaced by another of its name.
                watcher.watch(&reload.settings.path);
                reload.look(&authority, look);
                watcher
            });
            watcher = self.bounded(LOOK_MAX, looked).await.unwrap_or_else(|_| {
                self.failed();
                tracing::error!("reading the limits failed; the old ones stay in force");
                new_watcher()
            });
        }
    }

    /// Waits for a look, and tells when it takes longer than `most`, as on a file system that does
    /// not answer. It cannot be given up, as the thread that waits there cannot be.
    async fn bounded<T>(&self, most: Duration, looked: impl Future<Output = T>) -> T {
        let start = Instant::now();
        let mut looked = std::pin::pin!(looked);
        if let Ok(done) = tokio::time::timeout(most, &mut looked).await {
            return done;
        }
        self.observer.limits_current(false);
        let path = self.settings.path.display();
        tracing::error!(%path, "reading the limits takes more than {most:?}; the old ones stay in force");
        let done = looked.await;
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.observer.limits_current(state.seen_is_in_force());
        tracing::info!(%path, took = ?start.elapsed(), "reading the limits has come to its end");
        done
    }

    fn failed(&self) {
        self.observer.limits_current(false);
        self.observer.limits_failed();
    }

    /// Reads the files if there is something new, or somebody asks. Blocks.
    fn look(&self, authority: &Authority, look: Look) {
        let contents = Contents::of(&self.settings.path);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if look == Look::Watched && contents == state.seen {
            self.observer.limits_current(state.seen_is_in_force());
            return;
        }
        let Ok((contents, source)) = read(&self.settings.path, contents) else {
            // Not noted as seen, so that they are read again in any case.
            self.failed();
            let path = self.settings.path.display();
            tracing::error!(%path, "the limits changed each time they were read; the old ones stay in force");
            return;
        };
        // Noted before it is tried, so that each content is tried once, whatever comes of it.
        let is_back = contents == state.in_force && state.seen != contents;
        state.seen = contents;
        if look == Look::Watched && is_back {
            self.observer.limits_current(true);
            tracing::info!("the limits on disk are those in force again");
            return;
        }
        match self.replace(authority, &source, &mut state) {
            Ok(()) => {
                state.in_force = contents;
                self.observer.limits_loaded();
            }
            Err(errors) => {
                self.observer.limits_current(state.seen_is_in_force());
                self.observer.limits_failed();
                for error in errors.iter().take(TOLD_MAX) {
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
        let told =
            |LoadErrors(errors)| errors.iter().map(Diagnostic::to_string).collect::<Vec<_>>();
        let Loaded { rules, warnings, .. } =
            rules::load_source(source, self.settings.defaults.clone()).map_err(told)?;
        let snapshot = Snapshot::of(&rules);
        let limits = snapshot.limits();
        authority.replace_limits(rules).map_err(|error| vec![error.to_string()])?;
        warn(&self.settings.path, &warnings);
        let changes = diff::compare(&state.rules, &snapshot);
        state.rules = snapshot;
        if state.handout.is_some() {
            match handout::write(source) {
                Ok(handout) => state.handout = handout.map(Arc::new),
                // A worker that starts reads them a moment later.
                Err(error) => tracing::warn!(%error, "new workers begin with the old limits"),
            }
        }
        tracing::info!(limits, %changes, "limits reloaded");
        Ok(())
    }
}

impl State {
    fn seen_is_in_force(&self) -> bool {
        self.seen == self.in_force
    }
}

/// The limits at `path`, last seen with the contents `before`: of one version, not of two. What is
/// put in force is compiled from these very bytes.
fn read(path: &Path, before: Contents) -> Result<(Contents, Source), Restless> {
    contents::settled(before, || Source::read(path, Pipes::Refuse))
}

/// Waits until nothing has changed for a while.
async fn settle(changed: &Notify) {
    let end = Instant::now() + SETTLE_MAX;
    while Instant::now() < end {
        tokio::select! {
            () = changed.notified() => {}
            () = tokio::time::sleep(SETTLE) => return,
        }
    }
}

fn warn(path: &Path, warnings: &[Diagnostic]) {
    for warning in warnings.iter().take(TOLD_MAX) {
        tracing::warn!(%warning, "in the limits");
    }
    if let Some(more) = more(warnings.len(), path) {
        tracing::warn!("{more}");
    }
}

/// What stands for those that are not logged, if there are any.
fn more(count: usize, path: &Path) -> Option<String> {
    let more = count.checked_sub(TOLD_MAX).filter(|&more| more > 0)?;
    Some(format!("and {} more; run `tidegate check {}`", grouped(more as u64), path.display()))
}

impl Feed for FileFeed {
    fn reload(&self) {
        self.asked.notify_one();
    }

    fn handout(&self) -> Option<Arc<File>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).handout.clone()
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
    async fn a_look_without_end_is_told_of() {
        let path = PathBuf::from("/nowhere");
        let contents = Contents::of(&path);
        let rules = Snapshot::of(&Rules::default());
        let settings = Settings {
            path,
            defaults: Defaults::default(),
            watch: Watch::Off,
            keeps_handout: false,
        };
        let observer = Arc::new(Current::default());
        let feed = FileFeed {
            settings,
            observer: observer.clone(),
            state: Mutex::new(State { in_force: contents, seen: contents, rules, handout: None }),
            asked: Notify::new(),
        };
        let current = || observer.0.load(Ordering::Relaxed);
        feed.observer.limits_current(true);
        assert!(feed.bounded(LOOK_MAX, async { current() }).await);
        let (end, ended) = oneshot::channel();
        // It is waited for no time at all.
        let looked = feed.bounded(Duration::ZERO, ended);
        let watched = async {
            while current() {
                tokio::task::yield_now().await;
            }
            end.send("the end").unwrap();
        };
        let bounded = tokio::time::timeout(Duration::from_secs(60), async {
            tokio::join!(looked, watched).0
        });
        assert_eq!(bounded.await.unwrap(), Ok("the end"));
        assert!(current(), "what was seen is in force");
    }

    #[test]
    fn what_is_not_logged_is_counted() {
        let path = Path::new("/limits");
        for (count, expected) in [
            (0, None),
            (TOLD_MAX, None),
            (TOLD_MAX + 1, Some("and 1 more; run `tidegate check /limits`")),
            (5_020, Some("and 5,000 more; run `tidegate check /limits`")),
        ] {
            assert_eq!(more(count, path).as_deref(), expected);
        }
    }
}
