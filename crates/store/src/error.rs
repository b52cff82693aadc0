//! The two error enums of the crate: one for opening a cluster, one for updating it.
//!
//! Every message names the file or key, what was found and what was expected. For a refused file it also says
//! what an operator can do. A refused file is never written to.

use std::io;
use std::path::PathBuf;

use crate::format::{Class, GeometryError, StoredKey};

/// Why a cluster could not be opened. Existing files are unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process holds the lock for opening the cluster, and did not release it in time.
    #[error(
        "{}: another process has been opening this cluster for {seconds} s; wait for it, or stop it",
        path.display()
    )]
    OpenTimeout {
        /// The lock file.
        path: PathBuf,
        /// How long this process waited.
        seconds: u64,
    },
    /// The maximum number of processes already have the cluster open.
    #[error(
        "{}: {max} processes have this cluster open, the maximum; stop one of them",
        path.display()
    )]
    TooManyProcesses {
        /// The directory.
        path: PathBuf,
        /// The maximum number of processes.
        max: u32,
    },
    /// Processes have the cluster open whose memory this process cannot see: in another container, or on
    /// another machine.
    #[error(
        "{}: already served by a process whose shared memory is not reachable from here (another \
         container, another machine, or memory that was changed from outside); stop it, or let both \
         see one memory directory",
        path.display()
    )]
    ServedElsewhere {
        /// The directory.
        path: PathBuf,
    },
    /// The memory directory is not on a tmpfs.
    #[error(
        "{}: is not on a tmpfs, so counters there would wait for a disk; choose a directory on a \
         tmpfs, such as /dev/shm",
        path.display()
    )]
    NotInMemory {
        /// The directory.
        path: PathBuf,
    },
    /// The operating system refused an operation.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The operation that failed.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A view was opened where no cluster is.
    #[error("{}: there is no cluster here; `tidegate serve --data-dir` makes one", path.display())]
    NoCluster {
        /// The directory.
        path: PathBuf,
    },
    /// The space of a file could not be reserved: a full disk, a quota, or a file system without `fallocate`.
    /// An existing file needs space only where it has holes.
    #[error(
        "{}: cannot reserve {bytes} bytes: {source}; free some space, choose a directory on \
         another file system, or lower the capacity if the cluster is a new one",
        path.display()
    )]
    NoSpace {
        /// The file. A file that was being created has been removed.
        path: PathBuf,
        /// The requested size.
        bytes: u64,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The path of a file holds something that is not a regular file.
    #[error("{}: not a regular file; move it away", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A file of the cluster is missing.
    #[error(
        "{}: the file is missing; restore it, or move the whole directory {} away to start with \
         empty counters",
        path.display(),
        path.parent().unwrap_or(path).display()
    )]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The file is shorter than a header.
    #[error(
        "{}: found {found} bytes, expected at least the {expected} bytes of a header; restore the \
         whole file, or move its directory away to start with empty counters",
        path.display()
    )]
    TooShort {
        /// The refused file.
        path: PathBuf,
        /// Its length in bytes.
        found: u64,
        /// The length of a header in bytes.
        expected: u64,
    },
    /// The file does not start with the magic of a counter file.
    #[error(
        "{}: not a counter file: found {found:02x?} at its start, expected {expected:02x?}; move \
         it away, or choose another directory",
        path.display()
    )]
    NotACounterFile {
        /// The refused file.
        path: PathBuf,
        /// Its first bytes.
        found: [u8; 8],
        /// The first bytes of a counter file.
        expected: [u8; 8],
    },
    /// The file has a format version that this version of the crate does not read.
    #[error(
        "{}: found format version {found}, expected {expected}; use the release that wrote it, or \
         move its directory away to start with empty counters",
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
         restore the file, or move its directory away to start with empty counters",
        path.display()
    )]
    Checksum {
        /// The refused file.
        path: PathBuf,
        /// The checksum in the header.
        found: u64,
        /// The checksum computed from the header.
        expected: u64,
    },
    /// The file is valid, but belongs elsewhere.
    #[error(
        "{}: is {what}; put back the file that was here, or move its directory away to \
         start with empty counters",
        path.display()
    )]
    WrongFile {
        /// The refused file.
        path: PathBuf,
        /// A description of the file.
        what: &'static str,
    },
    /// The header is valid, but describes a geometry that this crate does not use.
    #[error("{}: {source}; use the release that wrote it", path.display())]
    Geometry {
        /// The refused file.
        path: PathBuf,
        /// The number that is out of range, and its range.
        source: GeometryError,
    },
    /// The file is shorter or longer than its header says.
    #[error(
        "{}: found {found} bytes, expected the {expected} bytes that its header describes; restore \
         the whole file, or move its directory away to start with empty counters",
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
