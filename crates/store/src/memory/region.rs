//! Regions: shared 64-bit words, mapped from a file.
//!
//! Owns the mappings. Memory that another process also maps must not be reached through references to plain
//! data. So this module alone turns pointers into references to atomics. Bounds are checked once for each
//! slice handed out. Does not know the meaning of the words.
//!
//! Truncating a mapped file does not kill the process: see [`crate::memory::sigbus`].
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::slice;

use memmap2::{MmapOptions, MmapRaw};

use crate::format::{Access, WORD_BYTES};
use crate::memory::sigbus::Guard;
use crate::memory::sync::AtomicU64;

/// The size of a cache line in words.
const LINE_WORDS: usize = 8;

/// Words that threads and processes may load and store concurrently.
pub(crate) struct Region {
    /// The first word. Valid, aligned and unmoved for `words` words while `_memory` lives.
    base: NonNull<AtomicU64>,
    words: usize,
    /// Declared before the memory, so dropped before the memory is unmapped.
    guard: Option<Guard>,
    /// Held for its drop.
    _memory: Memory,
}

/// The memory behind the words; freed on drop.
enum Memory {
    Mapped(#[expect(dead_code, reason = "held for its drop")] Mapping),
    Private(#[expect(dead_code, reason = "held for its drop")] MmapRaw),
    #[cfg(all(test, not(loom)))]
    Heap(#[expect(dead_code, reason = "held for its drop")] HeapWords),
}

// SAFETY: the region owns its memory, which is not tied to a thread, and reaches it only through atomic words.
unsafe impl Send for Region {}
// SAFETY: `&Region` gives access to the words only by atomic operations, and `words` and `base` never change.
unsafe impl Sync for Region {}

impl Region {
    /// Maps the first `words` words of `file`, shared. Refuses a shorter file.
    ///
    /// With [`Access::Read`], writing a word would kill the process; the caller writes none.
    pub(crate) fn map(file: &File, words: usize, access: Access) -> io::Result<Self> {
        let bytes = words as u64 * WORD_BYTES;
        let length = file.metadata()?.len();
        if length < bytes {
            let text = format!("found {length} bytes, expected at least {bytes}");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
        }
        let map = Mapping::of(file, bytes as usize, access)?;
        let base = map.base.cast::<AtomicU64>();
        let guard = Some(Guard::new(map.base.as_ptr(), bytes as usize)?);
        Ok(Self { base, words, guard, _memory: Memory::Mapped(map) })
    }

    /// Anonymous memory of this process, zeroed.
    pub(crate) fn zeros(words: usize) -> io::Result<Self> {
        let map = MmapRaw::from(MmapOptions::new().len(words * WORD_BYTES as usize).map_anon()?);
        let base = NonNull::new(map.as_mut_ptr().cast::<AtomicU64>())
            .ok_or_else(|| io::Error::other("the mapping is at no address"))?;
        Ok(Self { base, words, guard: None, _memory: Memory::Private(map) })
    }

    /// `len` words, starting at `start`.
    ///
    /// # Panics
    ///
    /// If the range exceeds the region.
    #[inline]
    pub(crate) fn slice(&self, start: usize, len: usize) -> &[AtomicU64] {
        let fits = start.checked_add(len).is_some_and(|end| end <= self.words);
        assert!(fits, "{len} words from {start} on are outside a region of {} words", self.words);
        // SAFETY: start <= self.words (checked above), and `base` is valid for that many words of
        // one allocation, so the offset stays inside it.
        let first = unsafe { self.base.add(start) };
        // SAFETY: `len` words from `first` on are in bounds and aligned (the base is, and words are 8 bytes
        // apart). Every bit pattern is a valid AtomicU64, no code makes a plain reference to this memory, and
        // it lives as long as `self`, to which the result is bound.
        unsafe { slice::from_raw_parts(first.as_ptr(), len) }
    }

    /// Asks the system to use large pages, which saves the processor most of its TLB misses. A hint: without
    /// effect where it is unsupported. Takes some 2 ms per MiB; accesses to a page wait until it is moved.
    pub(crate) fn use_large_pages(&self) {
        let page_words = LARGE_PAGE / WORD_BYTES as usize;
        let mut pages = (0..self.words / page_words).map(|page| page * page_words);
        let _ = pages.all(|first| self.use_large_page(first));
    }

    /// Whether asking for more pages makes sense.
    #[cfg(all(target_os = "linux", not(miri), not(loom)))]
    fn use_large_page(&self, first: usize) -> bool {
        let words = self.slice(first, LARGE_PAGE / WORD_BYTES as usize);
        let start = words.as_ptr().cast_mut().cast::<c_void>();
        // SAFETY: the range is mapped (it is one of our slices), and its content does not change.
        let asked = unsafe { libc::madvise(start, LARGE_PAGE, libc::MADV_COLLAPSE) };
        // Other errors are temporary, such as a lack of contiguous memory.
        asked == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EINVAL)
    }

    #[cfg(not(all(target_os = "linux", not(miri), not(loom))))]
    #[expect(clippy::unused_self, reason = "as on Linux")]
    fn use_large_page(&self, _: usize) -> bool {
        false
    }

    /// Whether part of the file is gone, so that words read and written since are worthless.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.guard.as_ref().is_some_and(Guard::is_lost)
    }
}

const LARGE_PAGE: usize = 2 << 20;

/// A mapped file, aligned for large pages, inside a reserved range of addresses.
struct Mapping {
    base: NonNull<u8>,
    reserved: *mut c_void,
    reserved_bytes: usize,
}

impl Mapping {
    fn of(file: &File, bytes: usize, access: Access) -> io::Result<Self> {
        let reserved_bytes = bytes.max(1).saturating_add(LARGE_PAGE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the system's choice.
        let reserved = unsafe {
            libc::mmap(std::ptr::null_mut(), reserved_bytes, libc::PROT_NONE, flags, -1, 0)
        };
        if reserved == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = reserved.map_addr(|address| address.next_multiple_of(LARGE_PAGE));
        let Some(base) = NonNull::new(start.cast::<u8>()) else {
            return Err(io::Error::other("the mapping is at no address"));
        };
        let mapping = Self { base, reserved, reserved_bytes };
        let protection = match access {
            Access::Read => libc::PROT_READ,
            Access::Write => libc::PROT_READ | libc::PROT_WRITE,
        };
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: the `bytes` bytes from `start` on lie within the range reserved above, which nothing else
        // uses; the descriptor is open.
        let mapped = unsafe { libc::mmap(start, bytes, protection, flags, file.as_raw_fd(), 0) };
        if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(mapping) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the reserved range, and all mappings in it, belong to this mapping alone.
        unsafe { libc::munmap(self.reserved, self.reserved_bytes) };
    }
}

/// Prefetches the cache line of word `index`, if the word exists.
#[inline]
pub(crate) fn prefetch(words: &[AtomicU64], index: usize) {
    let Some(word) = words.get(index) else { return };
    #[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let pointer: *const AtomicU64 = word;
        // SAFETY: a prefetch is a hint that cannot fault; x86-64 always has it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(pointer.cast()) };
    }
    #[cfg(all(target_arch = "aarch64", not(miri), not(loom)))]
    {
        let pointer: *const AtomicU64 = word;
        // SAFETY: a prefetch is a hint that cannot fault and touches no register or flag.
        unsafe {
            std::arch::asm!("prfm pstl1keep, [{0}]", in(reg) pointer, options(nostack, preserves_flags));
        }
    }
    #[cfg(any(miri, loom, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = word;
}

/// Prefetches every line of the `len` words from `start` on.
#[inline]
pub(crate) fn prefetch_run(words: &[AtomicU64], start: usize, len: usize) {
    let mut index = start;
    while index < start + len {
        prefetch(words, index);
        index += LINE_WORDS;
    }
    prefetch(words, start + len - 1);
}

/// Words on the heap, so that tests can start from any state, also under Miri.
#[cfg(all(test, not(loom)))]
struct HeapWords(NonNull<[AtomicU64]>);

#[cfg(all(test, not(loom)))]
impl Drop for HeapWords {
    fn drop(&mut self) {
        // SAFETY: the pointer came from Box::leak in Region::heap, and is freed only here.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

#[cfg(all(test, not(loom)))]
impl Region {
    /// A region with a copy of `words`.
    pub(crate) fn heap(words: &[u64]) -> Self {
        let memory: Box<[AtomicU64]> = words.iter().copied().map(AtomicU64::new).collect();
        let memory = NonNull::from(Box::leak(memory));
        let heap = Memory::Heap(HeapWords(memory));
        Self { base: memory.cast(), words: words.len(), guard: None, _memory: heap }
    }

    /// A copy of the words.
    pub(crate) fn words(&self) -> Vec<u64> {
        self.slice(0, self.words).iter().map(crate::memory::sync::get).collect()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::memory::sync::put;

    #[test]
    fn words_are_apart() {
        let region = Region::heap(&[0; 3]);
        put(&region.slice(0, 1)[0], 10);
        put(&region.slice(1, 2)[1], u64::MAX);
        assert_eq!(region.words(), [10, 0, u64::MAX]);
    }

    #[test]
    #[should_panic(expected = "2 words from 2 on are outside a region of 3 words")]
    fn a_run_past_the_end_is_refused() {
        Region::heap(&[0; 3]).slice(2, 2);
    }

    #[test]
    #[should_panic(
        expected = "1 words from 18446744073709551615 on are outside a region of 0 words"
    )]
    fn a_run_past_the_last_address_is_refused() {
        Region::heap(&[]).slice(usize::MAX, 1);
    }

    #[test]
    fn a_prefetch_past_the_end_is_ignored() {
        prefetch_run(Region::heap(&[0; 3]).slice(0, 3), 2, 20);
    }

    #[cfg(not(miri))]
    #[test]
    fn a_mapping_reaches_the_file_and_no_further() {
        let mut file = tempfile::tempfile().unwrap();
        file.set_len(24).unwrap();
        let error = Region::map(&file, 4, Access::Write).err().unwrap();
        assert_eq!(error.to_string(), "found 24 bytes, expected at least 32");

        let region = Region::map(&file, 3, Access::Write).unwrap();
        put(&region.slice(2, 1)[0], 0x0102_0304_0506_0708);
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut file, &mut bytes).unwrap();
        assert_eq!(bytes[16..], [8, 7, 6, 5, 4, 3, 2, 1]);
    }
}
