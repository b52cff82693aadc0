//! The errors of opening a cluster and of updating it.
//!
//! Every message names the file or key, and the found and expected values. For a refused file it also advises
//! the operator. A refused file is never written to.

use std::io;
use std::path::{Path, PathBuf};

use crate::format::{Class, GeometryError, StoredKey};

/// A cluster could not be opened. Existing files are unchanged.
#[derive(Debug, thiserror::Error)]
#[error("{}: {failure}", path.display())]
pub struct OpenError {
    /// The file or directory.
    pub path: PathBuf,
    /// The failure.
    pub failure: OpenFailure,
}

/// The advice for a damaged file.
const RESTORE: &str =
    "restore the whole file, or move its directory away to start with empty counters";

/// Why a cluster could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenFailure {
    /// Another process holds this lock file, and did not release it in time.
    #[error(
        "another process has been opening this cluster for {seconds} s; wait for it, or stop it"
    )]
    Timeout {
        /// How long this process waited.
        seconds: u64,
    },
    /// The maximum number of processes already have the cluster open.
    #[error("{max} processes have this cluster open, the maximum; stop one of them")]
    TooManyProcesses {
        /// The maximum number of processes.
        max: u32,
    },
    /// Processes have the cluster open whose memory this process cannot see: in another container, or on
    /// another machine.
    #[error(
        "already served by a process whose shared memory is not reachable from here (another \
         container, another machine, or memory that was changed from outside); stop it, or let both \
         see one memory directory"
    )]
    ServedElsewhere,
    /// The memory directory is not on a tmpfs.
    #[error(
        "is not on a tmpfs, so counters there would wait for a disk; choose a directory on a \
         tmpfs, such as /dev/shm"
    )]
    NotInMemory,
    /// The operating system refused an operation.
    #[error("cannot {action}: {source}")]
    Io {
        /// The operation that failed.
        action: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A view was opened where no cluster is.
    #[error("there is no cluster here; `tidegate serve --data-dir` makes one")]
    NoCluster,
    /// The space of a file could not be reserved: a full disk, a quota, or a file system without `fallocate`.
    /// An existing file needs space only where it has holes; a file that was being created has been removed.
    #[error(
        "cannot reserve {bytes} bytes: {source}; free some space, choose a directory on \
         another file system, or lower the capacity if the cluster is a new one"
    )]
    NoSpace {
        /// The requested size.
        bytes: u64,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Something that is not a regular file has the name of a file.
    #[error("not a regular file; move it away")]
    NotAFile,
    /// A file of the cluster is missing.
    #[error("the file is missing; {}", RESTORE)]
    Missing,
    /// The file is shorter than a header.
    #[error("found {found} bytes, expected at least the {expected} bytes of a header; {}", RESTORE)]
    TooShort {
        /// Its length in bytes.
        found: u64,
        /// The length of a header in bytes.
        expected: u64,
    },
    /// The file does not start with the magic of a counter file.
    #[error(
        "not a counter file: found {found:02x?} at its start, expected {expected:02x?}; move \
         it away, or choose another directory"
    )]
    NotACounterFile {
        /// Its first bytes.
        found: [u8; 8],
        /// The first bytes of a counter file.
        expected: [u8; 8],
    },
    /// The file has a format version that this version of the crate does not read.
    #[error(
        "found format version {found}, expected {expected}; use the release that wrote it, or \
         move its directory away to start with empty counters"
    )]
    FormatVersion {
        /// The version in its header.
        found: u64,
        /// The version that this crate reads and writes.
        expected: u64,
    },
    /// The header was damaged after it was written.
    #[error(
        "the header is damaged: found checksum {found:#018x}, expected {expected:#018x}; {}",
        RESTORE
    )]
    Checksum {
        /// The checksum in the header.
        found: u64,
        /// The checksum computed from the header.
        expected: u64,
    },
    /// The file is valid, but belongs elsewhere.
    #[error(
        "is {actual}; put back the file that was here, or move its directory away to start with \
         empty counters"
    )]
    WrongFile {
        /// A description of the file.
        actual: &'static str,
    },
    /// The header is valid, but describes a geometry that this crate does not use.
    #[error("{0}; use the release that wrote it")]
    Geometry(GeometryError),
    /// The file is shorter or longer than its header says.
    #[error(
        "found {found} bytes, expected the {expected} bytes that its header describes; {}",
        RESTORE
    )]
    Length {
        /// Its length in bytes.
        found: u64,
        /// The length in bytes that its header describes.
        expected: u64,
    },
}

