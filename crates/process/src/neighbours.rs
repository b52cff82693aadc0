//! Other services on the same data directory: whether they have the same limits in force. With others, the same counters
//! would be held to two limits.
//!
//! Each service keeps a file with the fingerprint of its limits in the directory, locked for as long as it lives, so that
//! one of a killed service is known to be nobody's. Looks at those of others from time to time, and logs a change.
//! Decides nothing by it, and goes on without if the directory does not allow it.

use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidegate_authority::{LimitObserver, Observer};
use tidegate_limits::Rules;
use tidegate_limits::diff::Snapshot;
use tokio::time::MissedTickBehavior;

/// Services read new limits within seconds of each other. What differs twice in a row stays different.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
const PREFIX: &str = "limits-";
/// Far more than a mark has.
const MARK_BYTES_MAX: u64 = 256;

/// The fingerprint of the limits in force.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fingerprint(Arc<AtomicU64>);

impl Observer for Fingerprint {
    fn is_idle(&self) -> bool {
        true
    }

    fn limits_replaced(&self, rules: &Rules) -> Box<dyn LimitObserver> {
        self.0.store(Snapshot::of(rules).fingerprint(), Ordering::Relaxed);
        Box::new(())
    }
}

/// Looks at the neighbours in `dir` until it is dropped.
pub(crate) async fn watch(dir: PathBuf, own: Fingerprint) {
    let opened = {
        let dir = dir.clone();
        tokio::task::spawn_blocking(move || Mark::make(&dir)).await
    };
    let mut mark = match opened {
        Ok(Ok(mark)) => mark,
        Ok(Err(error)) => {
            tracing::debug!(%error, "limits are not compared with those of other processes");
            return;
        }
        Err(_) => return,
    };
    let mut ticks = tokio::time::interval(CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut seen = Seen::default();
    loop {
        ticks.tick().await;
        let (dir, own) = (dir.clone(), own.0.load(Ordering::Relaxed));
        let looked = tokio::task::spawn_blocking(move || {
            let others = mark.write(own).and_then(|()| mark.others(&dir, own));
            (mark, others)
        });
        let Ok((back, others)) = looked.await else { return };
        mark = back;
        match others {
            Ok(others) => seen.note(others),
            Err(error) => tracing::debug!(%error, "the limits of other processes cannot be read"),
        }
    }
}

/// Others with other limits.
#[derive(Debug, Default)]
struct Seen {
    before: Vec<String>,
    reported: Vec<String>,
}

impl Seen {
    fn note(&mut self, others: Vec<String>) {
        let lasting: Vec<String> =
            others.iter().filter(|other| self.before.contains(other)).cloned().collect();
        self.before = others;
        for pid in lasting.iter().filter(|pid| !self.reported.contains(pid)) {
            tracing::warn!(
                pid,
                "another process serves this data directory with other limits; both decide by the same \
                 counters"
            );
        }
        if lasting.is_empty() && !self.reported.is_empty() && self.before.is_empty() {
            tracing::info!("all processes on this data directory have the same limits again");
        }
        if !lasting.is_empty() || self.before.is_empty() {
            self.reported = lasting;
        }
    }
}

/// The file of this service.
#[derive(Debug)]
struct Mark {
    path: PathBuf,
    /// Locked.
    file: File,
}

impl Drop for Mark {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Mark {
    fn make(dir: &Path) -> io::Result<Mark> {
        // Process ids of containers may be the same.
        let path = dir.join(format!("{PREFIX}{:016x}", RandomState::new().hash_one(0)));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let mark = Mark { path, file };
        flock(&mark.file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(mark)
    }

    fn write(&self, fingerprint: u64) -> io::Result<()> {
        self.file.write_all_at(line(fingerprint).as_bytes(), 0)
    }

    /// The process ids of services of the same version with other limits. Removes the marks of dead ones.
    fn others(&self, dir: &Path, own: u64) -> io::Result<Vec<String>> {
        let mut others = Vec::new();
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().as_encoded_bytes();
            if path == self.path || !name.starts_with(PREFIX.as_bytes()) {
                continue;
            }
            // It may be gone by now, or belong to another user.
            let Ok(file) = File::open(&path) else { continue };
            match flock(&file, FlockOperation::NonBlockingLockShared) {
                // It is made and locked in two steps, so one that is empty may be new.
                Ok(()) if file.metadata()?.len() > 0 => {
                    let _ = fs::remove_file(&path);
                }
                Ok(()) => {}
                Err(_) => others.extend(differing(&file, own)),
            }
        }
        others.sort();
        Ok(others)
    }
}

/// What a mark says. All have the same length, so one replaces another whole.
fn line(fingerprint: u64) -> String {
    format!("{fingerprint:016x} {:010} {}\n", std::process::id(), env!("CARGO_PKG_VERSION"))
}

fn differing(file: &File, own: u64) -> Option<String> {
    let mut text = String::new();
    file.take(MARK_BYTES_MAX).read_to_string(&mut text).ok()?;
    let mut words = text.split_whitespace();
    let (fingerprint, pid, version) = (words.next()?, words.next()?, words.next()?);
    // Another version may make another fingerprint of the same limits.
    let differs = fingerprint != format!("{own:016x}") && version == env!("CARGO_PKG_VERSION");
    differs.then(|| pid.trim_start_matches('0').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_with_other_limits_are_found_while_they_live() {
        let dir = tempfile::tempdir().unwrap();
        let [one, two, dead] = [(); 3].map(|()| Mark::make(dir.path()).unwrap());
        one.write(7).unwrap();
        assert_eq!(one.others(dir.path(), 7).unwrap(), [""; 0], "the others say nothing yet");
        two.write(7).unwrap();
        assert_eq!(one.others(dir.path(), 7).unwrap(), [""; 0]);
        two.write(8).unwrap();
        let own = std::process::id().to_string();
        assert_eq!(one.others(dir.path(), 7).unwrap().join(" "), own);
        assert_eq!(two.others(dir.path(), 8).unwrap().join(" "), own);
        // Killed: the kernel takes back its lock, and nothing removes its file.
        dead.write(9).unwrap();
        let left = dead.path.clone();
        flock(&dead.file, FlockOperation::Unlock).unwrap();
        std::mem::forget(dead);
        drop(two);
        assert_eq!(one.others(dir.path(), 7).unwrap(), [""; 0]);
        assert!(!left.exists());
        drop(one);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_difference_is_reported_once_it_lasts() {
        let (mut seen, other) = (Seen::default(), || vec!["17".to_owned()]);
        seen.note(other());
        assert!(seen.reported.is_empty(), "limits are read at different moments");
        seen.note(other());
        assert_eq!(seen.reported, other());
        seen.note(Vec::new());
        assert!(seen.reported.is_empty());
    }
}
