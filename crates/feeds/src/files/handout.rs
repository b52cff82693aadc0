//! The limits in force, for processes that start while something else is on disk: a change that has a
//! mistake, or is yet to be read.
//!
//! A file in memory that has no name, which is passed on as an open file.

use anyhow::Context;
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use tidegate_limits::Source;

/// A file with what was read; none if not all of it could be.
pub(super) fn write(source: &Source) -> io::Result<Option<File>> {
    let Some(bytes) = source.to_bytes() else {
        return Ok(None);
    };
    let mut file = File::from(rustix::fs::memfd_create("tidegate-limits", MemfdFlags::CLOEXEC)?);
    file.write_all(&bytes)?;
    Ok(Some(file))
}

/// What was read by the process that made `file`, from `path`.
pub(super) fn read(file: &File, path: &Path) -> anyhow::Result<Source> {
    let length = usize::try_from(file.metadata()?.len())?;
    let mut bytes = vec![0; length];
    // From the start, wherever another process that has the same file stands.
    file.read_exact_at(&mut bytes, 0)?;
    Source::from_bytes(path, &bytes).context("the limits were not handed over whole")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_limits::Pipes;

    #[test]
    fn what_is_handed_out_is_what_was_read() {
        let dir = tempfile::TempDir::new().unwrap();
        for (name, text) in [("a.yaml", "domain: a"), ("b.yml", ""), ("c.yaml", "# \u{e9}\n")] {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let told = |source: &Source| format!("{source:?}");
        let source = Source::read(dir.path(), Pipes::Refuse);
        let file = write(&source).unwrap().unwrap();
        for _ in 0..2 {
            assert_eq!(told(&read(&file, dir.path()).unwrap()), told(&source));
        }
        file.set_len(5).unwrap();
        assert!(read(&file, dir.path()).is_err());
        assert!(write(&Source::read(&dir.path().join("none"), Pipes::Refuse)).unwrap().is_none());
    }
}
