//! The words of the store: a fixed run of shared, 64-bit atomic words, mapped from a file.
//!
//! Owns the mapping, and all `unsafe` of this crate: memory which another process could also map
//! cannot be reached through references to plain data, so a pointer has to become a `&AtomicU64`
//! somewhere, and that is here alone. Every access is checked against the bounds. Shared memory is
//! never a slice and never lent out, only loaded and stored by the word.
//!
//! Not guarded against: somebody who shortens the file while it is mapped. The next access to what
//! was cut off raises SIGBUS and ends the process.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};

/// The size of a word in bytes.
pub(crate) const WORD_BYTES: u64 = 8;
const _: () = assert!(size_of::<AtomicU64>() as u64 == WORD_BYTES);

/// A run of words that threads may load and store concurrently.
pub(crate) struct Region {
    /// The first word. Valid, aligned and unmoved for `words` words as long as `memory` lives.
    base: NonNull<AtomicU64>,
    words: usize,
    memory: Memory,
    /// How many more stores take effect: a test's stand-in for a kill.
    #[cfg(test)]
    stores_left: AtomicU64,
}

/// What the words live in; dropping it gives them back.
enum Memory {
    Mapped(MmapRaw),
    #[cfg(test)]
    Heap(#[expect(dead_code, reason = "held for its drop")] HeapWords),
}

// SAFETY: the region owns its memory, which is not tied to a thread, and reaches it only through
// atomic words.
unsafe impl Send for Region {}
// SAFETY: `&Region` gives access to the words only by atomic loads and stores, and `words` and
// `base` never change.
unsafe impl Sync for Region {}

impl Region {
    /// Maps the first `words` words of `file`, shared and writable. Refuses a file that is shorter.
    ///
    /// The caller has locked the file, so that no honest process changes its length from here on.
    pub(crate) fn map(file: &File, words: usize) -> io::Result<Self> {
        let bytes = words as u64 * WORD_BYTES;
        let length = file.metadata()?.len();
        if length < bytes {
            let text = format!("found {length} bytes, expected at least {bytes}");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
        }
        let map = MmapOptions::new().len(bytes as usize).map_raw(file)?;
        let base = NonNull::new(map.as_mut_ptr().cast::<AtomicU64>())
            .filter(|base| base.is_aligned())
            .ok_or_else(|| io::Error::other("the mapping is not aligned to its words"))?;
        Ok(Self {
            base,
            words,
            memory: Memory::Mapped(map),
            #[cfg(test)]
            stores_left: AtomicU64::new(u64::MAX),
        })
    }

    /// The value of a word.
    ///
    /// # Panics
    ///
    /// If `index` is outside the region.
    pub(crate) fn load(&self, index: usize) -> u64 {
        // Relaxed: the lock of the chain orders this with the stores of other threads.
        self.word(index).load(Ordering::Relaxed)
    }

    /// Sets a word, after every word that this thread has set before.
    ///
    /// # Panics
    ///
    /// If `index` is outside the region.
    pub(crate) fn store(&self, index: usize, value: u64) {
        let word = self.word(index);
        #[cfg(test)]
        if !self.is_store_left() {
            return;
        }
        // Release: pairs with the kernel's view of the page after this thread was killed. It keeps
        // the compiler and the processor from moving an earlier store below this one, so that what
        // is left behind by a kill is always the first k stores of an update, for some k.
        word.store(value, Ordering::Release);
    }

    /// Writes every changed page to the disk and waits for it.
    pub(crate) fn sync(&self) -> io::Result<()> {
        match &self.memory {
            Memory::Mapped(map) => map.flush(),
            #[cfg(test)]
            Memory::Heap(_) => Ok(()),
        }
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.words, "word {index} is outside a region of {} words", self.words);
        // SAFETY: index < self.words (checked above), and `base` is valid for that many words of one
        // allocation, so the offset stays inside it.
        let word = unsafe { self.base.add(index) };
        // SAFETY: the word is in bounds and aligned (the base is, and words are 8 bytes apart),
        // every bit pattern is a valid AtomicU64, nobody makes a plain reference to this memory, and
        // it lives as long as `self`, to which the result is bound.
        unsafe { word.as_ref() }
    }
}

/// Words on the heap, so that tests, also under Miri, can run the node logic over any state and
/// stop it between two stores.
#[cfg(test)]
struct HeapWords(NonNull<[AtomicU64]>);

#[cfg(test)]
impl Drop for HeapWords {
    fn drop(&mut self) {
        // SAFETY: the pointer came from Box::leak in Region::heap_from, and is freed only here.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

#[cfg(test)]
impl Region {
    /// A region of `words` zeros.
    pub(crate) fn heap(words: usize) -> Self {
        Self::heap_from(&vec![0; words])
    }

    /// A region that starts as a copy of `words`.
    pub(crate) fn heap_from(words: &[u64]) -> Self {
        let memory: Box<[AtomicU64]> = words.iter().copied().map(AtomicU64::new).collect();
        let memory = NonNull::from(Box::leak(memory));
        Self {
            base: memory.cast(),
            words: words.len(),
            memory: Memory::Heap(HeapWords(memory)),
            stores_left: AtomicU64::new(u64::MAX),
        }
    }

    /// Makes every store after the next `stores` do nothing, as if the process had been killed.
    pub(crate) fn kill_after(&self, stores: u64) {
        self.stores_left.store(stores, Ordering::Relaxed);
    }

    /// How many of the stores granted by `kill_after` were not used.
    pub(crate) fn stores_left(&self) -> u64 {
        self.stores_left.load(Ordering::Relaxed)
    }

    /// What a process that opens the file next would find.
    pub(crate) fn words(&self) -> Vec<u64> {
        (0..self.words).map(|index| self.load(index)).collect()
    }

    fn is_store_left(&self) -> bool {
        let left = |left: u64| left.checked_sub(1);
        self.stores_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_apart() {
        let region = Region::heap(3);
        region.store(0, 10);
        region.store(2, u64::MAX);
        assert_eq!(region.words(), [10, 0, u64::MAX]);
    }

    #[test]
    #[should_panic(expected = "word 3 is outside a region of 3 words")]
    fn a_load_past_the_end_is_refused() {
        Region::heap(3).load(3);
    }

    #[test]
    #[should_panic(expected = "word 18446744073709551615 is outside a region of 0 words")]
    fn a_store_past_the_end_is_refused() {
        Region::heap(0).store(usize::MAX, 1);
    }

    #[test]
    fn a_kill_stops_the_stores() {
        let region = Region::heap_from(&[1, 2, 3]);
        region.kill_after(2);
        for index in 0..3 {
            region.store(index, 9);
        }
        assert_eq!(region.words(), [9, 9, 3]);
        assert_eq!(region.stores_left(), 0);
    }

    #[cfg(not(miri))]
    #[test]
    fn a_mapping_reaches_the_file_and_no_further() {
        let mut file = tempfile::tempfile().unwrap();
        file.set_len(24).unwrap();
        let error = Region::map(&file, 4).err().unwrap();
        assert_eq!(error.to_string(), "found 24 bytes, expected at least 32");

        let region = Region::map(&file, 3).unwrap();
        region.store(2, 0x0102_0304_0506_0708);
        region.sync().unwrap();
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut file, &mut bytes).unwrap();
        assert_eq!(bytes[16..], [8, 7, 6, 5, 4, 3, 2, 1]);
    }
}
