//! Change events of the file system for the limits.
//!
//! Only hints: the files themselves are compared, and checked without events as well. So a failing watch is a
//! warning, and the content of an event is ignored.

use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidegate_limits::limits_files;
use tokio::sync::Notify;

/// Links followed in a row; the system itself follows 40.
const LINKS_MAX: usize = 40;

pub(super) struct Watcher {
    start: Start,
    inner: Option<RecommendedWatcher>,
    watched: BTreeSet<PathBuf>,
    changed: Arc<Notify>,
    /// The state that was logged last.
    logged: State,
}

/// Starts a watcher; none if watching is off.
type Start = Option<fn(Arc<Notify>) -> notify::Result<RecommendedWatcher>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Works,
    Fails,
}

impl Watcher {
    /// A watcher without events.
    pub(super) fn none() -> Watcher {
        Watcher::with(None, Arc::default())
    }

    /// A watcher that notifies `changed`. It watches nothing yet.
    pub(super) fn new(changed: Arc<Notify>) -> Watcher {
        Watcher::with(Some(start), changed)
    }

    fn with(start: Start, changed: Arc<Notify>) -> Watcher {
        Watcher { start, inner: None, watched: BTreeSet::new(), changed, logged: State::Works }
    }

    /// Watches exactly the directories where a change of the limits at `path` shows. Watches known directories
    /// anew, as their names may lead elsewhere by now, and retries what failed before.
    pub(super) fn watch(&mut self, path: &Path) {
        let Some(start) = self.start else { return };
        let done = self.try_watch(start, path);
        match (self.logged, &done) {
            (State::Works, Err(error)) => {
                self.logged = State::Fails;
                let hint = hint(error);
                tracing::warn!(
                    %error,
                    hint,
                    "cannot watch the limits; changes are found by a check every two seconds only"
                );
            }
            (State::Fails, Ok(())) => {
                self.logged = State::Works;
                tracing::info!("changes of the limits are reported by the system again");
            }
            (State::Works, Ok(())) | (State::Fails, Err(_)) => {}
        }
    }

    /// Watches all that it can; returns the first error.
    fn try_watch(
        &mut self,
        start: fn(Arc<Notify>) -> notify::Result<RecommendedWatcher>,
        path: &Path,
    ) -> notify::Result<()> {
        let inner = match &mut self.inner {
            Some(inner) => inner,
            none => none.insert(start(self.changed.clone())?),
        };
        let wanted = directories(path);
        for gone in self.watched.difference(&wanted) {
            // Mostly it no longer exists, and its watch neither.
            let _ = inner.unwatch(gone);
        }
        self.watched.clear();
        let mut done = Ok(());
        for directory in wanted {
            match inner.watch(&directory, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    self.watched.insert(directory);
                }
                // Removed meanwhile, which is a change and no failure.
                Err(_) if !directory.exists() => {}
                Err(error) => done = done.and(Err(error)),
            }
        }
        done
    }
}

fn start(changed: Arc<Notify>) -> notify::Result<RecommendedWatcher> {
    notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        if event.is_ok_and(|event| is_change(&event.kind)) {
            changed.notify_one();
        }
    })
}

/// Advice for an error. Linux limits the watches of a user, shared by all containers of that user, and reports
/// the limit only as "too many files" or "no space".
fn hint(error: &notify::Error) -> Option<&'static str> {
    use rustix::io::Errno;
    let errno = match &error.kind {
        notify::ErrorKind::MaxFilesWatch => Some(Errno::NOSPC),
        notify::ErrorKind::Io(cause) => Errno::from_io_error(cause),
        _ => None,
    };
    match errno? {
        Errno::MFILE => Some("raise the sysctl fs.inotify.max_user_instances, or `ulimit -n`"),
        Errno::NOSPC => Some("raise the sysctl fs.inotify.max_user_watches"),
        _ => None,
    }
}

/// Whether an event may mean a changed file. Reading is an event, too, and this process reads the files.
fn is_change(kind: &EventKind) -> bool {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_) => false,
        _ => true,
    }
}

