//! The counter file on disk: finding or making it, locking it, judging it, mapping it.
//!
//! Invariant: the file under its final name is whole. It is made under another name, with all its
//! space set aside, and renamed when it is on the disk.
//! Invariant: nobody maps or makes the file without the lock, which the kernel takes back when its
//! holder dies. The lock is a file of its own, so that no rename can put the locked file aside.
//!
//! Never changes a file that it refuses, and never deletes one but its own unfinished work.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::retry_on_intr;

use crate::error::OpenError;
use crate::header::{CAPACITY_MAX, HEADER_BYTES, Header};
use crate::region::Region;

const FILE_NAME: &str = "counters.tide";
const NEW_FILE_NAME: &str = "counters.tide.new";
const LOCK_NAME: &str = "counters.lock";

/// How to make a store that does not exist yet. An existing one keeps the size it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How many keys to have nodes for, from 1 to 2^32, rounded up to whole chains of 16.
    ///
    /// Some chains fill long before the store does. With half of the nodes live, one new key in
    /// about 120 is refused; with a quarter live, one in 200,000.
    pub capacity: u64,
}

impl Default for Options {
    /// 2^20 nodes: a file of 128 MiB.
    fn default() -> Self {
        Self { capacity: 1 << 20 }
    }
}

/// An open counter file: mapped, and locked for as long as `lock` lives.
pub(crate) struct CounterFile {
    pub(crate) header: Header,
    pub(crate) region: Region,
    pub(crate) lock: File,
}

impl CounterFile {
    /// Opens the file in `dir`, and makes both if they are missing.
    pub(crate) fn open(dir: &Path, options: &Options) -> Result<Self, OpenError> {
        if !(1..=CAPACITY_MAX).contains(&options.capacity) {
            return Err(OpenError::Capacity { found: options.capacity, max: CAPACITY_MAX });
        }
        fs::create_dir_all(dir).map_err(io_error("create the directory", dir))?;
        let lock = take_lock(dir.join(LOCK_NAME))?;
        let path = dir.join(FILE_NAME);
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() => {}
            Ok(_) => return Err(OpenError::NotAFile { path }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let seed = random_seed()?;
                make(dir, &Header::new(options.capacity, seed))?;
            }
            Err(source) => return Err(io_error("look for the file", &path)(source)),
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(io_error("open the file", &path))?;
        let header = read_header(&file, &path)?;
        // A copy of a store, as from a backup, may have holes where the store had zeros.
        set_aside(&file, header.file_bytes(), &path)?;
        let region =
            Region::map(&file, header.file_words()).map_err(io_error("map the file", &path))?;
        Ok(Self { header, region, lock })
    }
}

/// Takes the lock or says that it is taken; never waits.
fn take_lock(path: PathBuf) -> Result<File, OpenError> {
    let lock = OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(io_error("open the lock file", &path))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse { path }),
        Err(TryLockError::Error(source)) => Err(io_error("lock the file", &path)(source)),
    }
}

/// Makes the file in `dir`, all at once as far as anybody can see.
fn make(dir: &Path, header: &Header) -> Result<(), OpenError> {
    let new = dir.join(NEW_FILE_NAME);
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(io_error("remove an unfinished file", &new)(error));
        }
        _ => {}
    }
    let made = fill(&new, header).and_then(|()| {
        let path = dir.join(FILE_NAME);
        fs::rename(&new, &path).map_err(io_error("rename the new file", &path))
    });
    if made.is_err() {
        // Best effort, so that a disk which was too full is not left full; the first error counts.
        let _ = fs::remove_file(&new);
    }
    made?;
    // The rename is on the disk once the directory is.
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(io_error("write the directory to the disk", dir))
}

/// Makes a file of zeros behind a header, and brings it to the disk.
fn fill(path: &Path, header: &Header) -> Result<(), OpenError> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(io_error("create the file", path))?;
    set_aside(&file, header.file_bytes(), path)?;
    file.write_all_at(&header.encode(), 0)
        .and_then(|()| file.sync_all())
        .map_err(io_error("write the header", path))
}

/// Gives the first `bytes` bytes of the file their space on the disk, and changes none of them. Space
/// which is missing now would be missed in the middle of an update, as SIGBUS.
fn set_aside(file: &File, bytes: u64, path: &Path) -> Result<(), OpenError> {
    retry_on_intr(|| fallocate(file, FallocateFlags::empty(), 0, bytes))
        .map_err(|errno| OpenError::NoSpace { path: path.to_owned(), bytes, source: errno.into() })
}

/// Reads and judges the header, and the length of the file against it.
fn read_header(file: &File, path: &Path) -> Result<Header, OpenError> {
    let metadata = file.metadata().map_err(io_error("read the length", path))?;
    let found = metadata.len();
    if found < HEADER_BYTES as u64 {
        let expected = HEADER_BYTES as u64;
        return Err(OpenError::NoHeader { path: path.to_owned(), found, expected });
    }
    let mut bytes = [0; HEADER_BYTES];
    file.read_exact_at(&mut bytes, 0).map_err(io_error("read the header", path))?;
    let header = Header::decode(&bytes, path)?;
    let expected = header.file_bytes();
    if found != expected {
        return Err(OpenError::Length { path: path.to_owned(), found, expected });
    }
    Ok(header)
}

/// A seed that nobody can guess.
fn random_seed() -> Result<u64, OpenError> {
    let path = Path::new("/dev/urandom");
    let mut bytes = [0; 8];
    File::open(path)
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(io_error("read a random seed", path))?;
    Ok(u64::from_le_bytes(bytes))
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    move |source| OpenError::Io { action, path: path.to_owned(), source }
}

// These touch the disk, which Miri does not.
#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_fit_is_an_error_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        // 2^62 bytes: more than any file system gives to one file.
        let header = Header { chain_count: 1 << 51, seed: 1 };
        let error = make(dir.path(), &header).unwrap_err();
        assert!(matches!(error, OpenError::NoSpace { .. }), "{error:?}");
        let text = error.to_string();
        let path = dir.path().join(NEW_FILE_NAME);
        let expected = format!("{}: cannot set aside 4611686018427392000 bytes: ", path.display());
        assert!(text.starts_with(&expected), "{text}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn an_unfinished_file_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(NEW_FILE_NAME), b"TIDEGATE, half written").unwrap();
        let file = CounterFile::open(dir.path(), &Options { capacity: 20 }).unwrap();
        assert_eq!(file.header.capacity(), 32);
        let mut names: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, [LOCK_NAME, FILE_NAME]);
    }

    #[test]
    fn the_space_of_a_file_is_set_aside() {
        use std::os::unix::fs::MetadataExt;

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE_NAME);
        let options = Options { capacity: 1 << 12 };
        let check = || {
            let file = CounterFile::open(dir.path(), &options).unwrap();
            let metadata = fs::metadata(&path).unwrap();
            assert_eq!(metadata.len(), file.header.file_bytes());
            // `st_blocks` counts 512 bytes.
            assert!(metadata.blocks() * 512 >= metadata.len(), "{metadata:?}");
            file.header
        };
        let header = check();
        // The same store with a hole in place of its free nodes.
        fs::write(&path, header.encode()).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(header.file_bytes()).unwrap();
        assert_eq!(check(), header);
    }

    #[test]
    fn seeds_differ() {
        // Equal by chance once in 2^64 runs.
        assert_ne!(random_seed().unwrap(), random_seed().unwrap());
    }
}
