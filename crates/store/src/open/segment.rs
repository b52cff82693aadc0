//! The shared memory segment of a cluster: files on a tmpfs, mapped by all processes.
//!
//! It outlives the processes, so a kill loses nothing, and ends with the machine, so no page is ever older than
//! another. Owns its creation and lookup. Refuses memory that was changed from outside or not filled completely.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::error::{OpenError, OpenFailure};
use crate::format::files::OpenFile;
use crate::format::{
    Access, ClusterInfo, FileSet, Geometry, Role, Storage, WORD_BYTES, files, io_error,
};
use crate::memory::control::{BOOT, CONTROL_BYTES, MARK, NONCE, POISONED, word};
use crate::memory::sync::{get, put};
use crate::memory::{ClassMemory, Memory, Region};
use crate::open::pointer::Pointer;
use crate::snapshot::Snapshot;

pub(crate) struct Segment {
    pub(crate) memory: Memory,
    pub(crate) files: FileSet,
}

/// Maps the memory of a snapshot, if there is a valid one.
pub(crate) fn find(snapshot: &Snapshot, access: Access) -> Result<Option<Segment>, OpenError> {
    let Some(pointer) = Pointer::read(&snapshot.files.dir) else { return Ok(None) };
    // In a copied directory, the pointer names the memory of the original.
    if pointer.memory.file_name() != Some(OsStr::new(&directory_name(snapshot)?)) {
        return Ok(None);
    }
    let own = |path: &Path| fs::symlink_metadata(path).map(|found| found.uid());
    // All users may write to memory directories. Ignore files of other users.
    let Ok(owner) = own(&pointer.memory) else { return Ok(None) };
    if snapshot.files.paths().next().and_then(|path| own(path).ok()) != Some(owner) {
        return Ok(None);
    }
    let mapped = match map(&pointer.memory, &snapshot.info, access) {
        Ok(mapped) => mapped,
        Err(error @ OpenError { failure: OpenFailure::Io { .. }, .. }) => return Err(error),
        // Incomplete, or of another cluster.
        Err(_) => return Ok(None),
    };
    let control = &mapped.memory.control;
    let is_current = get(word(control, NONCE)) == pointer.nonce
        && get(word(control, BOOT)) == boot_hash()
        && get(word(control, POISONED)) == 0
        && are_whole(&mapped.files);
    Ok(is_current.then_some(mapped))
}

/// Creates memory for a snapshot, has zeros filled by `fill`, and publishes it. The caller holds
/// [`Snapshot::try_lock_exclusive`].
pub(crate) fn create(
    snapshot: &Snapshot,
    memory_dir: &Path,
    fill: impl FnOnce(&Memory) -> io::Result<()>,
) -> Result<Segment, OpenError> {
    require_tmpfs(memory_dir)?;
    let dir = memory_dir.join(directory_name(snapshot)?);
    files::create_directory(&dir, 0o700, || {
        snapshot.give_to_owner(&dir)?;
        for role in files::roles(&snapshot.info) {
            let bytes = file_bytes(&snapshot.info, role);
            files::create(&dir, &snapshot.info, (Storage::Memory, role), bytes)?;
            snapshot.give_to_owner(&dir.join(role.file_name()))?;
        }
        let created = map(&dir, &snapshot.info, Access::Write)?;
        let [random] = random()?;
        mark(&created.memory, random);
        fill(&created.memory).map_err(io_error("read the snapshot", &snapshot.files.dir))?;
        created.publish(snapshot)?;
        Ok(created)
    })
}

/// Writes the mark into all locks of new memory.
fn mark(memory: &Memory, random: u64) {
    // Never 0, as a lost page contains zeros.
    let mark = (random | 1) << 32;
    put(word(&memory.control, MARK), mark);
    for key_node in memory.classes().flat_map(ClassMemory::key_nodes) {
        put(key_node.lock(), mark);
    }
}

