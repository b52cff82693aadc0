//! Opening a cluster and leaving it: creation, filling the memory, joining, and removal by the last process.
//!
//! Owns the order of these steps. Knows no entry and no key.
//!
//! Invariant: the snapshot directory under its final name is complete. It is created under another name, with
//! all its space reserved, and renamed once it is on disk.
//! Invariant: one process at a time opens or leaves a cluster. A process that is alone checks every node
//! before any is used.
//! Invariant: while there is memory, the pointer to it is on disk. So the next process knows whether memory was lost.
//! Invariant: a snapshot has one memory, whatever containers and machines see its directory.

pub(crate) mod pointer;
pub(crate) mod segment;

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{self, Path};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use crate::error::{OpenError, OpenFailure};
use crate::format::{Access, ClusterInfo, FileSet, Role, files, io_error};
use crate::memory::Memory;
use crate::memory::control::PROCESSES_MAX;
use crate::options::{AfterLoss, Options, default_memory_dir};
use crate::shared_words::SharedWords;
use crate::snapshot::{SNAPSHOT_DIR, Snapshot};
use crate::writers::liveness::{LivenessLock, LivenessLocks};
use crate::writers::recovery::recover;
use crate::writers::{Writers, restore};
use pointer::Pointer;
use segment::Segment;

/// The snapshot directory while it is being created. A leftover is replaced.
const CLUSTER_NEW: &str = "cluster.new";
/// Locked while a process opens or leaves the cluster.
const OPEN_LOCK: &str = "cluster.lock";

/// Opening a cluster takes about a second per GiB read from disk.
const OPEN_WAIT_MAX: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 60 });
const OPEN_PAUSE: Duration = Duration::from_millis(5);
/// How often a leaving process tries the lock.
const LEAVE_TRIES: u32 = 40;

/// A cluster that this process has joined.
pub(crate) struct Opened {
    pub(crate) memory: Memory,
    pub(crate) writers: Writers,
    pub(crate) files: ClusterFiles,
}

/// The files of an open cluster.
#[derive(Debug)]
pub(crate) struct ClusterFiles {
    pub(crate) snapshot: Snapshot,
    memory: FileSet,
    /// Whether this process created the memory.
    pub(crate) created_memory: bool,
    /// Whether this process emptied the cluster, as its memory was lost ([`AfterLoss::Nothing`]).
    pub(crate) was_emptied: bool,
    dir: path::PathBuf,
}

impl ClusterFiles {
    /// Whether the files are unchanged. A fault in the memory poisons it.
    pub(crate) fn check(&self, memory: &Memory) -> io::Result<()> {
        self.check_memory(memory)?;
        self.snapshot.files.check()
    }

    /// The same for the memory alone.
    pub(crate) fn check_memory(&self, memory: &Memory) -> io::Result<()> {
        segment::check(&self.memory, memory, Access::Write)
    }

    /// Words beside the nodes: see [`crate::Cluster::shared_words`].
    pub(crate) fn shared_words(&self, name: &str, words: usize) -> Result<SharedWords, OpenError> {
        let _lock = acquire_open_lock(&self.dir)?;
        let give = |path: &Path| self.snapshot.give_to_owner(path);
        SharedWords::open(&self.memory.dir, name, words, give)
    }

    /// Removes the memory if no other process has it and `save` has put everything into the snapshot. Does
    /// nothing if a process is about to open the cluster.
    pub(crate) fn leave(
        &self,
        memory: &Memory,
        liveness: &LivenessLocks,
        save: impl FnOnce() -> bool,
    ) {
        let Ok(lock) = open_lock_file(&self.dir.join(OPEN_LOCK)) else { return };
        // The lock may belong to a process that opens the cluster, or to a child just forked, which has it
        // until its exec.
        let mut tries = 0..LEAVE_TRIES;
        while lock.try_lock().is_err() {
            if tries.next().is_none() {
                return;
            }
            thread::sleep(OPEN_PAUSE);
        }
        let mut others = (0..PROCESSES_MAX).map(|process| liveness.try_acquire(process));
        let is_alone = others.all(|other| matches!(other, Ok(Some(_))));
        // A poisoned memory is of no use.
        let is_saved = is_alone && !memory.is_lost() && save();
        if is_saved || (is_alone && memory.is_lost()) {
            // A pointer to nothing says that memory was lost. If the directory was moved, its pointer stays, too.
            if is_saved && self.snapshot.files.check().is_ok() {
                let _ = pointer::clear(&self.snapshot.files.dir);
            }
            // Leftovers are replaced by the next process, which may already be creating its memory.
            let _ = files::remove(&self.memory.dir);
        }
        // Before another process can remove the memory, after which this lock would mean that the cluster is
        // served elsewhere.
        self.snapshot.unlock();
    }
}

