//! Which files hold limits, and their text: bounded, and UTF-8.

use super::RuleError;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The largest file, in bytes: 200,000 rules of some 300 bytes each.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The files that make up the limits at `path`, sorted. In a directory a link counts as what it
/// leads to, so that a mounted Kubernetes ConfigMap is read as the files that it shows.
pub(crate) fn limits_files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let file = entry?.path();
        let hidden = file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let yaml =
            file.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
        if yaml && !hidden && !file.is_dir() {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

/// The text of a file.
pub(super) fn read(file: &Path) -> Result<String, RuleError> {
    let error = |place, message| RuleError { file: file.to_owned(), place, message };
    let mut bytes = Vec::new();
    let read = File::open(file).and_then(|opened| {
        // One byte more tells a file that is too large, whatever its metadata say.
        opened.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)
    });
    if let Err(cause) = read {
        return Err(error(None, format!("cannot read: {cause}")));
    }
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(error(None, format!("more than {FILE_BYTES_MAX} bytes; split the file")));
    }
    String::from_utf8(bytes).map_err(|cause| {
        let good = cause.utf8_error().valid_up_to();
        let before = String::from_utf8_lossy(&cause.as_bytes()[..good]);
        let line = before.rsplit('\n').next().unwrap_or_default();
        let lines = before.matches('\n').count() as u64 + 1;
        error(Some((lines, line.chars().count() as u64 + 1)), "this is not UTF-8".to_owned())
    })
}
