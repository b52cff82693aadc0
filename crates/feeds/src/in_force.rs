//! The limits in force, and the parts that they come from: files, and servers of the discovery protocol.
//!
//! Each part has domains of its own. When one changes, its new limits are read together with those of the others, and
//! replace all that is in force as a whole, or not at all. Owns the log of changes, and the copy for other processes.

use crate::copy;
use crate::standing::{
    CHANGES_MAX, MISTAKES_MAX, RELOADS_MAX, Refusal, Reload, SourceStanding, Standing,
};
use std::collections::VecDeque;
use std::fs::File;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;
use tidegate_authority::{Authority, Observer};
use tidegate_limits::describe::grouped;
use tidegate_limits::diff::{self, Snapshot};
use tidegate_limits::{
    self as rules, Defaults, Diagnostic, LoadErrors, Loaded, Origin, Rules, Source, SourceFile,
};
use tokio::sync::watch;

/// Mistakes logged for one reload, and warnings: a screenful each. More would hide the rest of the log.
pub(crate) const LOGGED_MAX: usize = 20;
/// The name of limits from several parts.
const ALL_PARTS: &str = "the limits";

/// A source of limits beside others.
pub(crate) trait Part: Send + Sync {
    /// Requests a reload, as SIGHUP does.
    fn reload(&self);

    /// Whether each worker process follows this source itself.
    fn is_followed_by_each(&self) -> bool;