/// Opens the cluster in `dir`. Creates both if they are missing.
pub(crate) fn open(dir: &Path, options: &Options) -> Result<Opened, OpenError> {
    // The files are checked again later, whatever the working directory is then.
    let dir = &path::absolute(dir).map_err(io_error("make sense of the path", dir))?;
    create_directory(dir)?;
    let _lock = acquire_open_lock(dir)?;
    let cluster = dir.join(SNAPSHOT_DIR);
    let found = fs::symlink_metadata(&cluster);
    let is_new = files::if_found(found, "look for the directory", &cluster)?.is_none();
    if is_new {
        create_snapshot(dir, &new_info(options)?)?;
    }
    let snapshot = Snapshot::open(&cluster, Access::Write)?;
    let elsewhere = || OpenFailure::ServedElsewhere.at(dir);
    let lock_error =
        |error| io_error("lock the file", &cluster.join(Role::Control.file_name()))(error);
    let found = segment::find(&snapshot, Access::Write)?;
    let created_memory = found.is_none();
    let mut was_emptied = false;
    let segment = match found {
        Some(segment) => segment,
        None if snapshot.try_lock_exclusive().map_err(lock_error)? => {
            // The last process to leave in order clears the pointer.
            was_emptied = options.after_loss == AfterLoss::Nothing
                && Pointer::read(&snapshot.files.dir).is_some();
            if was_emptied {
                snapshot.clear()?;
            }
            create_memory(&snapshot, options, is_new || was_emptied)?
        }
        None => return Err(elsewhere()),
    };
    if !snapshot.try_lock_shared().map_err(lock_error)? {
        return Err(elsewhere());
    }
    let Segment { memory, files } = segment;
    let control = files.control().try_clone().map_err(io_error("open the file", &files.dir))?;
    let liveness = LivenessLocks::File(Arc::new(control));
    let mut free = claim_processes(&files.dir, &memory, &liveness)?;
    if is_alone(&free) {
        restore::restore(&memory);
        snapshot.resume(&memory).map_err(io_error("read the snapshot", &snapshot.files.dir))?;
    }
    let recovered = recover(&memory, free.iter().map(|(process, _)| *process));
    let Some((process, claim)) = free.drain(..).next() else {
        return Err(OpenFailure::TooManyProcesses { max: PROCESSES_MAX }.at(dir));
    };
    let writers = Writers::join(&memory, liveness, claim, process);
    if let Ok(held) = writers.acquire(&memory) {
        recovered.count(&held.writer);
    }
    let dir = dir.to_owned();
    let files = ClusterFiles { snapshot, memory: files, created_memory, was_emptied, dir };
    Ok(Opened { memory, writers, files })
}

/// Creates memory of this process alone, which is its only user.
#[cfg(target_os = "linux")]
pub(crate) fn in_memory(options: &Options) -> Result<(Memory, Writers), OpenError> {
    use rustix::fs::{MemfdFlags, memfd_create};
    const PROCESS: u32 = 0;
    let place = Path::new("the memory of this process");
    let memory = segment::anonymous(new_info(options)?).map_err(io_error("allocate", place))?;
    // Locks need a file. No other process can open this one.
    let locks = memfd_create("tidegate-locks", MemfdFlags::CLOEXEC)
        .map_err(|errno| io_error("create a file in", place)(errno.into()))?;
    let liveness = LivenessLocks::File(Arc::new(File::from(locks)));
    let claim = liveness.try_acquire(PROCESS).map_err(io_error("lock a file in", place))?;
    let claim = claim.ok_or_else(|| OpenFailure::ServedElsewhere.at(place))?;
    let writers = Writers::join(&memory, liveness, claim, PROCESS);
    Ok((memory, writers))
}

/// How many bytes of memory [`open`] would create; 0 if the memory exists.
pub(crate) fn memory_needed(dir: &Path, options: &Options) -> Result<u64, OpenError> {
    let cluster = dir.join(SNAPSHOT_DIR);
    // Let a process that is creating the cluster finish.
    let _lock = if dir.join(OPEN_LOCK).exists() { Some(acquire_open_lock(dir)?) } else { None };
    if fs::symlink_metadata(&cluster).is_err() {
        return Ok(options.total_bytes());
    }
    let snapshot = Snapshot::open(&cluster, Access::Read)?;
    let ClusterInfo { narrow, wide, .. } = snapshot.info;
    Ok(match segment::find(&snapshot, Access::Read)? {
        Some(_) => 0,
        None => Options { wide, ..Options::narrow(narrow) }.total_bytes(),
    })
}

