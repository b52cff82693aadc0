//! Views: reading a cluster from outside, live or at rest, without changing it.
//!
//! Owns the answers to operators' questions. Everything is read without a lock, while others write at full
//! speed; [`reader`] explains why no half-written node is believed.
//!
//! Invariant: writes nothing, joins nothing, blocks no writer. The mapping is read-only.
//! Invariant: every loop is bounded by the size of the files, whatever bytes are in them.

mod findings;
mod reader;
mod survey;
mod verifier;

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::entry::{Entry, nanos, secs_down};
use crate::error::{OpenError, OpenFailure, UpdateError};
use crate::format::files::if_found;
use crate::format::node::{STATE, expires_secs, key_of};
use crate::format::{Access, Class, FileSet, Geometry, Key, Role, StoredKey, io_error};
use crate::memory::sync::get;
use crate::memory::{KeyNode, Memory};
use crate::open::segment::{self, Segment};
use crate::shared_words::SharedWords;
use crate::snapshot::{SNAPSHOT_DIR, Snapshot};
use crate::writers::{Stats, restore};

pub use findings::{Findings, Flaw, FlawKind};
use reader::{Reader, Reading};
pub use survey::{EntryCounts, LockHolder, Occupancy, Process, RangeStats};
use verifier::Verifier;

/// A view of a cluster: of its memory while that exists, also after its processes were killed, and otherwise
/// of its snapshot.
///
/// ```
/// use tidegate_store::{Class, Cluster, Options, View};
///
/// let dir = tempfile::tempdir()?;
/// let cluster = Cluster::open(dir.path(), &Options::default())?;
/// let now = 1_700_000_000_000_000_000;
/// cluster.update("a key", now, |entry| {
///     entry.state[0] = 7;
///     *entry.expires_at = now + 60_000_000_000;
/// })?;
///
/// let view = View::open(dir.path())?;
/// assert_eq!(view.find("a key", now)?.map(|entry| entry.state[0]), Some(7));
/// assert!(view.verify(now, |_, _| {}).is_sound());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct View {
    memory: Memory,
    snapshot: Snapshot,
    /// The memory files; none if this is a view of the snapshot.
    live: Option<FileSet>,
    /// The file, key-node and offset of each torn or damaged copy in the snapshot.
    damaged: Vec<(Role, u64, u64)>,
}