impl Segment {
    /// From now on, other processes find it.
    fn publish(&self, snapshot: &Snapshot) -> Result<(), OpenError> {
        let [nonce] = random()?;
        let control = &self.memory.control;
        put(word(control, BOOT), boot_hash());
        put(word(control, NONCE), nonce);
        let pointer = Pointer { memory: self.files.dir.clone(), nonce };
        snapshot.give_to_owner(&pointer.write(&snapshot.files.dir)?)
    }
}

fn are_whole(files: &FileSet) -> bool {
    files.all().iter().all(OpenFile::is_whole)
}

/// Whether the files are as they were created. If data is gone, poisons the memory for all processes, unless the
/// access is read-only. Removed or replaced files live on in the processes that have them open.
pub(crate) fn check(files: &FileSet, memory: &Memory, access: Access) -> io::Result<()> {
    let is_poisoned = memory.is_lost() || get(word(&memory.control, POISONED)) != 0;
    if is_poisoned || !are_whole(files) {
        if access == Access::Write {
            memory.poison();
        }
        let text = "a file in memory was cut short, or has a hole, and counters are gone";
        return Err(io::Error::other(format!("{}: {text}", files.dir.display())));
    }
    files.check()
}

/// Memory of this process alone, for viewing a snapshot.
pub(crate) fn anonymous(info: ClusterInfo) -> io::Result<Memory> {
    let words = |role| (file_bytes(&info, role) / WORD_BYTES) as usize;
    Memory::new(info, |role| Region::zeros(words(role)))
}

/// The directory name for a snapshot's memory. A copy of the snapshot has another one.
fn directory_name(snapshot: &Snapshot) -> Result<String, OpenError> {
    let found = snapshot.files.control().metadata();
    let found = found.map_err(io_error("look at the file", &snapshot.files.dir))?;
    let cluster = snapshot.info.cluster;
    let words = [cluster as u64, (cluster >> 64) as u64, found.dev(), found.ino()];
    Ok(format!("tidegate-{:032x}", xxh3_128(bytemuck::cast_slice(&words))))
}

fn map(dir: &Path, info: &ClusterInfo, access: Access) -> Result<Segment, OpenError> {
    let bytes = |role| file_bytes(info, role);
    let files = FileSet::open(dir, info, Storage::Memory, access, bytes)?;
    // The roles come in the order of the files.
    let mut in_order = files.all().iter();
    let memory = Memory::new(*info, |role| {
        let words = (file_bytes(info, role) / WORD_BYTES) as usize;
        let OpenFile { file, path, .. } =
            in_order.next().ok_or_else(|| OpenFailure::Missing.at(dir))?;
        Region::map(file, words, access).map_err(io_error("map the file", path))
    })?;
    Ok(Segment { memory, files })
}

fn file_bytes(info: &ClusterInfo, role: Role) -> u64 {
    files::length(info, role, CONTROL_BYTES, Geometry::file_bytes)
}

/// Identifies this boot of the machine; 0 if unknown.
fn boot_hash() -> u64 {
    let id = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    if id.is_empty() { 0 } else { xxh3_64(&id).max(1) }
}

pub(crate) fn random<const WORDS: usize>() -> Result<[u64; WORDS], OpenError> {
    let path = Path::new("/dev/urandom");
    let mut words = [0; WORDS];
    File::open(path)
        .and_then(|mut file| file.read_exact(bytemuck::cast_slice_mut(&mut words)))
        .map_err(io_error("read random bytes", path))?;
    Ok(words)
}

/// Refuses a directory on a disk: writes to mapped memory would wait for it.
#[cfg(target_os = "linux")]
fn require_tmpfs(dir: &Path) -> Result<(), OpenError> {
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    let found = rustix::fs::statfs(dir)
        .map_err(|errno| io_error("look at the file system", dir)(errno.into()))?;
    if [TMPFS, RAMFS].contains(&(found.f_type as i64)) {
        return Ok(());
    }
    Err(OpenFailure::NotInMemory.at(dir))
}

#[cfg(not(target_os = "linux"))]
fn require_tmpfs(_: &Path) -> Result<(), OpenError> {
    Ok(())
}
