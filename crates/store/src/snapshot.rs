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

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, lchown};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::error::OpenError;
use crate::format::{
    Access, Class, ClusterInfo, FilesInUse, Geometry, HEADER_BYTES, Role, Storage, files, io_error,
};
use crate::writers::byte_lock;

pub(crate) use copy::copy_offset;
pub use pass::SyncReport;

/// The directory of the snapshot in the data directory.
pub(crate) const SNAPSHOT_DIR: &str = "cluster";
/// The control file: a header and two checkpoints.
const CONTROL_BYTES: u64 = 3 * HEADER_BYTES as u64;
/// Bytes beyond the end of the control file, for locks: one shared by every process that has the cluster
/// open, one for the process that makes a pass.
const USERS_BYTE: u64 = CONTROL_BYTES;
const PASS_BYTE: u64 = CONTROL_BYTES + 1;
/// The snapshot of a cluster, opened.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) info: ClusterInfo,
    dir: PathBuf,
    control: File,
    narrow: Vec<File>,
    wide: Vec<File>,
    in_use: FilesInUse,
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

    /// Opens the files in `dir`.
    pub(crate) fn open(dir: &Path, access: Access) -> Result<Self, OpenError> {
        let path = dir.join(Role::Control.file_name());
        let control = files::open(&path, access)?;
        let info = files::read_header(&control, Storage::Snapshot, Role::Control, &path)?;
        let (mut in_use, mut narrow, mut wide) = (FilesInUse::default(), Vec::new(), Vec::new());
        for role in files::roles(&info) {
            let path = dir.join(role.file_name());
            let of_role =
                if role == Role::Control { None } else { Some(files::open(&path, access)?) };
            let file = of_role.as_ref().unwrap_or(&control);
            files::check_header(file, &info, (Storage::Snapshot, role), &path)?;
            let bytes = file_bytes(&info, role);
            files::check_length(file, bytes, &path)?;
            if access == Access::Write {
                // A restored backup may have holes where the original had zeros.
                files::allocate(file, bytes, &path)?;
            }
            in_use.add(file, path)?;
            match (role, of_role) {
                (Role::Nodes { class: Class::Narrow, .. }, Some(file)) => narrow.push(file),
                (Role::Nodes { class: Class::Wide, .. }, Some(file)) => wide.push(file),
                _ => {}
            }
        }
        let (dir, pass) = (dir.to_owned(), Mutex::new(()));
        Ok(Self { info, dir, control, narrow, wide, in_use, pass })
    }

    /// The directory of the files.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// All files, the control file first.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.in_use.paths()
    }

    /// Whether every file is still in place.
    pub(crate) fn check(&self) -> io::Result<()> {
        self.in_use.check()
    }

    pub(crate) fn control(&self) -> &File {
        &self.control
    }

    /// Acquires the right to create memory for this snapshot: no process, on any machine, has any. Afterwards
    /// [`Snapshot::try_lock_shared`] admits others.
    pub(crate) fn try_lock_exclusive(&self) -> io::Result<bool> {
        byte_lock::try_lock(&self.control, USERS_BYTE)
    }

    /// Shows, while this process lives, that memory for this snapshot exists.
    pub(crate) fn try_lock_shared(&self) -> io::Result<bool> {
        byte_lock::try_lock_shared(&self.control, USERS_BYTE)
    }

    /// This process no longer has memory for this snapshot.
    pub(crate) fn unlock(&self) {
        byte_lock::unlock(&self.control, USERS_BYTE);
    }

    /// Whether a process has the cluster open.
    pub(crate) fn is_locked(&self) -> bool {
        byte_lock::is_locked(&self.control, USERS_BYTE).unwrap_or(true)
    }

    /// Gives a file to the owner of the snapshot, so that root may open a cluster that a sidecar of another
    /// user joins.
    pub(crate) fn give_to_owner(&self, path: &Path) -> Result<(), OpenError> {
        let give_to_owner = || {
            let owner = self.control.metadata()?;
            if fs::symlink_metadata(path)?.uid() == owner.uid() {
                return Ok(());
            }
            lchown(path, Some(owner.uid()), Some(owner.gid()))
        };
        give_to_owner().map_err(io_error("give the file to the owner of the data directory", path))
    }

    fn files(&self, class: Class) -> &[File] {
        match class {
            Class::Narrow => &self.narrow,
            Class::Wide => &self.wide,
        }
    }
}

/// The length of a snapshot file.
fn file_bytes(info: &ClusterInfo, role: Role) -> u64 {
    files::length(info, role, CONTROL_BYTES, Geometry::snapshot_file_bytes)
}
