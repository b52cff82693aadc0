//! The options of a cluster: its size, its memory and its eviction policy.

use std::path::PathBuf;

use crate::format::{Geometry, STATE_WORDS_WIDE};
use crate::memory::control::CONTROL_BYTES;

/// What happens to a new key if its key-nodes are full of live entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    /// The update fails. No live entry is ever dropped, so no limit is loosened.
    #[default]
    Refuse,
    /// The entry in its home that expires soonest is evicted (the lowest slot breaks ties). The key that
    /// loses its entry starts from zero, which loosens its limit and is counted. A flood of new keys evicts
    /// other keys, and each other.
    EvictSoonestExpiry,
}

/// What counts once the memory has ended without its processes: with the machine, say, or with its container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterLoss {
    /// The last complete snapshot. Hits since then are lost.
    #[default]
    LastSnapshot,
    /// Nothing: the cluster is empty. For states that must not be older than they were, such as tokens, which could be
    /// spent again.
    Nothing,
}

/// The options of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Geometry of the narrow nodes. An existing cluster keeps its own.
    pub narrow: Geometry,
    /// Geometry of the wide nodes, if any. An existing cluster keeps its own.
    pub wide: Option<Geometry>,
    /// What to do when there is no room. Each process may choose differently.
    pub eviction: Eviction,
    /// What counts once the memory was lost. Of processes that have one cluster, the first to start decides.
    pub after_loss: AfterLoss,
    /// The directory of shared memory (tmpfs) for the counters; [`default_memory_dir`] if none. Ignored while
    /// they are in another one.
    pub memory_dir: Option<PathBuf>,
    /// The seed of a new cluster, for keys that were hashed elsewhere; a random one if none. An existing cluster keeps
    /// its own.
    pub seed: Option<u64>,
}

/// The shared memory directory of every Linux machine.
#[must_use]
pub fn default_memory_dir() -> PathBuf {
    if cfg!(target_os = "linux") { PathBuf::from("/dev/shm") } else { std::env::temp_dir() }
}

impl Options {
    /// Narrow nodes of this geometry, no wide nodes, no eviction.
    #[must_use]
    pub const fn narrow(narrow: Geometry) -> Self {
        Self {
            narrow,
            wide: None,
            eviction: Eviction::Refuse,
            after_loss: AfterLoss::LastSnapshot,
            memory_dir: None,
            seed: None,
        }
    }

    /// The size of all memory files of such a cluster in bytes.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        let wide = self.wide.map_or(0, |wide| wide.total_bytes());
        CONTROL_BYTES + self.narrow.total_bytes() + wide
    }
}

impl Default for Options {
    /// Room for 2^20 narrow and 2^12 wide keys at a load of 0.8: files of 77 MB and 1.5 MB, and a control
    /// file of 8 MiB.
    fn default() -> Self {
        let in_range = "the numbers are in range";
        let wide = Geometry::wide_by_capacity(1 << 12, 0.8, STATE_WORDS_WIDE).expect(in_range);
        let narrow = Geometry::by_capacity(1 << 20, 0.8).expect(in_range);
        Self { wide: Some(wide), ..Self::narrow(narrow) }
    }
}