impl View {
    /// Opens a view of the cluster in `dir`. Needs read access only.
    ///
    /// # Errors
    ///
    /// If there is no cluster of this format, or the system refuses an operation.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        let cluster = dir.join(SNAPSHOT_DIR);
        if if_found(fs::metadata(&cluster), "look for the directory", &cluster)?.is_none() {
            return Err(OpenFailure::NoCluster.at(dir));
        }
        let snapshot = Snapshot::open(&cluster, Access::Read)?;
        let mut damaged = Vec::new();
        if let Some(Segment { memory, files }) = segment::find(&snapshot, Access::Read)? {
            return Ok(Self { memory, snapshot, live: Some(files), damaged });
        }
        let read_error = || io_error("read the snapshot", &snapshot.files.dir);
        let memory = segment::anonymous(snapshot.info).map_err(read_error())?;
        let load = snapshot.load(&memory, |role, key_node, at| damaged.push((role, key_node, at)));
        load.map_err(read_error())?;
        // As on opening a cluster, so that displaced keys are found.
        restore::restore(&memory);
        Ok(Self { memory, snapshot, live: None, damaged })
    }

    /// All files of the snapshot, the control file first.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        self.snapshot.files.paths().map(Path::to_owned).collect()
    }

    /// All files of the memory, the control file first. None if this is a view of the snapshot.
    #[must_use]
    pub fn memory_files(&self) -> Option<Vec<PathBuf>> {
        Some(self.live.as_ref()?.paths().map(Path::to_owned).collect())
    }

    /// What words that the processes of the cluster have in common are now: see
    /// [`Cluster::shared_words`](crate::Cluster::shared_words). None if there are none of this name, or this is a view of
    /// the snapshot.
    ///
    /// # Errors
    ///
    /// If the system refuses the file.
    pub fn shared_words(&self, name: &str) -> Result<Option<Vec<u64>>, OpenError> {
        self.live.as_ref().map_or(Ok(None), |files| SharedWords::read(&files.dir, name))
    }

    /// Whether a process has the cluster open in memory that cannot be seen from here, in another container
    /// or on another machine. If so, this is a view of the last snapshot.
    #[must_use]
    pub fn is_served_elsewhere(&self) -> bool {
        self.live.is_none() && self.snapshot.is_locked()
    }

    /// Whether everything that was read is valid: see [`Cluster::check_files`](crate::Cluster::check_files).
    ///
    /// # Errors
    ///
    /// Names the file that is gone, replaced, or of another length.
    pub fn check_files(&self) -> io::Result<()> {
        if let Some(files) = &self.live {
            segment::check(files, &self.memory, Access::Read)?;
        }
        self.snapshot.files.check()
    }

    /// The processes recorded in the cluster: those that have it open, and those that were killed and not yet
    /// recovered.
    #[must_use]
    pub fn processes(&self) -> Vec<Process> {
        let processes = |files: &FileSet| survey::processes(&self.memory, files.control());
        self.live.as_ref().map(processes).unwrap_or_default()
    }

    /// The live processes that hold locks and make no progress. Each blocks the keys in the key-nodes it has
    /// locked. Takes 50 ms if any lock is held.
    #[must_use]
    pub fn holders(&self) -> Vec<LockHolder> {
        let holders = |files: &FileSet| survey::holders(&self.memory, files.control());
        self.live.as_ref().map(holders).unwrap_or_default()
    }

    /// How many entries of a class are live at `now`, from all key-nodes or an even sample.
    #[must_use]
    pub fn entry_counts(&self, class: Class, now: u64) -> Option<EntryCounts> {
        Some(EntryCounts::of(self.memory.class(class)?, secs_down(now)))
    }

    /// Statistics of the key-nodes of a class in `count` ranges of equal length, or fewer if there are fewer
    /// key-nodes. From all heads, or an even sample of each range.
    #[must_use]
    pub fn range_stats(&self, class: Class, count: u64) -> Option<Vec<RangeStats>> {
        Some(RangeStats::all_of(self.memory.class(class)?, count))
    }

    /// The entry of a key, if it has one that has not expired at `now`.
    ///
    /// # Errors
    ///
    /// If the cluster has no nodes of the key's class, or a file was truncated.
    pub fn find<K: Key + ?Sized>(&self, key: &K, now: u64) -> Result<Option<Entry>, UpdateError> {
        let (class, own) = (key.class(), key.stored(self.seed()));
        let Some(class) = self.memory.class(class) else {
            return Err(UpdateError::NoClass { key: own, class });
        };
        let home = class.home(&own);
        let mut entry = self.find_in(home, key, &own);
        if entry.is_none() && get(home.displaced()) > 0 {
            entry = self.find_in(class.alternate(&own), key, &own);
        }
        if self.memory.is_lost() {
            return Err(UpdateError::DataLoss);
        }
        Ok(entry.filter(|entry| !entry.is_expired(nanos(secs_down(now)))))
    }

    fn find_in<K: Key + ?Sized>(
        &self,
        key_node: KeyNode<'_>,
        key: &K,
        own: &StoredKey,
    ) -> Option<Entry> {
        let mut reader = Reader::new(&self.memory);
        let mut image = vec![0; key_node.layout().node_words];
        key_node.tagged(own.tag()).find_map(|slot| {
            let reading = reader.read(key_node, slot, &mut image);
            let is_it = reading.is_node() && key.compare(own, &key_of(&image));
            is_it.then(|| entry_of(&image))
        })
    }

    /// Visits every node, expired ones included, one key-node after the other, until `visit` fails. May miss
    /// an entry that is created or erased meanwhile.
    ///
    /// Returns the number of flawed nodes, which it skips; [`View::verify`] names them.
    ///
    /// # Errors
    ///
    /// That of `visit`.
    pub fn try_for_each<E>(
        &self,
        mut visit: impl FnMut(Class, StoredKey, Entry) -> Result<(), E>,
    ) -> Result<u64, E> {
        let mut reader = Reader::new(&self.memory);
        let mut left_out = 0;
        for class in self.memory.classes() {
            let mut image = vec![0; class.layout.node_words];
            for key_node in class.key_nodes() {
                for slot in key_node.occupied() {
                    match reader.read(key_node, slot, &mut image) {
                        Reading::Free => {}
                        Reading::Sound | Reading::Pending => {
                            visit(class.class, key_of(&image), entry_of(&image))?;
                        }
                        Reading::Flawed(_) => left_out += 1,
                    }
                }
            }
        }
        Ok(left_out)
    }

    /// Checks every node, head, lock and writer slot, and every copy of a snapshot. Entries are live or expired at
    /// `now`. Calls `progress` from time to time with the number of checked key-nodes and their total.
    ///
    /// If a process restores the cluster at the same time, it may be about to repair the flaws;
    /// [`Findings::is_being_restored`] reports that.
    #[must_use]
    pub fn verify(&self, now: u64, progress: impl FnMut(u64, u64)) -> Findings {
        let reader = Reader::new(&self.memory);
        let findings = Findings::default();
        let now_secs = secs_down(now);
        Verifier { view: self, memory: &self.memory, now_secs, reader, findings }.run(progress)
    }
}

/// The facts that a cluster and a view of it know alike, from their `memory`.
macro_rules! facts {
    ($holder:ty) => {
        impl $holder {
            /// The random seed of this cluster, for hashing keys. Never changes.
            #[must_use]
            pub fn seed(&self) -> u64 {
                self.memory.seed()
            }

            /// Distinguishes this cluster from all others. A copy of its directory has the same.
            #[must_use]
            pub fn id(&self) -> u128 {
                self.memory.info.cluster
            }

            /// The geometry of a class of nodes, if the cluster has it.
            #[must_use]
            pub fn geometry(&self, class: Class) -> Option<Geometry> {
                self.memory.info.geometry(class)
            }

            /// Counts since the cluster was created, over all processes.
            #[must_use]
            pub fn stats(&self) -> Stats {
                Stats::of(&self.memory.control)
            }

            /// How full a class is, from every head, or from an even sample of a large class.
            #[must_use]
            pub fn occupancy(&self, class: Class) -> Option<Occupancy> {
                Some(Occupancy::of(self.memory.class(class)?))
            }

            /// The same from a small sample, within a percent or two.
            #[must_use]
            pub fn rough_occupancy(&self, class: Class) -> Option<Occupancy> {
                Some(Occupancy::roughly(self.memory.class(class)?))
            }
        }
    };
}
pub(crate) use facts;
facts!(View);

impl fmt::Debug for View {
    /// Omits the seed: readers of a log must not learn how to aim keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("dir", &&self.snapshot.files.dir).finish_non_exhaustive()
    }
}

fn entry_of(image: &[u64]) -> Entry {
    let last = image.len() - 1;
    Entry::new(&image[STATE..last], nanos(expires_secs(image[last])))
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests;
