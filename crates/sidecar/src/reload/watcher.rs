//! Being told by the system that something changed where the limits are.
//!
//! Only ever a hint: the files themselves are what counts, and they are looked at without it as well.
//! So a watch that cannot be had is a warning, and an event is passed on without what it says.

use crate::rules::limits_files;
use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::Notify;

/// Links to links that are followed; the system itself follows 40.
const LINKS_MAX: usize = 40;

pub(super) struct Watcher {
    inner: Option<RecommendedWatcher>,
    watched: BTreeSet<PathBuf>,
    changed: Arc<Notify>,
    warned: bool,
}

impl Watcher {
    /// One that never says anything.
    pub(super) fn none() -> Watcher {
        Watcher { inner: None, watched: BTreeSet::new(), changed: Arc::default(), warned: false }
    }

    /// One that watches nothing yet.
    pub(super) fn start() -> Watcher {
        let changed = Arc::new(Notify::new());
        let tell = changed.clone();
        let inner = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            if event.is_ok_and(|event| is_change(&event.kind)) {
                tell.notify_one();
            }
        });
        let inner = inner.inspect_err(warn_of).ok();
        let warned = inner.is_none();
        Watcher { inner, changed, warned, ..Watcher::none() }
    }

    /// What is notified of changes.
    pub(super) fn changed(&self) -> Arc<Notify> {
        self.changed.clone()
    }

    /// Watches everywhere that a change of the limits at `path` would show, and nowhere else.
    /// Directories that are watched already are watched anew, as they may be others by now.
    pub(super) fn watch(&mut self, path: &Path) {
        let Some(inner) = &mut self.inner else { return };
        let wanted = directories(path);
        for gone in self.watched.difference(&wanted) {
            // Most often it is no longer there, so neither is its watch.
            let _ = inner.unwatch(gone);
        }
        self.watched.clear();
        for directory in wanted {
            match inner.watch(&directory, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    self.watched.insert(directory);
                }
                Err(error) if !self.warned => {
                    self.warned = true;
                    warn_of(&error);
                }
                Err(_) => {}
            }
        }
    }
}

fn warn_of(error: &notify::Error) {
    tracing::warn!(%error, "changes of the limits are found by looking every two seconds only");
}

/// Whether it may have changed a file. Reading one is an event, too, and this process reads them.
fn is_change(kind: &EventKind) -> bool {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_) => false,
        _ => true,
    }
}

/// The directories of the limits at `path`, of each link on the way to them, and of what the links
/// lead to.
fn directories(path: &Path) -> BTreeSet<PathBuf> {
    let mut places = BTreeSet::new();
    add_places(path, &mut places);
    if path.is_dir() {
        places.insert(path.to_owned());
    }
    for file in limits_files(path).unwrap_or_default() {
        add_places(&file, &mut places);
    }
    // Where they really are: a link keeps its name when it comes to lead elsewhere.
    places.iter().filter_map(|place| place.canonicalize().ok()).collect()
}

/// The directory of a file, and of each file that it leads to if it is a link.
fn add_places(file: &Path, places: &mut BTreeSet<PathBuf>) {
    let mut file = file.to_owned();
    for _ in 0..LINKS_MAX {
        let directory = match file.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            Some(_) => PathBuf::from("."),
            None => return,
        };
        let target = std::fs::read_link(&file).map(|target| directory.join(target));
        // The directory itself may be a link, as `..data` is in Kubernetes.
        if directory.is_symlink() && places.insert(directory.clone()) {
            add_places(&directory, places);
        }
        places.insert(directory);
        match target {
            Ok(target) => file = target,
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::create_dir;
    use std::os::unix::fs::symlink;
    use std::time::Duration;
    use tempfile::TempDir;

    #[test]
    fn all_directories_on_the_way_are_watched() {
        let dir = TempDir::new().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let at = |name: &str| root.join(name);
        for name in ["limits", "limits/..1", "elsewhere"] {
            create_dir(at(name)).unwrap();
        }
        std::fs::write(at("limits/..1/limits.yaml"), "").unwrap();
        symlink("..1", at("limits/..data")).unwrap();
        symlink("..data/limits.yaml", at("limits/limits.yaml")).unwrap();
        symlink("../limits/limits.yaml", at("elsewhere/link.yaml")).unwrap();
        // It leads to itself.
        symlink("round", at("round")).unwrap();
        let table: [(&str, &[&str]); 5] = [
            ("limits", &["", "limits", "limits/..1"]),
            ("limits/limits.yaml", &["limits", "limits/..1"]),
            ("elsewhere/link.yaml", &["elsewhere", "limits", "limits/..1"]),
            ("limits/none.yaml", &["limits"]),
            ("round", &[""]),
        ];
        for (path, expected) in table {
            let expected: BTreeSet<PathBuf> =
                expected.iter().map(|name| at(name).canonicalize().unwrap()).collect();
            assert_eq!(directories(&at(path)), expected, "for {path}");
        }
    }

    #[test]
    fn reading_is_no_change() {
        use notify::event::{CreateKind, ModifyKind, RemoveKind};
        for (kind, expected) in [
            (EventKind::Access(AccessKind::Open(AccessMode::Any)), false),
            (EventKind::Access(AccessKind::Close(AccessMode::Read)), false),
            (EventKind::Access(AccessKind::Close(AccessMode::Write)), true),
            (EventKind::Create(CreateKind::File), true),
            (EventKind::Modify(ModifyKind::Any), true),
            (EventKind::Remove(RemoveKind::File), true),
        ] {
            assert_eq!(is_change(&kind), expected, "for {kind:?}");
        }
    }

    /// Waits for a hint; only a failure waits so long.
    async fn told(watcher: &Watcher, of: &str) {
        let changed = watcher.changed();
        let told = tokio::time::timeout(Duration::from_secs(60), changed.notified()).await;
        assert!(told.is_ok(), "nothing was told of {of}");
    }

    #[tokio::test]
    async fn changes_are_told_without_looking() {
        let dir = TempDir::new().unwrap();
        let at = |name: &str| dir.path().join(name);
        for version in ["..1", "..2"] {
            create_dir(at(version)).unwrap();
            std::fs::write(at(version).join("limits.yaml"), version).unwrap();
        }
        symlink("..1", at("..data")).unwrap();
        symlink("..data/limits.yaml", at("limits.yaml")).unwrap();
        let path = at("limits.yaml");
        let mut watcher = Watcher::start();
        watcher.watch(&path);
        std::fs::write(at("..1/limits.yaml"), "new").unwrap();
        told(&watcher, "a file that a link leads to").await;
        watcher.watch(&path);
        symlink("..2", at("..data_tmp")).unwrap();
        std::fs::rename(at("..data_tmp"), at("..data")).unwrap();
        told(&watcher, "a link that leads elsewhere").await;
        watcher.watch(&path);
        let own: BTreeSet<PathBuf> =
            [at(""), at("..2")].iter().map(|place| place.canonicalize().unwrap()).collect();
        assert_eq!(watcher.watched, own, "what is not led to any more is left alone");
        std::fs::write(at("..2/limits.yaml"), "newer").unwrap();
        told(&watcher, "a file that a link leads to since").await;
    }
}
