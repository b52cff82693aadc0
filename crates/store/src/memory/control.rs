//! The control file: words about the memory as a whole, and the position of the writer slots.
//!
//! Owns these positions (docs/internals/store-format.md, "Control file"). The content of a writer slot is for
//! [`crate::writers::slot`].

use super::region::Region;
use super::sync::{AtomicU64, get};
use crate::format::WORD_BYTES;

/// The maximum of processes that have a cluster open. One writer slot is reserved for each, so that no
/// process can take the last one from another.
pub(crate) const PROCESSES_MAX: u32 = if cfg!(test) { 3 } else { 64 };
/// The maximum of threads, over all processes, that are inside an update. Further threads wait. Unit tests
/// create thousands of control files, so theirs are small.
pub(crate) const WRITERS_MAX: u64 = if cfg!(miri) {
    4
} else if cfg!(test) {
    8
} else {
    256
};
/// Words of the control file before the writer slots: a page of header, and a page that starts with a word for each
/// process.
const PROCESSES: usize = 512;
/// Not 0 while a process, alone, restores the cluster.
pub(crate) const RESTORING: usize = PROCESSES + 64;
/// Identifies the boot of the machine during which the memory was created.
pub(crate) const BOOT: usize = RESTORING + 1;
/// The processes' knowledge of the clock; not interpreted here.
const CLOCK: usize = BOOT + 1;
/// A random number that distinguishes this memory from earlier ones of the cluster; set once it is filled.
pub(crate) const NONCE: usize = RESTORING + 16;
/// Not 0 once a process found that the files were changed from outside.
pub(crate) const POISONED: usize = NONCE + 1;
/// The number of the last complete snapshot pass.
pub(crate) const PASS: usize = NONCE + 2;
/// The mark of this memory, in the high half; ignore the low half. All its locks contain the mark, so that a lost or
/// replaced page is noticed as soon as a lock there is needed.
pub(crate) const MARK: usize = NONCE + 3;
pub(crate) const WRITERS: usize = 1024;
/// 32 KiB per slot, 8 MiB in total; only used pages take memory.
pub(crate) const WRITER_WORDS: usize = if cfg!(loom) { 64 } else { 4096 };
pub(crate) const CONTROL_WORDS: usize = WRITERS + WRITERS_MAX as usize * WRITER_WORDS;
pub(crate) const CONTROL_BYTES: u64 = CONTROL_WORDS as u64 * WORD_BYTES;

/// The half of a lock word that holds the mark.
const MARK_BITS: u64 = u64::MAX << 32;

/// The lock word of a free lock, given that of any lock.
#[inline]
pub(crate) const fn unlocked(word: u64) -> u64 {
    word & MARK_BITS
}

/// One of the words about the memory as a whole.
#[inline]
pub(crate) fn word(control: &Region, index: usize) -> &AtomicU64 {
    &control.slice(index, 1)[0]
}

/// The word of a free lock of this memory.
#[inline]
pub(crate) fn unlocked_word(control: &Region) -> u64 {
    unlocked(get(word(control, MARK)))
}

/// See [`crate::Cluster::clock_words`].
pub(crate) fn clock_words(control: &Region) -> [&AtomicU64; 2] {
    [CLOCK, CLOCK + 1].map(|index| word(control, index))
}

/// The word with the process id of process number `process`, for operators.
pub(crate) fn pid_word(control: &Region, process: u32) -> &AtomicU64 {
    word(control, PROCESSES + process as usize)
}
