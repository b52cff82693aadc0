//! The files of a cluster, in memory and on disk: creating them, opening them, checking their headers,
//! noticing changes from outside.
//!
//! Owns the common part of both kinds. Which files there are is in [`crate::open::segment`] and
//! [`crate::snapshot`], the order of opening in [`crate::open`]. Never changes a file that it refuses.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::retry_on_intr;

use crate::error::{OpenError, OpenFailure};
use crate::format::{Class, ClusterInfo, Geometry, HEADER_BYTES, Role, Storage, header};

/// Whether a file or a mapping may be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// All files of a cluster, the control file first.
pub(crate) fn roles(info: &ClusterInfo) -> impl Iterator<Item = Role> {
    let files = Class::ALL
        .map(|class| (class, info.geometry(class).map_or(0, |geometry| geometry.files())));
    let nodes = files
        .into_iter()
        .flat_map(|(class, files)| (0..files).map(move |file| Role::Nodes { class, file }));
    std::iter::once(Role::Control).chain(nodes)
}

/// The length of a file: that of a control file, or that of a node file from its geometry.
pub(crate) fn length(
    info: &ClusterInfo,
    role: Role,
    control: u64,
    nodes: impl Fn(&Geometry) -> u64,
) -> u64 {
    match role {
        Role::Control => control,
        Role::Nodes { class, .. } => info.geometry(class).as_ref().map_or(0, nodes),
    }
}

/// Creates a file with its header, and reserves all of its space. Space missing later would raise SIGBUS in
/// the middle of an update, or fail a snapshot.
pub(crate) fn create(
    dir: &Path,
    info: &ClusterInfo,
    (storage, role): (Storage, Role),
    bytes: u64,
) -> Result<File, OpenError> {
    let path = dir.join(role.file_name());
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)
        .map_err(io_error("create the file", &path))?;
    allocate(&file, bytes, &path)?;
    file.write_all_at(&header::encode(info, storage, role), 0)
        .map_err(io_error("write the header", &path))?;
    Ok(file)
}

/// Opens a regular file. Refuses anything else, such as a pipe, without waiting for it.
pub(crate) fn open(path: &Path, access: Access) -> Result<File, OpenError> {
    match if_found(fs::metadata(path), "look for the file", path)? {
        None => return Err(OpenFailure::Missing.at(path)),
        Some(metadata) if !metadata.is_file() => return Err(OpenFailure::NotAFile.at(path)),
        Some(_) => {}
    }
    OpenOptions::new()
        .read(true)
        .write(access == Access::Write)
        .open(path)
        .map_err(io_error("open the file", path))
}

pub(crate) fn read_header(
    file: &File,
    storage: Storage,
    role: Role,
    path: &Path,
) -> Result<ClusterInfo, OpenError> {
    let found = file.metadata().map_err(io_error("read the length", path))?.len();
    if found < HEADER_BYTES as u64 {
        let expected = HEADER_BYTES as u64;
        return Err(OpenFailure::TooShort { found, expected }.at(path));
    }
    let mut bytes = [0; HEADER_BYTES];
    file.read_exact_at(&mut bytes, 0).map_err(io_error("read the header", path))?;
    header::decode(&bytes, storage, role, path)
}

/// Reserves space for the first `bytes` bytes of the file, and changes none of them.
pub(crate) fn allocate(file: &File, bytes: u64, path: &Path) -> Result<(), OpenError> {
    retry_on_intr(|| fallocate(file, FallocateFlags::empty(), 0, bytes))
        .map_err(|errno| OpenFailure::NoSpace { bytes, source: errno.into() }.at(path))
}

/// Replaces all but the header of a file by zeros, in the space that it has.
pub(crate) fn clear(file: &File, bytes: u64, path: &Path) -> Result<(), OpenError> {
    let zeros = vec![0; 1 << 20];
    let mut at = HEADER_BYTES as u64;
    while at < bytes {
        let count = usize::try_from(bytes - at).map_or(zeros.len(), |rest| rest.min(zeros.len()));
        file.write_all_at(&zeros[..count], at).map_err(io_error("empty the file", path))?;
        at += count as u64;
    }
    Ok(())
}

pub(crate) fn sync_directory(dir: &Path) -> Result<(), OpenError> {
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(io_error("write the directory to the disk", dir))
}

/// Creates a directory, in place of a leftover, and fills it. Removes it if that fails.
pub(crate) fn create_directory<T>(
    dir: &Path,
    mode: u32,
    fill: impl FnOnce() -> Result<T, OpenError>,
) -> Result<T, OpenError> {
    remove(dir)?;
    DirBuilder::new().mode(mode).create(dir).map_err(io_error("create the directory", dir))?;
    let filled = fill();
    if filled.is_err() {
        // Best effort, so that a full disk does not stay full; the first error is returned.
        let _ = remove(dir);
    }
    filled
}