    /// Keeps its part of the limits as they are in the source, until it is aborted.
    fn follow(
        self: Arc<Self>,
        in_force: Arc<InForce>,
        authority: Arc<Authority>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

pub(crate) struct InForce {
    defaults: Defaults,
    observer: Arc<dyn Observer>,
    keeps_copy: bool,
    state: Mutex<State>,
    copies: watch::Sender<Option<Arc<File>>>,
}

struct State {
    parts: Vec<PartState>,
    rules: Snapshot,
    /// Of those in force.
    loaded_at: Option<SystemTime>,
    /// The last ones that changed anything, newest first.
    reloads: VecDeque<Reload>,
}

#[derive(Debug, Default)]
struct PartState {
    /// Where its limits are.
    name: String,
    /// The limits in force; none before they have arrived. Empty if this is the only part, which needs no memory
    /// of them.
    files: Option<Vec<SourceFile>>,
    /// Whether the last limits of the source are not those in force.
    is_behind: bool,
    /// Why they are not, if they were refused.
    refused: Option<Refusal>,
}

impl InForce {
    /// Without limits, for parts with these names.
    pub(crate) fn new(
        defaults: Defaults,
        observer: Arc<dyn Observer>,
        keeps_copy: bool,
        names: Vec<String>,
    ) -> InForce {
        let part = |name| PartState { name, ..PartState::default() };
        let parts = names.into_iter().map(part).collect();
        let (rules, reloads) = (Snapshot::of(&Rules::default()), VecDeque::new());
        let state = Mutex::new(State { parts, rules, loaded_at: None, reloads });
        InForce { defaults, observer, keeps_copy, state, copies: watch::Sender::new(None) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the limits are from, and what became of the last ones.
    pub(crate) fn standing(&self) -> Standing {
        let state = self.state();
        let source = |part: &PartState| SourceStanding {
            name: part.name.clone(),
            has_arrived: part.files.is_some(),
            is_current: !part.is_behind,
            refused: part.refused.clone(),
        };
        Standing {
            sources: state.parts.iter().map(source).collect(),
            loaded_at: state.loaded_at,
            limits: state.rules.limits(),
            domains: state.rules.domains(),
            reloads: state.reloads.iter().cloned().collect(),
        }
    }

    /// Copies of the limits in force, each new one; none without worker processes.
    pub(crate) fn copies(&self) -> watch::Receiver<Option<Arc<File>>> {
        self.copies.subscribe()
    }

    /// The rules of all parts that have arrived, with these of `part`, for a start.
    pub(crate) fn start_with(&self, part: usize, source: Source) -> Result<Rules, LoadErrors> {
        let mut state = self.state();
        let Read { own, source, loaded } = self.read(&state, part, source)?;
        let Loaded { rules, warnings, .. } = loaded;
        self.remember(&mut state, part, own, &source, Snapshot::of(&rules));
        warn(&source, &warnings);
        self.observer.limits_loaded();
        Ok(rules)
    }

    /// The rules while no part has any.
    pub(crate) fn start_without(&self) -> Result<Rules, LoadErrors> {
        let source = Source::brought(Path::new(ALL_PARTS), Vec::new(), Origin::AwaitedFeeds);
        self.keep_copy(&source);
        Ok(rules::load_source(&source, self.defaults.clone())?.rules)
    }

    /// Replaces the limits of one part. After a mistake the old ones stay in force, those of all parts. Blocks.
    pub(crate) fn replace(
        &self,
        part: usize,
        source: Source,
        authority: &Authority,
    ) -> Result<(), LoadErrors> {
        let mut state = self.state();
        let replaced = self.try_replace(&mut state, part, source, authority);
        match &replaced {
            Ok(()) => {
                self.observer.limits_loaded();
                self.note(&mut state, part, false);
            }
            Err(LoadErrors(mistakes)) => {
                let more = mistakes.len().saturating_sub(MISTAKES_MAX);
                let mistakes = mistakes.iter().take(MISTAKES_MAX).map(Diagnostic::to_string);
                self.refuse(&mut state, part, mistakes.collect(), more);
            }
        }
        replaced
    }

    fn try_replace(
        &self,
        state: &mut State,
        part: usize,
        source: Source,
        authority: &Authority,
    ) -> Result<(), LoadErrors> {
        let Read { own, source, loaded } = self.read(state, part, source)?;
        let Loaded { rules, warnings, .. } = loaded;
        let snapshot = Snapshot::of(&rules);
        let limits = snapshot.limits();
        authority.replace_limits(rules).map_err(|error| {
            LoadErrors(vec![Diagnostic::new(source.path(), None, error.to_string())])
        })?;
        warn(&source, &warnings);
        let changes = diff::compare(&state.rules, &snapshot);
        self.remember(state, part, own, &source, snapshot);
        tracing::info!(limits, %changes, "limits reloaded");
        if !changes.0.is_empty() {
            let mut changes = changes.0;
            let more = changes.len().saturating_sub(CHANGES_MAX);
            changes.truncate(CHANGES_MAX);
            let at = SystemTime::now();
            state.reloads.push_front(Reload { at, limits, changes, more });
            state.reloads.truncate(RELOADS_MAX);
        }
        Ok(())
    }

    /// The last limits of a part could not be read, for this cause.
    pub(crate) fn refused(&self, part: usize, cause: &str) {
        self.refuse(&mut self.state(), part, vec![cause.to_owned()], 0);
    }

    fn refuse(&self, state: &mut State, part: usize, mistakes: Vec<String>, more: usize) {
        self.observer.limits_failed();
        state.parts[part].refused = Some(Refusal { at: SystemTime::now(), mistakes, more });
        self.note(state, part, true);
    }

    /// Whether the limits in force of a part are the last ones of its source.
    pub(crate) fn set_current(&self, part: usize, is_current: bool) {
        self.note(&mut self.state(), part, !is_current);
    }

    fn note(&self, state: &mut State, part: usize, is_behind: bool) {
        let own = &mut state.parts[part];
        own.is_behind = is_behind;
        if !is_behind {
            own.refused = None;
        }
        self.observer.limits_current(!state.parts.iter().any(|part| part.is_behind));
    }

    /// Reads the limits of `part` together with those of the others.
    fn read(&self, state: &State, part: usize, source: Source) -> Result<Read, LoadErrors> {
        let files = source.listed()?;
        let (own, source) = if state.parts.len() == 1 {
            (Vec::new(), source)
        } else {
            let own = files.to_vec();
            let (mut all, mut origin) = (Vec::new(), Origin::Feeds);
            for (index, other) in state.parts.iter().enumerate() {
                match &other.files {
                    _ if index == part => all.extend_from_slice(&own),
                    Some(files) => all.extend_from_slice(files),
                    None => origin = Origin::AwaitedFeeds,
                }
            }
            (own, Source::brought(Path::new(ALL_PARTS), all, origin))
        };
        let loaded = rules::load_source(&source, self.defaults.clone())?;
        Ok(Read { own, source, loaded })
    }

    fn remember(
        &self,
        state: &mut State,
        part: usize,
        own: Vec<SourceFile>,
        source: &Source,
        rules: Snapshot,
    ) {
        state.parts[part].files = Some(own);
        state.rules = rules;
        state.loaded_at = Some(SystemTime::now());
        self.keep_copy(source);
    }

    fn keep_copy(&self, source: &Source) {
        if !self.keeps_copy {
            return;
        }
        match copy::write(source) {
            Ok(Some(copy)) => _ = self.copies.send_replace(Some(Arc::new(copy))),
            Ok(None) => {}
            // A new worker that follows the files itself reads the new ones a moment later.
            Err(error) => tracing::warn!(%error, "workers keep the old limits"),
        }
    }
}

/// The limits of one part, and of all.
struct Read {
    own: Vec<SourceFile>,
    source: Source,
    loaded: Loaded,
}

fn warn(source: &Source, warnings: &[Diagnostic]) {
    for warning in warnings.iter().take(LOGGED_MAX) {
        tracing::warn!(%warning, "in the limits");
    }
    let at = (source.origin() == Origin::Path).then(|| source.path());
    if let Some(more) = more(warnings.len(), at) {
        tracing::warn!("{more}");
    }
}

/// A line for the messages that are not logged, if there are any; `at` is the path that has them.
pub(crate) fn more(count: usize, at: Option<&Path>) -> Option<String> {
    let more = count.checked_sub(LOGGED_MAX).filter(|&more| more > 0)?;
    let more = grouped(more as u64);
    Some(match at {
        Some(path) => format!("and {more} more; run `tidegate check {}`", path.display()),
        None => format!("and {more} more"),
    })
}
