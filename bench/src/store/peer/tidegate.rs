//! Tidegate's store, in a directory of its own that goes with it, at the load it is meant for.

use super::{Kind, Peer, now, quota};
use crate::store::keys::Keys;
use anyhow::Context;
use std::path::Path;
use tempfile::TempDir;
use tidegate_core::{Charge, Quota, Timestamp, decide};
use tidegate_store::{Cluster, EntryMut, Eviction, Geometry, Options};

pub(super) const KIND: Kind = Kind {
    name: "tidegate",
    build: |capacity, dir| Ok(Box::new(Tidegate::create(capacity, Eviction::Refuse, dir)?)),
};

/// Nodes in use when there are as many keys as there is room for.
pub(crate) const LOAD: f64 = 0.8;
/// Keys that are handed over at once.
const BATCH: usize = 16;

pub(crate) struct Tidegate {
    cluster: Cluster,
    quota: Quota,
    /// Goes after the store that is in it.
    dir: TempDir,
}

impl Tidegate {
    pub(crate) fn create(capacity: u32, eviction: Eviction, dir: &Path) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir_in(dir)?;
        let cluster = Cluster::open(dir.path(), &options(capacity, eviction)?)?;
        Ok(Tidegate { cluster, quota: quota()?, dir })
    }

    /// Closes the store and leaves its files.
    pub(crate) fn close(self) -> TempDir {
        self.dir
    }

    fn decide(&self, entry: EntryMut<'_>, now: Timestamp) -> bool {
        let EntryMut { state: words, expires_at, .. } = entry;
        let decision = decide(words, &self.quota, Charge::ONE, now);
        *expires_at = decision.keep_until.as_nanos();
        decision.is_allow()
    }
}

/// Narrow nodes alone, for so many keys.
pub(crate) fn options(capacity: u32, eviction: Eviction) -> anyhow::Result<Options> {
    let narrow = Geometry::by_capacity(u64::from(capacity), LOAD)?;
    Ok(Options { narrow, wide: None, eviction, memory_dir: None })
}

/// What the files below a directory take.
fn files_bytes(dir: &Path) -> std::io::Result<u64> {
    let mut bytes = 0;
    for found in std::fs::read_dir(dir)? {
        let found = found?;
        let about = found.metadata()?;
        bytes += if about.is_dir() { files_bytes(&found.path())? } else { about.len() };
    }
    Ok(bytes)
}

impl Peer for Tidegate {
    fn decide_each(&self, keys: &Keys, picks: &[u32]) -> u64 {
        let now = now();
        if let [pick] = picks {
            let decide = |entry: EntryMut<'_>| self.decide(entry, now);
            // A key that there is no room for was not allowed.
            let decided = self.cluster.update(keys.key(*pick), now.as_nanos(), decide);
            return u64::from(decided.unwrap_or(false));
        }
        let mut allowed = 0;
        for picks in picks.chunks(BATCH) {
            let mut texts = [""; BATCH];
            for (text, &pick) in texts.iter_mut().zip(picks) {
                *text = keys.key(pick);
            }
            let texts = texts.get(..picks.len()).unwrap_or_default();
            self.cluster.update_each(texts, now.as_nanos(), |_, entry| {
                // A key that there is no room for is not allowed.
                let allow = entry.is_ok_and(|entry| self.decide(entry, now));
                allowed += u64::from(allow);
            });
        }
        allowed
    }

    fn file_bytes(&self) -> anyhow::Result<Option<u64>> {
        files_bytes(self.dir.path()).map(Some).context("cannot read the store's directory")
    }
}