/// Removes a directory and its content, if it exists.
pub(crate) fn remove(dir: &Path) -> Result<(), OpenError> {
    if_found(fs::remove_dir_all(dir), "remove the leftovers", dir).map(drop)
}

/// The result of an operation on a file, unless there is no such file.
pub(crate) fn if_found<T>(
    result: io::Result<T>,
    action: &'static str,
    path: &Path,
) -> Result<Option<T>, OpenError> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error(action, path)(error)),
    }
}

pub(crate) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    move |source| OpenFailure::Io { action, source }.at(path)
}

/// The open files of a cluster in one directory, the control file first.
#[derive(Debug)]
pub(crate) struct FileSet {
    pub(crate) dir: PathBuf,
    files: Vec<OpenFile>,
    /// How many node files are narrow.
    narrow: usize,
}

/// An open file with its expected length.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
}

impl OpenFile {
    /// Whether all of a memory file is there. Its space was reserved, so a hole or a missing end means that
    /// the file was truncated or punched, and that data is gone.
    pub(crate) fn is_whole(&self) -> bool {
        let is_all = |found: fs::Metadata| {
            let has_holes = cfg!(target_os = "linux") && 512 * found.blocks() < self.bytes;
            found.len() == self.bytes && !has_holes
        };
        self.file.metadata().is_ok_and(is_all)
    }
}

impl FileSet {
    /// Opens the files of the cluster `info` in `dir`, and checks their headers and lengths.
    pub(crate) fn open(
        dir: &Path,
        info: &ClusterInfo,
        storage: Storage,
        access: Access,
        bytes: impl Fn(Role) -> u64,
    ) -> Result<Self, OpenError> {
        let open = |role: Role| {
            let path = dir.join(role.file_name());
            let file = open(&path, access)?;
            if read_header(&file, storage, role, &path)? != *info {
                return Err(
                    OpenFailure::WrongFile { actual: "a file of another cluster" }.at(&path)
                );
            }
            let found = file.metadata().map_err(io_error("read the length", &path))?.len();
            let expected = bytes(role);
            if found != expected {
                return Err(OpenFailure::Length { found, expected }.at(&path));
            }
            Ok(OpenFile { file, path, bytes: expected })
        };
        let files = roles(info).map(open).collect::<Result<_, _>>()?;
        Ok(Self { dir: dir.to_owned(), files, narrow: info.narrow.files() as usize })
    }

    pub(crate) fn control(&self) -> &File {
        &self.files[0].file
    }

    /// All files, the control file first.
    pub(crate) fn all(&self) -> &[OpenFile] {
        &self.files
    }

    pub(crate) fn nodes(&self, class: Class) -> &[OpenFile] {
        let (narrow, wide) = self.files[1..].split_at(self.narrow);
        match class {
            Class::Narrow => narrow,
            Class::Wide => wide,
        }
    }

    /// All paths, that of the control file first.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|file| file.path.as_path())
    }

    /// Whether every file is still in place and has the same length.
    pub(crate) fn check(&self) -> io::Result<()> {
        for OpenFile { file, path, bytes } in &self.files {
            let opened = file.metadata()?;
            let metadata = fs::metadata(path).map_err(|error| {
                io::Error::new(
                    error.kind(),
                    format!("{}: the file in use is gone: {error}", path.display()),
                )
            })?;
            let path = path.display();
            if (metadata.dev(), metadata.ino()) != (opened.dev(), opened.ino()) {
                let text = format!("{path}: another file is in the place of the one in use");
                return Err(io::Error::other(text));
            }
            if metadata.len() != *bytes {
                let text = format!("{path}: found {} bytes, expected {bytes}", metadata.len());
                return Err(io::Error::other(text));
            }
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_cleared_file_has_its_header_and_zeros() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        for bytes in [HEADER_BYTES, HEADER_BYTES + 1, 2 << 20, 5 << 19] {
            fs::write(&path, vec![7; bytes]).unwrap();
            let file = open(&path, Access::Write).unwrap();
            clear(&file, bytes as u64, &path).unwrap();
            let found = fs::read(&path).unwrap();
            let (header, rest) = found.split_at(HEADER_BYTES);
            assert_eq!(found.len(), bytes);
            assert!(header.iter().all(|byte| *byte == 7) && rest.iter().all(|byte| *byte == 0));
        }
    }
}
