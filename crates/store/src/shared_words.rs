//! Words beside the nodes, which all processes of a cluster have in common.
//!
//! A file in the directory of the memory: zeros when it is made, and gone with the memory. No snapshot has it, so it is for
//! what can be found out again. Owns its creation. Its meaning is the caller's, and no lock orders its words.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::error::OpenError;
use crate::format::files::if_found;
use crate::format::{Access, WORD_BYTES, io_error};
use crate::memory::Region;
use crate::memory::region::prefetch;
use crate::memory::sync::{AtomicU64, Ordering, get};

/// The end of a file's name while it is being made.
const NEW: &str = "new";

/// Words that threads and processes read and change without locks.
pub struct SharedWords {
    region: Region,
    words: usize,
    /// Whether this process made them.
    are_new: bool,
}

impl SharedWords {
    /// Of this process alone.
    pub(crate) fn private(words: usize) -> io::Result<Self> {
        Ok(Self { region: Region::zeros(words)?, words, are_new: true })
    }

    /// Maps the file `name` of the directory `dir`. Makes one of `words` words if there is none; the caller lets one
    /// process at a time do that. `give` gives the new file to its owner.
    pub(crate) fn open(
        dir: &Path,
        name: &str,
        words: usize,
        give: impl FnOnce(&Path) -> Result<(), OpenError>,
    ) -> Result<Self, OpenError> {
        let path = dir.join(name);
        let are_new = !path.exists();
        if are_new {
            // Under another name first: a file of this name is complete.
            let new = path.with_extension(NEW);
            let made = OpenOptions::new()
                .create(true)
                .truncate(true)
                .write(true)
                .mode(0o600)
                .open(&new)
                .map_err(io_error("create the file", &new))?;
            made.set_len(words as u64 * WORD_BYTES)
                .map_err(io_error("reserve the space of", &new))?;
            give(&new)?;
            fs::rename(&new, &path).map_err(io_error("rename the file", &path))?;
        }
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = file.map_err(io_error("open the file", &path))?;
        let bytes = file.metadata().map_err(io_error("look at the file", &path))?.len();
        let words = usize::try_from(bytes / WORD_BYTES).unwrap_or(usize::MAX);
        let region = Region::map(&file, words, Access::Write);
        Ok(Self { region: region.map_err(io_error("map the file", &path))?, words, are_new })
    }

    /// What the words of the file `name` of the directory `dir` are now, if there is one.
    pub(crate) fn read(dir: &Path, name: &str) -> Result<Option<Vec<u64>>, OpenError> {
        let path = dir.join(name);
        let bytes = if_found(fs::read(&path), "read the file", &path)?;
        let word = |bytes: &[u8; WORD_BYTES as usize]| u64::from_ne_bytes(*bytes);
        Ok(bytes.map(|bytes| bytes.as_chunks().0.iter().map(word).collect()))
    }

    /// How many there are. A process that finds the file has as many as the one that made it asked for.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.words
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.words == 0
    }

    /// Word number `index`.
    ///
    /// # Panics
    ///
    /// If there is no such word, as all methods.
    #[must_use]
    #[inline]
    pub fn get(&self, index: usize) -> u64 {
        get(self.word(index))
    }

    /// Sets a word, after all that this thread has written before.
    #[inline]
    pub fn put(&self, index: usize, value: u64) {
        self.word(index).store(value, Ordering::Release);
    }

    /// Sets bits of a word, before all that this thread writes later.
    #[inline]
    pub fn set_bits(&self, index: usize, bits: u64) {
        self.word(index).fetch_or(bits, Ordering::AcqRel);
    }

    /// Adds to a word.
    #[inline]
    pub fn add(&self, index: usize, more: u64) {
        self.word(index).fetch_add(more, Ordering::Relaxed);
    }

    /// Sets a word if it is `current`. Returns whether it was.
    #[inline]
    pub fn swap_if(&self, index: usize, current: u64, value: u64) -> bool {
        let word = self.word(index);
        word.compare_exchange(current, value, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Asks the system to use large pages, which makes it faster to use many words. Takes memory for all of them. Otherwise
    /// as [`Cluster::use_large_pages`](crate::Cluster::use_large_pages).
    pub fn use_large_pages(&self) {
        if self.are_new {
            self.region.use_large_pages();
        }
    }

    /// Has the processor fetch the cache line of a word, if there is such a word.
    #[inline]
    pub fn prefetch(&self, index: usize) {
        prefetch(self.region.slice(0, self.words), index);
    }

    /// Whether the file was cut short, so that its words mean nothing any more.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.region.is_lost()
    }

    #[inline]
    fn word(&self, index: usize) -> &AtomicU64 {
        &self.region.slice(index, 1)[0]
    }
}

impl fmt::Debug for SharedWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedWords").field("words", &self.words).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    fn open(dir: &Path, words: usize) -> SharedWords {
        SharedWords::open(dir, "marks", words, |_| Ok(())).unwrap()
    }

    #[test]
    fn what_one_process_writes_another_reads() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(SharedWords::read(dir.path(), "marks").unwrap(), None);
        let (first, second) = (open(dir.path(), 3), open(dir.path(), 100));
        assert_eq!((first.len(), second.len()), (3, 3), "the first one decides");
        assert_eq!((first.are_new, second.are_new), (true, false));
        first.put(0, 0b1001);
        second.set_bits(0, 0b0011);
        first.add(2, 5);
        second.add(2, 6);
        assert!(!first.swap_if(1, 7, 8));
        assert!(first.swap_if(1, 0, 8));
        for words in [&first, &second] {
            assert_eq!([0, 1, 2].map(|index| words.get(index)), [0b1011, 8, 11]);
            assert!(!words.is_lost());
        }
        assert_eq!(SharedWords::read(dir.path(), "marks").unwrap(), Some(vec![0b1011, 8, 11]));
    }

    #[test]
    fn words_are_lost_with_their_file() {
        let dir = tempfile::tempdir().unwrap();
        let words = open(dir.path(), 3);
        OpenOptions::new().write(true).open(dir.path().join("marks")).unwrap().set_len(0).unwrap();
        assert_eq!(words.get(2), 0);
        assert!(words.is_lost());
    }

    #[test]
    fn words_of_one_process_are_its_own() {
        let [first, second] = [(); 2].map(|()| SharedWords::private(2).unwrap());
        assert_eq!((first.len(), first.is_empty()), (2, false));
        first.put(1, 3);
        assert_eq!((first.get(1), second.get(1)), (3, 0));
    }
}
