//! The errors of the boundary: one enum for opening a cluster, one for updating it.
//!
//! Every message names the file or key at fault, what was found, what was expected, and for a
//! refused file what an operator can do about it. A refused file is never written to.

use std::io;
use std::path::PathBuf;

use crate::format::geometry::{Class, GeometryError};
use crate::format::key::StoredKey;

/// Why a cluster could not be opened. Its files, if there are any, are untouched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process is opening the cluster, and does not come to an end.
    #[error(
        "{}: another process has been opening this cluster for {seconds} s; wait for it, or stop it",
        path.display()
    )]
    OpenTimeout {
        /// The lock file that it holds.
        path: PathBuf,
        /// How long was waited for it.
        seconds: u64,
    },
    /// There are as many processes as there can be.
    #[error(
        "{}: {max} processes have this cluster open, and more cannot; stop one of them",
        path.display()
    )]
    TooManyProcesses {
        /// The directory.
        path: PathBuf,
        /// How many processes there can be.
        max: u32,
    },
    /// Processes have the cluster open that keep its counters where this one cannot see them: in another
    /// container, or on another machine.
    #[error(
        "{}: served already, by a process whose shared memory cannot be joined from here (another \
         container, another machine, or memory that was changed from outside); stop it, or let both \
         see one memory directory",
        path.display()
    )]
    ServedElsewhere {
        /// The directory.
        path: PathBuf,
    },
    /// The directory for counters is not one of shared memory.
    #[error(
        "{}: is not in memory, so that counters there would wait for a disk; choose a directory on a \
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
        /// What was tried.
        action: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// What the operating system answered.
        source: io::Error,
    },
    /// There is nothing to open for somebody who only wants to look.
    #[error(
        "{}: there is no cluster here; `tidegate serve --data-dir` makes one",
        path.display()
    )]
    NoCluster {
        /// The directory.
        path: PathBuf,
    },
    /// The space for a file could not be set aside: a full disk, a quota, or a file system without
    /// `fallocate`. An existing file asks for space only if it has holes.
    #[error(
        "{}: cannot set aside {bytes} bytes: {source}; free some space, choose a directory on \
         another file system, or lower the capacity if the cluster is a new one",
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
         whole file, or move the directory it is in away to start with empty counters",
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
    /// The file does not start as a counter file does.
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
    /// The file has a format which this version of the crate does not read.
    #[error(
        "{}: found format version {found}, expected {expected}; use the release that wrote it, or \
         move the directory it is in away to start with empty counters",
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
         restore the file, or move the directory it is in away to start with empty counters",
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
    /// The file is whole, and does not belong where it is.
    #[error(
        "{}: is {what}; put back the file that was here, or move the directory it is in away to \
         start with empty counters",
        path.display()
    )]
    WrongFile {
        /// The refused file.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// The header is whole but describes a geometry that this crate does not use.
    #[error("{}: {source}; use the release that wrote it", path.display())]
    Geometry {
        /// The refused file.
        path: PathBuf,
        /// Which number, and what is allowed.
        source: GeometryError,
    },
    /// The file is shorter or longer than its header says.
    #[error(
        "{}: found {found} bytes, expected the {expected} bytes that its header describes; restore \
         the whole file, or move the directory it is in away to start with empty counters",
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

/// Why nothing was updated: no entry of any key of the call has changed, save after
/// [`UpdateError::DataLoss`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UpdateError {
    /// A new key has no place: every node of its key-nodes holds a live entry.
    #[error("no place for key {key}: all {nodes} {} nodes of its key-nodes are live", class.name())]
    Full {
        /// The key without a place.
        key: StoredKey,
        /// The class of its nodes.
        class: Class,
        /// The number of nodes where it could have been.
        nodes: u32,
    },
    /// The keys of one update are too many, or their nodes too large, for the journal.
    #[error(
        "{keys} keys of {words} words are too much for one update (at most {keys_max} keys and {words_max} words)"
    )]
    TooLarge {
        /// How many keys there are.
        keys: usize,
        /// How many words of journal they take.
        words: usize,
        /// How many keys there may be.
        keys_max: usize,
        /// How many words of journal they may take.
        words_max: usize,
    },
    /// A state does not fit into a node.
    #[error("a state of {words} words does not fit into a node of {words_max}")]
    StateTooLong {
        /// How many words the state has.
        words: usize,
        /// How many words of state a node of the key's class has.
        words_max: usize,
    },
    /// The cluster was made without nodes of the key's class.
    #[error("key {key} needs a {} node, and this cluster was made without", class.name())]
    NoClass {
        /// The key.
        key: StoredKey,
        /// The class that is missing.
        class: Class,
    },
    /// A live process holds a lock and does not move: it is stopped, or starved of CPU time.
    #[error(
        "process {pid} holds a key-node and has not moved for {millis} ms; continue or kill it"
    )]
    Busy {
        /// The process id of the holder, as it noted it; 0 if not known.
        pid: u64,
        /// For how long it is known not to have moved.
        millis: u64,
    },
    /// Others were faster, again and again: they move, but this update found no lock or seat free.
    #[error("no lock or seat came free for {millis} ms; too many threads update the same keys")]
    Crowded {
        /// How long was waited.
        millis: u64,
    },
    /// A file of the cluster was cut short, or its pages cannot be had any more. Whether the update
    /// took place is not known, and nothing that was counted since can be trusted.
    #[error(
        "a file of the cluster was cut short or cannot be read any more; stop all \
         processes that use it, restore it, and start again"
    )]
    DataLoss,
}

impl UpdateError {
    /// Whether other threads or processes held what the update needed. Nothing has changed, and the same update
    /// may succeed when it is tried again.
    pub fn is_contention(&self) -> bool {
        matches!(self, Self::Busy { .. } | Self::Crowded { .. })
    }
}

/// Tries an update again as long as it meets contention, as on a machine with fewer processors than threads.
#[cfg(all(test, not(loom)))]
pub(crate) fn until_decided<T>(mut update: impl FnMut() -> Result<T, UpdateError>) -> T {
    loop {
        match update() {
            Err(error) if error.is_contention() => std::thread::yield_now(),
            result => return result.unwrap(),
        }
    }
}
