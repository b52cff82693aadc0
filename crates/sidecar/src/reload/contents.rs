//! What the limits files contain, as a number to compare.
//!
//! Files that cannot be read are part of it, with the reason: their coming and going is a change.

use crate::rules::limits_files;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use tidegate_core::fingerprint;

/// Far more than a limits file has: what comes after that is not compared.
const READ_MAX: u64 = 128 * 1024 * 1024;

/// A hash over the names and contents of all files. Not against those who write the files, who may
/// change the limits anyway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Contents(u128);

impl Contents {
    /// Of the limits at `path` as they are now. Blocks.
    pub(super) fn of(path: &Path) -> Contents {
        let mut bytes = Vec::new();
        match limits_files(path) {
            Ok(files) => {
                for file in &files {
                    add(&mut bytes, file.as_os_str().as_encoded_bytes());
                    add_file(&mut bytes, file);
                }
            }
            Err(error) => add(&mut bytes, error.to_string().as_bytes()),
        }
        Contents(fingerprint(&bytes))
    }
}

fn add_file(bytes: &mut Vec<u8>, file: &Path) {
    let mut text = Vec::new();
    let read = File::open(file).and_then(|opened| opened.take(READ_MAX).read_to_end(&mut text));
    match read {
        Ok(_) => {
            bytes.push(1);
            // Only one file at a time is in memory.
            add(bytes, &fingerprint(&text).to_le_bytes());
        }
        Err(error) => {
            bytes.push(0);
            add(bytes, error.to_string().as_bytes());
        }
    }
}

/// With its length before it, so that what is in one file is never taken for another's.
fn add(bytes: &mut Vec<u8>, part: &[u8]) {
    bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
    bytes.extend_from_slice(part);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir, remove_file, rename, write};
    use std::os::unix::fs::symlink;
    use tempfile::TempDir;

    /// Does `change`, and says whether the contents are others then.
    #[track_caller]
    fn check(path: &Path, is_change: bool, change: impl FnOnce() -> std::io::Result<()>) {
        let before = Contents::of(path);
        change().unwrap();
        assert_eq!(Contents::of(path) != before, is_change);
    }

    #[test]
    fn a_file_is_known_by_what_is_in_it() {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("limits.yaml");
        check(&file, true, || write(&file, "domain: a"));
        check(&file, false, || write(&file, "domain: a"));
        check(&file, true, || write(&file, "domain: b"));
        let other = dir.path().join("other");
        write(&other, "domain: c").unwrap();
        check(&file, true, || rename(&other, &file));
        check(&file, true, || remove_file(&file));
        check(&file, true, || write(&file, ""));
    }

    #[test]
    fn a_directory_is_known_by_its_limits_files() {
        let dir = TempDir::new().unwrap();
        let at = |name: &str| dir.path().join(name);
        let path = dir.path();
        check(path, true, || write(at("a.yaml"), "ab"));
        check(path, true, || write(at("b.yml"), "c"));
        check(path, false, || write(at("notes.txt"), "c"));
        check(path, false, || write(at(".a.yaml.swp"), "c"));
        check(path, true, || rename(at("a.yaml"), at("c.yaml")));
        check(path, true, || {
            write(at("c.yaml"), "a")?;
            write(at("b.yml"), "bc")
        });
        check(path, true, || remove_file(at("b.yml")));
    }

    /// As Kubernetes changes a ConfigMap: one rename moves all files at once.
    #[test]
    fn links_are_followed() {
        let dir = TempDir::new().unwrap();
        let at = |name: &str| dir.path().join(name);
        for (version, text) in [("..1", "a"), ("..2", "b"), ("..3", "b")] {
            create_dir(at(version)).unwrap();
            write(at(version).join("limits.yaml"), text).unwrap();
        }
        symlink("..1", at("..data")).unwrap();
        symlink("..data/limits.yaml", at("limits.yaml")).unwrap();
        let swap = |version: &str| {
            symlink(version, at("..data_tmp"))?;
            rename(at("..data_tmp"), at("..data"))
        };
        for path in [dir.path(), &at("limits.yaml")] {
            check(path, true, || swap("..2"));
            check(path, false, || swap("..3"));
            check(path, true, || swap("..1"));
        }
    }
}