/// Creates the memory, and fills it from the snapshot unless that is empty.
fn create_memory(
    snapshot: &Snapshot,
    options: &Options,
    is_empty: bool,
) -> Result<Segment, OpenError> {
    let memory_dir = options.memory_dir.clone().unwrap_or_else(default_memory_dir);
    let memory_dir =
        path::absolute(&memory_dir).map_err(io_error("make sense of the path", &memory_dir))?;
    let fill = |memory: &_| if is_empty { Ok(()) } else { snapshot.load(memory, |_, _, _| {}) };
    segment::create(snapshot, &memory_dir, fill)
}

fn create_directory(dir: &Path) -> Result<(), OpenError> {
    if dir.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(dir).map_err(io_error("create the directory", dir))?;
    match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => files::sync_directory(parent),
        _ => Ok(()),
    }
}

/// Opens the lock file, creating it if needed. Never waits, as opening a FIFO would.
fn open_lock_file(path: &Path) -> Result<File, OpenError> {
    let is_other = |metadata: fs::Metadata| !metadata.is_file();
    let not_a_file = || OpenFailure::NotAFile.at(path);
    // Checked before opening, which has side effects on some devices.
    if fs::metadata(path).is_ok_and(is_other) {
        return Err(not_a_file());
    }
    let lock = OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed())
        .open(path)
        .map_err(io_error("open the file", path))?;
    let metadata = lock.metadata().map_err(io_error("look at the file", path))?;
    if is_other(metadata) { Err(not_a_file()) } else { Ok(lock) }
}

/// Waits until no other process is opening or leaving the cluster.
fn acquire_open_lock(dir: &Path) -> Result<File, OpenError> {
    let path = dir.join(OPEN_LOCK);
    let since = Instant::now();
    loop {
        let lock = open_lock_file(&path)?;
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(io_error("lock the file", &path)(error)),
        }
        pause(since, &path)?;
    }
}

/// Pauses before another attempt, unless `since` is too long ago.
fn pause(since: Instant, path: &Path) -> Result<(), OpenError> {
    if since.elapsed() >= OPEN_WAIT_MAX {
        return Err(OpenFailure::Timeout { seconds: OPEN_WAIT_MAX.as_secs() }.at(path));
    }
    thread::sleep(OPEN_PAUSE);
    Ok(())
}

/// Claims the numbers of all processes that are not alive. Waits while a process killed during a restoration
/// still exists: its leftovers must be restored again first.
fn claim_processes(
    memory_dir: &Path,
    memory: &Memory,
    liveness: &LivenessLocks,
) -> Result<Vec<(u32, LivenessLock)>, OpenError> {
    let since = Instant::now();
    loop {
        let mut free = Vec::new();
        let path = memory_dir.join(Role::Control.file_name());
        for process in 0..PROCESSES_MAX {
            let claim = liveness.try_acquire(process).map_err(io_error("lock the file", &path))?;
            free.extend(claim.map(|claim| (process, claim)));
        }
        if is_alone(&free) || !restore::is_being_restored(memory) {
            return Ok(free);
        }
        drop(free);
        pause(since, &path)?;
    }
}

/// Whether no other process has the cluster open, given the claims of this one.
fn is_alone(claims: &[(u32, LivenessLock)]) -> bool {
    claims.len() == PROCESSES_MAX as usize
}

fn new_info(options: &Options) -> Result<ClusterInfo, OpenError> {
    let [high, low, random] = segment::random()?;
    let seed = options.seed.unwrap_or(random);
    let cluster = u128::from(high) << 64 | u128::from(low);
    Ok(ClusterInfo { cluster, seed, narrow: options.narrow, wide: options.wide })
}

/// Creates the snapshot in `dir`, atomically for all observers.
fn create_snapshot(dir: &Path, info: &ClusterInfo) -> Result<(), OpenError> {
    let (new, cluster) = (dir.join(CLUSTER_NEW), dir.join(SNAPSHOT_DIR));
    files::create_directory(&new, 0o777, || {
        Snapshot::create(&new, info)?;
        pointer::clear(&new).map_err(io_error("make room for the pointer to memory", &new))?;
        files::sync_directory(&new)?;
        fs::rename(&new, &cluster).map_err(io_error("rename the new cluster", &cluster))
    })?;
    // The rename is durable once the directory is.
    files::sync_directory(dir)
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests;
