//! The counter store of Tidegate: the MMAP cluster, in memory that several processes map, with a snapshot on disk.
//!
//! A [`Cluster`] keeps a few words of state for each key, for a bounded number of keys, in memory of fixed
//! size. A lookup takes one hash and two cache misses. Several keys change in one transaction, which survives
//! `kill -9`: a process killed in the middle neither blocks the others nor leaves a partial change. The store
//! knows no limit and no algorithm.
//!
//! - `files` × `key-nodes` × `chain`: see [`Geometry`]. The bytes are specified in docs/internals/store-format.md.
//! - A key is any type with an index estimate and a comparison: see [`Key`].
//! - [`View`] reads a cluster, live or at rest, and changes nothing.
//!
//! Imports point one way, from the bottom: `format` (the meaning of the bytes), `memory` (mapped words), `writers`
//! (locks, and recovery after a death), `transaction` (one atomic change), `snapshot` (the copy on disk), `open`
//! (how a cluster comes into being), `inspect` (reading without locks), `cluster` (the operations).
//!
//! Invariant: all unsafe code is in `memory/region.rs`, `memory/sigbus.rs` and `writers/byte_lock.rs`.

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
mod shared_words;
mod snapshot;
mod transaction;
mod writers;

pub use cluster::Cluster;
pub use entry::{Entries, Entry, EntryMut, LoadedEntries, Room};
pub use error::{OpenError, OpenFailure, UpdateError};
pub use format::{
    CHAIN_MAX, Class, Geometry, GeometryError, Hashed, Key, Parts, STATE_WORDS_MAX,
    STATE_WORDS_NARROW, STATE_WORDS_WIDE, StoredKey,
};
pub use inspect::{
    EntryCounts, Findings, Flaw, FlawKind, LockHolder, Occupancy, Process, RangeStats, View,
};
pub use options::{AfterLoss, Eviction, Options, default_memory_dir};
pub use shared_words::SharedWords;
pub use snapshot::SyncReport;
pub use writers::slot::KEYS_MAX as UPDATE_KEYS_MAX;
pub use writers::{Stats, StuckProcess, blocked_in_this_thread};
