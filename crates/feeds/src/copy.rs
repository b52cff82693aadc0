//! A copy of the limits in force, for processes that start while the files differ: after a change with a
//! mistake, or one not yet read.
//!
//! The copy is an unnamed file in memory, passed on as an open file.

use anyhow::Context;
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use tidegate_limits::Source;

/// Writes the copy; none if a file could not be read.
pub(crate) fn write(source: &Source) -> io::Result<Option<File>> {
    let Some(bytes) = source.to_bytes() else {
        return Ok(None);
    };
    let mut file = File::from(rustix::fs::memfd_create("tidegate-limits", MemfdFlags::CLOEXEC)?);
    file.write_all(&bytes)?;
    Ok(Some(file))
}

/// Reads the copy that another process wrote of the limits at `path`.
pub(crate) fn read(file: &File, path: &Path) -> anyhow::Result<Source> {
    let length = usize::try_from(file.metadata()?.len())?;
    let mut bytes = vec![0; length];
    // At offset 0: processes share the position in the file.
    file.read_exact_at(&mut bytes, 0)?;
    Source::from_bytes(path, &bytes).context("the copy of the limits is incomplete")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_limits::Pipes;

    #[test]
    fn a_copy_is_read_as_it_was_written() {
        let dir = tempfile::TempDir::new().unwrap();
        for (name, text) in [("a.yaml", "domain: a"), ("b.yml", ""), ("c.yaml", "# \u{e9}\n")] {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let debug = |source: &Source| format!("{source:?}");
        let source = Source::read(dir.path(), Pipes::Refuse);
        let file = write(&source).unwrap().unwrap();
        for _ in 0..2 {
            assert_eq!(debug(&read(&file, dir.path()).unwrap()), debug(&source));
        }
        file.set_len(5).unwrap();
        assert!(read(&file, dir.path()).is_err());
        assert!(write(&Source::read(&dir.path().join("none"), Pipes::Refuse)).unwrap().is_none());
    }
}
