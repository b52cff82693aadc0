//! Directories of clusters, which leave nothing behind.

use std::path::Path;

use tempfile::TempDir;

use super::format;

/// A directory for a cluster, on a tmpfs if there is one, where no test waits for a disk. Removes the memory
/// that killed processes left on drop.
pub(crate) struct Directory(TempDir);

impl Directory {
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Some(memory) = format::memory_dir(self.path()) {
            let _ = std::fs::remove_dir_all(memory);
        }
    }
}

pub(crate) fn directory() -> Directory {
    let shared_memory = Path::new("/dev/shm");
    if shared_memory.is_dir()
        && let Ok(dir) = tempfile::tempdir_in(shared_memory)
    {
        return Directory(dir);
    }
    Directory(tempfile::tempdir().unwrap())
}
