//! Counts this thread's allocations, so that targets can limit memory by capacity rather than length.
//!
//! The only unsafe code of this crate: an allocator that counts and delegates to the system's.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, counted.
pub(crate) struct Counting;

fn count(bytes: isize) {
    // A terminating thread has no counters any more.
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: every method hands its arguments to the system's allocator unchanged and returns what that
// returns; the counters are plain cells of the thread and allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Allocations since this began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Meter {
    begun: isize,
}

impl Meter {
    pub(crate) fn begin() -> Meter {
        let begun = LIVE.get();
        PEAK.set(begun);
        Meter { begun }
    }

    /// Bytes allocated since this began and not freed.
    pub(crate) fn live(self) -> usize {
        usize::try_from(LIVE.get() - self.begun).unwrap_or(0)
    }

    /// The maximum of live bytes.
    pub(crate) fn peak(self) -> usize {
        usize::try_from(PEAK.get() - self.begun).unwrap_or(0)
    }
}
