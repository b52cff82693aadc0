//! Where counters are: in a data directory and the databases of its cold counters, or in servers that machines share. Reads and changes single entries.

use super::cold::ColdRows;
use super::{check_whole, join};
use crate::arguments::authority::ServerOptions;
use crate::arguments::cold::ColdPlaces;
use crate::commands::UsageError;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidegate_authority::{Counters, Hashing, clock, wait};
use tidegate_core::Timestamp;
use tidegate_remote::Engines;
use tidegate_store::{Class, Entries, Entry, Hashed, View};
use tidegate_tiers::Tiered;

pub(crate) enum Place {
    Dir(PathBuf, Box<View>, Option<ColdRows>),
    Servers(Arc<Engines>),
}

impl Place {
    /// The data directory, or the servers if they are named.
    pub(crate) fn open(
        dir: Option<&Path>,
        servers: &ServerOptions,
        cold: &ColdPlaces,
    ) -> anyhow::Result<Place> {
        cold.check_beside(servers)?;
        match (servers.settings()?, dir) {
            (Some(settings), _) => {
                let remote = Engines::connect(settings, servers.of_seconds()?)?;
                Ok(Place::Servers(Arc::new(remote)))
            }
            (None, Some(dir)) => Place::of_view(dir, View::open(dir)?, cold),
            (None, None) => {
                Err(UsageError("a data directory or --authority is needed".into()).into())
            }
        }
    }

    /// A data directory, with the databases of its cold counters.
    pub(crate) fn of_view(dir: &Path, view: View, cold: &ColdPlaces) -> anyhow::Result<Place> {
        let rows = ColdRows::of(dir, &view, cold)?;
        Ok(Place::Dir(dir.to_owned(), Box::new(view), rows))
    }

    /// The data directory, if it is one.
    pub(crate) fn dir(&self) -> Option<&Path> {
        match self {
            Place::Dir(dir, ..) => Some(dir),
            Place::Servers(_) => None,
        }
    }

    pub(crate) fn seed(&self) -> u64 {
        match self {
            Place::Dir(_, view, _) => view.seed(),
            Place::Servers(remote) => remote.seed(),
        }
    }

    /// How the keys of its counters are made.
    pub(crate) fn hashing(&self) -> Hashing {
        match self {
            Place::Dir(_, view, _) => Hashing::undivided(view.seed()),
            Place::Servers(remote) => Hashing::of(&**remote),
        }
    }

    /// The time that its counters go by.
    pub(crate) fn now(&self) -> Timestamp {
        match self {
            Place::Dir(..) => clock::now(),
            Place::Servers(remote) => remote.now().unwrap_or_else(clock::now),
        }
    }

    /// The words of the states of a class, if there is room for any.
    pub(crate) fn state_words(&self, class: Class) -> Option<u32> {
        match self {
            Place::Dir(_, view, _) => view.geometry(class).map(|geometry| geometry.state_words()),
            Place::Servers(remote) => match class {
                Class::Narrow => Some(tidegate_core::StateSize::Narrow.words() as u32),
                Class::Wide => u32::try_from(remote.state_words()).ok(),
            },
        }
    }

    /// The live entry of a key.
    pub(crate) fn find(&self, key: &Hashed, now: Timestamp) -> anyhow::Result<Option<Entry>> {
        let Place::Servers(remote) = self else {
            let Place::Dir(_, view, rows) = self else { return Ok(None) };
            let hot = view.find(key, now.as_nanos())?;
            return match rows {
                Some(rows) if hot.is_none() => rows.find(key, view, now),
                _ => Ok(hot),
            };
        };
        let mut found = None;
        let mut look = |entries: &mut Entries<'_>| {
            let entry = entries.get(0);
            let copy = || Entry::new(entry.state, *entry.expires_at);
            found = (!entry.is_new()).then(copy);
        };
        wait(remote.update(&[*key], now, &mut look))?;
        Ok(found)
    }

    /// Fails if what was read may be no whole.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        match self {
            Place::Dir(_, view, _) => check_whole(view),
            Place::Servers(_) => Ok(()),
        }
    }

    /// The counters, to be changed.
    pub(crate) fn join(self) -> anyhow::Result<Arc<dyn Counters>> {
        Ok(match self {
            Place::Dir(dir, view, None) => Arc::new(join(&dir, *view)?),
            Place::Dir(dir, view, Some(rows)) => {
                let store = Arc::new(join(&dir, *view)?);
                let settings = tidegate_tiers::Settings::default();
                Arc::new(Tiered::new(store, rows.rows, settings)?)
            }
            Place::Servers(remote) => remote,
        })
    }
}

/// Changes one entry, and returns whether it was there.
pub(crate) fn change(
    counters: &dyn Counters,
    key: &Hashed,
    now: Timestamp,
    mut change: impl FnMut(&mut tidegate_store::EntryMut<'_>) + Send,
) -> anyhow::Result<bool> {
    let mut had_one = false;
    let mut update = |entries: &mut Entries<'_>| {
        let mut entry = entries.get(0);
        had_one = !entry.is_new();
        change(&mut entry);
    };
    wait(counters.update(&[*key], now, &mut update))?;
    Ok(had_one)
}
