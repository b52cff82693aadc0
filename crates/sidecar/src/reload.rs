//! Reading the limits again while serving: on SIGHUP, when the system tells of a change, and by
//! looking every few seconds whether there was one that it did not tell of.
//!
//! Goes by the contents of the files, never by their times, so it does not matter how a change came
//! about: written in place, renamed over, or a link moved under a whole directory. New rules are put in
//! force as a whole; as long as what is on disk has a mistake, the old ones stay. Reading and
//! compiling never holds up a decision.

mod contents;
mod watcher;

use crate::cli::{ServeOptions, Watch};
use crate::clock;
use crate::diff::{self, Snapshot};
use crate::engine::Engine;
use crate::rules::{self, Loaded, RuleError, SameDomain};
use contents::Contents;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidegate_core::Rules;
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

/// What `/metrics` says about the limits as a whole.
#[derive(Debug, Clone, Default)]
pub(crate) struct ConfigMetrics {
    success: Counter,
    error: Counter,
    current: Gauge,
    loaded_at: Gauge,
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
pub(crate) struct Reload {
    path: PathBuf,
    same_domain: SameDomain,
    watch: Watch,
    metrics: ConfigMetrics,
    state: Mutex<State>,
    asked: Notify,
}

struct State {
    /// What the rules in force were read from.
    in_force: Contents,
    /// What was looked at last, in force or not.
    seen: Contents,
    rules: Snapshot,
}

impl Reload {
    /// Reads the limits for the first time.
    pub(crate) fn first(options: &ServeOptions) -> Result<(Reload, Rules), rules::RuleErrors> {
        let (path, same_domain) = (options.limits.clone(), options.same_domain());
        // Before they are parsed: a change in between is found by the first look.
        let contents = Contents::of(&path);
        let Loaded { rules, warnings } = rules::load(&path, same_domain)?;
        rules.seal();
        warn(&warnings);
        let state = State { in_force: contents, seen: contents, rules: Snapshot::of(&rules) };
        let metrics = ConfigMetrics::default();
        metrics.loaded();
        let (state, asked) = (Mutex::new(state), Notify::new());
        Ok((Reload { path, same_domain, watch: options.watch, metrics, state, asked }, rules))
    }

    pub(crate) fn metrics(&self) -> &ConfigMetrics {
        &self.metrics
    }

    /// Asks for the limits to be read, as on SIGHUP.
    pub(crate) fn ask(&self) {
        self.asked.notify_one();
    }

    /// Keeps the rules of `engine` as the files are, until it is aborted.
    pub(crate) async fn run(self: Arc<Self>, engine: Arc<Engine>) {
        let mut watcher = match self.watch {
            Watch::On => Watcher::start(),
            Watch::Poll | Watch::Off => Watcher::none(),
        };
        let changed = watcher.changed();
        let mut ticks = tokio::time::interval(POLL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let look = tokio::select! {
                () = self.asked.notified() => Look::Asked,
                () = changed.notified() => {
                    settle(&changed).await;
                    Look::Watched
                }
                _ = ticks.tick(), if self.watch != Watch::Off => Look::Watched,
            };
            let (reload, engine) = (self.clone(), engine.clone());
            let looked = tokio::task::spawn_blocking(move || {
                // First, so that no change is between them. And each time, as a directory may have
                // been replaced by another of its name.
                watcher.watch(&reload.path);
                reload.look(&engine, look);
                watcher
            });
            watcher = looked.await.unwrap_or_else(|_| {
                self.metrics.failed();
                tracing::error!("reading the limits failed; the old ones stay in force");
                Watcher::none()
            });
        }
    }

    /// Reads the files if there is something new, or somebody asks. Blocks.
    fn look(&self, engine: &Engine, look: Look) {
        let contents = Contents::of(&self.path);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if look == Look::Watched && contents == state.seen {
            return;
        }
        // Noted before it is tried, so that each content is tried once, whatever comes of it.
        let is_back = contents == state.in_force && state.seen != contents;
        state.seen = contents;
        if look == Look::Watched && is_back {
            self.metrics.current.set(1);
            tracing::info!("the limits on disk are those in force again");
            return;
        }
        match self.replace(engine, &mut state) {
            Ok(()) => {
                state.in_force = contents;
                self.metrics.loaded();
            }
            Err(errors) => {
                if contents != state.in_force {
                    self.metrics.current.set(0);
                }
                self.metrics.error.inc();
                for error in errors {
                    tracing::error!(error, "limits not reloaded; the old ones stay in force");
                }
            }
        }
    }

    fn replace(&self, engine: &Engine, state: &mut State) -> Result<(), Vec<String>> {
        let Loaded { rules, warnings } = rules::load(&self.path, self.same_domain)
            .map_err(|errors| errors.0.iter().map(RuleError::to_string).collect::<Vec<_>>())?;
        // Here, so that no request waits for it.
        rules.seal();
        let snapshot = Snapshot::of(&rules);
        let limits = snapshot.limits();
        engine.replace_rules(rules).map_err(|error| vec![error.to_string()])?;
        warn(&warnings);
        let changes = diff::compare(&state.rules, &snapshot);
        state.rules = snapshot;
        tracing::info!(limits, %changes, "limits reloaded");
        Ok(())
    }
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

fn warn(warnings: &[RuleError]) {
    for warning in warnings {
        tracing::warn!(%warning, "in the limits");
    }
}

impl ConfigMetrics {
    fn loaded(&self) {
        self.success.inc();
        self.current.set(1);
        let secs = clock::now().as_nanos() / 1_000_000_000;
        self.loaded_at.set(i64::try_from(secs).unwrap_or(i64::MAX));
    }

    fn failed(&self) {
        self.current.set(0);
        self.error.inc();
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        let help = "Times that the limits were read and put in force";
        registry.register("config_load_success", help, self.success.clone());
        let help = "Times that the limits were read and had a mistake";
        registry.register("config_load_error", help, self.error.clone());
        let help = "Whether the limits in force are those on disk: 1, or 0";
        registry.register("config_current", help, self.current.clone());
        let help = "When the limits in force were read, in seconds since 1970";
        registry.register("config_loaded_timestamp_seconds", help, self.loaded_at.clone());
    }
}