impl OpenFailure {
    /// The error for the file or directory `path`.
    pub(crate) fn at(self, path: &Path) -> OpenError {
        OpenError { path: path.to_owned(), failure: self }
    }
}

/// Why an update failed. No entry has changed, except possibly after [`UpdateError::DataLoss`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UpdateError {
    /// There is no room for a new key: every node of its key-nodes holds a live entry.
    #[error("no room for key {key}: all {nodes} {} nodes of its key-nodes are live", class.name())]
    Full {
        /// The new key.
        key: StoredKey,
        /// The class of its nodes.
        class: Class,
        /// The number of nodes that the key could have used.
        nodes: u32,
    },
    /// The keys of one update are too many, or their nodes too large, for the journal.
    #[error(
        "{keys} keys of {words} words are too much for one update (at most {keys_max} keys and {words_max} words)"
    )]
    TooLarge {
        /// The number of keys.
        keys: usize,
        /// The journal words that they take.
        words: usize,
        /// The maximum number of keys.
        keys_max: usize,
        /// The maximum number of journal words.
        words_max: usize,
    },
    /// A state does not fit into a node.
    #[error("a state of {words} words does not fit into a node of {words_max}")]
    StateTooLong {
        /// The words of the state.
        words: usize,
        /// The state words of a node of the key's class.
        words_max: usize,
    },
    /// The cluster has no nodes of the key's class.
    #[error("key {key} needs a {} node, but this cluster has none", class.name())]
    NoClass {
        /// The key.
        key: StoredKey,
        /// The missing class.
        class: Class,
    },
    /// A live process holds a lock and makes no progress: it is stopped, or starved of CPU time.
    #[error(
        "process {pid} holds a key-node and has not moved for {millis} ms; continue or kill it"
    )]
    Busy {
        /// The process id that the holder recorded; 0 if unknown.
        pid: u64,
        /// For how long it is known to have made no progress.
        millis: u64,
    },
    /// Contention: other writers make progress, but no lock or writer slot became free for this update.
    #[error(
        "no lock or writer slot became free within {millis} ms; too many threads update the same keys"
    )]
    Crowded {
        /// How long the update waited.
        millis: u64,
    },
    /// A file of the cluster was truncated, or its pages can no longer be read. It is unknown whether the
    /// update took place, and counts made since then cannot be trusted.
    #[error(
        "a file of the cluster was truncated or can no longer be read; stop all \
         processes that use it, restore it, and start again"
    )]
    DataLoss,
}

impl UpdateError {
    /// Whether other threads or processes held what the update needed. Nothing has changed; a retry may succeed.
    pub fn is_contention(&self) -> bool {
        matches!(self, Self::Busy { .. } | Self::Crowded { .. })
    }
}

/// Retries an update while it meets contention, as on a machine with fewer processors than threads.
#[cfg(all(test, not(loom)))]
pub(crate) fn until_decided<T>(mut update: impl FnMut() -> Result<T, UpdateError>) -> T {
    loop {
        match update() {
            Err(error) if error.is_contention() => std::thread::yield_now(),
            result => return result.unwrap(),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_retry_may_solve_is_contention() {
        let (key, class) = (StoredKey { estimate: 1, identity: 2 }, Class::Narrow);
        for (error, is_contention) in [
            (UpdateError::Busy { pid: 7, millis: 5 }, true),
            (UpdateError::Crowded { millis: 5 }, true),
            (UpdateError::Full { key, class, nodes: 8 }, false),
            (UpdateError::TooLarge { keys: 9, words: 9, keys_max: 1, words_max: 1 }, false),
            (UpdateError::StateTooLong { words: 5, words_max: 4 }, false),
            (UpdateError::NoClass { key, class }, false),
            (UpdateError::DataLoss, false),
        ] {
            assert_eq!(error.is_contention(), is_contention, "{error}");
        }
    }
}
