//! The control file: words about the memory as a whole, and where the seats of writers are.
//!
//! Owns where these words are (docs/store-format.md, "Control file"). What is in a seat is for
//! [`crate::writers::slot`].

use super::region::Region;
use super::sync::{AtomicU64, get};
use crate::format::geometry::WORD_BYTES;

/// Processes that may have a cluster open at once. As many seats are kept for one process each, so that
/// no process can take the last one from another.
pub(crate) const PROCESSES_MAX: u32 = if cfg!(test) { 3 } else { 64 };
/// Threads, of all processes, that may be inside an update at once; more wait for one another. Unit
/// tests, which make control files by the thousand, have few.
pub(crate) const WRITERS_MAX: u64 = if cfg!(miri) {
    4
} else if cfg!(test) {
    8
} else {
    256
};
/// Words of the control file before the seats: a page of header, and a page with a word for each
/// process.
const PROCESSES: usize = 512;
const RESTORING: usize = PROCESSES + 64;
const BOOT: usize = RESTORING + 1;
/// What the processes know of the clock; its meaning is theirs.
const CLOCK: usize = BOOT + 1;
/// Words about the memory as a whole.
const NONCE: usize = RESTORING + 16;
const POISONED: usize = NONCE + 1;
const PASS: usize = NONCE + 2;
const MARK: usize = NONCE + 3;
pub(crate) const WRITERS: usize = 1024;
/// 32 KiB a seat, so 8 MiB in all; only what is used takes memory.
pub(crate) const WRITER_WORDS: usize = if cfg!(loom) { 64 } else { 4096 };
/// The number of words of the control file.
pub(crate) const CONTROL_WORDS: usize = WRITERS + WRITERS_MAX as usize * WRITER_WORDS;
/// The size of the control file in bytes.
pub(crate) const CONTROL_BYTES: u64 = CONTROL_WORDS as u64 * WORD_BYTES;

/// Where the mark is in a lock.
const MARK_BITS: u64 = u64::MAX << 32;

/// What is in a lock that nobody has; `word` is what is in it when somebody has.
#[inline]
pub(crate) const fn unlocked(word: u64) -> u64 {
    word & MARK_BITS
}

/// Not 0 while a process restores the cluster, alone.
pub(crate) fn restoring_word(control: &Region) -> &AtomicU64 {
    &control.slice(RESTORING, 1)[0]
}

/// The boot of the machine in which the memory was made.
pub(crate) fn boot_word(control: &Region) -> &AtomicU64 {
    &control.slice(BOOT, 1)[0]
}

/// A random number that tells this memory from an earlier one of the same cluster; set once it was filled.
pub(crate) fn nonce_word(control: &Region) -> &AtomicU64 {
    &control.slice(NONCE, 1)[0]
}

/// Not 0 once somebody found that the files were changed from outside.
pub(crate) fn poisoned_word(control: &Region) -> &AtomicU64 {
    &control.slice(POISONED, 1)[0]
}

/// The mark of this memory, in the high half; what is in the low half means nothing. All of its locks have it, so
/// that a page that is not as it was made is noticed by whoever needs a lock there.
pub(crate) fn mark_word(control: &Region) -> &AtomicU64 {
    &control.slice(MARK, 1)[0]
}

/// What is in a lock of this memory that nobody has.
#[inline]
pub(crate) fn unlocked_word(control: &Region) -> u64 {
    unlocked(get(mark_word(control)))
}

/// The number of the last pass that is complete in the snapshot.
pub(crate) fn pass_word(control: &Region) -> &AtomicU64 {
    &control.slice(PASS, 1)[0]
}

/// Two words for what the processes know of the clock.
pub(crate) fn clock_words(control: &Region) -> [&AtomicU64; 2] {
    [CLOCK, CLOCK + 1].map(|at| &control.slice(at, 1)[0])
}

/// The word in which process number `process` keeps its process id, for people to read.
pub(crate) fn pid_word(control: &Region, process: u32) -> &AtomicU64 {
    &control.slice(PROCESSES + process as usize, 1)[0]
}
