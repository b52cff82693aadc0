//! The pointer: a file in the snapshot directory that names the directory of the memory, while there is one.
//!
//! Written in place with a fixed length, so that it can be written on a full disk. Whether the memory it
//! names is valid is for [`crate::open::segment`] to decide.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::{OpenError, OpenFailure};
use crate::format::io_error;

const POINTER: &str = "memory";
/// One line, padded with newlines to this length.
const POINTER_BYTES: usize = 4096;

/// The memory of a cluster, as recorded in its snapshot directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pointer {
    pub(crate) memory: PathBuf,
    pub(crate) nonce: u64,
}

impl Pointer {
    /// None if there is no valid pointer, and so no memory.
    pub(crate) fn read(dir: &Path) -> Option<Self> {
        let path = dir.join(POINTER);
        let is_pointer =
            |found: fs::Metadata| found.is_file() && found.len() <= POINTER_BYTES as u64;
        let bytes = fs::metadata(&path).is_ok_and(is_pointer).then(|| fs::read(path).ok())??;
        let line = bytes.split(|byte| *byte == b'\n').next()?;
        let (nonce, memory) = line.split_at_checked(17)?;
        let nonce = u64::from_str_radix(std::str::from_utf8(nonce).ok()?.trim_end(), 16).ok()?;
        Some(Self { memory: PathBuf::from(OsStr::from_bytes(memory)), nonce })
    }

    /// Writes the pointer into `dir`, and to the disk. Returns its path.
    pub(crate) fn write(&self, dir: &Path) -> Result<PathBuf, OpenError> {
        let path = dir.join(POINTER);
        let mut line = format!("{:016x} ", self.nonce).into_bytes();
        line.extend_from_slice(self.memory.as_os_str().as_bytes());
        if line.len() >= POINTER_BYTES || line.contains(&b'\n') {
            return Err(OpenFailure::NotInMemory.at(&self.memory));
        }
        write_line(&path, line)
            .and_then(|file| file.sync_all())
            .map_err(io_error("note where the memory is", &path))?;
        Ok(path)
    }
}

/// Records that there is no memory.
pub(crate) fn clear(dir: &Path) -> io::Result<()> {
    write_line(&dir.join(POINTER), Vec::new()).map(drop)
}

fn write_line(path: &Path, mut line: Vec<u8>) -> io::Result<File> {
    line.resize(POINTER_BYTES, b'\n');
    let file =
        OpenOptions::new().create(true).write(true).truncate(false).mode(0o600).open(path)?;
    file.write_all_at(&line, 0)?;
    Ok(file)
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert_eq!(Pointer::read(dir), None);
        let longest = format!("/{}", "m".repeat(POINTER_BYTES - 19));
        for memory in ["/dev/shm/a b", &longest, "/"] {
            let pointer = Pointer { memory: PathBuf::from(memory), nonce: 0xabc };
            let path = pointer.write(dir).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().len(), POINTER_BYTES as u64);
            assert_eq!(Pointer::read(dir), Some(pointer));
            fs::write(&path, [&fs::read(&path).unwrap()[..], b"\n"].concat()).unwrap();
            assert_eq!(Pointer::read(dir), None, "longer than any pointer");
            fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn a_cleared_pointer_leads_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        Pointer { memory: PathBuf::from("/m"), nonce: 1 }.write(dir).unwrap();
        clear(dir).unwrap();
        assert_eq!(Pointer::read(dir), None);
    }

    #[test]
    fn a_path_that_does_not_fit_a_line_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for memory in [format!("/{}", "m".repeat(POINTER_BYTES - 18)), "/a\nb".to_owned()] {
            let pointer = Pointer { memory: PathBuf::from(memory), nonce: 1 };
            assert!(pointer.write(dir.path()).is_err());
            assert_eq!(Pointer::read(dir.path()), None);
        }
    }
}
