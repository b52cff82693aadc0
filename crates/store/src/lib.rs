//! The MMAP cluster: the counter store of Tidegate, in mapped memory that several processes share, with a
//! snapshot on a disk.
//!
//! A [`Cluster`] keeps a few words of state under each key, for a bounded number of keys, in memory of
//! fixed size. It is found with one hash and in two cache misses, several keys change as one step, and a
//! process that is killed in the middle of it neither blocks the others nor leaves anything half
//! done. It knows no limit and no algorithm.
//!
//! - `files` × `key-nodes` × `chain`: see [`Geometry`]. The bytes are in docs/store-format.md.
//! - A key is anything that has an index estimate and can be compared: see [`Key`].
//! - [`View`] looks at a cluster, live or at rest, without touching it.
//!
//! From the bottom: `region` (mapped words) and `guard` (files cut short); `geometry` and `key_node`
//! (where things are); `lock`, `seat`, `process` and `crew` (who may write, and what is left when they
//! die); `patience` and `stuck` (how long they wait, and for whom not); `step` (one update); `cluster`
//! (operations). `open` is how a cluster comes to be: `segment` (its memory), `snapshot` (its copy), `pointer`
//! (from one to the other), `files` and `header` (what both have in common), `verify`.
//!
//! Invariant: all unsafe code of the workspace is in `region`, `guard` and `byte_lock`.

#[cfg(not(all(target_endian = "little", target_pointer_width = "64")))]
compile_error!("the files are little-endian, and may be larger than a 32-bit process can map");

mod cluster;
mod entry;
mod error;
mod format;
mod inspect;
mod memory;
mod open;
mod options;
mod snapshot;
mod transaction;
mod writers;

pub use cluster::Cluster;
pub use entry::{Entries, Entry, EntryMut, Room};
pub use error::{OpenError, UpdateError};
pub use format::geometry::{
    CHAIN_MAX, Class, Geometry, GeometryError, STATE_WORDS_MAX, STATE_WORDS_NARROW,
    STATE_WORDS_WIDE,
};
pub use format::key::{Hashed, Key, Parts, StoredKey};
pub use inspect::{
    EntryCounts, Findings, Flaw, FlawKind, LockHolder, Occupancy, Process, RangeStats, View,
};
pub use options::{Eviction, Options, default_memory_dir};
pub use snapshot::SyncReport;
pub use writers::backoff::blocked_in_this_thread;
pub use writers::slot::KEYS_MAX as UPDATE_KEYS_MAX;
pub use writers::stall::StuckProcess;
pub use writers::stats::Stats;
