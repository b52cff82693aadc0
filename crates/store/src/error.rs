//! The errors of the boundary: one enum for opening a store, one for updating it.
//!
//! Every message names the file or key at fault, what was found, what was expected, and for a
//! refused file what an operator can do about it. A refused file is never written to.

use std::io;
use std::path::PathBuf;

use crate::key::Key;

/// Why a store could not be opened. The counter file, if there is one, is untouched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// [`Options::capacity`](crate::Options::capacity) is out of range.
    #[error("capacity {found} is not allowed (minimum 1, maximum {max})")]
    Capacity {
        /// The capacity that was asked for.
        found: u64,
        /// The largest capacity that is allowed.
        max: u64,
    },
    /// Another live owner holds the lock of this store.
    #[error(
        "{}: the store is in use by another process; stop that process, or choose another \
         directory (a process that is just ending frees it within moments: try again)",
        path.display()
    )]
    InUse {
        /// The lock file that is held.
        path: PathBuf,
    },
    /// The operating system refused an operation.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// What the operating system answered.
        source: io::Error,
    },
    /// The space for the file could not be set aside: a full disk, a quota, or a file system without
    /// `fallocate`. An existing file asks for space only if it has holes.
    #[error(
        "{}: cannot set aside {bytes} bytes: {source}; free some space, choose a directory on \
         another file system, or lower the capacity if the store is a new one",
        path.display()
    )]
    NoSpace {
        /// The file; one that was being made has been removed again.
        path: PathBuf,
        /// The size that was asked for.
        bytes: u64,
        /// What the operating system answered.
        source: io::Error,
    },
    /// There is something under the file's name which is not a regular file.
    #[error("{}: found something that is not a regular file; move it away", path.display())]
    NotAFile {
        /// What is in the way.
        path: PathBuf,
    },
    /// The file is shorter than a header.
    #[error(
        "{}: found {found} bytes, expected at least the {expected} bytes of a header; restore the \
         whole file, or move it away to start with empty counters",
        path.display()
    )]
    NoHeader {
        /// The refused file.
        path: PathBuf,
        /// Its length in bytes.
        found: u64,
        /// The length of a header in bytes.
        expected: u64,
    },
    /// The file does not start as a counter file does.
    #[error(
        "{}: not a counter file: found {found:02x?} at its start, expected {expected:02x?}; move \
         it away, or choose another directory",
        path.display()
    )]
    Foreign {
        /// The refused file.
        path: PathBuf,
        /// Its first bytes.
        found: [u8; 8],
        /// The first bytes of a counter file.
        expected: [u8; 8],
    },
    /// The file has a format which this version of the crate does not read.
    #[error(
        "{}: found format version {found}, expected {expected}; use the release that wrote it, or \
         move the file away to start with empty counters",
        path.display()
    )]
    FormatVersion {
        /// The refused file.
        path: PathBuf,
        /// The version in its header.
        found: u64,
        /// The version that this crate reads and writes.
        expected: u64,
    },
    /// The header was damaged after it was written.
    #[error(
        "{}: the header is damaged: found checksum {found:#018x}, expected {expected:#018x}; \
         restore the file, or move it away to start with empty counters",
        path.display()
    )]
    Checksum {
        /// The refused file.
        path: PathBuf,
        /// The checksum in the header.
        found: u64,
        /// The checksum of what the header says.
        expected: u64,
    },
    /// The header is whole but describes a layout that this crate does not use.
    #[error(
        "{}: found {what} {found}, expected {min} to {max}; use the release that wrote it, or move \
         the file away to start with empty counters",
        path.display()
    )]
    Geometry {
        /// The refused file.
        path: PathBuf,
        /// Which number of the header.
        what: &'static str,
        /// Its value.
        found: u64,
        /// The smallest value that is allowed.
        min: u64,
        /// The largest value that is allowed.
        max: u64,
    },
    /// The file is shorter or longer than its header says.
    #[error(
        "{}: found {found} bytes, expected the {expected} bytes that its header describes; restore \
         the whole file, or move it away to start with empty counters",
        path.display()
    )]
    Length {
        /// The refused file.
        path: PathBuf,
        /// Its length in bytes.
        found: u64,
        /// The length in bytes that its header describes.
        expected: u64,
    },
}

/// Why nothing was updated: no entry of any key of the call has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UpdateError {
    /// The same key was given twice in one call.
    #[error("key {key} was given twice in one update")]
    RepeatedKey {
        /// The key that repeats.
        key: Key,
    },
    /// A new key has no place: every node of its chain holds a live entry.
    #[error("no place for key {key}: all {nodes} nodes of chain {chain} are live")]
    ChainFull {
        /// The key without a place.
        key: Key,
        /// Its chain.
        chain: u64,
        /// The number of nodes of a chain.
        nodes: u64,
    },
}