/// The directories of the limits at `path`, of each link on the way to them, and of the targets of links.
fn directories(path: &Path) -> BTreeSet<PathBuf> {
    let mut places = BTreeSet::new();
    add_places(path, &mut places);
    if path.is_dir() {
        places.insert(path.to_owned());
    }
    for file in limits_files(path).unwrap_or_default() {
        add_places(&file, &mut places);
    }
    // Without links: a link keeps its name when its target changes.
    places.iter().filter_map(|place| place.canonicalize().ok()).collect()
}

/// Adds the directory of a file and, if it is a link, of each file that it leads to.
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

    /// Waits for a hint; only a failure waits a minute.
    async fn notified(watcher: &Watcher, change: &str) {
        let notified =
            tokio::time::timeout(Duration::from_secs(60), watcher.changed.notified()).await;
        assert!(notified.is_ok(), "no event for {change}");
    }

    #[tokio::test]
    async fn changes_are_notified_without_a_check() {
        let dir = TempDir::new().unwrap();
        let at = |name: &str| dir.path().join(name);
        for version in ["..1", "..2"] {
            create_dir(at(version)).unwrap();
            std::fs::write(at(version).join("limits.yaml"), version).unwrap();
        }
        symlink("..1", at("..data")).unwrap();
        symlink("..data/limits.yaml", at("limits.yaml")).unwrap();
        let path = at("limits.yaml");
        let mut watcher = Watcher::new(Arc::default());
        watcher.watch(&path);
        std::fs::write(at("..1/limits.yaml"), "new").unwrap();
        notified(&watcher, "a file that a link leads to").await;
        watcher.watch(&path);
        symlink("..2", at("..data_tmp")).unwrap();
        std::fs::rename(at("..data_tmp"), at("..data")).unwrap();
        notified(&watcher, "a link that leads elsewhere").await;
        watcher.watch(&path);
        let own: BTreeSet<PathBuf> =
            [at(""), at("..2")].iter().map(|place| place.canonicalize().unwrap()).collect();
        assert_eq!(watcher.watched, own, "what is not led to any more is left alone");
        std::fs::write(at("..2/limits.yaml"), "newer").unwrap();
        notified(&watcher, "a file that a link leads to since").await;
    }

    /// A watcher that could not start was never tried again, though the system may have room for
    /// it a moment later; and a failure that came after another was not logged.
    #[tokio::test]
    async fn a_failure_is_logged_once_and_retried() {
        use std::sync::atomic::{AtomicU32, Ordering};
        static STARTS: AtomicU32 = AtomicU32::new(0);
        let start_third = |changed| match STARTS.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => Err(notify::Error::new(notify::ErrorKind::MaxFilesWatch)),
            _ => start(changed),
        };
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("limits.yaml");
        let mut watcher = Watcher::with(Some(start_third), Arc::default());
        let mut said = Vec::new();
        for _ in 0..4 {
            watcher.watch(&path);
            said.push(watcher.logged);
        }
        assert_eq!(said, [State::Fails, State::Fails, State::Works, State::Works]);
        // What works is kept.
        assert_eq!(STARTS.load(Ordering::Relaxed), 3);
        std::fs::write(&path, "new").unwrap();
        notified(&watcher, "a change after it failed at first").await;
    }

    #[test]
    fn the_limit_of_the_system_is_named() {
        use rustix::io::Errno;
        let io = |errno: Errno| notify::Error::io(errno.into());
        let table = [
            (io(Errno::MFILE), "fs.inotify.max_user_instances"),
            (io(Errno::NOSPC), "fs.inotify.max_user_watches"),
            (notify::Error::new(notify::ErrorKind::MaxFilesWatch), "fs.inotify.max_user_watches"),
        ];
        for (error, name) in table {
            let hint = hint(&error);
            assert!(hint.is_some_and(|hint| hint.contains(name)), "{error}: {hint:?}");
        }
        assert_eq!(hint(&io(Errno::ACCESS)), None);
    }
}
