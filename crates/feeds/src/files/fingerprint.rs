//! A hash of all limits files, to detect changes.
//!
//! It includes unreadable files with the error: appearing or disappearing is a change, too.

use std::path::Path;
use tidegate_core::fingerprint as hash;
use tidegate_limits::{Pipes, Source, SourceFile, each_file};

/// The limits are read up to this many times to find two equal readings.
const READS_MAX: u32 = 5;

/// A hash of the names and contents of all files. It need not resist the authors of the files: they may change
/// the limits anyway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fingerprint(u128);

/// The limits changed each time that they were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unstable;

impl Fingerprint {
    /// The fingerprint of the limits at `path` as they are now. Blocks.
    pub(super) fn of(path: &Path) -> Fingerprint {
        let mut bytes = Vec::new();
        // Only one file at a time is in memory.
        let listed = each_file(path, Pipes::Refuse, |file| add_file(&mut bytes, &file));
        Fingerprint::of_parts(bytes, listed)
    }

    /// The fingerprint of files that were read already.
    pub(super) fn of_source(source: &Source) -> Fingerprint {
        let mut bytes = Vec::new();
        let listed =
            source.files().map(|files| files.iter().for_each(|file| add_file(&mut bytes, file)));
        Fingerprint::of_parts(bytes, listed)
    }

    fn of_parts(mut bytes: Vec<u8>, listed: Result<(), impl AsRef<str>>) -> Fingerprint {
        if let Err(cause) = listed {
            add(&mut bytes, cause.as_ref().as_bytes());
        }
        Fingerprint(hash(&bytes))
    }
}

/// Reads until two readings in a row are equal, with `before` as the first of them. A directory that changes
/// during one reading yields a mix of versions.
pub(super) fn read_stable(
    mut before: Fingerprint,
    mut read: impl FnMut() -> Source,
) -> Result<(Fingerprint, Source), Unstable> {
    for _ in 0..READS_MAX {
        let source = read();
        let fingerprint = Fingerprint::of_source(&source);
        if fingerprint == before {
            return Ok((fingerprint, source));
        }
        before = fingerprint;
    }
    Err(Unstable)
}

fn add_file(bytes: &mut Vec<u8>, file: &SourceFile) {
    add(bytes, file.path.as_os_str().as_encoded_bytes());
    match &file.bytes {
        Ok(text) => {
            bytes.push(1);
            add(bytes, &hash(text).to_le_bytes());
        }
        Err(cause) => {
            bytes.push(0);
            add(bytes, cause.as_bytes());
        }
    }
}

/// The length comes first, so that the end of one part is not the start of another.
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

    /// Does `change`, and checks whether the fingerprint changes.
    #[track_caller]
    fn check(path: &Path, is_change: bool, change: impl FnOnce() -> std::io::Result<()>) {
        let before = Fingerprint::of(path);
        change().unwrap();
        let after = Fingerprint::of(path);
        assert_eq!(after != before, is_change);
        assert_eq!(after, Fingerprint::of_source(&Source::read(path, Pipes::Refuse)));
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

    /// The files were hashed, then read once more to be compiled: a ConfigMap that was changed in
    /// between was in force as a mix of two versions, or under the hash of another, and stayed so.
    #[test]
    fn a_mix_of_two_versions_is_read_again() {
        let dir = TempDir::new().unwrap();
        let at = |name: &str| dir.path().join(name);
        for version in ["..1", "..2"] {
            create_dir(at(version)).unwrap();
            for name in ["a.yaml", "b.yaml"] {
                write(at(version).join(name), version).unwrap();
            }
        }
        let turn = |version: &str| {
            symlink(version, at("..data_tmp")).unwrap();
            rename(at("..data_tmp"), at("..data")).unwrap();
        };
        turn("..1");
        for name in ["a.yaml", "b.yaml"] {
            symlink(Path::new("..data").join(name), at(name)).unwrap();
        }
        let texts = |source: &Source| -> Vec<Vec<u8>> {
            source.files().unwrap().iter().map(|file| file.bytes.clone().unwrap()).collect()
        };
        let mut readings = Vec::new();
        let (fingerprint, source) = read_stable(Fingerprint::of(dir.path()), || {
            let is_first = readings.is_empty();
            let between = || {
                if is_first {
                    turn("..2");
                }
            };
            let source = Source::read_with(dir.path(), Pipes::Refuse, between);
            readings.push(texts(&source));
            source
        })
        .unwrap();
        assert_eq!(readings, [[b"..1", b"..2"], [b"..2", b"..2"], [b"..2", b"..2"]]);
        assert_eq!(texts(&source), [b"..2", b"..2"]);
        assert_eq!(fingerprint, Fingerprint::of(dir.path()));

        let mut reads = 0;
        let unstable = read_stable(fingerprint, || {
            reads += 1;
            write(at("..2/a.yaml"), reads.to_string()).unwrap();
            Source::read(dir.path(), Pipes::Refuse)
        });
        assert_eq!((unstable.unwrap_err(), reads), (Unstable, READS_MAX));
    }
}
