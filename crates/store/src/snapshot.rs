//! The snapshot: a copy of the memory in files on disk, which outlives the machine.
//!
//! Each key-node has two copy positions in its file. A pass writes each changed key-node to the position that
//! does not have its latest copy, syncs, and then writes a checkpoint. So whatever power loss does to the
//! positions being written, a whole copy of every key-node from the last complete pass remains. A copy has a
//! checksum and is consistent: it never contains part of an update.
//!
//! Owns these files and their locks. `copy` is one copy or checkpoint, `pass` writes, `load` reads
//! (docs/internals/store-format.md, "Snapshot"). No update waits for any of it.

mod copy;
mod load;
mod pass;

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, lchown};
use std::path::Path;
use std::sync::Mutex;

use crate::error::OpenError;
use crate::format::{
    Access, ClusterInfo, FileSet, Geometry, HEADER_BYTES, Role, Storage, files, io_error,
};
use crate::writers::byte_lock;

pub(crate) use copy::copy_offset;
pub use pass::SyncReport;

pub(crate) const SNAPSHOT_DIR: &str = "cluster";
/// The control file: a header and two checkpoints.
const CONTROL_BYTES: u64 = 3 * HEADER_BYTES as u64;
/// Bytes beyond the end of the control file, for locks: one shared by every process that has the cluster
/// open, one for the process that makes a pass.
const USERS_BYTE: u64 = CONTROL_BYTES;
const PASS_BYTE: u64 = CONTROL_BYTES + 1;
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) info: ClusterInfo,
    pub(crate) files: FileSet,
    /// Held by the thread that makes a pass, as the file lock does not exclude threads from each other.
    pass: Mutex<()>,
}

impl Snapshot {
    /// Creates the files in `dir`, a new directory, and syncs each to disk.
    pub(crate) fn create(dir: &Path, info: &ClusterInfo) -> Result<(), OpenError> {
        for role in files::roles(info) {
            let bytes = file_bytes(info, role);
            let file = files::create(dir, info, (Storage::Snapshot, role), bytes)?;
            let path = dir.join(role.file_name());
            file.sync_all().map_err(io_error("write the file to the disk", &path))?;
        }
        Ok(())
    }

    pub(crate) fn open(dir: &Path, access: Access) -> Result<Self, OpenError> {
        let path = dir.join(Role::Control.file_name());
        let control = files::open(&path, access)?;
        let info = files::read_header(&control, Storage::Snapshot, Role::Control, &path)?;
        drop(control);
        let bytes = |role| file_bytes(&info, role);
        let files = FileSet::open(dir, &info, Storage::Snapshot, access, bytes)?;
        if access == Access::Write {
            // A restored backup may have holes where the original had zeros.
            files
                .all()
                .iter()
                .try_for_each(|file| files::allocate(&file.file, file.bytes, &file.path))?;
        }
        Ok(Self { info, files, pass: Mutex::new(()) })
    }

    /// Makes it as empty as a new one. The caller holds [`Snapshot::try_lock_exclusive`].
    pub(crate) fn clear(&self) -> Result<(), OpenError> {
        self.files
            .all()
            .iter()
            .try_for_each(|file| files::clear(&file.file, file.bytes, &file.path))
    }

    /// Acquires the right to create memory for this snapshot: no process, on any machine, has any. Afterwards
    /// [`Snapshot::try_lock_shared`] admits others.
    pub(crate) fn try_lock_exclusive(&self) -> io::Result<bool> {
        byte_lock::try_lock(self.files.control(), USERS_BYTE)
    }

    /// Shows, while this process lives, that memory for this snapshot exists.
    pub(crate) fn try_lock_shared(&self) -> io::Result<bool> {
        byte_lock::try_lock_shared(self.files.control(), USERS_BYTE)
    }

    /// This process no longer has memory for this snapshot.
    pub(crate) fn unlock(&self) {
        byte_lock::unlock(self.files.control(), USERS_BYTE);
    }

    /// Whether a process has the cluster open.
    pub(crate) fn is_locked(&self) -> bool {
        byte_lock::is_locked(self.files.control(), USERS_BYTE).unwrap_or(true)
    }

    /// Gives a file to the owner of the snapshot, so that root may open a cluster that a sidecar of another
    /// user joins.
    pub(crate) fn give_to_owner(&self, path: &Path) -> Result<(), OpenError> {
        let give_to_owner = || {
            let owner = self.files.control().metadata()?;
            if fs::symlink_metadata(path)?.uid() == owner.uid() {
                return Ok(());
            }
            lchown(path, Some(owner.uid()), Some(owner.gid()))
        };
        give_to_owner().map_err(io_error("give the file to the owner of the data directory", path))
    }
}

fn file_bytes(info: &ClusterInfo, role: Role) -> u64 {
    files::length(info, role, CONTROL_BYTES, Geometry::snapshot_file_bytes)
}
