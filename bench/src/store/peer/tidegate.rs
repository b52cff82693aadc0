//! Tidegate's store, in a temporary directory, at its intended load.

use super::{Peer, PeerKind, now, quota};
use crate::store::keys::Keys;
use anyhow::Context;
use std::path::Path;
use tempfile::TempDir;
use tidegate_core::{Charge, Quota, Timestamp, decide};
use tidegate_store::{Cluster, EntryMut, Eviction, Geometry, Options, UpdateError, View};

pub(super) const KIND: PeerKind = PeerKind {
    name: "tidegate",
    build: |capacity, dir| Ok(Box::new(Tidegate::create(capacity, Eviction::Refuse, dir)?)),
};

/// The share of used nodes at full capacity.
pub(crate) const LOAD: f64 = 0.8;
/// Keys per call.
const BATCH: usize = 16;

pub(crate) struct Tidegate {
    cluster: Cluster,
    quota: Quota,
    /// Dropped after the store in it.
    dir: TempDir,
}

impl Tidegate {
    pub(crate) fn create(capacity: u32, eviction: Eviction, dir: &Path) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir_in(dir)?;
        let cluster = Cluster::open(dir.path(), &options(capacity, eviction)?)?;
        cluster.use_large_pages();
        Ok(Tidegate { cluster, quota: quota()?, dir })
    }

    /// Closes the store and keeps its files.
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

/// Narrow nodes alone, for this many keys.
pub(crate) fn options(capacity: u32, eviction: Eviction) -> anyhow::Result<Options> {
    let narrow = Geometry::by_capacity(u64::from(capacity), LOAD)?;
    Ok(Options { narrow, wide: None, eviction, ..Options::default() })
}

/// Retries an update while it meets contention, as the peers wait without limit.
fn until_decided<T>(mut update: impl FnMut() -> Result<T, UpdateError>) -> Result<T, UpdateError> {
    loop {
        match update() {
            Err(error) if error.is_contention() => std::thread::yield_now(),
            decided => return decided,
        }
    }
}

impl Peer for Tidegate {
    fn decide_each(&self, keys: &Keys, picks: &[u32]) -> u64 {
        let now = now();
        if let [pick] = picks {
            let decide = |entry: EntryMut<'_>| self.decide(entry, now);
            // A key without room was not allowed.
            let update = || self.cluster.update(keys.key(*pick), now.as_nanos(), decide);
            return u64::from(until_decided(update).unwrap_or(false));
        }
        let mut allowed = 0;
        for picks in picks.chunks(BATCH) {
            let mut texts = [""; BATCH];
            for (text, &pick) in texts.iter_mut().zip(picks) {
                *text = keys.key(pick);
            }
            let texts = texts.get(..picks.len()).unwrap_or_default();
            let mut again = Vec::new();
            self.cluster.update_each(texts, now.as_nanos(), |index, entry| match entry {
                Ok(entry) => allowed += u64::from(self.decide(entry, now)),
                Err(error) if error.is_contention() => again.push(index),
                // A key without room is not allowed.
                Err(_) => {}
            });
            for text in again.into_iter().filter_map(|index| texts.get(index)) {
                let decide = |entry: EntryMut<'_>| self.decide(entry, now);
                let update = || self.cluster.update(*text, now.as_nanos(), decide);
                allowed += u64::from(until_decided(update).unwrap_or(false));
            }
        }
        allowed
    }

    fn file_bytes(&self) -> anyhow::Result<Option<u64>> {
        let files =
            View::open(self.dir.path())?.memory_files().context("the store has no memory")?;
        let lengths = files.iter().map(|file| Ok(file.metadata()?.len()));
        Ok(Some(lengths.sum::<std::io::Result<u64>>()?))
    }
}
