//! How to make a cluster, and how to treat it.

use std::path::PathBuf;

use crate::format::geometry::{Geometry, STATE_WORDS_WIDE};
use crate::memory::control::CONTROL_BYTES;

/// What becomes of a new key whose key-nodes are full of live entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    /// Its update is refused. No live entry is ever forgotten, so no limit is loosened.
    #[default]
    Refuse,
    /// The entry of its home that expires soonest gives way (of equals, the one in the lowest slot). The
    /// key that loses it starts anew, so its limit is loosened; that is counted. A flood of new keys
    /// pushes out other keys, and each other.
    EvictSoonestExpiry,
}

/// How to make a cluster that does not exist yet, and how to treat it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Of the narrow nodes. An existing cluster keeps the geometry that it has.
    pub narrow: Geometry,
    /// Of the wide nodes, if there are to be any. As `narrow`.
    pub wide: Option<Geometry>,
    /// What to do when there is no room; each process has its own mind.
    pub eviction: Eviction,
    /// The directory of shared memory (tmpfs) to keep counters in, unless they are in another one
    /// already; [`default_memory_dir`] if none.
    pub memory_dir: Option<PathBuf>,
}

/// The directory of shared memory that there is on every Linux machine.
#[must_use]
pub fn default_memory_dir() -> PathBuf {
    if cfg!(target_os = "linux") { PathBuf::from("/dev/shm") } else { std::env::temp_dir() }
}

impl Options {
    /// Narrow nodes of this geometry, no wide ones, and nothing live is evicted.
    #[must_use]
    pub const fn narrow(narrow: Geometry) -> Self {
        Self { narrow, wide: None, eviction: Eviction::Refuse, memory_dir: None }
    }

    /// The bytes of all files of such a cluster.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        let wide = self.wide.map_or(0, |wide| wide.total_bytes());
        CONTROL_BYTES + self.narrow.total_bytes() + wide
    }
}

impl Default for Options {
    /// Room for 2^20 keys and 2^12 wide ones, at a load of 0.8: files of 77 MB and 1.5 MB, and 8 MiB
    /// of control.
    fn default() -> Self {
        let of = |geometry: Result<Geometry, _>| match geometry {
            Ok(geometry) => geometry,
            Err(error) => unreachable!("these numbers are in range: {error}"),
        };
        Self {
            narrow: of(Geometry::by_capacity(1 << 20, 0.8)),
            wide: Some(of(Geometry::wide_by_capacity(1 << 12, 0.8, STATE_WORDS_WIDE))),
            eviction: Eviction::Refuse,
            memory_dir: None,
        }
    }
}
